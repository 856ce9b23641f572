//! The store that instances share: its servers, credentials and timeout.

use std::num::{NonZeroU8, NonZeroU16, NonZeroU32};
use std::time::Duration;

use super::map_items;
use super::rules::check_name;
use super::upstream_tls::{self, TlsPeer};
use crate::at::At;
use crate::data_files::DataFiles;
use crate::data_files::jwt_keys::SECRET;
use crate::diagnostic::ValueError;
use crate::parse::{self, RedisServer};
use crate::quoting::quoted;
use crate::{defaults, raw};
use weir_net::tls::client::TlsClientSettings;
use weir_store::remote::channel::ServerAddress;
use weir_store::settings::{
    Credentials, RegionSettings, SentinelSettings, SingleServer, StoreSettings, Topology,
};

const STORE_PEER: TlsPeer<'_> = TlsPeer {
    hosts: Vec::new(),
    is_secure: false,
    has_requests: false,
    tls_hint: "write `rediss://host:port` for TLS",
    name: "the store",
    risk: "any server that answers the connection is accepted as the store and can grant arbitrary limits",
};

/// Compiles the section `store` at `at`.
pub(super) fn compile(raw: Option<&raw::Store>, at: At<'_>, files: &mut DataFiles) -> Option<StoreSettings> {
    let raw = raw?;
    let prefix = raw.prefix.as_deref().unwrap_or(defaults::STORE_PREFIX);
    at.key("prefix").ok(check_prefix(prefix));
    let timeout = at.key("timeout").timeout(&raw.timeout, defaults::STORE_TIMEOUT);
    let registration = read_registration(raw, at.key("registration"));
    if let Some(instance) = &raw.instance {
        at.key("instance").ok(check_name(instance));
    }
    let connected = compile_connection(raw, "redis", at, files);
    let settings = connected.map(|(topology, credentials, tls)| StoreSettings {
        credentials,
        topology,
        tls,
        prefix: prefix.into(),
        timeout,
        registration,
        weight: raw.weight.unwrap_or(NonZeroU16::MIN),
        instance: raw.instance.as_deref().map(Into::into),
        regions: None,
    });
    let regions = match &raw.regions {
        Some(regions) => Some(compile_regions(regions, settings.as_ref(), at.key("regions"), files)?),
        None => None,
    };
    settings.map(|settings| StoreSettings { regions, ..settings })
}

/// Compiles the servers of `servers_key`, and how to log in to them.
fn compile_connection(
    raw: &raw::Store,
    servers_key: &'static str,
    at: At<'_>,
    files: &mut DataFiles,
) -> Option<(Topology, Credentials, Option<TlsClientSettings>)> {
    let given = GivenCredentials {
        username: raw.username.as_deref(),
        username_key: "username",
        password: raw.password.as_ref(),
        password_key: "password",
    };
    let credentials = read_credentials(given, at, files);
    let servers = match raw.redis.as_ref()? {
        raw::Redis::Servers(urls) => compile_servers(urls, raw, at.key(servers_key))?,
        raw::Redis::Sentinel(sentinel) => compile_sentinels(sentinel, raw, at.key(servers_key), files)?,
    };
    let tls = servers.compile_tls(raw, at, at.key(servers_key), files);
    if servers.is_secure && tls.is_none() {
        return None;
    }
    Some((servers.topology, servers.credentials.unwrap_or(credentials?), tls))
}

