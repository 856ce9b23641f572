//! Concurrency limits, as written in the configuration.

use std::num::NonZeroU32;

#[cfg(test)]
use schemars::JsonSchema;
use serde::Deserialize;

use super::Auto;
#[cfg(test)]
use crate::defaults;

/// Maximum number of requests of a key in flight at once.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(untagged)]
pub enum InFlight {
    /// Fixed number, 1 to 4294967295.
    Max(#[cfg_attr(test, schemars(range(min = 1, max = 4_294_967_295_u64)))] NonZeroU32),
    /// Number that adapts to the latency of the upstream.
    Auto(Auto),
    /// Map with `auto`.
    Map(InFlightMap),
}

/// Concurrency limit that adapts to the latency of the upstream, with its bounds.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct InFlightMap {
    /// Bounds of a concurrency limit that adapts to the latency of the upstream.
    #[cfg_attr(test, schemars(required))]
    pub auto: Option<InFlightBounds>,
}

/// Bounds of a concurrency limit that adapts to the latency of the upstream.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct InFlightBounds {
    /// Minimum of the limit, 1 to 4294967295, with which it also starts.
    #[cfg_attr(test, schemars(range(min = 1, max = 4_294_967_295_u64), extend("default" = defaults::MIN_IN_FLIGHT.get())))]
    pub min: Option<NonZeroU32>,
    /// Maximum of the limit, 1 to 4294967295, at least `min`.
    #[cfg_attr(test, schemars(range(min = 1, max = 4_294_967_295_u64), extend("default" = defaults::MAX_IN_FLIGHT.get())))]
    pub max: Option<NonZeroU32>,
}
