//! The configuration: raw as people write it, compiled as the program uses it.

use std::net::SocketAddr;
use std::num::NonZeroUsize;

use crate::response::refusal::Refusal;
use crate::rules::rule::Rule;
use crate::telemetry::access_log;
use crate::{drain, identify, listener, response, upstream};

/// A valid configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where clients connect; at least one.
    pub listeners: Vec<listener::Settings>,
    /// Worker threads.
    pub workers: NonZeroUsize,
    /// The service beside us.
    pub upstream: upstream::Settings,
    /// The admin port.
    pub admin: AdminSettings,
    /// The access log; `None` when disabled.
    pub access_log: Option<access_log::Settings>,
    /// How the process ends.
    pub drain: drain::Settings,
    /// Counters the limiter has room for.
    pub max_keys: usize,
    /// Whom to believe about the client's address.
    pub identify: identify::Settings,
    /// What clients are told about limits.
    pub response: response::Settings,
    /// The rules, in file order.
    pub rules: Vec<Rule>,
    /// What each rule answers when it refuses, beside `rules`.
    pub refusals: Vec<Refusal>,
}

/// The operators' entrance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminSettings {
    /// Everything.
    pub address: SocketAddr,
    /// Only `GET /ready` and `/metrics`.
    pub probes: Option<SocketAddr>,
    /// Whether the configuration names the address: a default that is taken is a warning, not a failed start.
    pub explicit: bool,
}
