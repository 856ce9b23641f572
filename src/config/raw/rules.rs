//! Rules as people write them.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use schemars::JsonSchema;
use serde::Deserialize;

use super::jwt::ClaimPattern;
use super::scope::Scope;
use super::secret::Secret;
use super::tariff::{Cost, Count, Refund};
use super::tls::CertificateNames;
use super::values::{
    Asn, Continent, Country, Duration, Factor, HeaderValues, HostPattern, Json, Method, Networks, OneOrMany,
    PathPattern, Percentage, PlanName, Rate, Schedule, Size, ThrottleWords, TimeZone, ZeroOrMany,
};
use crate::config::defaults;
use crate::config::parse::duration_text as shown;
use crate::identify::certificate::CertificateName;
use crate::limiter::algorithm::Algorithm;
use crate::limiter::algorithm::conversion::OnChange;
use crate::limiter::terms::OnDenied;
use crate::rules::rule::OnMissing;

/// What is limited, allowed or denied.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Unique; names it in metrics and headers, and is the identity of its counters across reloads.
    #[schemars(required)]
    pub name: Option<String>,
    /// Whom it is for: every field must hold. Without it, every request.
    #[serde(rename = "match")]
    pub matching: Option<Matcher>,
    /// Where all fields hold of one of these too, the rule does not apply.
    pub except: Option<OneOrMany<Matcher>>,
    /// What Envoy asks its rate limit service about under this domain is for this rule too.
    pub domain: Option<String>,
    /// Where its limit is kept.
    #[schemars(extend("default" = "local"))]
    pub scope: Option<Scope>,
    /// Rules with the same counter, key and limits charge one counter. The rule's name unless given.
    pub counter: Option<String>,
    /// What is counted apart; nothing, or an empty list, is one counter for all.
    pub key: Option<ZeroOrMany<KeyPart>>,
    /// What to do where a part of the key is absent.
    #[schemars(extend("default" = "skip"))]
    pub on_missing: Option<OnMissing>,
    /// So many per time.
    pub limit: Option<Rate>,
    /// Several limits: all must have room, and a refused request is charged to none.
    pub limits: Option<OneOrMany<Limit>>,
    /// The most that may pass at once; the limit's count unless given. Not for windows.
    #[schemars(range(min = 1, max = 4_294_967_295_u64))]
    pub burst: Option<NonZeroU32>,
    /// How it is counted.
    #[schemars(extend("default" = "gcra"))]
    pub algorithm: Option<Algorithm>,
    /// So many tokens at once every so often, in place of `limit` and `algorithm`; `burst` is what the bucket holds.
    pub token_bucket: Option<TokenBucket>,
    /// By whose calendar fixed windows of days and longer go.
    #[schemars(extend("default" = "UTC"))]
    pub timezone: Option<TimeZone>,
    /// In how many sub-windows a sliding window is looked at; in itself and the one before unless given.
    #[schemars(range(min = 2, max = 60))]
    pub precision: Option<u8>,
    /// What a reload does to the counters when it changes a limit.
    #[schemars(extend("default" = "keep"))]
    pub on_change: Option<OnChange>,
    /// What each request costs.
    pub cost: Option<Cost>,
    /// Which requests count; all unless given. What is over is refused on arrival all the same.
    pub count: Option<Count>,
    /// Ends of requests for which the charge is given back.
    pub refund_on: Option<OneOrMany<Refund>>,
    /// How many requests of a key may be under way at once: beside a limit, or alone.
    #[schemars(range(min = 1, max = 4_294_967_295_u64))]
    pub in_flight: Option<NonZeroU32>,
    /// What becomes of requests that are over the limit.
    #[schemars(extend("default" = "hard"))]
    pub throttle: Option<Throttle>,
    /// The share of keys for which the rule is in force; for the others it only counts and reports.
    #[schemars(extend("default" = "100%"))]
    pub enforce: Option<Enforce>,
    /// Whether a refused request is charged to this rule.
    #[schemars(extend("default" = "free"))]
    pub on_denied: Option<OnDenied>,
    /// What it does.
    #[schemars(extend("default" = "limit"))]
    pub action: Option<Action>,
    /// What a refused request is answered with.
    pub on_limit: Option<OnLimit>,
}

