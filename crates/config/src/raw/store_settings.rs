//! The store that instances share, as written in the configuration.

use std::num::NonZeroU16;

#[cfg(test)]
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Duration, OneOrMany, SecretOrFile, UpstreamTls};
use crate::defaults;
#[cfg(test)]
use crate::parse::format_duration as shown;

/// Redis or Valkey server for limits that several instances share.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Store {
    /// Redis or Valkey: a URL for one server, a list of URLs for a Cluster, or a map for Sentinel. A URL is
    /// `redis://host:port/db`, `rediss://host:port/db` with TLS, or `redis+unix:///path`; port 6379 unless given.
    #[cfg_attr(test, schemars(required))]
    pub redis: Option<Redis>,
    /// User name for the servers, unless the URL has it. Needs `store.password`. Default: `default`.
    pub username: Option<String>,
    /// Password for the servers: a text, or a map with `file`. It is a secret and is never shown.
    pub password: Option<SecretOrFile>,
    /// TLS settings for the store, as a map, for URLs that begin with `rediss://`. With Sentinel, this map turns TLS
    /// on, for sentinels and servers. Default: the system's authorities.
    pub tls: Option<Box<UpstreamTls>>,
    /// Prefix of every key in the store: visible ASCII without braces, 1 to 64 characters. Instances with the same
    /// store and prefix share their limits.
    #[cfg_attr(test, schemars(extend("default" = defaults::STORE_PREFIX)))]
    pub prefix: Option<String>,
    /// Maximum time for one call to the store.
    #[cfg_attr(test, schemars(extend("default" = shown(defaults::STORE_TIMEOUT))))]
    pub timeout: Option<Duration>,
    /// Time for which the store holds back the part of an instance that it does not hear of, from `10s` to `1d`, for limits
    /// with `on_store_loss: strict_split`. Such limits are divided if they are whole again within this time.
    #[cfg_attr(test, schemars(extend("default" = shown(defaults::STORE_REGISTRATION))))]
    pub registration: Option<Duration>,
    /// Weight of this instance among those that share out units because they demand more than there are, from 1 to
    /// 1000.
    #[cfg_attr(test, schemars(range(min = 1, max = 1000), extend("default" = 1)))]
    pub weight: Option<NonZeroU16>,
    /// Regions that share the limits, each with a store of its own: `redis` is then the store of this region.
    pub regions: Option<Box<Regions>>,
    /// Name of this instance, unique in the fleet. Visible ASCII without quotes and backslashes, at most 128
    /// characters. Default: random.
    pub instance: Option<String>,
}

/// Regions that share limits. Each counts with its part in a store of its own; the parts move through a global store, outside
/// the path of requests.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Regions {
    /// Name of this region, unique among the regions. Visible ASCII without quotes and backslashes, at most 128 characters.
    #[cfg_attr(test, schemars(required))]
    pub name: Option<String>,
    /// The global store, as in `store.redis`. All regions use the same one, with the same `store.prefix`.
    #[cfg_attr(test, schemars(required))]
    pub global: Option<Redis>,
    /// Maximum number of regions, from 2 to 16. It must be the same in all regions.
    #[cfg_attr(test, schemars(range(min = 2, max = 16), extend("default" = defaults::REGIONS)))]
    pub count: Option<u8>,
    /// What a region does that has not reached the global store for `store.registration`: `split` goes on with its part, which
    /// the others may get, too; `strict_split` goes on with the little that it always has.
    #[cfg_attr(test, schemars(extend("default" = "split")))]
    pub on_store_loss: Option<RegionLoss>,
    /// Maximum time for one call to the global store.
    #[cfg_attr(test, schemars(extend("default" = shown(defaults::GLOBAL_STORE_TIMEOUT))))]
    pub timeout: Option<Duration>,
    /// User name for the global store, unless the URL has it. Needs `store.regions.password`. Default: `default`.
    pub username: Option<String>,
    /// Password for the global store: a text, or a map with `file`. It is a secret and is never shown.
    pub password: Option<SecretOrFile>,
    /// TLS settings for the global store, as `store.tls`.
    pub tls: Option<Box<UpstreamTls>>,
}

impl Store {
    /// Maximum number of regions; `None` without regions.
    pub(crate) fn region_count(&self) -> Option<u8> {
        self.regions.as_ref().map(|regions| regions.max_count())
    }
}

impl Regions {
    /// Maximum number of regions.
    pub(crate) fn max_count(&self) -> u8 {
        self.count.unwrap_or(defaults::REGIONS)
    }
}

/// What a region does without the global store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum RegionLoss {
    /// Goes on with its part.
    #[default]
    Split,
    /// Goes on with what it always has.
    StrictSplit,
}

/// Redis or Valkey servers.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(untagged)]
pub enum Redis {
    /// URL of one server, or a list of URLs for a Cluster.
    Servers(OneOrMany<RedisUrl>),
    /// Map for Sentinel.
    Sentinel(Box<Sentinel>),
}

/// URL of a server: `redis://host:port/db`, `rediss://host:port/db` with TLS, or `redis+unix:///path`.
#[derive(Clone, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(transparent)]
#[cfg_attr(test, schemars(extend("title" = "URL of Redis", "examples" = ["redis://127.0.0.1:6379", "rediss://redis.internal:6379"])))]
pub struct RedisUrl(pub String);

/// Sentinels, and the master that they monitor.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Sentinel {
    /// Sentinels, one or a list, each as `host:port`. Port 26379 unless given. Required with Sentinel.
    #[cfg_attr(test, schemars(required))]
    pub sentinel: Option<OneOrMany<SentinelAddress>>,
    /// Name under which the sentinels watch the master. Required with Sentinel.
    #[cfg_attr(test, schemars(required))]
    pub master: Option<String>,
    /// User name for the sentinels. Needs `store.redis.sentinel_password`. Default: `default`.
    pub sentinel_username: Option<String>,
    /// Password for the sentinels: a text, or a map with `file`. It is a secret and is never shown.
    pub sentinel_password: Option<SecretOrFile>,
    /// Number of the database behind Sentinel, from 0 to 65535. For one server, the path of its URL has the number,
    /// such as `/1`.
    #[cfg_attr(test, schemars(range(min = 0, max = 65_535), extend("default" = 0)))]
    pub db: Option<u16>,
}

/// Address of a sentinel: `host:port`, or only the host for port 26379.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(transparent)]
#[cfg_attr(test, schemars(extend("title" = "address of a sentinel", "examples" = ["sentinel-0.sentinel:26379"])))]
pub struct SentinelAddress(pub String);

impl std::fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // It may hold a password.
        f.write_str("RedisUrl")
    }
}
