//! Upstreams as people write them.

use std::num::NonZeroU32;

use schemars::JsonSchema;
use serde::Deserialize;

use super::Auto;
use super::rules::Matcher;
use super::tariff::Refund;
use super::tls::UpstreamTls;
use super::values::{Duration, OneOrMany, OrOff, Percentage, Size, UpstreamAddress};
use crate::config::defaults;
use crate::config::parse::duration_text as shown;
use crate::upstream::settings::Balance;

/// The service beside us.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Upstream {
    /// Only its address.
    Address(UpstreamAddress),
    /// With more to say.
    Map(Box<UpstreamMap>),
}

/// A service to which requests are passed on.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UpstreamMap {
    /// Its name in metrics and logs. That of the only one is `upstream` unless given; in a list, its address.
    pub name: Option<String>,
    /// Which requests it takes, in `upstreams`: every field must hold. Without it, all that are left.
    #[serde(rename = "match")]
    pub matching: Option<Matcher>,
    /// Where it is: one place or several.
    #[schemars(required)]
    pub address: Option<OneOrMany<UpstreamAddress>>,
    /// TLS, where its addresses begin with `https://`.
    pub tls: Option<Box<UpstreamTls>>,
    /// Whether all requests go over HTTP/2, with prior knowledge or as agreed on by TLS; calls of gRPC always do.
    #[schemars(extend("default" = false))]
    pub http2: Option<bool>,
    /// Other protocols that a client may ask for with `upgrade`; after that neither rules nor limits see what is said.
    #[schemars(extend("default" = "websocket"))]
    pub upgrades: Option<OrOff<OneOrMany<String>>>,
    /// Until a connection stands.
    #[schemars(extend("default" = shown(defaults::CONNECT_TIMEOUT)))]
    pub connect_timeout: Option<Duration>,
    /// From the request's last byte to the answer's headers; a body may then flow as long as it moves.
    #[schemars(extend("default" = shown(defaults::UPSTREAM_TIMEOUT)))]
    pub timeout: Option<Duration>,
    /// How long a body may stand still, and an unused connection is kept.
    #[schemars(extend("default" = shown(defaults::UPSTREAM_IDLE_TIMEOUT)))]
    pub idle_timeout: Option<Duration>,
    /// How often names are looked up again.
    #[schemars(extend("default" = shown(defaults::DNS_REFRESH)))]
    pub dns_refresh: Option<Duration>,
    /// Which endpoint takes the next request, where there are several.
    #[schemars(extend("default" = "round_robin"))]
    pub balance: Option<Balance>,
    /// What endpoints are asked beside requests; nothing unless given.
    pub health_check: Option<HealthCheck>,
    /// When an endpoint that fails requests is left out for a while.
    pub outliers: Option<OrOff<OutlierMap>>,
    /// Where a smaller share of the endpoints is healthy, all are used.
    #[schemars(extend("default" = format!("{}%", defaults::PANIC_THRESHOLD)))]
    pub panic_threshold: Option<Percentage>,
    /// How much may be under way at once, all workers together; what is over gets 503.
    pub limits: Option<UpstreamLimits>,
    /// When a request is tried again; without it only where no connection could be made, at another endpoint.
    pub retries: Option<Retries>,
}

/// When a request is tried again.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Retries {
    /// Attempts after the first.
    #[schemars(range(min = 0, max = 10), extend("default" = defaults::RETRIES))]
    pub attempts: Option<u32>,
    /// What is worth one: `connect_failure`, `reset`, `timeout`, and statuses.
    pub retry_on: Option<OneOrMany<Refund>>,
    /// The longest pause before the first of them, and before any.
    #[schemars(extend("default" = "25ms..250ms"))]
    pub backoff: Option<Backoff>,
    /// The share of the requests under way that may be retries, where that is more than `limits.retries`.
    #[schemars(extend("default" = format!("{}%", defaults::RETRY_BUDGET)))]
    pub budget: Option<Percentage>,
    /// For each attempt; without it all attempts share `timeout`.
    pub per_try_timeout: Option<Duration>,
    /// Whether the upstream is told which attempt it is, in `x-envoy-attempt-count`.
    #[schemars(extend("default" = false))]
    pub attempt_count: Option<bool>,
}

/// Two durations, the second not shorter than the first.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("title" = "range of durations", "examples" = ["25ms..250ms"]))]
pub struct Backoff(pub String);

/// How much may be under way at once.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UpstreamLimits {
    /// Open connections.
    #[schemars(range(min = 1, max = 1_000_000), extend("default" = defaults::MOST_UNDER_WAY))]
    pub connections: Option<u32>,
    /// Requests that wait for a connection.
    #[schemars(range(min = 0, max = 1_000_000), extend("default" = defaults::MOST_UNDER_WAY))]
    pub pending: Option<u32>,
    /// Requests.
    #[schemars(range(min = 1, max = 1_000_000), extend("default" = defaults::MOST_UNDER_WAY))]
    pub requests: Option<u32>,
    /// Requests that are being tried again.
    #[schemars(range(min = 0, max = 1_000_000), extend("default" = defaults::MOST_RETRIES))]
    pub retries: Option<u32>,
    /// Requests of one client: `auto` for fewer than four times what is free, once half of them are in use; `false` for
    /// as many as there are.
    #[schemars(extend("default" = "auto"))]
    pub requests_per_client: Option<PerClient>,
    /// What a client must send or take a second to keep a request once half of them are in use; `false` for nothing.
    #[schemars(extend("default" = defaults::MIN_CLIENT_RATE_TEXT))]
    pub min_client_rate: Option<OrOff<Size>>,
}

/// Requests of one client.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum PerClient {
    /// This many.
    Count(#[schemars(range(min = 1, max = 1_000_000))] NonZeroU32),
    /// By what is free.
    Auto(Auto),
    /// `false` for all of them.
    Switch(#[schemars(extend("const" = false))] bool),
}

/// What endpoints are asked to see whether they are well.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HealthCheck {
    /// Target of a GET that must be answered with 200 to 399; without it a connection that stands is enough.
    pub path: Option<String>,
    /// The Host of that GET; the endpoint's address unless given.
    pub host: Option<String>,
    /// Between two checks.
    #[schemars(extend("default" = shown(defaults::CHECK_INTERVAL)))]
    pub interval: Option<Duration>,
    /// For each.
    #[schemars(extend("default" = shown(defaults::CHECK_TIMEOUT)))]
    pub timeout: Option<Duration>,
    /// So many in a row must go well before an endpoint is healthy again.
    #[schemars(range(min = 1, max = 1000), extend("default" = defaults::HEALTHY_AFTER))]
    pub healthy: Option<u32>,
    /// So many in a row must fail before it is not.
    #[schemars(range(min = 1, max = 1000), extend("default" = defaults::UNHEALTHY_AFTER))]
    pub unhealthy: Option<u32>,
}

/// When an endpoint that fails requests is left out for a while.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OutlierMap {
    /// After so many failures in a row.
    #[schemars(range(min = 1, max = 1_000_000), extend("default" = defaults::OUTLIER_FAILURES))]
    pub failures: Option<u32>,
    /// For so long, times the number of times it happened.
    #[schemars(extend("default" = shown(defaults::EJECTION)))]
    pub ejection: Option<Duration>,
    /// At the longest.
    #[schemars(extend("default" = shown(defaults::EJECTION_MAX)))]
    pub ejection_max: Option<Duration>,
    /// So large a share of the endpoints at the most; one may always be, and never the last one.
    #[schemars(extend("default" = format!("{}%", defaults::MAX_EJECTED)))]
    pub max_ejected: Option<Percentage>,
}
