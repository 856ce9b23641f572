//! Rate limit service for Envoy, as written in the configuration.

use std::collections::BTreeMap;

#[cfg(test)]
use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    Address, Backoff, Connections, Duration, OneOrMany, Percentage, ScopeWord, Secret, Size, Tls,
    UpstreamAddress, UpstreamTls,
};
#[cfg(test)]
use crate::defaults;
#[cfg(test)]
use crate::parse::format_duration as shown;
use weir_policy::rules::shared_limit::{Fairness, Mode, OnStoreLoss};
use weir_rls::settings::{Counting, Smoothing};
use weir_telemetry::statsd::StatsdProtocol;

/// Rate limit service for Envoy, compatible with envoyproxy/ratelimit.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Rls {
    /// Address of the gRPC port: an IP address or `localhost` and a port, or `unix:/path`.
    #[cfg_attr(test, schemars(required))]
    pub address: Option<Address>,
    /// Address of the HTTP port for `POST /json` and `GET /healthcheck`: an IP address or `localhost`, and a port.
    pub http: Option<Address>,
    /// Address of the HTTP port that serves the rules at `/rlconfig` and the statistics at `/stats`: an IP address or
    /// `localhost`, and a port.
    pub debug: Option<Address>,
    /// HTTP port with the statistics of the service for Prometheus, as a map. The admin port always has them, too.
    pub prometheus: Option<RlsPrometheus>,
    /// statsd server to which the statistics of the service are sent, as a map.
    pub statsd: Option<Statsd>,
    /// TLS termination on the gRPC port, as a map. Without it, connections are not encrypted.
    pub tls: Option<Box<Tls>>,
    /// Names of which a client's certificate must have one, one or a list. Needs `rls.tls.client_ca`.
    pub client_names: Option<OneOrMany<String>>,
    /// Source of the rules in the format of envoyproxy/ratelimit, as a map with either `directory` or `xds`.
    pub config: Option<RlsConfig>,
    /// Scope of the limits in the service's documents: `local` for this process, or `shared` for [all instances
    /// together](../rate-limit-service.md#several-instances); or a map with settings of the latter. Needs a `store`
    /// unless `local`. Default: `shared` with a `store`, else `local`.
    pub scope: Option<RlsScope>,
    /// Units that a request over a limit is charged: `everything` charges all its limits, `only_over` those that are
    /// exceeded, and `all_or_nothing` none.
    #[cfg_attr(test, schemars(extend("default" = "everything")))]
    pub counting: Option<Counting>,
    /// Settings of single domains: a map from the name of a domain to a map with `counting`, as in `rls.counting`,
    /// and `algorithm`, which is `fixed_window` or `gcra`.
    pub domains: Option<BTreeMap<String, RlsDomain>>,
    /// Whether the whole service runs in shadow mode: it counts every request, and the overall code of every response
    /// is OK.
    #[cfg_attr(test, schemars(extend("default" = false)))]
    pub shadow_mode: Option<bool>,
    /// Whether every limit is one of several quotas: a request is rejected only if all of them are exceeded.
    #[cfg_attr(test, schemars(extend("default" = false)))]
    pub quota_mode: Option<bool>,
    /// Share of a limit from which on hits are counted as near the limit, a percentage with up to two decimals.
    #[cfg_attr(test, schemars(extend("default" = defaults::NEAR_LIMIT)))]
    pub near_limit: Option<Percentage>,
    /// Whether the service makes Envoy add rate limit headers to responses: `true`, `false`, or a map with the names
    /// of the headers.
    #[cfg_attr(test, schemars(extend("default" = false)))]
    pub response_headers: Option<ResponseHeaders>,
    /// Whether responses of the service carry dynamic metadata.
    #[cfg_attr(test, schemars(extend("default" = false)))]
    pub dynamic_metadata: Option<bool>,
    /// Whether the service is healthy while it has no rules yet.
    #[cfg_attr(test, schemars(extend("default" = false)))]
    pub healthy_without_rules: Option<bool>,
    /// Whether the service is healthy while its rules have no domain.
    #[cfg_attr(test, schemars(extend("default" = true)))]
    pub healthy_without_domains: Option<bool>,
    /// Lifetime and number of gRPC connections, as a map.
    pub connections: Option<RlsConnections>,
}

