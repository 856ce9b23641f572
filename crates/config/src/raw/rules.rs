//! Rules, as written in the configuration.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

#[cfg(test)]
use schemars::JsonSchema;
use serde::Deserialize;

use super::bandwidth::Bandwidth;
use super::cost::{Cost, Count, OutcomePattern};
use super::feedback::Feedback;
use super::in_flight::InFlight;
use super::jwt::ClaimPattern;
use super::limit_value::LimitValue;
use super::on_limit::OnLimit;
use super::respond::Respond;
use super::scope::Scope;
use super::secret::Secret;
use super::throttle::{Enforce, Throttle};
use super::tls::CertificateNames;
use super::values::{
    Asn, Continent, Country, Duration, HeaderValues, HostPattern, ListenerName, Method, Networks, OneOrMany,
    PathPattern, PlanName, Rate, Schedule, TimeZone, ZeroOrMany,
};
use weir_limiter::algorithm::Algorithm;
use weir_limiter::algorithm::conversion::OnChange;
use weir_limiter::check_options::OnDenied;
use weir_policy::identify::certificate::CertificateName;
use weir_policy::rules::rule::OnMissing;

/// Rules, each in a block of its own: a list of thousands is not copied while it grows.
pub type Rules = ZeroOrMany<Box<Rule>>;