/// Fields that must all hold; a list means any of its items.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Matcher {
    /// The normalised path.
    pub path: Option<OneOrMany<PathPattern>>,
    /// Whether these paths also match with a slash at the end, or without; as the key of the same name beside `rules` says.
    pub trailing_slash: Option<TrailingSlash>,
    /// The method.
    pub method: Option<OneOrMany<Method>>,
    /// The host, without port.
    pub host: Option<OneOrMany<HostPattern>>,
    /// Headers by name.
    pub header: Option<BTreeMap<String, Secret<OneOrMany<HeaderValues>>>>,
    /// The client's address.
    pub client_ip: Option<OneOrMany<Networks>>,
    /// The country of the client's address; needs `geo.database`.
    pub country: Option<OneOrMany<Country>>,
    /// The continent of the client's address; needs `geo.database`.
    pub continent: Option<OneOrMany<Continent>>,
    /// The autonomous system that announces the client's address; needs `geo.asn_database`.
    pub asn: Option<OneOrMany<Asn>>,
    /// The plan the client is on; needs `plans`.
    pub plan: Option<OneOrMany<PlanName>>,
    /// Days of the week and times of day in a time zone.
    pub schedule: Option<OneOrMany<Schedule>>,
    /// Claims of the client's token by name. Needs the section `jwt`.
    pub jwt: Option<BTreeMap<String, OneOrMany<ClaimPattern>>>,
    /// Names in the client's certificate. Needs a listener with `tls.client_ca`.
    pub tls: Option<CertificateNames>,
    /// Entries of Envoy's descriptor by key, beside whatever others. Needs the rule's `domain`.
    pub descriptor: Option<BTreeMap<String, OneOrMany<HeaderValues>>>,
    /// All entries of Envoy's descriptor in their order: a map of one key each. Needs the rule's `domain`.
    pub entries: Option<OneOrMany<BTreeMap<String, OneOrMany<HeaderValues>>>>,
}

/// Whether a slash at the end of a path makes a difference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TrailingSlash {
    /// It does.
    #[default]
    Exact,
    /// It does not: `/login` matches `/login/`, and `/login/` matches `/login`.
    Ignore,
}

/// One thing that is counted apart.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum KeyPart {
    /// By its kind alone.
    Plain(PlainKey),
    /// With a name.
    Named(Box<NamedKey>),
}

/// A part of a key that needs no name.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PlainKey {
    /// The client's address, an IPv6 client by its network.
    ClientIp,
    /// The country of the client's address; needs `geo.database`.
    Country,
    /// The continent of the client's address; needs `geo.database`.
    Continent,
    /// The autonomous system that announces the client's address; needs `geo.asn_database`.
    Asn,
    /// The plan the client is on; needs `plans`.
    Plan,
    /// The pattern of the rule's `match.path` that matched.
    Route,
    /// The normalised path.
    Path,
    /// The method.
    Method,
    /// The host.
    Host,
}

/// A part of a key that has a name; exactly one of these.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("minProperties" = 1, "maxProperties" = 1))]
pub struct NamedKey {
    /// The values of this header.
    pub header: Option<String>,
    /// The cookie of this name.
    pub cookie: Option<String>,
    /// The query parameter of this name.
    pub query: Option<String>,
    /// This claim of the client's token; a dot leads into an object. Needs the section `jwt`.
    pub jwt: Option<String>,
    /// This name in the client's certificate, the first of its kind. Needs a listener with `tls.client_ca`.
    pub tls: Option<CertificateName>,
    /// The client's network, by how many leading bits of its address.
    pub client_ip: Option<ClientNetworks>,
    /// The entry of this key in Envoy's descriptor. Needs the rule's `domain`.
    pub descriptor: Option<String>,
}

/// How many leading bits of an address make one client, for one rule.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClientNetworks {
    /// Of an IPv6 address; as `client_ip.ipv6_prefix` unless given.
    #[schemars(range(min = 1, max = 128))]
    pub prefix: Option<u8>,
    /// Of an IPv4 address; all of them unless given.
    #[schemars(range(min = 1, max = 32))]
    pub ipv4_prefix: Option<u8>,
    /// Several networks around an IPv6 client, from the narrowest to the widest, all counted at once.
    pub prefixes: Option<OneOrMany<Prefix>>,
    /// A limit for each of `prefixes`: all must have room. IPv4 clients are counted under the first alone.
    pub limits: Option<OneOrMany<Limit>>,
}

/// So many leading bits.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Prefix(#[schemars(range(min = 1, max = 128))] pub u8);

/// One of several limits.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Limit {
    /// So many per time.
    Rate(Rate),
    /// With more to say.
    Map(LimitMap),
}

/// A token bucket with refills.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TokenBucket {
    /// Tokens that come at once.
    #[schemars(required, range(min = 1, max = 4_294_967_295_u64))]
    pub refill: Option<NonZeroU32>,
    /// How often they come, from the first token that is taken from a full bucket.
    #[schemars(required)]
    pub every: Option<Duration>,
}