/// statsd server to which statistics are sent.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Statsd {
    /// Address of the statsd server as `host:port`.
    #[cfg_attr(test, schemars(required))]
    pub address: Option<String>,
    /// Protocol of the statsd server: `udp`, `tcp`, or `dogstatsd`, which is UDP with tags as DogStatsD reads them.
    #[cfg_attr(test, schemars(extend("default" = "udp")))]
    pub protocol: Option<StatsdProtocol>,
    /// Interval between two transmissions to the statsd server.
    #[cfg_attr(test, schemars(extend("default" = shown(defaults::STATSD_INTERVAL))))]
    pub interval: Option<Duration>,
    /// Map of tags that are appended to every metric name, as `.__NAME=VALUE`, or with `dogstatsd` as `#NAME:VALUE`.
    pub tags: Option<BTreeMap<String, String>>,
}

/// HTTP port with statistics for Prometheus.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RlsPrometheus {
    /// Address of the HTTP port for Prometheus: an IP address or `localhost`, and a port.
    #[cfg_attr(test, schemars(required))]
    pub address: Option<Address>,
    /// Path of the statistics on the HTTP port for Prometheus. It begins with `/`.
    #[cfg_attr(test, schemars(extend("default" = defaults::METRICS_PATH)))]
    pub path: Option<String>,
}

/// Source of the rules in the format of envoyproxy/ratelimit: a directory or a management server.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RlsConfig {
    /// Directory with files of rules, relative to the configuration file. Weir reads every file in it and in its
    /// subdirectories, and reads them again when one changes.
    pub directory: Option<String>,
    /// Management server that sends the rules by xDS, in place of `rls.config.directory`, as a map.
    pub xds: Option<RlsXds>,
    /// Prefix that a file's path below the directory must have to be read, with `.` in place of `/`. Default: every
    /// file.
    pub prefix: Option<String>,
    /// Whether Weir reads files whose names begin with a full stop. It never reads names that begin with two, because
    /// a Kubernetes ConfigMap keeps old versions there.
    #[cfg_attr(test, schemars(extend("default" = false)))]
    pub dotfiles: Option<bool>,
    /// Whether several files may define the same domain.
    #[cfg_attr(test, schemars(extend("default" = false)))]
    pub merge_domains: Option<bool>,
    /// Whether a failure to load the rules from `rls.config.directory` is an error. If `false`, Weir starts without
    /// rules.
    #[cfg_attr(test, schemars(extend("default" = true)))]
    pub required: Option<bool>,
}

/// Management server that sends the rules by xDS (aggregated discovery service).
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RlsXds {
    /// Address of the management server: `host:port`, `http://host:port`, `https://host:port` (port 443 unless
    /// given), or `unix:/path`.
    #[cfg_attr(test, schemars(required))]
    pub address: Option<UpstreamAddress>,
    /// TLS settings for a management server whose address begins with `https://`, as a map.
    pub tls: Option<Box<UpstreamTls>>,
    /// Node ID that Weir sends to the management server.
    #[cfg_attr(test, schemars(extend("default" = defaults::XDS_NODE_ID)))]
    pub node: Option<String>,
    /// Map of node metadata that Weir sends to the management server, from names to texts.
    pub metadata: Option<BTreeMap<String, String>>,
    /// Map of headers that are sent when the stream is opened. The values are secrets and are never shown.
    pub headers: Option<BTreeMap<String, Secret<String>>>,
    /// Exponential backoff as `FIRST..MAX`: the first and the maximum pause before Weir contacts the management
    /// server again.
    #[cfg_attr(test, schemars(extend("default" = "10s..60s")))]
    pub backoff: Option<Backoff>,
    /// Maximum size of a response of the management server.
    #[cfg_attr(test, schemars(extend("default" = "16MiB")))]
    pub largest: Option<Size>,
}

