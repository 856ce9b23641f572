//! Scope of a rule's limit, as written in the configuration.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

#[cfg(test)]
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Auto, Duration, OneOrMany, UpstreamAddress, UpstreamTls};
#[cfg(test)]
use crate::defaults;
#[cfg(test)]
use crate::parse::format_duration as shown;
use weir_policy::rules::remote_limit::OnError;
#[cfg(test)]
use weir_policy::rules::shared_limit::MAX_PRIORITY;
use weir_policy::rules::shared_limit::{Fairness, Mode, OnStoreLoss};

/// Place where a rule's limit is counted: `local`, `shared`, or a map.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(untagged)]
pub enum Scope {
    /// `local` or `shared`, without further settings.
    Word(ScopeWord),
    /// Map for another rate limit service, or with settings of a limit that all instances share.
    Map(Box<ScopeMap>),
}

/// Place where a limit is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ScopeWord {
    /// Counted in this process.
    Local,
    /// Counted for all instances together, through the store.
    Shared,
}

/// Settings of a limit that another rate limit service counts over Envoy's protocol (`rls`), or that all instances
/// share (`shared` or `instances`).
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ScopeMap {
    /// Address of the other rate limit service that keeps the limit: `host:port`, `https://host:port` or
    /// `unix:/path`. Required for another service.
    pub rls: Option<UpstreamAddress>,
    /// Domain of the descriptors that Weir sends to the other rate limit service; not empty, without spaces around
    /// it. Required with `rls`.
    pub domain: Option<String>,
    /// Entries of the descriptor that Weir sends to the other rate limit service: names for the parts of `key` in
    /// their order, and fixed entries as `{ KEY: VALUE }`. Without it, the parts have the names that Envoy's own
    /// actions use.
    pub descriptor: Option<OneOrMany<DescriptorEntry>>,
    /// Maximum time to wait for the response of the other rate limit service.
    #[cfg_attr(test, schemars(extend("default" = shown(defaults::REMOTE_TIMEOUT))))]
    pub timeout: Option<Duration>,
    /// Treatment of a request if the other rate limit service does not respond: `allow` forwards it (fail open),
    /// `deny` rejects it with 503 (fail closed), `local` applies the rule's `limit` or `limits` in this process.
    #[cfg_attr(test, schemars(extend("default" = "allow")))]
    pub on_error: Option<OnError>,
    /// TLS settings for another rate limit service whose address begins with `https://`, as a map. Default: the
    /// system's authorities.
    pub tls: Option<Box<UpstreamTls>>,
    /// Way in which units of a shared limit reach an instance: `lease` (granted by the store by demand), `split` (the
    /// limit divided by the number of instances), or `exact` (the store counts each request). Default: `split` with
    /// `instances`.
    pub shared: Option<Mode>,
    /// Maximum time that a request waits for the store, up to `1s`; `0s` for never. Valid with `lease` and `exact`.
    /// Default: four times the highest latency of late, from `50ms` to `500ms`.
    pub wait: Option<Duration>,
    /// Limit of an instance while it has no connection to the store: its part (`split`), its part by demand, which the
    /// store holds back (`strict_split`), nothing (`deny`), everything (`allow`), or the whole limit (`local`).
    #[cfg_attr(test, schemars(extend("default" = "split")))]
    pub on_store_loss: Option<OnStoreLoss>,
    /// Distribution of units if instances demand more than there are: in proportion to demand (`proportional`), or
    /// small demands in full and the others equally (`max_min`). Valid with `lease` only.
    #[cfg_attr(test, schemars(extend("default" = "proportional")))]
    pub fairness: Option<Fairness>,
    /// Priority of the instance's demand if there are not enough units, 0 to 3; 0 is served first. Valid with `lease`
    /// only.
    #[cfg_attr(test, schemars(range(min = 0, max = MAX_PRIORITY), extend("default" = defaults::SHARED_PRIORITY)))]
    pub priority: Option<u8>,
    /// Number of instances by which the limit is divided: a number from 1 to 1000000, `{ dns: HOST }` for the number
    /// of addresses of a name, or `auto` for the number of instances registered in the store. Valid with `split`
    /// only. Default: `auto` with `split`.
    pub instances: Option<Instances>,
}

/// Number of instances by which a limit is divided.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(untagged)]
pub enum Instances {
    /// Fixed number, from 1 to 1000000.
    Count(#[cfg_attr(test, schemars(range(min = 1, max = 1_000_000)))] NonZeroU32),
    /// Number of instances registered in the store.
    Auto(Auto),
    /// Number of addresses of a DNS name.
    Dns(InstancesDns),
}

/// DNS name with one address for each instance, such as that of a headless service.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct InstancesDns {
    /// Name whose addresses are counted as instances, such as that of a headless service. Required in the map.
    #[cfg_attr(test, schemars(required))]
    pub dns: Option<String>,
}

/// Entry of a descriptor.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(untagged)]
#[cfg_attr(test, schemars(inline))]
pub enum DescriptorEntry {
    /// Key of the entry whose value is the next part of the rule's `key`.
    Name(#[cfg_attr(test, schemars(extend("title" = "name")))] String),
    /// Fixed entry: a map of one key to its value.
    Fixed(BTreeMap<String, String>),
}
