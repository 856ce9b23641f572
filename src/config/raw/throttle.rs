//! Treatment of requests over the limit, as written in the configuration.

#[cfg(test)]
use schemars::JsonSchema;
use serde::Deserialize;

use super::values::{Duration, Factor, Percentage, ThrottleWords};
#[cfg(test)]
use crate::config::defaults;

/// Treatment of requests over the limit.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(untagged)]
pub enum Throttle {
    /// Short form, such as `hard` or `delay 500ms`.
    Words(ThrottleWords),
    /// Map with `soft`, `delay`, `wait` or `elastic`.
    Map(ThrottleMap),
}

/// Treatment of requests over the limit: a margin (`soft`), a wait (`delay` or `wait`), or a limit that follows the
/// upstream (`elastic`).
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ThrottleMap {
    /// Margin above the limit within which requests pass with a mark, above 0% and at most 1000%, with at most two
    /// decimals. Requests above the margin are rejected.
    pub soft: Option<Percentage>,
    /// Maximum time that a request over the limit waits for room, at most `1h`. With `soft`, the exact time for which
    /// requests in the margin are held.
    pub delay: Option<Duration>,
    /// Maximum number of requests of a key that wait at once, 1 to 4294967294. Valid with `delay` or `wait`, without
    /// `soft`. Default: as many as `delay` admits, at most 10000.
    #[cfg_attr(test, schemars(range(min = 1, max = 4_294_967_294_u64)))]
    pub queue: Option<u32>,
    /// Alternative way to write `delay`: a map with `max`.
    pub wait: Option<Wait>,
    /// Maximum factor by which the limit grows while the upstream has headroom, above `1x` and at most `100x`, with
    /// at most two decimals.
    pub elastic: Option<Factor>,
}

/// Delay of requests over the limit.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Wait {
    /// Maximum time that a request over the limit waits for room, at most `1h`.
    #[cfg_attr(test, schemars(required))]
    pub max: Option<Duration>,
}

/// Share of keys for which a rule is enforced.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(untagged)]
pub enum Enforce {
    /// Percentage of the keys.
    Share(Percentage),
    /// Map with `share` and `seed`.
    Map(EnforceMap),
}

/// Share of keys for which a rule is enforced, and the text that selects them.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct EnforceMap {
    /// Share of keys for which the rule is enforced, `0%` to `100%`, with at most two decimals.
    #[cfg_attr(test, schemars(required))]
    pub share: Option<Percentage>,
    /// Text that selects the keys for which the rule is enforced; a different text selects different keys.
    #[cfg_attr(test, schemars(extend("default" = defaults::ENFORCE_SEED)))]
    pub seed: Option<String>,
}
