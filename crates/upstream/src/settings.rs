//! Settings of an upstream.

use std::num::NonZeroU32;
use std::path::Path;
use std::time::Duration;

use http::{HeaderName, HeaderValue};
#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::Deserialize;
use weir_limiter::adaptive::AdaptiveRange;
use weir_limiter::classes::ClassShare;
use weir_policy::response::template::Template;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamSettings {
    /// Name in metrics and logs.
    pub name: Box<str>,
    /// Addresses; at least one.
    pub addresses: Box<[UpstreamAddress]>,
    /// Whether all requests use HTTP/2 with prior knowledge.
    pub http2: bool,
    /// Protocols to which connections may be upgraded, in lower case.
    pub upgrades: Box<[Box<str>]>,
    /// Maximum time until a connection is established or becomes available.
    pub connect_timeout: Duration,
    /// Maximum time from the last byte of the request to the response's header section.
    pub timeout: Duration,
    /// Maximum pause within a body, and maximum time an unused connection is kept.
    pub idle_timeout: Duration,
    /// Time between resolutions of names.
    pub dns_refresh: Duration,
    /// Load balancing policy.
    pub balance: Balance,
    /// Active health checks, if configured.
    pub health_check: Option<HealthCheck>,
    /// Outlier detection, if configured.
    pub outliers: Option<Outliers>,
    /// Percentage of healthy endpoints below which all endpoints are used (panic threshold).
    pub panic_threshold: u8,
    /// Maximums of the circuit breaker.
    pub limits: CircuitBreakerLimits,
    /// Whether calls that it would reject anyway are not sent.
    pub has_adaptive_throttle: bool,
    /// Maximum number of requests in flight beyond which requests wait; `None` for none.
    pub concurrency: Option<SlotSettings>,
    /// Retry policy.
    pub retries: Retries,
    /// How the head of a request is changed.
    pub rewrite: HeadRewrite,
    /// Whether the server name of TLS is the host of each request, and not that of the address.
    pub server_name_from_host: bool,
}

/// Maximum number of requests in flight to an upstream, and the classes that share it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotSettings {
    /// Bounds of the maximum, which adapts to the latency; both the same if it is fixed.
    pub range: AdaptiveRange,
    /// Names and shares of the classes, in the order of their positions.
    pub classes: Box<[(Box<str>, ClassShare)]>,
}

impl SlotSettings {
    /// Creates a maximum that classes have yet to share.
    pub fn new(range: AdaptiveRange) -> Self {
        Self { range, classes: Box::default() }
    }
}

/// How the head of a request is changed before it is sent to an upstream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeadRewrite {
    /// Value of `Host` in place of the received one.
    pub host: Option<HeaderValue>,
    /// Prefix that is removed from the path: begins with a slash and does not end with one.
    pub strip_prefix: Option<Box<str>>,
    /// Whether headers about the client are left out.
    pub hides_client: bool,
    /// Headers that are set or removed.
    pub headers: HeaderChanges,
}

/// Headers that are set or removed before a request is sent to an upstream, after all others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderChanges {
    /// Headers that are removed.
    pub remove: Box<[HeaderName]>,
    /// Headers that replace those of the same name.
    pub set: Box<[(HeaderName, HeaderText)]>,
}

/// Value of a header that is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderText {
    Fixed(HeaderValue),
    /// It has placeholders.
    Template(Template),
}

impl HeaderChanges {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.set.is_empty()
    }

    /// Whether any value depends on the request.
    pub fn has_templates(&self) -> bool {
        self.set.iter().any(|(_, text)| matches!(text, HeaderText::Template(_)))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpstreamAddress {
    Tcp {
        /// Name or address; an IPv6 address is without brackets.
        host: Box<str>,
        port: u16,
    },
    /// Unix socket.
    Unix(Box<Path>),
    /// Built-in echo service, for trying things out.
    Echo,
}

/// Load balancing policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Balance {
    /// Endpoints in turn.
    #[default]
    RoundRobin,
    /// The one of two random endpoints with fewer requests in flight.
    LeastRequest,
}

