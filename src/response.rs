//! The answers Weir gives itself, and the headers it adds to others' answers.

pub mod fallback;
pub mod ietf;
pub mod rate_limit_headers;
pub mod refusal;

use schemars::JsonSchema;
use serde::Deserialize;

/// How clients are told about limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// When `x-ratelimit-*` (Envoy's draft-03 syntax) is sent.
    pub ratelimit_headers: Visibility,
    /// Whether `RateLimit` and `RateLimit-Policy` (the IETF draft) are sent beside them.
    pub ietf_headers: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { ratelimit_headers: Visibility::Full, ietf_headers: false }
    }
}

/// On which answers rate-limit headers are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Visibility {
    /// On every answer to a limited request.
    #[default]
    Full,
    /// On refusals only.
    Limited,
    /// Never.
    Off,
}
