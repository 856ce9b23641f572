//! Limits of rules, as written in the configuration: a rate, or where requests state it.

#[cfg(test)]
use schemars::JsonSchema;
use serde::Deserialize;

use super::values::Rate;

/// Limit of a rule: a rate, or a map with `from`.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(untagged)]
pub enum LimitValue {
    /// Rate, such as `100/s`.
    Rate(Rate),
    /// Limit that requests state.
    Stated(Box<StatedRate>),
}

/// Limit that requests state. Not valid in `limits`.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct StatedRate {
    /// Where the limit is read: `member` (the `limit` of the member of `plans`), or a map with one of `jwt` and `header`.
    /// The value is a rate, such as `500/min`, or a number, which counts in the period of `default`.
    #[cfg_attr(test, schemars(required))]
    pub from: Option<RateSource>,
    /// Limit of requests that state none, or none that can be read.
    #[cfg_attr(test, schemars(required))]
    pub default: Option<Rate>,
    /// Maximum of what requests state; a higher one is lowered to it. Required with `jwt` and `header`.
    pub max: Option<Rate>,
}

/// Where requests state their limit.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(untagged)]
pub enum RateSource {
    /// `member`.
    Member(MemberWord),
    /// Map with one of `jwt` and `header`.
    Named(NamedRateSource),
}

/// The member of `plans` that sends the request.
#[derive(Clone, Copy, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum MemberWord {
    /// The limit of the member. Needs `plans`.
    Member,
}

/// Where requests state their limit, with its name: exactly one of `jwt` and `header`.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, schemars(extend("minProperties" = 1, "maxProperties" = 1)))]
pub struct NamedRateSource {
    /// Name of a JWT claim, such as `tokens_per_minute`; a dot leads into an object. Needs `jwt`.
    pub jwt: Option<String>,
    /// Name of a request header, which is believed only from peers in `client_ip.trusted_proxies`.
    pub header: Option<String>,
}