/// A rule: the requests to which it applies, the key by which they are counted, and their limits.
// What most rules lack is boxed.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Unique name of the rule, used in metrics and headers, and the identity of its counters across reloads. Visible
    /// ASCII without quotes and backslashes, at most 128 characters.
    #[cfg_attr(test, schemars(required))]
    pub name: Option<String>,
    /// Conditions that a request must meet for the rule to apply. All given fields must match; within a list, one
    /// item is enough. Default: every request.
    #[serde(rename = "match")]
    pub matching: Option<Box<Matcher>>,
    /// Conditions under which the rule does not apply although `match` does: a map with the fields of `match`, all of
    /// which must match, or a list of such maps, of which one is enough. An empty map is an error.
    pub except: Option<Box<OneOrMany<Matcher>>>,
    /// Domain of Envoy's rate limit requests to which the rule applies, in addition to proxied requests unless it
    /// reads descriptors; not empty, without spaces around it.
    pub domain: Option<String>,
    /// Place where the limit is counted: `local` (this process), `shared` (all instances together, short for `{
    /// shared: lease }`), a map with `shared` or `instances`, or a map with `rls` for [another rate limit
    /// service](remote-limits.md).
    #[cfg_attr(test, schemars(extend("default" = "local")))]
    pub scope: Option<Box<Scope>>,
    /// Name of the counter that the rule charges; rules with the same counter and the same key share it. Visible
    /// ASCII without quotes and backslashes, at most 128 characters. Default: the rule's name.
    pub counter: Option<String>,
    /// Attributes for whose values requests are counted separately: `client_ip`, `country`, `continent`, `asn`,
    /// `plan`, `path`, `route`, `method`, `host`, `listener`, `stream` (limits inside streams only), a map with exactly one of `header`, `cookie`, `query`,
    /// `json`, `form`, `tls`, `jwt`, `descriptor` and `client_ip`, or with `json` and `form`, or a list of these. Without it, or with `[]`, all
    /// requests share one counter. Default: one counter for all.
    pub key: Option<ZeroOrMany<KeyPart>>,
    /// Treatment of requests that lack a part of the key: `skip` (the rule does not apply), `shared` (all such
    /// requests share one counter), or `deny` (rejected with 403, or as `on_limit` says). In shadow mode, by `throttle: shadow` or outside
    /// the share of `enforce`, `deny` rejects nothing and counts the request as `shadow`.
    #[cfg_attr(test, schemars(extend("default" = "skip")))]
    pub on_missing: Option<OnMissing>,
    /// Rate limit as `N/PERIOD`, such as `100/s`, `10/30s` or `10 per minute`; N is 1 to 4294967295, at most 10⁹ per
    /// second. Or a map with `from`, `default` and `max`, if requests state it. A rule with `action: limit` needs one of
    /// `limit`, `limits`, `token_bucket`, `in_flight` and `bandwidth`.
    pub limit: Option<LimitValue>,
    /// Several limits of one rule, all of which must have room: rates such as `100/s`, or maps with `limit` or
    /// `token_bucket`.
    pub limits: Option<OneOrMany<Limit>>,
    /// Maximum number of units admitted at once, 1 to 4294967295; an absolute number, not in addition to the limit's
    /// count. Invalid for `fixed_window`, `sliding_window` and `sliding_log`. A `leaky_bucket` with `throttle: delay`
    /// has a burst of 1 unless a greater one is given here. Default: the limit's count.
    #[cfg_attr(test, schemars(range(min = 1, max = 4_294_967_295_u64)))]
    pub burst: Option<NonZeroU32>,
    /// Algorithm that counts the limit: `gcra`, `token_bucket`, `leaky_bucket`, `fixed_window`, `sliding_window` or
    /// `sliding_log`. See [Choosing an algorithm](algorithms.md#choosing-an-algorithm).
    #[cfg_attr(test, schemars(extend("default" = "gcra")))]
    pub algorithm: Option<Algorithm>,
    /// Token bucket that receives several tokens at once, in place of `limit` and `algorithm`; it holds `burst`
    /// tokens. See [Token bucket with refills](algorithms.md#token-bucket-with-refills).
    pub token_bucket: Option<Box<TokenBucket>>,
    /// IANA time zone whose calendar `fixed_window` follows for days, weeks, months and years, such as
    /// `Europe/Berlin`. Valid with `fixed_window` only.
    #[cfg_attr(test, schemars(extend("default" = "UTC")))]
    pub timezone: Option<TimeZone>,
    /// Number of sub-windows in which `sliding_window` looks back, 2 to 60. Valid with `sliding_window` only.
    /// Default: two windows.
    #[cfg_attr(test, schemars(range(min = 2, max = 60)))]
    pub precision: Option<u8>,
    /// Effect of a reload that changes a limit on the units in use: `keep` leaves them as they are, `proportional`
    /// scales them with the number of units admitted at once, `reset` discards them. See [Changing a
    /// limit](algorithms.md#changing-a-limit).
    #[cfg_attr(test, schemars(extend("default" = "keep")))]
    pub on_change: Option<OnChange>,
    /// Units that each request costs: a number from 1 to 4294967295, or a map with exactly one of `header`,
    /// `json`, `form`, `graphql`, `request_bytes`, `response_header`, `response_bytes`, `response_json`, `tokens`, `messages` and `response_messages`. A cost above a limit's burst (or count) is an error,
    /// because such a request could never pass. Default: `1`.
    pub cost: Option<Box<Cost>>,
    /// Attribute of which different values are counted, in place of requests: the limit is the number of different values of a
    /// key in the period. As a part of `key`, or a list of such parts, which are one value together. See [Different
    /// values](cost.md#different-values).
    pub distinct: Option<Box<ZeroOrMany<KeyPart>>>,
    /// Conditions on the response under which a request is charged, as a map with at least one of `response_status`,
    /// `response_header` and `grpc_status`. All given fields must match; within a list, one item is enough. Default:
    /// every request.
    pub count: Option<Box<Count>>,
    /// Outcomes of requests for which the charge is refunded: status codes (`503`), classes (`5xx`) and ranges
    /// (`500-504`), `timeout`, `connect_failure`, `reset`, and names of gRPC statuses such as `unavailable`. Default:
    /// never.
    pub refund_on: Option<OneOrMany<OutcomePattern>>,
    /// Maximum number of requests of a key in flight at once; in addition to a limit, or without one. A number from 1
    /// to 4294967295, `auto` (adapts to the latency of the upstream), or a map with `auto`.
    pub in_flight: Option<Box<InFlight>>,
    /// Maximum rate of the bytes of a key's requests and responses, in addition to a limit, or without one: a size per period such as
    /// `1MiB/s`, for each direction, or a map with `request`, `response` and `burst`. Bodies and tunnels are slowed down. See
    /// [Limits inside streams](streams.md).
    pub bandwidth: Option<Box<Bandwidth>>,
    /// Treatment of requests over the limit: `hard` (reject), `shadow` (dry run), `soft 10%` (mark within a margin),
    /// `delay 500ms` (wait for room), `elastic 3x` (follow the upstream's spare capacity), or a map.
    #[cfg_attr(test, schemars(extend("default" = "hard")))]
    pub throttle: Option<Box<Throttle>>,
    /// Whether the limit follows the signals of the provider to which Weir forwards: `true`, or a map with `min`,
    /// `decrease`, `increase`, `rejections` and `headers`. The limit as written is the upper bound.
    #[cfg_attr(test, schemars(extend("default" = false)))]
    pub feedback: Option<Box<Feedback>>,
    /// Share of keys for which the rule is enforced, `0%` to `100%`, or a map with `share` and `seed`. For all other
    /// keys the rule only counts and reports, as in shadow mode.
    #[cfg_attr(test, schemars(extend("default" = "100%")))]
    pub enforce: Option<Box<Enforce>>,
    /// Charging of rejected requests to this rule's limits: `free` charges nothing, `charge` charges them as if they
    /// had passed.
    #[cfg_attr(test, schemars(extend("default" = "free")))]
    pub on_denied: Option<OnDenied>,
    /// Effect of the rule: `limit` counts requests and enforces limits, `allow` exempts a request from all other
    /// rules, `deny` rejects it with 403, or as `on_limit` says. With `allow` and `deny`, only `name`, `match`,
    /// `except` and `domain` are valid beside it, and `on_limit` with `deny`.
    #[cfg_attr(test, schemars(extend("default" = "limit")))]
    pub action: Option<Action>,
    /// Local reply to the requests that this rule rejects.
    pub on_limit: Option<Box<OnLimit>>,
    /// Acceptance of requests that are stored and sent later, at the rate of this rule's limit: the status code of
    /// the response, such as `202`, or a map. Needs `store`. See [Deferred calls](deferred.md).
    pub respond: Option<Box<Respond>>,
}

