//! How long the upstream has for the head of its response, and who set that time.
//!
//! A timeout of the configuration that expires is the upstream's failure. One that the client set is the client's
//! doing: the upstream may have been given no chance at all, so it is neither refunded nor held against the endpoint.

use std::time::Duration;

use super::headers::envoy::Controls;
use crate::upstream::Upstream;

/// Who set a timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SetBy {
    /// The operator, for every request.
    Configuration,
    /// The client, for this request: `grpc-timeout` or a header of Envoy's.
    Client,
}

/// A time limit of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeout {
    /// How long.
    pub time: Duration,
    /// Whose.
    pub set_by: SetBy,
}

impl Timeout {
    /// The one that the configuration sets.
    pub const fn configured(time: Duration) -> Self {
        Self { time, set_by: SetBy::Configuration }
    }

    /// The one that the client asks for.
    pub const fn by_client(time: Duration) -> Self {
        Self { time, set_by: SetBy::Client }
    }
}

/// How long the upstream has for its response: what an internal client asks for, else what the configuration says.
pub(super) fn of_request(upstream: Option<&Upstream>, controls: Option<&Controls>) -> Timeout {
    match controls.and_then(|controls| controls.timeout) {
        Some(time) => Timeout::by_client(time),
        None => Timeout::configured(upstream.map_or(Duration::MAX, |upstream| upstream.settings().timeout)),
    }
}
