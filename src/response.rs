//! Local replies, and the headers that Weir adds to responses.

pub mod fallback;
pub mod grpc_reply;
pub mod ietf;
pub mod rate_limit_headers;
pub mod rejection;

#[cfg(test)]
use schemars::JsonSchema;
use serde::Deserialize;

/// Which rate limit headers responses have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitHeaderSettings {
    /// Which responses have `x-ratelimit-*` headers (Envoy's draft-03 syntax).
    pub ratelimit_headers: Visibility,
    /// Whether responses also have `RateLimit` and `RateLimit-Policy` (the IETF draft).
    pub ietf_headers: bool,
}

impl Default for LimitHeaderSettings {
    fn default() -> Self {
        Self { ratelimit_headers: Visibility::Full, ietf_headers: false }
    }
}

/// Which responses have rate limit headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Visibility {
    /// All responses to requests that a limit applies to.
    #[default]
    Full,
    /// Rejections only.
    Limited,
    /// Never.
    Off,
}
