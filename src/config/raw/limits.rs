//! What clients may take, as people write it.

use std::num::{NonZeroU32, NonZeroUsize};

use schemars::JsonSchema;
use serde::Deserialize;

use super::Auto;
use super::values::Size;
use crate::config::defaults;

/// What a connection and a request may take.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListenerLimits {
    /// The bytes of a request's head; above it the answer is 431.
    #[schemars(extend("default" = defaults::HEADER_SIZE_TEXT))]
    pub header_size: Option<Size>,
    /// The fields of a request's head; above it the answer is 431.
    #[schemars(range(min = 10, max = 1000), extend("default" = defaults::MOST_HEADERS))]
    pub headers: Option<u32>,
    /// The requests that a connection of HTTP/2 may have under way.
    #[schemars(range(min = 1, max = 10_000), extend("default" = defaults::MOST_STREAMS))]
    pub streams: Option<u32>,
}

/// How much may be under way in all.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Overload {
    /// Connections of clients; `auto` is half of the descriptors that the process may have.
    #[schemars(extend("default" = "auto"))]
    pub connections: Option<Connections>,
    /// Connections of one client, IPv6 addresses by `client_ip.ipv6_prefix`; no bound unless given.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub connections_per_client: Option<NonZeroU32>,
    /// Requests under way, those that a limit holds back among them; no bound unless given.
    #[schemars(range(min = 1, max = 100_000_000))]
    pub requests: Option<NonZeroUsize>,
    /// Resident memory from which on requests are turned away: a size, or a percentage of what the container has; no
    /// bound unless given.
    pub memory: Option<Memory>,
}

/// Connections of clients.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Connections {
    /// This many.
    Count(#[schemars(range(min = 1, max = 100_000_000))] NonZeroUsize),
    /// By the descriptors.
    Auto(Auto),
}

/// A size or a percentage.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("title" = "size or percentage", "examples" = ["400MiB", "90%"]))]
pub struct Memory(pub String);
