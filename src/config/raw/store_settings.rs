//! The store that instances share, as people write it.

use std::num::NonZeroU16;

use schemars::JsonSchema;
use serde::Deserialize;

use super::{Duration, OneOrMany, SecretOrFile, UpstreamTls};
use crate::config::defaults;
use crate::config::parse::duration_text as shown;

/// The store of limits that instances share: Redis or Valkey.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Store {
    /// One server, a list for a Cluster, or the sentinels that know the master.
    #[schemars(required)]
    pub redis: Option<Redis>,
    /// The user that the servers know us as; `default` unless given.
    pub username: Option<String>,
    /// Its password; better from the environment, as in `${STORE_PASSWORD}`, or a file.
    pub password: Option<SecretOrFile>,
    /// TLS, where addresses begin with `rediss://`, and with sentinels.
    pub tls: Option<Box<UpstreamTls>>,
    /// What every key in the store begins with.
    #[schemars(extend("default" = defaults::STORE_PREFIX))]
    pub prefix: Option<String>,
    /// The longest that one call may take.
    #[schemars(extend("default" = shown(defaults::STORE_TIMEOUT)))]
    pub timeout: Option<Duration>,
    /// The share of this instance among those that demand more than there is.
    #[schemars(range(min = 1, max = 1000), extend("default" = 1))]
    pub weight: Option<NonZeroU16>,
    /// The name of this instance, another for each; a random one unless given.
    pub instance: Option<String>,
}

/// Servers of Redis or Valkey.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Redis {
    /// One, or several of a Cluster.
    Servers(OneOrMany<RedisUrl>),
    /// The one that sentinels name.
    Sentinel(Box<Sentinel>),
}

/// Where a server is: `redis://host:port`, `rediss://host:port` for TLS, or `redis+unix:///path`.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("title" = "URL of Redis", "examples" = ["redis://127.0.0.1:6379", "rediss://redis.internal:6379"]))]
pub struct RedisUrl(pub String);

/// Sentinels, and the master that they watch.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sentinel {
    /// The sentinels, each as `host:port`.
    #[schemars(required)]
    pub sentinel: Option<OneOrMany<SentinelAddress>>,
    /// The name under which they watch the master.
    #[schemars(required)]
    pub master: Option<String>,
    /// The user that the sentinels know us as; `default` unless given.
    pub sentinel_username: Option<String>,
    /// Its password; none unless given.
    pub sentinel_password: Option<SecretOrFile>,
    /// The number of the database.
    #[schemars(range(min = 0, max = 65_535), extend("default" = 0))]
    pub db: Option<u16>,
}

/// Where a sentinel is: `host:port`, or the host alone for port 26379.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("title" = "address of a sentinel", "examples" = ["sentinel-0.sentinel:26379"]))]
pub struct SentinelAddress(pub String);

impl std::fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // It may hold a password.
        f.write_str("RedisUrl")
    }
}
