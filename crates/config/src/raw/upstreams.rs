//! Upstreams, as written in the configuration.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

#[cfg(test)]
use schemars::JsonSchema;
use serde::Deserialize;

use super::Auto;
use super::cost::OutcomePattern;
use super::in_flight::InFlight;
use super::rules::Matcher;
use super::secret::Secret;
use super::tls::UpstreamTls;
use super::values::{Duration, OneOrMany, OrOff, Percentage, Size, UpstreamAddress};
#[cfg(test)]
use crate::defaults;
#[cfg(test)]
use crate::parse::format_duration as shown;
use weir_upstream::settings::Balance;

/// An upstream: its address, or a map.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(untagged)]
pub enum Upstream {
    /// Address of the upstream.
    Address(UpstreamAddress),
    /// Map with `address` and other keys.
    Map(Box<UpstreamMap>),
}

/// An upstream: a service to which Weir forwards requests.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct UpstreamMap {
    /// Name of the upstream in metrics and logs: visible ASCII without quotes and backslashes, at most 128
    /// characters. In `upstreams` the default is the first address, and names must be unique. Default: `upstream`.
    pub name: Option<String>,
    /// Conditions on the requests that this upstream takes: the fields of a rule's [`match`](matching.md), all of
    /// which must hold. Only valid in `upstreams`. An upstream that an `on_limit.upstream` names may follow one that takes
    /// every request. Default: every request.
    #[serde(rename = "match")]
    pub matching: Option<Matcher>,
    /// Address of the upstream, or a list of addresses: `host:port`, `http://host:port`, `https://host:port` (port
    /// 443 unless given), `unix:/path`, or `echo` for a built-in service that sends each request back as the
    /// response.
    #[cfg_attr(test, schemars(required))]
    pub address: Option<OneOrMany<UpstreamAddress>>,
    /// TLS settings for upstream addresses that begin with `https://`, as a map.
    pub tls: Option<Box<UpstreamTls>>,
    /// Whether all requests to the upstream use HTTP/2: with prior knowledge without TLS, negotiated by ALPN with
    /// TLS. gRPC calls always use HTTP/2.
    #[cfg_attr(test, schemars(extend("default" = false)))]
    pub http2: Option<bool>,
    /// Value of the `Host` header that the upstream receives. Default: the host of the request.
    pub host: Option<String>,
    /// Prefix that is removed from the path before the request is sent to the upstream, such as `/stripe`. A path
    /// without this prefix is not changed. Rules match the path with the prefix.
    pub strip_prefix: Option<String>,
    /// Whether the upstream receives headers about the client: `x-forwarded-for`, `x-forwarded-proto`,
    /// `x-forwarded-client-cert`, `x-envoy-external-address`, `x-envoy-expected-rq-timeout-ms` and a generated
    /// `x-request-id`. Set it to `false` for services of others.
    #[cfg_attr(test, schemars(extend("default" = true)))]
    pub client_headers: Option<bool>,
    /// Headers of requests that are set or removed for this upstream, as a map with `set` and `remove`. See [Request
    /// headers](upstream.md#request-headers).
    pub headers: Option<UpstreamHeaders>,
    /// Protocols that a client may request with `upgrade`, such as `spdy/3.1`: one or a list, or `false` for none.
    /// Protocols that carry HTTP are not valid. With `upstream.http2`, an upgrade needs an upstream that offers
    /// extended CONNECT (RFC 8441).
    #[cfg_attr(test, schemars(extend("default" = "websocket")))]
    pub upgrades: Option<OrOff<OneOrMany<String>>>,
    /// Maximum time to establish a connection, including the TLS handshake. After it, the response is 503. Also the
    /// maximum time for which a request waits for a free connection.
    #[cfg_attr(test, schemars(extend("default" = shown(defaults::CONNECT_TIMEOUT))))]
    pub connect_timeout: Option<Duration>,
    /// Request timeout: maximum time from the last byte of the request to the header section of the response. After
    /// it, the response is 504. The response body may take longer, as long as it makes progress.
    #[cfg_attr(test, schemars(extend("default" = shown(defaults::UPSTREAM_TIMEOUT))))]
    pub timeout: Option<Duration>,
    /// Maximum time for which a body may make no progress in either direction, and for which an unused connection is
    /// kept in the connection pool.
    #[cfg_attr(test, schemars(extend("default" = shown(defaults::UPSTREAM_IDLE_TIMEOUT))))]
    pub idle_timeout: Option<Duration>,
    /// Interval between two DNS lookups of the names in `upstream.address`, randomised by a tenth up or down.
    #[cfg_attr(test, schemars(extend("default" = shown(defaults::DNS_REFRESH))))]
    pub dns_refresh: Option<Duration>,
    /// Load balancing policy: `round_robin`, or `least_request`, which draws two endpoints at random and takes the
    /// one with fewer requests in flight.
    #[cfg_attr(test, schemars(extend("default" = "round_robin")))]
    pub balance: Option<Balance>,
    /// Active health checks: periodic probes of each endpoint, as a map. Without it, there are no probes.
    pub health_check: Option<HealthCheck>,
    /// Outlier detection: ejection of endpoints that fail requests, as a map. `false` turns it off.
    pub outliers: Option<OrOff<OutlierMap>>,
    /// Panic threshold, a whole percentage: if a smaller share of the endpoints is healthy, all of them are used.
    /// `0%` turns it off.
    #[cfg_attr(test, schemars(extend("default" = format!("{}%", defaults::PANIC_THRESHOLD))))]
    pub panic_threshold: Option<Percentage>,
    /// Circuit breaker: maximum connections, requests and retries of the upstream, all workers together, as a map.
    pub limits: Option<UpstreamLimits>,
    /// Maximum number of requests in flight to the upstream, beyond which requests wait: a number from 1 to 4294967295,
    /// `auto` (adapts to the latency of the upstream), or a map with `auto`. See [Classes of requests](classes.md).
    /// Default: `auto` with `classes`, otherwise no maximum but that of `upstream.limits`.
    pub in_flight: Option<InFlight>,
    /// Whether calls that the upstream would reject anyway are rejected here, with a probability that follows from its
    /// responses of the last two minutes. See [Calls that would be rejected](upstream.md#calls-that-would-be-rejected).
    #[cfg_attr(test, schemars(extend("default" = false)))]
    pub adaptive_throttle: Option<bool>,
    /// Retries of failed requests, as a map. Without it, Weir repeats a request only if no connection could be
    /// established, or if the upstream closed a kept connection.
    pub retries: Option<Retries>,
}

