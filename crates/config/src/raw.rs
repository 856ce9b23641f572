//! The configuration as written.
//!
//! One definition per key: `serde` decodes by it, and the JSON Schema is generated from it. Editors use the schema, and
//! `schema_check` checks files against it. There is no logic here; `compile` interprets the values. The doc
//! comments are the descriptions in the schema. Required keys are `Option`s too: invalid values are left out,
//! so that the rest of the file can still be checked.

mod alerts;
mod bandwidth;
mod bodies;
mod bootstrap;
mod classes;
mod client_limits;
mod cost;
mod decide;
mod feedback;
mod forward_proxy;
mod in_flight;
mod jwt;
mod limit_value;
mod on_limit;
mod plans;
mod respond;
mod rls;
mod rules;
mod scope;
pub(super) mod secret;
mod store_settings;
mod throttle;
mod tls;
mod upstreams;
mod values;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

#[cfg(test)]
use schemars::JsonSchema;
use serde::Deserialize;

pub use self::alerts::Alerts;
pub use self::bandwidth::{Bandwidth, BandwidthMap, ByteRate};
pub use self::bodies::Bodies;
pub use self::bootstrap::{Bootstrap, DocumentUrl};
pub use self::classes::RequestClass;
pub use self::client_limits::{Connections, ListenerLimits, Memory, Overload};
pub use self::cost::{
    Cost, Count, Estimate, GraphqlCost, GrpcStatus, OutcomePattern, RequestEstimate, ResponseJson,
    StatusPattern, TokenFormat, VariableCost,
};
pub use self::decide::Decide;
pub use self::feedback::{Feedback, FeedbackMap};
pub use self::forward_proxy::{ForwardProxy, ForwardProxyMap, ForwardProxyTls};
pub use self::in_flight::{InFlight, InFlightBounds, InFlightMap};
pub use self::jwt::{ClaimPattern, Jwt, SigningAlgorithm};
pub use self::limit_value::{LimitValue, NamedRateSource, RateSource, StatedRate};
pub use self::on_limit::{Body, BodyContent, BodyFormat, Cors, Fallback, LimitAction, OnLimit};
pub use self::plans::{Member, MemberAttribute, Members, NamedMemberAttribute, PlainMemberAttribute, Plans};
pub use self::respond::{Respond, RespondMap};
pub use self::rls::{
    ResponseHeaderNames, ResponseHeaders, Rls, RlsConfig, RlsConnections, RlsDomain, RlsPrometheus, RlsScope,
    RlsScopeMap, RlsXds, Statsd,
};
pub use self::rules::{
    Action, ClientNetworks, KeyPart, Limit, LimitMap, Matcher, NamedKey, PlainKey, Rule, Rules, TokenBucket,
    TrailingSlash,
};
pub use self::scope::{DescriptorEntry, Instances, Scope, ScopeMap, ScopeWord};
pub use self::secret::{Secret, SecretOrFile};
pub use self::store_settings::{Redis, RedisUrl, RegionLoss, Regions, Sentinel, SentinelAddress, Store};
pub use self::throttle::{Enforce, Throttle, ThrottleMap, WaitHeader, WaitOrder};
pub use self::tls::{Certificate, CertificateNames, ClientAuth, NotVerified, Tls, UpstreamTls, Verify};
pub use self::upstreams::{
    Backoff, HealthCheck, OutlierMap, PerClient, Retries, Upstream, UpstreamHeaders, UpstreamLimits,
    UpstreamMap,
};
pub use self::values::{
    Address, Asn, CollectorAddress, Continent, Country, Destination, Duration, Factor, FileName,
    HeaderPattern, HeaderValues, HostPattern, Json, List, ListenerName, LogFormat, Method, Network, Networks,
    OneOrMany, OrOff, Origin, PathPattern, Percentage, PlanName, Rate, Schedule, Size, ThrottleWords,
    UpstreamAddress, ViaName, ZeroOrMany,
};
#[cfg(test)]
use super::defaults;
#[cfg(test)]
use super::parse::format_duration as shown;
use weir_limiter::elastic::signal::Signal;
use weir_net::listener::ProxyProtocol;
#[cfg(test)]
use weir_policy::identify::forwarded::X_FORWARDED_FOR;
use weir_policy::response::{LimitForm, Visibility};
#[cfg(test)]
use weir_policy::rules::classes::X_WEIR_CRITICALITY;
use weir_telemetry::access_log::RequestKind;
use weir_telemetry::observe::key_writer::LogKeys;