/// One of several limits.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitMap {
    /// So many per time; this or `token_bucket`.
    pub limit: Option<Rate>,
    /// So many tokens at once every so often, in place of `limit` and `algorithm`.
    pub token_bucket: Option<TokenBucket>,
    /// The most that may pass at once; the rule's, or else the limit's count, unless given. Not for windows.
    #[schemars(range(min = 1, max = 4_294_967_295_u64))]
    pub burst: Option<NonZeroU32>,
    /// How it is counted; as the rule says unless given.
    pub algorithm: Option<Algorithm>,
}

/// What becomes of requests that are over the limit.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Throttle {
    /// In a word or two.
    Words(ThrottleWords),
    /// With more to say.
    Map(ThrottleMap),
}

/// What becomes of requests that are over the limit: `soft`, `delay`, `wait` or `elastic`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ThrottleMap {
    /// They pass with a mark, up to so much above the limit.
    pub soft: Option<Percentage>,
    /// They wait, at most so long; with `soft`, for this long.
    pub delay: Option<Duration>,
    /// How many requests of a key may wait at once.
    #[schemars(range(min = 1, max = 4_294_967_294_u64))]
    pub queue: Option<u32>,
    /// They wait: another way to write `delay`.
    pub wait: Option<Wait>,
    /// They pass, up to so many times the limit, while the upstream has headroom.
    pub elastic: Option<Factor>,
}

/// How requests wait.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Wait {
    /// At most so long.
    #[schemars(required)]
    pub max: Option<Duration>,
}

/// For which keys a rule is in force.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Enforce {
    /// A share of them.
    Share(Percentage),
    /// With more to say.
    Map(EnforceMap),
}

/// For which keys a rule is in force.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EnforceMap {
    /// A share of them.
    #[schemars(required)]
    pub share: Option<Percentage>,
    /// Selects the keys: rules with the same seed, key and share select the same ones.
    #[schemars(extend("default" = defaults::ENFORCE_SEED))]
    pub seed: Option<String>,
}

/// What a rule does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// Exempts from every other rule.
    Allow,
    /// Refuses with 403.
    Deny,
    /// Counts, and refuses what is over.
    #[default]
    Limit,
}

/// What a refused request is answered with.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OnLimit {
    /// The status.
    #[schemars(range(min = 400, max = 599), extend("default" = defaults::REFUSAL_STATUS))]
    pub status: Option<u16>,
    /// The body.
    pub body: Option<Body>,
    /// Headers by name; `{rule}` in a value is the rule's name.
    pub headers: Option<BTreeMap<String, Secret<String>>>,
    /// A degraded answer in place of a refusal.
    pub fallback: Option<Fallback>,
    /// Once the rule has refused a key, refuse it everything for so long; twice as long each time again.
    pub ban: Option<Duration>,
    /// The longest ban, and how long one is remembered after its end.
    #[schemars(extend("default" = shown(defaults::BAN_MAX)))]
    pub ban_max: Option<Duration>,
}

/// A body; exactly one of these.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("minProperties" = 1, "maxProperties" = 1))]
pub struct Body {
    /// A text.
    pub text: Option<String>,
    /// A JSON value.
    pub json: Option<Json>,
    /// A file, relative to the one that names it.
    pub file: Option<String>,
    /// A file that is a degraded answer: short for `fallback: { file: ... }`.
    pub fallback: Option<String>,
}

/// A degraded answer in place of a refusal: the last good one, or a file.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fallback {
    /// The last good answer to the same GET, out of so many bytes kept in all.
    pub cached: Option<Size>,
    /// The largest answer that is kept; 1MiB unless given, or a quarter of `cached` where that is less.
    pub largest: Option<Size>,
    /// Older ones are not given.
    #[schemars(extend("default" = shown(defaults::OLDEST_KEPT)))]
    pub max_age: Option<Duration>,
    /// Request headers on which no response depends; they are no part of the key.
    pub ignore_headers: Option<OneOrMany<String>>,
    /// A file, relative to the one that names it; where an answer is kept, only for want of one.
    pub file: Option<String>,
    /// The methods of the requests to which the file is sent; GET and HEAD unless given.
    pub methods: Option<OneOrMany<Method>>,
    /// The status with which the file is sent.
    #[schemars(range(min = 200, max = 599), extend("default" = defaults::FALLBACK_STATUS))]
    pub status: Option<u16>,
}