impl Rule {
    /// Whether the limits count messages of streams, and not requests.
    pub fn counts_messages(&self) -> bool {
        matches!(self.cost.as_deref(), Some(Cost::Variable(cost)) if cost.messages.is_some() || cost.response_messages.is_some())
    }
}

/// Conditions on a request. All given fields must match; within a list, one item is enough.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Matcher {
    /// Path patterns, compared with the normalised path, case-sensitively: `/exact`, `/prefix/*` (every path that
    /// begins with `/prefix/`), `/users/{id}` (any one segment), or `~regex` (unanchored).
    pub path: Option<OneOrMany<PathPattern>>,
    /// Treatment of a slash at the end of the paths in this `match`: `exact` distinguishes `/login` from `/login/`;
    /// with `ignore`, an exact path or a pattern with `{…}` matches both. Falls back to the top-level
    /// `trailing_slash`. Valid with `path` only. Default: the value of `trailing_slash`.
    pub trailing_slash: Option<TrailingSlash>,
    /// Request methods in upper case, such as `POST`.
    pub method: Option<OneOrMany<Method>>,
    /// Host patterns, without regard to case and port: `api.example.com`, `*.example.com` (every host below
    /// `example.com`, not `example.com` itself), or `~regex` (unanchored).
    pub host: Option<OneOrMany<HostPattern>>,
    /// Names of the listeners that receive the requests (`listeners[].name`).
    pub listener: Option<OneOrMany<ListenerName>>,
    /// Map from request header name to pattern: an exact value, `*` (present), `!present` (absent), `~regex`
    /// (unanchored), or `{ file: NAME }` for any value of a [list of values](lists.md#lists-of-values). If a header
    /// is repeated, one matching line is enough.
    pub header: Option<BTreeMap<String, Secret<OneOrMany<HeaderValues>>>>,
    /// Addresses and networks of the client, such as `192.0.2.7` or `10.0.0.0/8`; an item may also be `{ file: NAME
    /// }`, a [list of networks](lists.md#lists-of-networks). The whole address is compared, whatever
    /// `client_ip.ipv6_prefix` is.
    pub client_ip: Option<OneOrMany<Networks>>,
    /// ISO 3166 country codes of two letters, in upper or lower case, for the client's address. Needs `geo.database`.
    /// Write Norway in quotes, as `"NO"`, because YAML 1.1 reads the bare word as `false`.
    pub country: Option<OneOrMany<Country>>,
    /// Continent codes for the client's address: `AF`, `AN`, `AS`, `EU`, `NA`, `OC` or `SA`. Needs `geo.database`.
    pub continent: Option<OneOrMany<Continent>>,
    /// Autonomous systems that announce the client's address: `64500` or `AS64500`. Needs `geo.asn_database`.
    pub asn: Option<OneOrMany<Asn>>,
    /// Names of plans, of which the client must be on one. Needs `plans`.
    pub plan: Option<OneOrMany<PlanName>>,
    /// Days, times of day and a time zone, in this order, such as `Mon-Fri 01:00-06:00 Europe/Berlin`. Days or times
    /// may be left out, and the zone, which is then UTC. Of a list, one item is enough.
    pub schedule: Option<OneOrMany<Schedule>>,
    /// Map from the name of a JWT claim to pattern: an exact value (text, number, `true` or `false`), `*` (present),
    /// `!present` (absent) or `~regex` (unanchored). Needs `jwt`.
    pub jwt: Option<BTreeMap<String, OneOrMany<ClaimPattern>>>,
    /// Names in the verified client certificate, all of which must match. Needs a listener with `tls.client_ca`.
    pub tls: Option<CertificateNames>,
    /// Map from the path of a field in a JSON body to pattern: an exact value (text, number, `true` or `false`), `*` (present),
    /// `!present` (absent) or `~regex` (unanchored). A path is a dotted name, such as `params.name` or `items[0].id`. See `bodies`.
    pub json: Option<BTreeMap<String, OneOrMany<ClaimPattern>>>,
    /// Map from the name of a field in a form (`application/x-www-form-urlencoded`) to pattern, as for `json`.
    pub form: Option<BTreeMap<String, OneOrMany<ClaimPattern>>>,
    /// Map from the key of a descriptor entry to pattern, whatever other entries Envoy sends: an exact value, `*`
    /// (present), `!present` (absent), `~regex` (unanchored) or `{ file: NAME }` (a list of values). Needs `domain`.
    pub descriptor: Option<BTreeMap<String, OneOrMany<HeaderValues>>>,
    /// All entries of the descriptor that Envoy sends, in their order: a list of maps of one key each, with a
    /// pattern: an exact value, `*` (any value), `~regex` (unanchored) or `{ file: NAME }` (a list of values). Needs
    /// `domain`.
    pub entries: Option<OneOrMany<BTreeMap<String, OneOrMany<HeaderValues>>>>,
}