/// Retries of failed requests.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Retries {
    /// Maximum number of attempts after the first, from 0 to 10.
    #[cfg_attr(test, schemars(range(min = 0, max = 10), extend("default" = defaults::RETRIES)))]
    pub attempts: Option<u32>,
    /// Conditions for a retry, one or a list: `connect_failure`, `reset`, `timeout` (of one attempt), status codes
    /// such as `503`, `5xx` and `502-504`, and names of gRPC statuses such as `unavailable`. Default:
    /// `connect_failure`, `reset`, 503.
    pub retry_on: Option<OneOrMany<OutcomePattern>>,
    /// Exponential backoff as `FIRST..MAX`: the maximum pause before the first retry, and before any retry. Pauses
    /// are random, from zero up to a maximum that doubles with each retry.
    #[cfg_attr(test, schemars(extend("default" = "25ms..250ms")))]
    pub backoff: Option<Backoff>,
    /// Retry budget, a whole percentage: the share of the requests in flight that may be retries, if that is more
    /// than `upstream.limits.retries`.
    #[cfg_attr(test, schemars(extend("default" = format!("{}%", defaults::RETRY_BUDGET))))]
    pub budget: Option<Percentage>,
    /// Maximum time for each attempt. Without it, all attempts share `upstream.timeout`.
    pub per_try_timeout: Option<Duration>,
    /// Whether Weir sends the number of the attempt to the upstream in `x-envoy-attempt-count`.
    #[cfg_attr(test, schemars(extend("default" = false)))]
    pub attempt_count: Option<bool>,
    /// Whether a request with a header `idempotency-key` may be repeated whatever its method is.
    #[cfg_attr(test, schemars(extend("default" = true)))]
    pub idempotency_key: Option<bool>,
    /// Maximum time for which a retry waits because the response states when to retry. If it states a longer time,
    /// there is no retry.
    #[cfg_attr(test, schemars(extend("default" = shown(defaults::MAX_RETRY_WAIT))))]
    pub max_wait: Option<Duration>,
}

/// Headers of requests that are set or removed for an upstream, after all others.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct UpstreamHeaders {
    /// Headers by name that replace those of the request; values may have the
    /// [placeholders](fallback.md#placeholders) `{client_ip}`, `{request_id}`, `{method}` and `{path}`. Not `host` and
    /// headers that belong to the connection.
    pub set: Option<BTreeMap<String, Secret<String>>>,
    /// Names of headers that the upstream does not receive, one or a list.
    pub remove: Option<OneOrMany<String>>,
}

/// Range of durations as `FIRST..MAX`; `MAX` must be at least `FIRST`.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(transparent)]
#[cfg_attr(test, schemars(extend("title" = "range of durations", "examples" = ["25ms..250ms"])))]
pub struct Backoff(pub String);

