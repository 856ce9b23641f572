//! Treatment of requests over the limit, as written in the configuration.

#[cfg(test)]
use schemars::JsonSchema;
use serde::Deserialize;

use super::rules::KeyPart;
use super::values::{Duration, Factor, OneOrMany, Percentage, ThrottleWords, WaitOrderWords};
#[cfg(test)]
use crate::defaults;
use weir_limiter::wait_queue::pace::PaceMode;

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

/// Treatment of requests over the limit: a margin (`soft`), a computed wait (`delay`), a queue (`wait`), or a limit that
/// follows the upstream (`elastic`).
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
    /// Maximum number of requests of a key that `delay` holds at once, 1 to 4294967294. Valid with `delay`, without
    /// `soft`. Default: as many as `delay` admits, at most 10000.
    #[cfg_attr(test, schemars(range(min = 1, max = 4_294_967_294_u64)))]
    pub queue: Option<u32>,
    /// Queue in which requests over the limit wait for room: a map with `max`, and optionally `queue`, `order`,
    /// `deadline`, `priority` and `status`.
    pub wait: Option<Wait>,
    /// How requests that `wait` admits are spread over time: `even` (at least the limit's interval apart) or `pid` (a
    /// controller spreads them over each window, and uses the whole limit).
    pub pace: Option<PaceMode>,
    /// Maximum factor by which the limit grows while the upstream has headroom, above `1x` and at most `100x`, with
    /// at most two decimals.
    pub elastic: Option<Factor>,
}

/// Queue of requests that wait for room in the limit.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Wait {
    /// Maximum time that a request over the limit waits for room, at most `1h`.
    #[cfg_attr(test, schemars(required))]
    pub max: Option<Duration>,
    /// Maximum number of requests of a key that wait at once, 1 to 1000000.
    #[cfg_attr(test, schemars(range(min = 1, max = 1_000_000), extend("default" = defaults::MAX_WAITING)))]
    pub queue: Option<u32>,
    /// Order of requests with the same priority: `fifo`, `lifo`, `fair by KEY` with a part of a key that needs no name,
    /// or a map with `fair`.
    #[cfg_attr(test, schemars(extend("default" = "fifo")))]
    pub order: Option<WaitOrder>,
    /// Header with the time for which the caller waits for a response, if that is shorter than `max`.
    pub deadline: Option<WaitHeader>,
    /// Header with the urgency of the request, 0 (first) to 7 (last), as in RFC 9218: `u=1` or `1`. 3 without it.
    pub priority: Option<WaitHeader>,
    /// Status code of the response to a request that the limit rejects, because it has waited too long, cannot be
    /// admitted in time, or the queue is full: 429 or 503.
    #[cfg_attr(test, schemars(extend("enum" = [429, 503], "default" = defaults::REJECTION_STATUS)))]
    pub status: Option<u16>,
}

/// Order of waiting requests.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(untagged)]
pub enum WaitOrder {
    /// Short form, such as `lifo` or `fair by client_ip`.
    Words(WaitOrderWords),
    /// Map with `fair`.
    Map(FairOrder),
}

/// Order in which flows take turns.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct FairOrder {
    /// Parts of the key that distinguishes flows, as in `key`. Each flow gets the same share, whatever its number of
    /// requests.
    #[cfg_attr(test, schemars(required))]
    pub fair: Option<OneOrMany<KeyPart>>,
}

/// A header that requests carry.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct WaitHeader {
    /// Name of the header.
    #[cfg_attr(test, schemars(required))]
    pub header: Option<String>,
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
