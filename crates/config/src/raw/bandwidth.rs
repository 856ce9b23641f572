//! Limits on the bytes of bodies and tunnels, as written in the configuration.

#[cfg(test)]
use schemars::JsonSchema;
use serde::Deserialize;

use super::values::Size;

/// Maximum rate at which bytes pass.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(untagged)]
pub enum Bandwidth {
    /// Rate of requests, and as much of responses.
    Rate(ByteRate),
    /// Map with `request`, `response` or both.
    Map(BandwidthMap),
}

/// Maximum rates of what clients and upstreams send.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct BandwidthMap {
    /// Maximum rate of what clients send, as a size per period. Default: no maximum.
    pub request: Option<ByteRate>,
    /// Maximum rate of what upstreams send, as a size per period. Default: no maximum.
    pub response: Option<ByteRate>,
    /// Maximum number of bytes that pass at once after a pause, such as `64KiB`. Default: what passes in a second.
    pub burst: Option<Size>,
}

/// A size per period, such as `1MiB/s`. Sizes are in `B`, `KiB`, `MiB` or `GiB`; periods are those of rates.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(transparent)]
#[cfg_attr(test, schemars(extend("title" = "byte rate", "examples" = ["1MiB/s", "512KiB/s"])))]
pub struct ByteRate(pub String);