/// Compiles the regions that share limits; `regional` is the store of this one.
fn compile_regions(
    raw: &raw::Regions,
    regional: Option<&StoreSettings>,
    at: At<'_>,
    files: &mut DataFiles,
) -> Option<Box<RegionSettings>> {
    if let Some(name) = &raw.name {
        at.key("name").ok(check_name(name));
    }
    let timeout = at.key("timeout").timeout(&raw.timeout, defaults::GLOBAL_STORE_TIMEOUT);
    let store = raw::Store {
        redis: raw.global.clone(),
        username: raw.username.clone(),
        password: raw.password.clone(),
        tls: raw.tls.clone(),
        ..raw::Store::default()
    };
    let (topology, credentials, tls) = compile_connection(&store, "global", at, files)?;
    let regional = regional?;
    if topology == regional.topology {
        let error = ValueError::new("the same server as `store.redis`: each region needs a store of its own");
        at.key("global")
            .error(error.with_hint("the global store may be another database of the same server"));
    }
    let global = StoreSettings { topology, credentials, tls, timeout, regions: None, ..regional.clone() };
    Some(Box::new(RegionSettings {
        name: raw.name.as_deref()?.into(),
        global,
        count: NonZeroU32::from(NonZeroU8::new(raw.max_count())?),
        keeps_allotment: raw.on_store_loss.unwrap_or_default() == raw::RegionLoss::Split,
    }))
}

fn read_registration(raw: &raw::Store, at: At<'_>) -> Duration {
    let Some(registration) = at.single_item().duration(raw.registration.as_ref()) else {
        return defaults::STORE_REGISTRATION;
    };
    let range = defaults::MIN_STORE_REGISTRATION..=defaults::MAX_STORE_REGISTRATION;
    if !range.contains(&registration) {
        let [min, max, got] = [*range.start(), *range.end(), registration].map(parse::format_duration);
        at.error(format!("must be from {min} to {max}, got {got}"));
    }
    registration
}

/// Checks the prefix, which every key begins with. Braces are not allowed, because they mark the part of a
/// key that determines its slot in a Redis Cluster.
fn check_prefix(prefix: &str) -> Result<(), ValueError> {
    if prefix.is_empty() {
        return Err("empty, expected a prefix for keys".into());
    }
    if prefix.bytes().any(|byte| !byte.is_ascii_graphic()) {
        return Err(ValueError::new(format!("a prefix must be visible ASCII, got {}", quoted(prefix))));
    }
    if prefix.contains(['{', '}']) {
        return Err(ValueError::new(format!("a prefix must not contain braces, got {}", quoted(prefix)))
            .with_hint("Redis Cluster reads braces in a key as a hash tag"));
    }
    if prefix.len() > defaults::MAX_STORE_PREFIX_LENGTH {
        let max = defaults::MAX_STORE_PREFIX_LENGTH;
        return Err(ValueError::new(format!("a prefix has at most {max} characters, got {}", prefix.len())));
    }
    Ok(())
}

/// The servers in `redis`.
struct StoreServers {
    topology: Topology,
    is_secure: bool,
    /// Credentials of the URL; `None` if they are given by keys.
    credentials: Option<Credentials>,
}

impl StoreServers {
    fn compile_tls(
        &self,
        raw: &raw::Store,
        at: At<'_>,
        servers_at: At<'_>,
        files: &mut DataFiles,
    ) -> Option<TlsClientSettings> {
        let addresses: Vec<&ServerAddress> = match &self.topology {
            Topology::Single(server) => vec![&server.address],
            Topology::Cluster(places) => places.iter().collect(),
            Topology::Sentinel(sentinel) => sentinel.sentinels.iter().collect(),
        };
        let hosts = addresses.into_iter().filter_map(|place| match place {
            ServerAddress::Tcp(host, _) => Some(&**host),
            ServerAddress::Unix(_) => None,
        });
        let peer = TlsPeer { hosts: hosts.collect(), is_secure: self.is_secure, ..STORE_PEER };
        upstream_tls::compile_settings(raw.tls.as_deref(), &peer, at, servers_at, files)
    }
}