/// Settings of active health checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// Target of a GET request, whose status code must be 200 to 399. Without it, an established connection is enough.
    pub path: Option<Box<str>>,
    /// Host header of the request; the endpoint's address unless set.
    pub host: Option<Box<str>>,
    /// Time between two checks.
    pub interval: Duration,
    /// Timeout of each check.
    pub timeout: Duration,
    /// Number of consecutive successes after which an endpoint is healthy.
    pub healthy: u32,
    /// Number of consecutive failures after which an endpoint is unhealthy.
    pub unhealthy: u32,
}

/// Settings of outlier detection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outliers {
    /// Number of consecutive failures that eject an endpoint: 5xx responses, and missing responses.
    pub failures: u32,
    /// Duration of the first ejection; multiplied by the number of recent ejections.
    pub ejection: Duration,
    /// Maximum duration.
    pub ejection_max: Duration,
    /// Maximum percentage of ejected endpoints. The last endpoint is never ejected.
    pub max_ejected: u8,
}

/// Maximums of the circuit breaker, for all workers together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CircuitBreakerLimits {
    /// Maximum number of open connections.
    pub connections: u32,
    /// Maximum number of requests waiting for a connection.
    pub pending: u32,
    /// Maximum number of requests in flight.
    pub requests: u32,
    /// Maximum number of concurrent retries.
    pub retries: u32,
    /// Maximum number of requests of one client.
    pub requests_per_client: ClientShare,
    /// Minimum transfer rate of a client while capacity is scarce, in bytes per second; `None` for no minimum.
    pub min_client_rate: Option<NonZeroU32>,
}

/// Maximum share of one client in an upstream's requests in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientShare {
    /// Less than a multiple of the free capacity.
    Auto,
    Fixed(NonZeroU32),
    /// The whole capacity.
    All,
}

/// Retry policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retries {
    /// Maximum number of attempts after the first.
    pub attempts: u32,
    /// Failures after which a request is retried.
    pub on: RetryOn,
    /// Maximum pause before the first retry, and before any retry.
    pub backoff: (Duration, Duration),
    /// Percentage of the requests in flight that may be retries (retry budget), if that is more than the limit.
    pub budget: u8,
    /// Timeout of each attempt.
    pub per_try_timeout: Option<Duration>,
    /// Whether to send the number of the attempt to the upstream.
    pub attempt_count: bool,
    /// Whether a request with an `idempotency-key` may be repeated whatever its method is.
    pub idempotency_key: bool,
    /// Maximum time for which a retry waits because the upstream asks for it.
    pub max_wait: Duration,
}

/// Failures after which a request is retried.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetryOn {
    /// The connection could not be established.
    pub connect_failure: bool,
    /// The connection ended before a response.
    pub reset: bool,
    /// An attempt timed out.
    pub timeout: bool,
    /// Responses with a status code in any of these inclusive ranges.
    pub statuses: Box<[(u16, u16)]>,
    /// gRPC status codes, if the response consists only of a head.
    pub grpc_codes: Box<[u8]>,
}

impl RetryOn {
    /// Whether a response with this status code is retried.
    pub fn matches_status(&self, status: u16) -> bool {
        self.statuses.iter().any(|(first, last)| (*first..=*last).contains(&status))
    }

    /// Whether it includes failures after the request was sent.
    pub const fn covers_sent_requests(&self) -> bool {
        self.reset || self.timeout || !self.statuses.is_empty() || !self.grpc_codes.is_empty()
    }
}

impl UpstreamAddress {
    /// Returns the name or address of a TCP endpoint.
    pub fn host(&self) -> Option<&str> {
        match self {
            Self::Tcp { host, .. } => Some(host),
            Self::Unix(_) | Self::Echo => None,
        }
    }
}

impl std::fmt::Display for UpstreamAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Echo => f.write_str("echo"),
        }
    }
}