/// Circuit breaker: maximum connections, requests and retries of an upstream, all workers together.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct UpstreamLimits {
    /// Maximum number of open connections to the upstream, from 1 to 1000000.
    #[cfg_attr(test, schemars(range(min = 1, max = 1_000_000), extend("default" = defaults::CIRCUIT_BREAKER_MAX)))]
    pub connections: Option<u32>,
    /// Maximum number of requests that wait for a connection, from 0 to 1000000.
    #[cfg_attr(test, schemars(range(min = 0, max = 1_000_000), extend("default" = defaults::CIRCUIT_BREAKER_MAX)))]
    pub pending: Option<u32>,
    /// Maximum number of requests in flight to the upstream, from 1 to 1000000.
    #[cfg_attr(test, schemars(range(min = 1, max = 1_000_000), extend("default" = defaults::CIRCUIT_BREAKER_MAX)))]
    pub requests: Option<u32>,
    /// Maximum number of retries in flight, from 0 to 1000000, unless `upstream.retries.budget` allows more.
    #[cfg_attr(test, schemars(range(min = 0, max = 1_000_000), extend("default" = defaults::MAX_CONCURRENT_RETRIES)))]
    pub retries: Option<u32>,
    /// Maximum number of requests of one client in flight to the upstream, from 1 to 1000000. `auto` is a share that
    /// depends on the [free capacity](upstream.md#fair-sharing-between-clients); `false` is no limit.
    #[cfg_attr(test, schemars(extend("default" = "auto")))]
    pub requests_per_client: Option<PerClient>,
    /// Minimum rate in bytes a second at which a client must send the request body and receive the response body once
    /// more than half of the requests are in use, from 1B to 1MiB. `false` is no minimum.
    #[cfg_attr(test, schemars(extend("default" = defaults::MIN_CLIENT_RATE_TEXT)))]
    pub min_client_rate: Option<OrOff<Size>>,
}

/// Maximum number of requests of one client in flight to an upstream.
#[derive(Clone, Copy, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(untagged)]
pub enum PerClient {
    /// Fixed number, from 1 to 1000000.
    Count(#[cfg_attr(test, schemars(range(min = 1, max = 1_000_000)))] NonZeroU32),
    /// Share that depends on the free capacity.
    Auto(Auto),
    /// `false` for no limit.
    Switch(#[cfg_attr(test, schemars(extend("const" = false)))] bool),
}

/// Active health checks: periodic probes of each endpoint.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct HealthCheck {
    /// Target of the GET request that a probe sends. A status code from 200 to 399 passes. Without a path, a probe
    /// passes if a connection can be established.
    pub path: Option<String>,
    /// Value of the `Host` header in probes. Needs `upstream.health_check.path`. Default: the endpoint's address.
    pub host: Option<String>,
    /// Interval between two probes of an endpoint, randomised by a tenth up or down.
    #[cfg_attr(test, schemars(extend("default" = shown(defaults::HEALTH_CHECK_INTERVAL))))]
    pub interval: Option<Duration>,
    /// Maximum time for one probe.
    #[cfg_attr(test, schemars(extend("default" = shown(defaults::HEALTH_CHECK_TIMEOUT))))]
    pub timeout: Option<Duration>,
    /// Number of consecutive probes that must pass before an unhealthy endpoint receives requests again, from 1 to
    /// 1000.
    #[cfg_attr(test, schemars(range(min = 1, max = 1000), extend("default" = defaults::HEALTHY_THRESHOLD)))]
    pub healthy: Option<u32>,
    /// Number of consecutive probes that must fail before an endpoint receives no more requests, from 1 to 1000. The
    /// very first probe of an endpoint decides alone.
    #[cfg_attr(test, schemars(range(min = 1, max = 1000), extend("default" = defaults::UNHEALTHY_THRESHOLD)))]
    pub unhealthy: Option<u32>,
}

/// Outlier detection: temporary ejection of endpoints that fail requests.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct OutlierMap {
    /// Number of consecutive failures after which an endpoint is ejected, from 1 to 1000000. A failure is a response
    /// with a 5xx status code, or a request without a response.
    #[cfg_attr(test, schemars(range(min = 1, max = 1_000_000), extend("default" = defaults::OUTLIER_CONSECUTIVE_FAILURES)))]
    pub failures: Option<u32>,
    /// Base duration of an ejection, multiplied by the endpoint's number of ejections. That number decreases by one
    /// for each such duration without another ejection.
    #[cfg_attr(test, schemars(extend("default" = shown(defaults::BASE_EJECTION_TIME))))]
    pub ejection: Option<Duration>,
    /// Maximum duration of an ejection; not shorter than `upstream.outliers.ejection`.
    #[cfg_attr(test, schemars(extend("default" = shown(defaults::MAX_EJECTION_TIME))))]
    pub ejection_max: Option<Duration>,
    /// Maximum share of the endpoints that may be ejected at the same time, a whole percentage. One endpoint may
    /// always be ejected, but never the last one.
    #[cfg_attr(test, schemars(extend("default" = format!("{}%", defaults::MAX_EJECTION_PERCENT))))]
    pub max_ejected: Option<Percentage>,
}