/// A Weir configuration.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, schemars(title = "Weir configuration"))]
pub struct Root {
    /// HTTP server from which Weir fetches the keys that are not in this file, as a map.
    pub config: Option<Bootstrap>,
    /// Addresses on which Weir accepts connections from clients: an address, a map with keys such as
    /// `listeners[].address`, or a list of either. Not required if there is `rls`; without `listeners`, Weir then
    /// runs the rate limit service alone, and `rules` is not required either.
    pub listeners: Option<OneOrMany<Listener>>,
    /// Number of worker threads, from 1 to 1024. `auto` is one for each CPU that the process may use, by the CPU
    /// quota of its container if it has one.
    #[cfg_attr(test, schemars(extend("default" = "auto")))]
    pub workers: Option<Workers>,
    /// Service to which Weir forwards requests: an address, or a map with keys such as `upstream.address`. Required
    /// with `listeners`, unless there is `upstreams`, which takes its place.
    pub upstream: Option<Upstream>,
    /// List of upstreams, in place of `upstream`. Each item is a map with the keys of `upstream` and a `match`. The
    /// first upstream whose `match` holds takes a request.
    pub upstreams: Option<OneOrMany<UpstreamMap>>,
    /// Admin port: the HTTP listeners for operators, probes and metrics. An address, or a map with keys such as
    /// `admin.address`.
    pub admin: Option<Admin>,
    /// Access log, with one line for each request: `disabled`, `stdout`, `stderr`, a file (relative to the
    /// configuration file), or a map with `path` and other keys.
    #[cfg_attr(test, schemars(extend("default" = "disabled")))]
    pub access_log: Option<OrOff<AccessLog>>,
    /// How keys are written to the access log, to the trace of decisions and to `GET /limits/top`: with their values
    /// (`value`), with a hash in place of each value (`hash`), or not at all (`off`). Default: values of headers,
    /// cookies, query parameters, fields of bodies, claims and descriptors are hashed, all others are shown.
    pub log_keys: Option<OrOff<LogKeys>>,
    /// Spans of requests, sent to an OpenTelemetry collector, as a map. Without it, there are no spans.
    pub tracing: Option<Tracing>,
    /// Alerts about this instance, sent to a webhook, as a map. Without it, Weir sends none.
    pub alerts: Option<Alerts>,
    /// Graceful shutdown of the process, as a map.
    pub drain: Option<Drain>,
    /// Overload protection: maximum connections, requests and memory of the process, as a map.
    pub overload: Option<Overload>,
    /// Trusted proxies, and the network that counts as one client, as a map.
    pub client_ip: Option<ClientIp>,
    /// What becomes of headers in which a peer names a client, a host or an original target, such as `x-real-ip` and
    /// `x-forwarded-host`, if it is not in `client_ip.trusted_proxies`: they are removed (`sanitize`), or forwarded
    /// (`keep`). See [Headers of untrusted peers](client-ip.md#headers-of-untrusted-peers).
    #[cfg_attr(test, schemars(extend("default" = "sanitize")))]
    pub forwarded_headers: Option<ForwardedHeaders>,
    /// Databases of IP addresses, in MaxMind's format, as a map.
    pub geo: Option<Geo>,
    /// JSON Web Tokens of clients, for keys such as `{jwt: CLAIM}`, as a map.
    pub jwt: Option<Jwt>,
    /// What rules read of the bodies of requests, for `json` and `form`, as a map.
    pub bodies: Option<Bodies>,
    /// Plans, which are tiers of clients with limits of their own, as a map.
    pub plans: Option<Plans>,
    /// Whether a slash at the end of a path counts: with `exact`, `path: /login` does not match `/login/`; with
    /// `ignore` it does, in every `match` and `except` without a `trailing_slash` of its own. See [Trailing
    /// slash](matching.md#trailing-slash).
    #[cfg_attr(test, schemars(extend("default" = "exact")))]
    pub trailing_slash: Option<TrailingSlash>,
    /// Responses with `x-ratelimit-limit`, `x-ratelimit-remaining` and `x-ratelimit-reset`: every response to a
    /// limited request (`full`), rejections only (`limited`), or none (`off`).
    #[cfg_attr(test, schemars(extend("default" = "full")))]
    pub ratelimit_headers: Option<OrOff<Visibility>>,
    /// Whether responses also have the headers `RateLimit` and `RateLimit-Policy` of the IETF draft.
    #[cfg_attr(test, schemars(extend("default" = false)))]
    pub ietf_headers: Option<bool>,
    /// Name of this hop in the header `Via` of forwarded requests; `disabled` leaves the header out. A token, such as
    /// `edge-1`. See [Headers to the upstream](client-ip.md#headers-to-the-upstream).
    #[cfg_attr(test, schemars(extend("default" = "weir")))]
    pub via: Option<OrOff<ViaName>>,
    /// Names and form of the `x-ratelimit-*` headers, as a map, for clients that expect others.
    pub header_names: Option<HeaderNames>,
    /// Counter table, as a map.
    pub limiter: Option<Limiter>,
    /// State file, which keeps counters across restarts, as a map. Without it, counters end with the process.
    pub state: Option<State>,
    /// Redis or Valkey server for limits that several instances share, as a map. Not used if no limit needs it.
    pub store: Option<Store>,
    /// Signals by which limits with `throttle: elastic` adapt to the upstream, as a map.
    pub elastic: Option<Elastic>,
    /// Rate limit service for Envoy, as a map.
    pub rls: Option<Rls>,
    /// Classes of requests, between which the concurrency of each upstream is divided while it is scarce, a list of at most 32.
    /// See [Classes of requests](classes.md).
    pub classes: Option<OneOrMany<RequestClass>>,
    /// Header in which peers of `client_ip.trusted_proxies` name the class of a request, and in which upstreams receive
    /// it; `false` for none. Requests of other peers lose it. Only used with `classes`.
    #[cfg_attr(test, schemars(extend("default" = X_WEIR_CRITICALITY.as_str())))]
    pub criticality_header: Option<OrOff<String>>,
    /// Groups of rules, each a list of at least two names in the order of preference. A request needs room in one rule of
    /// a group, and is charged to that one only. See [One of several limits](any-of.md).
    pub any_of: Option<ZeroOrMany<OneOrMany<String>>>,
    /// List of rules, or a single rule; `[]` for none. Every rule that matches a request applies to it. May be left
    /// out if `rls` is configured.
    pub rules: Option<Rules>,
}

