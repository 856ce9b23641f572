//! The `try_files` of a location.

use super::syntax::{Directive, Place};

/// The last parameter of a `try_files`.
#[derive(Clone, Debug)]
pub(super) struct TryFiles {
    pub(super) target: String,
    pub(super) place: Place,
}

impl TryFiles {
    /// Returns where requests go that are not for a file.
    pub(super) fn from_directives(directives: &[Directive]) -> Option<Self> {
        let directive = directives.iter().find(|one| one.name == "try_files" && one.arguments.len() > 1)?;
        let target = directive.arguments.last().filter(|target| !target.starts_with('='))?;
        Some(Self { target: target.clone(), place: directive.place.clone() })
    }
}
