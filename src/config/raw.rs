//! The configuration as people write it.
//!
//! One definition per key: `serde` decodes by it, and the JSON Schema made of it is what editors are given
//! and what `shape` checks a file against. No logic; what a value means is `compile`'s business. The comments
//! are the descriptions in the schema. Required keys are optional to `serde`: what was refused is left out, so
//! that the rest can be looked at all the same.

mod bootstrap;
mod jwt;
mod limits;
mod plans;
mod rate_limits;
mod rules;
mod scope;
pub(super) mod secret;
mod store_settings;
mod tariff;
mod tls;
mod upstreams;
mod values;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use schemars::JsonSchema;
use serde::Deserialize;

pub use self::bootstrap::{Bootstrap, DocumentUrl};
pub use self::jwt::{ClaimPattern, Jwt, SigningAlgorithm};
pub use self::limits::{Connections, ListenerLimits, Memory, Overload};
pub use self::plans::{Badge, Members, NamedBadge, PlainBadge, Plans};
pub use self::rate_limits::{
    ResponseHeaderNames, ResponseHeaders, Rls, RlsConfig, RlsConnections, RlsDomain, RlsPrometheus, RlsScope,
    RlsScopeMap, RlsXds, Statsd,
};
pub use self::rules::{
    Action, Body, ClientNetworks, Enforce, Fallback, KeyPart, Limit, LimitMap, Matcher, NamedKey, OnLimit,
    PlainKey, Rule, Throttle, ThrottleMap, TokenBucket, TrailingSlash, Wait,
};
pub use self::scope::{Entry as DescriptorEntry, Instances, Scope, ScopeMap, ScopeWord};
pub use self::secret::{Secret, SecretOrFile};
pub use self::store_settings::{Redis, RedisUrl, Sentinel, SentinelAddress, Store};
pub use self::tariff::{Cost, Count, GrpcStatus, Refund, Status, ToldCost};
pub use self::tls::{Certificate, CertificateNames, ClientAuth, NotVerified, Tls, UpstreamTls, Verify};
pub use self::upstreams::{
    Backoff, HealthCheck, OutlierMap, PerClient, Retries, Upstream, UpstreamLimits, UpstreamMap,
};
pub use self::values::{
    Address, Asn, CollectorAddress, Continent, Country, Duration, Factor, FileName, HeaderPattern,
    HeaderValues, HostPattern, Json, List, Method, Network, Networks, OneOrMany, OrOff, PathPattern,
    Percentage, PlanName, Rate, Schedule, Size, ThrottleWords, UpstreamAddress, ZeroOrMany,
};
use super::defaults;
use super::parse::duration_text as shown;
use crate::limiter::elastic::signal::Signal;
use crate::listener::ProxyProtocol;
use crate::response::Visibility;
use crate::telemetry::access_log::Format;

/// A Weir configuration.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "Weir configuration")]
pub struct Root {
    /// Where the keys come from that do not stand here.
    pub config: Option<Bootstrap>,
    /// Where clients connect. There must be some, and `rules`, unless there is `rls`.
    pub listeners: Option<OneOrMany<Listener>>,
    /// Worker threads; `auto` is one per CPU the process may use, by the quota of its container if it has one.
    #[schemars(extend("default" = "auto"))]
    pub workers: Option<Workers>,
    /// The service beside us. This or `upstreams` must be there where there are listeners.
    pub upstream: Option<Upstream>,
    /// Several services; the first whose `match` holds takes a request.
    pub upstreams: Option<OneOrMany<UpstreamMap>>,
    /// The operators' entrance.
    pub admin: Option<Admin>,
    /// One line per request.
    #[schemars(extend("default" = "disabled"))]
    pub access_log: Option<OrOff<AccessLog>>,
    /// Spans of requests, sent to an OpenTelemetry collector; nowhere unless given.
    pub tracing: Option<Tracing>,
    /// How the process ends.
    pub drain: Option<Drain>,
    /// How much may be under way in all; what is over is turned away.
    pub overload: Option<Overload>,
    /// Whom to believe about the client's address.
    pub client_ip: Option<ClientIp>,
    /// Where addresses are.
    pub geo: Option<Geo>,
    /// Tokens that clients carry, for `{jwt: CLAIM}` in keys.
    pub jwt: Option<Jwt>,
    /// Tiers of clients, each with limits of its own.
    pub plans: Option<Plans>,
    /// Whether a slash at the end of a path makes a difference to `match.path`.
    #[schemars(extend("default" = "exact"))]
    pub trailing_slash: Option<TrailingSlash>,
    /// When clients are sent `x-ratelimit-*`: on all answers, on refusals only, or never.
    #[schemars(extend("default" = "full"))]
    pub ratelimit_headers: Option<OrOff<Visibility>>,
    /// Whether clients are sent the IETF draft's `RateLimit` and `RateLimit-Policy` too.
    #[schemars(extend("default" = false))]
    pub ietf_headers: Option<bool>,
    /// The table of counters.
    pub limiter: Option<Limiter>,
    /// Where counters are kept, so that they survive a restart.
    pub state: Option<State>,
    /// The store of limits that instances share.
    pub store: Option<Store>,
    /// What limits with `throttle: elastic` go by.
    pub elastic: Option<Elastic>,
    /// Envoy's rate limit service.
    pub rls: Option<Rls>,
    /// What is limited, allowed and denied; every rule that matches applies.
    pub rules: Option<ZeroOrMany<Rule>>,
}

