//! The store that instances share, as written in the configuration.

use std::num::NonZeroU16;

#[cfg(test)]
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Duration, OneOrMany, SecretOrFile, UpstreamTls};
#[cfg(test)]
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
    /// Name of this instance, unique in the fleet. Visible ASCII without quotes and backslashes, at most 128
    /// characters. Default: random.
    pub instance: Option<String>,
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
