//! One line per request.

use std::path::PathBuf;

/// Where lines go and what they look like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where.
    pub sink: Sink,
    /// How.
    pub format: Format,
}

/// Where access log lines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sink {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// Appended to this file.
    File(PathBuf),
}

/// What an access log line looks like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Envoy's default format string.
    #[default]
    Envoy,
    /// One JSON object per line.
    Json,
}