/// Treatment of a slash at the end of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum TrailingSlash {
    /// The slash counts: `/login` does not match `/login/`.
    #[default]
    Exact,
    /// The slash is ignored: `/login` matches `/login/`, and `/login/` matches `/login`.
    Ignore,
}

/// Attribute for whose values requests are counted separately.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(untagged)]
pub enum KeyPart {
    /// Attribute that needs no name, such as `client_ip`.
    Plain(PlainKey),
    /// Map with one attribute, such as `header`, and its name or settings.
    Named(Box<NamedKey>),
}

/// Attribute that needs no name, as a part of the key.
#[derive(Clone, Copy, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum PlainKey {
    /// The client's IPv4 address, or the network of its IPv6 address (`client_ip.ipv6_prefix`).
    ClientIp,
    /// Country of the client's address. Needs `geo.database`.
    Country,
    /// Continent of the client's address. Needs `geo.database`.
    Continent,
    /// Autonomous system that announces the client's address. Needs `geo.asn_database`.
    Asn,
    /// Plan of the client. Needs `plans`.
    Plan,
    /// Pattern in the rule's `match.path` that matched.
    Route,
    /// Normalised path.
    Path,
    /// Request method.
    Method,
    /// Host of the request.
    Host,
    /// Name of the listener that receives the request.
    Listener,
    /// Each stream: a body, a WebSocket, a gRPC call or a tunnel. Valid with `bandwidth` and a cost by messages only.
    Stream,
}