/// Scope of the limits in the service's documents: `local`, `shared`, or a map.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(untagged)]
pub enum RlsScope {
    /// `local` or `shared`, without further settings.
    Word(ScopeWord),
    /// Map with settings of the limits that all instances share.
    Map(RlsScopeMap),
}

/// Settings of limits in the service's documents that all instances share.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RlsScopeMap {
    /// Mode of the shared limits: `lease`, in which the store grants units to an instance by demand, or `exact`, in
    /// which the store counts each call.
    #[cfg_attr(test, schemars(extend("default" = "lease")))]
    pub shared: Option<Mode>,
    /// Maximum time for which a call may wait for the store, at most `1s`; with `0s` it never waits. Default: four times
    /// the highest latency of late, from `50ms` to `500ms`.
    pub wait: Option<Duration>,
    /// Behaviour without a connection to the store: an instance admits its part of the limit (`split`), its part by
    /// demand, which the store holds back (`strict_split`; limits that take longer than `store.registration` admit
    /// nothing), nothing (`deny`), everything (`allow`), or the whole limit (`local`).
    #[cfg_attr(test, schemars(extend("default" = "split")))]
    pub on_store_loss: Option<OnStoreLoss>,
    /// Distribution of units if instances demand more than there are: in proportion to demand (`proportional`), or
    /// small demands in full (`max_min`).
    #[cfg_attr(test, schemars(extend("default" = "proportional")))]
    pub fairness: Option<Fairness>,
}

/// Settings of one domain.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RlsDomain {
    /// Units that a request over a limit is charged: `everything`, `only_over` or `all_or_nothing`. Default: the
    /// value of `rls.counting`.
    pub counting: Option<Counting>,
    /// Algorithm of the domain's limits: `fixed_window` (all units are available again in the next window) or `gcra`
    /// (units become available evenly over time). Default: `fixed_window`.
    pub algorithm: Option<Smoothing>,
}

/// Rate limit headers that Envoy adds to responses.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(untagged)]
pub enum ResponseHeaders {
    /// `true` for headers with the default names, `false` for no headers.
    Switch(bool),
    /// Map with the names of the headers.
    Names(ResponseHeaderNames),
}

/// Names of the rate limit headers.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ResponseHeaderNames {
    /// Name of the header for the limit.
    #[cfg_attr(test, schemars(extend("default" = defaults::LIMIT_HEADER)))]
    pub limit: Option<String>,
    /// Name of the header for the remaining units of the limit.
    #[cfg_attr(test, schemars(extend("default" = defaults::REMAINING_HEADER)))]
    pub remaining: Option<String>,
    /// Name of the header for the seconds until the limit is whole again.
    #[cfg_attr(test, schemars(extend("default" = defaults::RESET_HEADER)))]
    pub reset: Option<String>,
}

/// Lifetime and number of gRPC connections.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RlsConnections {
    /// Maximum age of a gRPC connection, randomised by a tenth up or down. After it, Weir sends GOAWAY, and the
    /// client opens a new connection.
    #[cfg_attr(test, schemars(extend("default" = shown(defaults::RLS_MAX_CONNECTION_AGE))))]
    pub max_age: Option<Duration>,
    /// Maximum time for the calls in flight on a gRPC connection that has reached `rls.connections.max_age`.
    #[cfg_attr(test, schemars(extend("default" = shown(defaults::RLS_CONNECTION_GRACE))))]
    pub grace: Option<Duration>,
    /// Maximum number of open gRPC connections, from 1 to 100000000. `auto` is an eighth of the file descriptors that
    /// the process may have, half of them without `listeners`, and at most 10000. Beyond it, a new connection
    /// [replaces an old one](../rate-limit-service.md#bounds).
    #[cfg_attr(test, schemars(extend("default" = "auto")))]
    pub max: Option<Connections>,
}