/// A listener: its address, or a map.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(untagged)]
pub enum Listener {
    /// Address of the listener.
    Address(Address),
    /// Map with `address` and other keys.
    Map(ListenerMap),
}

impl Listener {
    /// Whether it is a forward proxy.
    pub fn is_forward_proxy(&self) -> bool {
        match self {
            Self::Address(_) => false,
            Self::Map(map) => map.forward_proxy.as_ref().is_some_and(ForwardProxy::is_on),
        }
    }

    /// Whether it forwards requests to the configured upstreams.
    pub fn needs_upstream(&self) -> bool {
        let decides = match self {
            Self::Address(_) => false,
            Self::Map(map) => map.decide.is_some(),
        };
        !decides && !self.is_forward_proxy()
    }
}

/// Settings of a listener.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ListenerMap {
    /// Name of the listener in metrics and logs, unique among listeners. Visible ASCII without quotes and
    /// backslashes, at most 128 characters. Default: the listener's address.
    pub name: Option<String>,
    /// IP address or `localhost`, and a port, such as `0.0.0.0:8080`; port 0 lets the system choose. Or `unix:/path`
    /// for a [Unix socket](listeners.md#unix-sockets).
    #[cfg_attr(test, schemars(required))]
    pub address: Option<Address>,
    /// Maximum time from the first byte of a request to the end of its header section. After it, the response is 408.
    /// It also limits the TLS handshake and the time for a PROXY protocol header.
    #[cfg_attr(test, schemars(extend("default" = shown(defaults::HEADER_TIMEOUT))))]
    pub header_timeout: Option<Duration>,
    /// Maximum time for which a connection may stay open without a request.
    #[cfg_attr(test, schemars(extend("default" = shown(defaults::LISTENER_IDLE_TIMEOUT))))]
    pub idle_timeout: Option<Duration>,
    /// Limits on the header section of a request and on the streams of a connection, as a map.
    pub limits: Option<ListenerLimits>,
    /// TLS termination on this listener, as a map. Without it, connections are not encrypted.
    pub tls: Option<Box<Tls>>,
    /// Whether connections begin with a PROXY protocol header: `disabled`, `optional` or `required`. Weir reads the
    /// header only from peers in `client_ip.trusted_proxies`: see [PROXY protocol](listeners.md#proxy-protocol).
    #[cfg_attr(test, schemars(extend("default" = "disabled")))]
    pub proxy_protocol: Option<OrOff<ProxyProtocol>>,
    /// Whether the listener is a [forward proxy](listeners.md#forward-proxy), which sends requests to the destination
    /// that they name: `true`, or a map. Without allow lists it serves clients on loopback only.
    #[cfg_attr(test, schemars(extend("default" = false)))]
    pub forward_proxy: Option<ForwardProxy>,
    /// Protocol by which another proxy asks for [decisions](listeners.md#decisions-for-another-proxy): `auth_request`
    /// (nginx), `forward_auth` (Traefik, Caddy) or `ext_authz` (Envoy). Such a listener forwards nothing. Needs
    /// `client_ip.trusted_proxies`. Default: none, requests are forwarded.
    pub decide: Option<Decide>,
    /// Path at which callers read [their own limits](listeners.md#own-limits), as a map. Reading them charges none.
    pub quota: Option<Quota>,
}

