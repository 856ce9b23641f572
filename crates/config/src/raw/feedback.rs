//! Limits that follow a provider, as written in the configuration.

#[cfg(test)]
use schemars::JsonSchema;
use serde::Deserialize;

use super::cost::OutcomePattern;
use super::values::{OneOrMany, Percentage};
#[cfg(test)]
use crate::defaults;

/// Whether and how the limits of a rule follow the provider.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(untagged)]
pub enum Feedback {
    /// `true`: they follow with the default settings. `false`: they do not.
    Switch(#[cfg_attr(test, schemars(extend("default" = false)))] bool),
    /// Map with settings.
    Map(FeedbackMap),
}

/// How the limits of a rule follow the provider.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct FeedbackMap {
    /// Lower bound of the limit in force, as a share of the limit, `1%` to `100%`.
    #[cfg_attr(test, schemars(extend("default" = defaults::FEEDBACK_MIN.to_string())))]
    pub min: Option<Percentage>,
    /// Maximum part by which rejections by the provider in one period lower the limit in force, `1%` to `90%`. It falls by
    /// twice the part of requests that are rejected.
    #[cfg_attr(test, schemars(extend("default" = defaults::FEEDBACK_DECREASE.to_string())))]
    pub decrease: Option<Percentage>,
    /// Maximum part of the limit by which the limit in force rises in one period of the limit, at least a second and at
    /// most a minute, while the limit is in use and nothing is rejected; `0.1%` to `100%`.
    #[cfg_attr(test, schemars(extend("default" = defaults::FEEDBACK_INCREASE.to_string())))]
    pub increase: Option<Percentage>,
    /// Responses that are rejections, one or a list: status codes (`429`), classes (`5xx`) and ranges, and names of
    /// gRPC statuses. A 503 and `unavailable` always are if they state when to retry. Default: 429 and
    /// `resource_exhausted`.
    pub rejections: Option<OneOrMany<OutcomePattern>>,
    /// Whether headers of responses pause the limit, or let it rise at once: `retry-after`, `ratelimit`, `x-ratelimit-*`
    /// and others.
    #[cfg_attr(test, schemars(extend("default" = true)))]
    pub headers: Option<bool>,
}
