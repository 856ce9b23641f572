//! Why a command of the admin port is rejected.

use std::fmt;

use http::StatusCode;

use weir_config::diagnostic::ValueError;
use weir_config::parse;
use weir_policy::engine::overrides::OverrideError;

/// Why a command is rejected.
#[derive(Debug)]
pub(super) struct CommandError {
    pub(super) status: StatusCode,
    pub(super) problem: String,
}

impl CommandError {
    pub(super) fn bad_request(problem: impl fmt::Display) -> Self {
        Self { status: StatusCode::BAD_REQUEST, problem: problem.to_string() }
    }

    pub(super) fn unavailable(problem: impl Into<String>) -> Self {
        Self { status: StatusCode::SERVICE_UNAVAILABLE, problem: problem.into() }
    }

    pub(super) fn not_found(problem: impl Into<String>) -> Self {
        Self { status: StatusCode::NOT_FOUND, problem: problem.into() }
    }

    /// Says `problem`, and which of the `known` names is the nearest to the one `given`.
    pub(super) fn unknown_name<'a>(
        problem: impl fmt::Display,
        given: &str,
        known: impl IntoIterator<Item = &'a str> + Clone,
    ) -> Self {
        let hint = parse::nearest_name(given, known);
        let hint = hint.map(|name| format!(", did you mean `{name}`?")).unwrap_or_default();
        Self::not_found(format!("{problem}{hint}"))
    }

    /// Says why the value of `parameter` is invalid.
    pub(super) fn invalid(parameter: &str, ValueError { message, hint }: &ValueError) -> Self {
        let hint = hint.as_ref().map(|hint| format!(" ({hint})")).unwrap_or_default();
        Self::bad_request(format!("{parameter}: {message}{hint}"))
    }
}

impl From<OverrideError> for CommandError {
    fn from(error: OverrideError) -> Self {
        let status = match error {
            OverrideError::Full => StatusCode::CONFLICT,
            OverrideError::NoLimits
            | OverrideError::Remote
            | OverrideError::SeveralLimits
            | OverrideError::TooLow(_)
            | OverrideError::TooLarge => StatusCode::BAD_REQUEST,
        };
        Self { status, problem: error.to_string() }
    }
}
