//! What the configuration says of an upstream.

use std::num::NonZeroU32;
use std::path::Path;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

/// Where requests go and how long that may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Its name in metrics and logs.
    pub name: Box<str>,
    /// Where; at least one.
    pub addresses: Box<[Address]>,
    /// Whether all requests go over HTTP/2, with prior knowledge.
    pub http2: bool,
    /// Other protocols than HTTP that connections may go over to, in small letters.
    pub upgrades: Box<[Box<str>]>,
    /// Until a connection stands, or one is free.
    pub connect_timeout: Duration,
    /// From the request's last byte to the answer's headers.
    pub timeout: Duration,
    /// How long a body may stand still, and how long an unused connection is kept.
    pub idle_timeout: Duration,
    /// How often names are looked up again.
    pub dns_refresh: Duration,
    /// Which endpoint takes the next request.
    pub balance: Balance,
    /// What endpoints are asked, beside requests; `None` for nothing.
    pub health_check: Option<HealthCheck>,
    /// When an endpoint that fails requests is left out; `None` for never.
    pub outliers: Option<Outliers>,
    /// Where a smaller share of the endpoints than so many percent is healthy, all are used.
    pub panic_threshold: u8,
    /// How much may be under way at once.
    pub limits: Limits,
    /// When a request is tried again.
    pub retries: Retries,
}

/// An upstream's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Over TCP.
    Tcp {
        /// A name or an address, IPv6 without brackets.
        host: Box<str>,
        /// The port.
        port: u16,
    },
    /// Over a Unix socket.
    Unix(Box<Path>),
    /// A built-in answerer for trying things out.
    Echo,
}

/// Which endpoint takes the next request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Balance {
    /// One after the other.
    #[default]
    RoundRobin,
    /// Of two drawn at random the one with fewer requests under way.
    LeastRequest,
}

/// What endpoints are asked to see whether they are well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// Target of a GET, whose answer must be 200 to 399; without it a connection that stands is enough.
    pub path: Option<Box<str>>,
    /// The Host field of that GET; the endpoint's address unless given.
    pub host: Option<Box<str>>,
    /// Between two checks.
    pub interval: Duration,
    /// For each.
    pub timeout: Duration,
    /// So many in a row must go well before an endpoint is healthy again.
    pub healthy: u32,
    /// So many in a row must fail before it is not.
    pub unhealthy: u32,
}

/// When an endpoint that fails requests is left out for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outliers {
    /// After so many failures in a row: answers with a 5xx, and none.
    pub failures: u32,
    /// For so long, times the number of times it happened.
    pub ejection: Duration,
    /// At the longest.
    pub ejection_max: Duration,
    /// So many percent of the endpoints at the most, and never the last one.
    pub max_ejected: u8,
}

/// How much may be under way at once, all workers together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Open connections.
    pub connections: u32,
    /// Requests that wait for one.
    pub pending: u32,
    /// Requests.
    pub requests: u32,
    /// Requests being tried again.
    pub retries: u32,
    /// Requests of one client.
    pub requests_per_client: ClientShare,
    /// Bytes a second that a client must send or take while requests are scarce; `None` for no such minimum.
    pub min_client_rate: Option<NonZeroU32>,
}

/// How many of an upstream's requests one client may have in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientShare {
    /// Fewer than a multiple of those that are still free.
    Auto,
    /// So many.
    Fixed(NonZeroU32),
    /// All of them.
    All,
}

/// When a request is tried again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retries {
    /// Attempts after the first.
    pub attempts: u32,
    /// What is worth one.
    pub on: RetryOn,
    /// The longest pause before the first of them, and before any.
    pub backoff: (Duration, Duration),
    /// So many percent of the requests under way may be retries, where that is more than the limit.
    pub budget: u8,
    /// For each attempt.
    pub per_try_timeout: Option<Duration>,
    /// Whether the upstream is told which attempt it is.
    pub attempt_count: bool,
}

/// What is worth another attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetryOn {
    /// No connection could be made: another endpoint is tried.
    pub connect_failure: bool,
    /// The connection ended before an answer came.
    pub reset: bool,
    /// No answer in the time of one attempt.
    pub timeout: bool,
    /// Answers with a status from the one to the other.
    pub statuses: Box<[(u16, u16)]>,
}

impl RetryOn {
    /// Whether it is an answer with this status.
    pub fn names(&self, status: u16) -> bool {
        self.statuses.iter().any(|(first, last)| (*first..=*last).contains(&status))
    }

    /// Whether it is anything that happens once a request has been sent.
    pub const fn is_more_than_connecting(&self) -> bool {
        self.reset || self.timeout || !self.statuses.is_empty()
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Echo => f.write_str("echo"),
        }
    }
}