fn compile_servers(
    urls: &raw::OneOrMany<raw::RedisUrl>,
    store: &raw::Store,
    at: At<'_>,
) -> Option<StoreServers> {
    let is_list = matches!(urls, raw::OneOrMany::Many(_));
    let has_user = store.username.is_some() || store.password.is_some();
    let mut first: Option<RedisServer> = None;
    let servers = map_items(urls, at.single_item(), |url, at| {
        let server = at.single_item().ok(parse::redis_url(&url.0))?;
        let error = if has_user && server.credentials != Credentials::default() {
            Some(
                ValueError::new("credentials both in the URL and in `username` or `password`")
                    .with_hint("configure them in one place"),
            )
        } else if is_list {
            cluster_error(&server, first.as_ref())
        } else {
            None
        };
        if let Some(error) = error {
            at.error(error);
        }
        first.get_or_insert_with(|| server.clone());
        Some(server)
    });
    let RedisServer { address: place, is_secure, credentials, db } = first?;
    let topology = if is_list {
        Topology::Cluster(servers.into_iter().map(|server| server.address).collect())
    } else {
        Topology::Single(SingleServer { address: place, db: db.unwrap_or(0) })
    };
    Some(StoreServers { topology, is_secure, credentials: Some(credentials).filter(|_| !has_user) })
}

fn cluster_error(server: &RedisServer, first: Option<&RedisServer>) -> Option<ValueError> {
    let differs =
        |of: fn(&RedisServer) -> (bool, &Credentials)| first.is_some_and(|first| of(first) != of(server));
    if matches!(server.address, ServerAddress::Unix(_)) {
        Some(
            ValueError::new("not available in Redis Cluster, which has no Unix sockets")
                .with_hint("write a single server without a list"),
        )
    } else if server.db.is_some_and(|db| db != 0) {
        Some(
            ValueError::new("not available in Redis Cluster, which has only database 0")
                .with_hint("write a single server without a list"),
        )
    } else if differs(|server| (server.is_secure, &server.credentials)) {
        Some(
            ValueError::new("servers of a Redis Cluster must have the same scheme, user and password")
                .with_hint("set `username` and `password` beside `redis`"),
        )
    } else {
        None
    }
}

fn compile_sentinels(
    raw: &raw::Sentinel,
    store: &raw::Store,
    at: At<'_>,
    files: &mut DataFiles,
) -> Option<StoreServers> {
    let given = GivenCredentials {
        username: raw.sentinel_username.as_deref(),
        username_key: "sentinel_username",
        password: raw.sentinel_password.as_ref(),
        password_key: "sentinel_password",
    };
    let credentials = read_credentials(given, at, files);
    let sentinels = map_items(raw.sentinel.as_ref()?, at.key("sentinel"), |address, at| {
        at.ok(parse::sentinel_address(&address.0))
    });
    let master = raw.master.as_deref()?;
    at.key("master").ok(check_name(master));
    let topology = Topology::Sentinel(SentinelSettings {
        sentinels,
        master: master.into(),
        credentials: credentials?,
        db: raw.db.unwrap_or(0),
    });
    Some(StoreServers { topology, is_secure: store.tls.is_some(), credentials: None })
}

/// A user name and a password, with the keys that they are given by.
struct GivenCredentials<'r> {
    username: Option<&'r str>,
    username_key: &'static str,
    password: Option<&'r raw::SecretOrFile>,
    password_key: &'static str,
}

/// Reads the credentials of the map at `at`.
fn read_credentials(
    GivenCredentials { username, username_key, password, password_key }: GivenCredentials<'_>,
    at: At<'_>,
    files: &mut DataFiles,
) -> Option<Credentials> {
    if username.is_some() && password.is_none() && !at.key(password_key).is_reported() {
        at.key(username_key).key_error(format!("`{username_key}` without its `{password_key}`"));
    }
    if username.is_some_and(str::is_empty) {
        at.key(username_key).error("empty, expected a user name");
    }
    let password = match password {
        None => None,
        Some(raw::SecretOrFile::Text(text)) if text.expose().is_empty() => {
            at.key(password_key).error("empty, expected a password");
            return None;
        }
        Some(raw::SecretOrFile::Text(text)) => Some(text.expose().as_str().into()),
        Some(raw::SecretOrFile::File(name)) => {
            let at = at.key(password_key);
            let read = at.key("file").load(files, name.file.as_deref()?, &SECRET)?;
            let text = std::str::from_utf8(&read.0).map_err(|_| "expected a password in UTF-8");
            Some(at.key("file").ok(text)?.into())
        }
    };
    Some(Credentials { username: username.map(Into::into), password })
}