/// Path at which callers read their own limits.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// The path, such as `/rate_limit`. Requests to it are not forwarded.
    #[cfg_attr(test, schemars(required))]
    pub path: Option<String>,
    /// Limit of the requests of one address to the path.
    #[cfg_attr(test, schemars(extend("default" = defaults::OWN_LIMITS_RATE)))]
    pub limit: Option<Rate>,
}

/// Number of worker threads.
#[derive(Clone, Copy, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(untagged)]
pub enum Workers {
    /// Fixed number of threads, from 1 to 1024.
    Count(#[cfg_attr(test, schemars(range(min = 1, max = 1024)))] NonZeroUsize),
    /// One thread for each CPU that the process may use.
    Auto(Auto),
}

/// The word `auto`.
#[derive(Clone, Copy, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Auto {
    /// Value that Weir determines itself.
    Auto,
}

/// Admin port: its address, or a map.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(untagged)]
pub enum Admin {
    /// Address of the admin port.
    Address(Address),
    /// Map with `address` and other keys.
    Map(Box<AdminMap>),
}

/// Admin port: the HTTP listeners for operators, probes and metrics.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AdminMap {
    /// Address of the admin port: an IP address or `localhost`, and a port. Its POST requests change the process, so
    /// keep it on loopback, or set `token`. If the default is used and taken, Weir starts without an admin port and
    /// warns.
    #[cfg_attr(test, schemars(extend("default" = defaults::ADMIN_ADDRESS.to_string())))]
    pub address: Option<Address>,
    /// Address of a second port that serves only `GET /ready` and `GET /metrics`: an IP address or `localhost`, and a
    /// port.
    pub probes: Option<Address>,
    /// Host names that requests to the admin port may have in `Host`, one or a list. IP addresses and `localhost` are
    /// always allowed.
    pub hosts: Option<OneOrMany<String>>,
    /// Token that every request to `admin.address` needs, as `authorization: Bearer TOKEN`: a text, or a map with `file`.
    /// At least 16 visible ASCII characters. It is a secret and is never shown.
    pub token: Option<SecretOrFile>,
}

/// Access log: its destination, or a map.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(untagged)]
pub enum AccessLog {
    /// `disabled`, `stdout`, `stderr`, or a file relative to the configuration file.
    Path(String),
    /// Map with `path` and other keys.
    Map(AccessLogMap),
}

/// Destination and format of the access log, which has one line for each request.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AccessLogMap {
    /// Destination of the access log: `stdout`, `stderr`, or a file relative to the configuration file.
    #[cfg_attr(test, schemars(required))]
    pub path: Option<String>,
    /// Format of a line: `envoy`, the default format of Envoy; `json`, one object per line; or a format string with
    /// Envoy's command operators, such as `%START_TIME% %RESPONSE_CODE% %WEIR_RULE%`.
    #[cfg_attr(test, schemars(extend("default" = "envoy")))]
    pub format: Option<LogFormat>,
    /// Share of the requests that are logged, a percentage with up to two decimals. It applies to the requests that
    /// `only` selects.
    #[cfg_attr(test, schemars(extend("default" = "100%")))]
    pub sample: Option<Percentage>,
    /// Kinds of requests that are logged, one or a list: `limited` (rejected, delayed or marked by a rule, or over the
    /// limit of one in shadow mode) and `errors` (a status of 500 or above, or no response). Default: all requests.
    pub only: Option<OneOrMany<RequestKind>>,
}

/// Graceful shutdown of the process.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Drain {
    /// Time between the failure of the readiness probe and the closing of the listeners, so that load balancers can
    /// remove the instance first.
    #[cfg_attr(test, schemars(extend("default" = shown(defaults::DRAIN_DELAY))))]
    pub delay: Option<Duration>,
    /// Maximum time for requests in flight after the listeners have closed.
    #[cfg_attr(test, schemars(extend("default" = shown(defaults::DRAIN_TIMEOUT))))]
    pub timeout: Option<Duration>,
}

