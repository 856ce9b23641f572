//! Why an address of the configuration cannot be listened on: an error at startup, and a problem of a reload.

use std::fmt::Display;
use std::io;

use super::AppError;
use weir_config::reload::UnusableSetting;

/// An address that cannot be bound.
#[derive(Debug)]
pub(super) struct BindError {
    /// Path of the setting, such as `listeners[1].address`.
    key: String,
    /// What failed.
    attempt: String,
    error: io::Error,
}

impl BindError {
    /// Creates the error of the setting at `key`.
    pub(super) fn new(key: impl Into<String>, address: impl Display, error: io::Error) -> Self {
        Self { key: key.into(), attempt: format!("cannot listen on {address}"), error }
    }
}

impl From<BindError> for AppError {
    fn from(BindError { attempt, error, .. }: BindError) -> Self {
        Self::System(attempt, error)
    }
}

impl From<BindError> for UnusableSetting {
    fn from(BindError { key, attempt, error }: BindError) -> Self {
        Self { key, message: format!("{attempt}: {error}") }
    }
}