/// Attribute with a name or with settings, as a part of the key; exactly one of these fields, or `json` with `form`.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
#[cfg_attr(test, schemars(extend("minProperties" = 1, "maxProperties" = 2)))]
#[cfg_attr(test, schemars(extend("if" = serde_json::json!({ "minProperties": 2 }))))]
#[cfg_attr(test, schemars(extend("then" = serde_json::json!({ "required": ["json", "form"] }))))]
pub struct NamedKey {
    /// Name of a request header whose value is part of the key. A request with several different values is rejected
    /// with 400, unless the header is a list.
    pub header: Option<String>,
    /// Name of a cookie whose value is part of the key. All spellings that a common server decodes to the same value
    /// count as one value. A request with several different values is rejected with 400.
    pub cookie: Option<String>,
    /// Name of a query parameter whose decoded value is part of the key. A request with several different values is
    /// rejected with 400.
    pub query: Option<String>,
    /// Name of a JWT claim whose value is part of the key, such as `sub`; a dot leads into an object. Needs `jwt`.
    pub jwt: Option<String>,
    /// Name in the verified client certificate that is part of the key: `spiffe`, `subject` or `dns`; the first one
    /// if there are several of the kind. Needs a listener with `tls.client_ca`.
    pub tls: Option<CertificateName>,
    /// Network of the client as part of the key, with prefix lengths for this rule: a map with `prefix`,
    /// `ipv4_prefix`, or `prefixes` and `limits`.
    pub client_ip: Option<ClientNetworks>,
    /// Path of a field in a JSON body whose value is part of the key, such as `params.name` or `items[0].id`. See `bodies`.
    pub json: Option<String>,
    /// Name of a field in a form (`application/x-www-form-urlencoded`) whose value is part of the key. With `json` in the same map, the
    /// field of either kind of body counts as one.
    pub form: Option<String>,
    /// Key of descriptor entries whose values are part of the key, all of them in their order. Needs `domain`.
    pub descriptor: Option<String>,
}

/// Networks that count as one client in this rule, by the lengths of their prefixes.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ClientNetworks {
    /// Number of leading bits of an IPv6 address that identify one client in this rule, 1 to 128. Default: that of
    /// `client_ip.ipv6_prefix`.
    #[cfg_attr(test, schemars(range(min = 1, max = 128)))]
    pub prefix: Option<u8>,
    /// Number of leading bits of an IPv4 address that identify one client in this rule, 1 to 32. Default: all 32.
    #[cfg_attr(test, schemars(range(min = 1, max = 32)))]
    pub ipv4_prefix: Option<u8>,
    /// Prefix lengths of several networks around an IPv6 client, 1 to 128 bits each, from the narrowest network to
    /// the widest, such as `[64, 56, 48]`. All of them are counted at once, each against its item of `limits`.
    pub prefixes: Option<OneOrMany<Prefix>>,
    /// Limits of the networks in `prefixes`, one for each and in the same order, instead of the rule's `limit` or
    /// `limits`: rates such as `100/s`, or maps with `limit` or `token_bucket`.
    pub limits: Option<OneOrMany<Limit>>,
}

/// Prefix length: a number of leading bits, from 1 to 128.
#[derive(Clone, Copy, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(transparent)]
pub struct Prefix(#[cfg_attr(test, schemars(range(min = 1, max = 128)))] pub u8);

/// One limit of a rule: a rate, or a map.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(untagged)]
pub enum Limit {
    /// Rate, such as `100/s`.
    Rate(Rate),
    /// Map with `limit` or `token_bucket`.
    Map(LimitMap),
}

/// Token bucket that receives several tokens at once.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TokenBucket {
    /// Number of tokens added to the bucket at once, 1 to 4294967295; at most `burst`, which defaults to this number.
    #[cfg_attr(test, schemars(required, range(min = 1, max = 4_294_967_295_u64)))]
    pub refill: Option<NonZeroU32>,
    /// Time between two refills of the bucket, such as `6s`; at least 1ms.
    #[cfg_attr(test, schemars(required))]
    pub every: Option<Duration>,
}

/// One limit of a rule, with its own settings.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LimitMap {
    /// Rate as `N/PERIOD`, such as `1000/d`. Each item needs this or `token_bucket`.
    pub limit: Option<LimitValue>,
    /// Token bucket with refills, in place of `limit` and `algorithm`; it holds `burst` tokens.
    pub token_bucket: Option<TokenBucket>,
    /// Maximum number of units admitted at once, 1 to 4294967295; an absolute number, not in addition to the limit's
    /// count. Invalid for `fixed_window`, `sliding_window` and `sliding_log`. Default: the rule's `burst`, or the
    /// limit's count.
    #[cfg_attr(test, schemars(range(min = 1, max = 4_294_967_295_u64)))]
    pub burst: Option<NonZeroU32>,
    /// Algorithm of this limit: `gcra`, `token_bucket`, `leaky_bucket`, `fixed_window`, `sliding_window` or
    /// `sliding_log`. Default: the rule's `algorithm`.
    pub algorithm: Option<Algorithm>,
}

/// Effect of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// Exempts a request from all other rules.
    Allow,
    /// Rejects a request with 403.
    Deny,
    /// Counts requests and enforces limits.
    #[default]
    Limit,
}
