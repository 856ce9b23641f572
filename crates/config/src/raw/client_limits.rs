//! Limits of listeners and overload protection, as written in the configuration.

use std::num::{NonZeroU32, NonZeroUsize};

#[cfg(test)]
use schemars::JsonSchema;
use serde::Deserialize;

use super::Auto;
use super::values::Size;
#[cfg(test)]
use crate::defaults;

/// Limits on the header section of a request and on the streams of a connection.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ListenerLimits {
    /// Maximum size of a request's header section in bytes, from 4KiB to 1MiB. The response to a larger one is 431.
    #[cfg_attr(test, schemars(extend("default" = defaults::MAX_HEADER_SIZE_TEXT)))]
    pub header_size: Option<Size>,
    /// Maximum number of header fields in a request, from 10 to 1000. The response to a request with more is 431.
    #[cfg_attr(test, schemars(range(min = 10, max = 1000), extend("default" = defaults::MAX_HEADERS)))]
    pub headers: Option<u32>,
    /// Maximum number of requests in flight on one HTTP/2 connection, from 1 to 10000. Streams beyond it are rejected
    /// with `REFUSED_STREAM`, which clients may retry.
    #[cfg_attr(test, schemars(range(min = 1, max = 10_000), extend("default" = defaults::MAX_CONCURRENT_STREAMS)))]
    pub streams: Option<u32>,
}

/// Overload protection: maximum connections, requests and memory of the process.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Overload {
    /// Maximum number of open connections from clients, from 1 to 100000000. `auto` is half of the file descriptors
    /// that the process may have.
    #[cfg_attr(test, schemars(extend("default" = "auto")))]
    pub connections: Option<Connections>,
    /// Maximum number of open connections from one client, from 1 to 1000000. Not above `overload.connections`.
    #[cfg_attr(test, schemars(range(min = 1, max = 1_000_000)))]
    pub connections_per_client: Option<NonZeroU32>,
    /// Maximum number of requests in flight in the process, from 1 to 100000000. The response to further requests is
    /// 503.
    #[cfg_attr(test, schemars(range(min = 1, max = 100_000_000)))]
    pub requests: Option<NonZeroUsize>,
    /// Resident memory from which on the response to requests is 503: a size of at least 1MiB, a whole percentage of the
    /// memory of the container, or else of the machine, or `disabled`. `auto` is 90% of the container's limit, if it has
    /// one.
    #[cfg_attr(test, schemars(extend("default" = "auto")))]
    pub memory: Option<Memory>,
    /// Maximum memory of responses that clients do not read, of all connections together: a size of at least 1MiB. `auto`
    /// is an eighth of the memory, at least 8MiB and at most 64MiB.
    #[cfg_attr(test, schemars(extend("default" = "auto")))]
    pub unsent: Option<Memory>,
    /// Maximum memory of requests that wait for room in limits, of all keys together: a size of at least 1MiB. `auto` is
    /// an eighth of the memory, at least 8MiB and at most 64MiB.
    #[cfg_attr(test, schemars(extend("default" = "auto")))]
    pub waiting: Option<Memory>,
}

/// Maximum number of open connections.
#[derive(Clone, Copy, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(untagged)]
pub enum Connections {
    /// Fixed number, from 1 to 100000000.
    Count(#[cfg_attr(test, schemars(range(min = 1, max = 100_000_000)))] NonZeroUsize),
    /// Share of the file descriptors that the process may have.
    Auto(Auto),
}

/// A size in bytes with its unit, or a whole percentage of the memory.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(transparent)]
#[cfg_attr(test, schemars(extend("title" = "size or percentage", "examples" = ["400MiB", "90%"])))]
pub struct Memory(pub String);
