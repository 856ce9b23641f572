//! A position together with the diagnostics of its configuration, so that functions that read a value take one argument
//! for both.

use std::fmt;

use super::config_path::ConfigPath;
use super::diagnostic::{Diagnostic, Diagnostics, ValueError};

/// A position in the configuration at which problems can be reported.
#[derive(Clone, Copy, Debug)]
pub(super) struct At<'a> {
    path: ConfigPath<'a>,
    report: &'a Diagnostics<'a>,
}

impl<'a> At<'a> {
    pub(super) const fn new(path: ConfigPath<'a>, report: &'a Diagnostics<'a>) -> Self {
        Self { path, report }
    }

    /// Returns the position of the value of `key` in this map.
    pub(super) const fn key(&'a self, key: &'a str) -> Self {
        Self { path: self.path.key(key), report: self.report }
    }

    /// Returns the position of the item at `index` of this list.
    pub(super) const fn item(&'a self, index: usize) -> Self {
        Self { path: self.path.item(index), report: self.report }
    }

    /// Returns the position of a single value that stands for a list.
    pub(super) const fn single_item(&'a self) -> Self {
        Self { path: self.path.single_item(), report: self.report }
    }

    /// Reports a problem of the value, or a value missing from it.
    pub(super) fn error(&self, error: impl Into<ValueError>) {
        self.report.add_value_error(self.path, error);
    }

    /// Reports a problem of the key.
    pub(super) fn key_error(&self, error: impl Into<ValueError>) {
        self.report.add_key_error(self.path, error);
    }

    /// Reports that `key` of this map has no meaning under a condition, such as "without `path`".
    pub(super) fn inapplicable_key(&self, key: &str, condition: impl Into<ValueError>) {
        let ValueError { message, hint } = condition.into();
        let message = format!("`{key}` has no meaning {message}");
        self.key(key).key_error(ValueError { message, hint });
    }

    /// Reports a note on the valid value.
    pub(super) fn note(&self, note: impl Into<ValueError>) {
        self.report.add_note(self.path, note);
    }

    /// Reports a problem or a note on another file, which the value names.
    pub(super) fn diagnostic(&self, problem: Diagnostic) {
        self.report.add_diagnostic(self.path, problem);
    }

    /// Returns the value; reports an error and returns `None`.
    pub(super) fn ok<T>(&self, result: Result<T, impl Into<ValueError>>) -> Option<T> {
        self.report.ok_or_report(self.path, result)
    }

    /// Whether a problem at or below this position has been reported.
    pub(super) fn is_reported(&self) -> bool {
        self.report.is_reported(self.path)
    }

    /// Returns the place of the value, for other messages: `line 12`, or the file and the line.
    pub(super) fn place(&self) -> String {
        self.report.place_of(self.path)
    }
}

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.fmt(f)
    }
}