/// One place where clients connect.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Listener {
    /// Only its address.
    Address(Address),
    /// With more to say.
    Map(ListenerMap),
}

/// One place where clients connect.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListenerMap {
    /// Its name in metrics and logs; its address unless given.
    pub name: Option<String>,
    /// Where it listens; port 0 lets the system choose.
    #[schemars(required)]
    pub address: Option<Address>,
    /// From a request's first byte to the end of its head.
    #[schemars(extend("default" = shown(defaults::HEADER_TIMEOUT)))]
    pub header_timeout: Option<Duration>,
    /// How long a connection may stay without a request.
    #[schemars(extend("default" = shown(defaults::LISTENER_IDLE_TIMEOUT)))]
    pub idle_timeout: Option<Duration>,
    /// What a connection and a request may take.
    pub limits: Option<ListenerLimits>,
    /// TLS; plain unless given.
    pub tls: Option<Box<Tls>>,
    /// Whether connections begin with the PROXY protocol. Believed only from `client_ip.trusted_proxies`.
    #[schemars(extend("default" = "disabled"))]
    pub proxy_protocol: Option<OrOff<ProxyProtocol>>,
}

/// Worker threads.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Workers {
    /// This many.
    Count(#[schemars(range(min = 1, max = 1024))] NonZeroUsize),
    /// As many as there are CPUs.
    Auto(Auto),
}

/// The word `auto`.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Auto {
    /// By the machine.
    Auto,
}

/// The operators' entrance.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Admin {
    /// Everything. Its POSTs act, so keep it on loopback.
    #[schemars(extend("default" = defaults::ADMIN_ADDRESS.to_string()))]
    pub address: Option<Address>,
    /// A second address that serves only `GET /ready` and `/metrics`, for the kubelet and Prometheus.
    pub probes: Option<Address>,
    /// Names by which operators may ask; addresses and `localhost` always may.
    pub hosts: Option<OneOrMany<String>>,
}

/// One line per request.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum AccessLog {
    /// `disabled`, `stdout`, `stderr` or a file.
    Path(String),
    /// With more to say.
    Map(AccessLogMap),
}

/// One line per request.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AccessLogMap {
    /// `stdout`, `stderr` or a file.
    #[schemars(required)]
    pub path: Option<String>,
    /// What a line looks like.
    #[schemars(extend("default" = "envoy"))]
    pub format: Option<Format>,
}

/// How the process ends.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Drain {
    /// Between failing readiness and closing the listeners: time for endpoints to be told.
    #[schemars(extend("default" = shown(defaults::DRAIN_DELAY)))]
    pub delay: Option<Duration>,
    /// For what is still in flight after that.
    #[schemars(extend("default" = shown(defaults::DRAIN_TIMEOUT)))]
    pub timeout: Option<Duration>,
}

/// Whom to believe about the client's address.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClientIp {
    /// Peers whose X-Forwarded-For is believed; nobody unless given.
    pub trusted_proxies: Option<ZeroOrMany<Networks>>,
    /// Peers whose X-Forwarded-Client-Cert is forwarded; from all others it is removed.
    pub client_certificate_proxies: Option<ZeroOrMany<Networks>>,
    /// Leading bits of an IPv6 address that make one client.
    #[schemars(range(min = 1, max = 128), extend("default" = defaults::IPV6_PREFIX))]
    pub ipv6_prefix: Option<u8>,
}

/// Databases of where addresses are, in MaxMind's format.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Geo {
    /// Countries and continents; relative to the file that names it.
    pub database: Option<String>,
    /// Autonomous systems; relative to the file that names it.
    pub asn_database: Option<String>,
}

/// The table of counters.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Limiter {
    /// Counters the table has room for. What is over shares counters, and metrics say so.
    #[schemars(range(min = 16, max = 1_000_000_000), extend("default" = defaults::MAX_KEYS))]
    pub max_keys: Option<usize>,
}

/// What limits with `throttle: elastic` go by.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Elastic {
    /// The signals that tell how much more the upstream could take; all of them unless given.
    pub signals: Option<OneOrMany<Signal>>,
}

/// Spans of requests, sent to an OpenTelemetry collector.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tracing {
    /// Who takes them by OTLP over HTTP: `http://host:port` or `https://host`, and perhaps what comes before `/v1/traces`.
    #[schemars(required)]
    pub otlp: Option<CollectorAddress>,
    /// TLS, where its address begins with `https://`.
    pub tls: Option<Box<UpstreamTls>>,
    /// Headers sent along, such as a key that the collector asks for.
    pub headers: Option<BTreeMap<String, Secret<String>>>,
    /// The share of requests that get a span, where the request does not say whether it wants one.
    #[schemars(extend("default" = defaults::SAMPLE))]
    pub sample: Option<Percentage>,
    /// What we are called in traces.
    #[schemars(extend("default" = defaults::SERVICE_NAME))]
    pub service_name: Option<String>,
}

/// Where counters are kept, so that they survive a restart.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// The file; relative to the configuration.
    #[schemars(required)]
    pub file: Option<String>,
    /// How often it is written; and once more at the end.
    #[schemars(extend("default" = shown(defaults::STATE_INTERVAL)))]
    pub interval: Option<Duration>,
}