/// Trusted proxies, and the network that counts as one client.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ClientIp {
    /// Trusted proxies: IP addresses and networks of peers whose `X-Forwarded-For`, or `client_ip.header`, is used, one
    /// or a list. An item may be a file of networks. Default: none.
    pub trusted_proxies: Option<ZeroOrMany<Networks>>,
    /// Header in which trusted proxies name the client, such as `cf-connecting-ip` or `forwarded`; of a list, the first
    /// that a request has. Valid with `trusted_proxies` only.
    #[cfg_attr(test, schemars(extend("default" = X_FORWARDED_FOR.as_str())))]
    pub header: Option<OneOrMany<String>>,
    /// IP addresses and networks of peers whose `x-forwarded-client-cert` is forwarded, one or a list. From all other
    /// peers the header is removed. An item may be a file of networks. Default: none.
    pub client_certificate_proxies: Option<ZeroOrMany<Networks>>,
    /// Number of leading bits of an IPv6 address that make one client, from 1 to 128. It applies to `key`, not to
    /// `match`.
    #[cfg_attr(test, schemars(range(min = 1, max = 128), extend("default" = defaults::IPV6_PREFIX)))]
    pub ipv6_prefix: Option<u8>,
}

/// What becomes of headers in which an untrusted peer names a client or a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
#[cfg_attr(test, schemars(inline))]
pub enum ForwardedHeaders {
    /// They are removed.
    Sanitize,
    /// They are forwarded.
    Keep,
}

/// Databases of the countries, continents and autonomous systems of IP addresses, in MaxMind's format.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Geo {
    /// Database of countries and continents in MaxMind's format: a file relative to the configuration file.
    pub database: Option<String>,
    /// Database of autonomous systems in MaxMind's format: a file relative to the configuration file.
    pub asn_database: Option<String>,
}

/// Names and form of the headers with a limit.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct HeaderNames {
    /// Name of the header with the limits.
    #[cfg_attr(test, schemars(extend("default" = "x-ratelimit-limit")))]
    pub limit: Option<String>,
    /// Name of the header with the units left.
    #[cfg_attr(test, schemars(extend("default" = "x-ratelimit-remaining")))]
    pub remaining: Option<String>,
    /// Name of the header with the seconds until the quota is whole.
    #[cfg_attr(test, schemars(extend("default" = "x-ratelimit-reset")))]
    pub reset: Option<String>,
    /// Form of the limit: `draft` (all limits with their windows, as Envoy writes them: `10, 10;w=1;name="per-ip"`) or
    /// `plain` (the number alone: `10`).
    #[cfg_attr(test, schemars(extend("default" = "draft")))]
    pub form: Option<LimitForm>,
}

/// Counter table.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Limiter {
    /// Maximum number of counters in the counter table, from 16 to 1000000000. Each takes about 38 bytes.
    #[cfg_attr(test, schemars(range(min = 16, max = 1_000_000_000), extend("default" = defaults::MAX_KEYS)))]
    pub max_keys: Option<usize>,
}

/// Signals by which limits with `throttle: elastic` adapt to the upstream.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Elastic {
    /// Signals that elastic limits use, one or several of `in_flight`, `latency`, `failures`, `utilization` and
    /// `cpu`. Default: all signals.
    pub signals: Option<OneOrMany<Signal>>,
}

/// Spans of requests, sent to an OpenTelemetry collector.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Tracing {
    /// URL of the collector, for OTLP over HTTP: `http://host` or `https://host`, with an optional port (4318 for
    /// `http`, 443 for `https` unless given) and an optional path before `/v1/traces`.
    #[cfg_attr(test, schemars(required))]
    pub otlp: Option<CollectorAddress>,
    /// TLS settings for a collector whose URL begins with `https://`, as a map. Default: the system's authorities.
    pub tls: Option<Box<UpstreamTls>>,
    /// Map of headers that are sent to the collector, such as an API key. The values are secrets and are never shown.
    pub headers: Option<BTreeMap<String, Secret<String>>>,
    /// Share of requests that get a span, a percentage with up to two decimals. It applies to requests whose own
    /// headers do not decide whether the trace is sampled.
    #[cfg_attr(test, schemars(extend("default" = defaults::TRACE_SAMPLE)))]
    pub sample: Option<Percentage>,
    /// Name of the service in traces.
    #[cfg_attr(test, schemars(extend("default" = defaults::TRACE_SERVICE_NAME)))]
    pub service_name: Option<String>,
}

/// State file, which keeps counters across restarts.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Path of the state file, relative to the configuration file. Its directory must exist and be writable.
    #[cfg_attr(test, schemars(required))]
    pub file: Option<String>,
    /// Interval between two writes of the state file. Weir also writes it at the end of a drain.
    #[cfg_attr(test, schemars(extend("default" = shown(defaults::STATE_FILE_INTERVAL))))]
    pub interval: Option<Duration>,
}
