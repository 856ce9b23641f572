//! Local replies, and the headers that Weir adds to responses.

pub mod cors;
pub mod dynamic_reply;
pub mod fallback;
pub mod grpc_reply;
pub mod ietf;
pub mod problem;
pub mod rate_limit_headers;
pub mod rejection;
pub mod request_details;
pub mod template;

use http::HeaderName;
#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::Deserialize;

use self::ietf::{RATELIMIT, RATELIMIT_POLICY};
use self::rate_limit_headers::{
    X_RATELIMIT_LIMIT, X_RATELIMIT_REMAINING, X_RATELIMIT_RESET, X_WEIR_CHARGED, X_WEIR_OVER_LIMIT,
};
use self::rejection::X_ENVOY_RATELIMITED;

/// Headers about limits whose names are fixed. No other header may have one of these names.
pub const FIXED_HEADERS: [HeaderName; 5] =
    [RATELIMIT, RATELIMIT_POLICY, X_WEIR_OVER_LIMIT, X_WEIR_CHARGED, X_ENVOY_RATELIMITED];

/// Which rate limit headers responses have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitHeaderSettings {
    /// Which responses have `x-ratelimit-*` headers (Envoy's draft-03 syntax).
    pub ratelimit_headers: Visibility,
    /// Whether responses also have `RateLimit` and `RateLimit-Policy` (the IETF draft).
    pub ietf_headers: bool,
    /// Names and form of the `x-ratelimit-*` headers.
    pub names: LimitHeaderNames,
}

impl Default for LimitHeaderSettings {
    fn default() -> Self {
        Self { ratelimit_headers: Visibility::Full, ietf_headers: false, names: LimitHeaderNames::default() }
    }
}

impl LimitHeaderSettings {
    /// Yields the headers about limits that responses may have.
    pub fn sent_headers(&self) -> impl Iterator<Item = HeaderName> + use<> {
        let LimitHeaderNames { limit, remaining, reset, .. } = &self.names;
        let shown =
            (self.ratelimit_headers != Visibility::Off).then(|| [limit, remaining, reset].map(Clone::clone));
        let ietf = self.ietf_headers.then_some([RATELIMIT, RATELIMIT_POLICY]);
        shown.into_iter().flatten().chain(ietf.into_iter().flatten())
    }
}

/// Names of the headers with a limit, and the form of its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitHeaderNames {
    pub limit: HeaderName,
    /// Header with the remaining units.
    pub remaining: HeaderName,
    /// Header with the time until the quota is whole, in seconds.
    pub reset: HeaderName,
    pub form: LimitForm,
}

impl Default for LimitHeaderNames {
    fn default() -> Self {
        Self {
            limit: X_RATELIMIT_LIMIT,
            remaining: X_RATELIMIT_REMAINING,
            reset: X_RATELIMIT_RESET,
            form: LimitForm::default(),
        }
    }
}

/// Form of the value of `x-ratelimit-limit`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum LimitForm {
    /// The limit, and all limits with their windows, as Envoy writes them: `10, 10;w=1;name="per-ip"`.
    #[default]
    Draft,
    /// The number alone: `10`.
    Plain,
}

/// Which responses have rate limit headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
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
