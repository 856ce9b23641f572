//! The store that instances share: its servers, credentials and timeout.

use std::num::NonZeroU16;

use super::rules::check_name;
use super::upstream_tls::{self, Peer};
use super::{each, timeout};
use crate::config::at::At;
use crate::config::files::Files;
use crate::config::files::keys::SECRET;
use crate::config::parse::{self, RedisServer};
use crate::config::problem::{Fault, Report, quoted};
use crate::config::{defaults, raw};
use crate::remote::channel::Place;
use crate::store::settings::{Credentials, Sentinel, Server, Settings, Topology};

const SERVER: Peer<'_> = Peer {
    hosts: Vec::new(),
    is_secure: false,
    written: "write `rediss://host:port` for TLS",
    called: "the store",
    risk: "any server that answers the connection is accepted as the store and can grant arbitrary limits",
};

/// Compiles the section `store` at `at`.
pub(super) fn compile(
    raw: Option<&raw::Store>,
    at: At<'_>,
    files: &mut Files,
    report: &mut Report<'_>,
) -> Option<Settings> {
    let raw = raw?;
    let prefix = raw.prefix.as_deref().unwrap_or(defaults::STORE_PREFIX);
    report.take(at.key("prefix"), check_prefix(prefix));
    let timeout = timeout(&raw.timeout, defaults::STORE_TIMEOUT, at.key("timeout"), report);
    if let Some(instance) = &raw.instance {
        report.take(at.key("instance"), check_name(instance));
    }
    let (username, password) = (raw.username.as_deref(), raw.password.as_ref());
    let credentials = credentials((username, password), ("username", "password"), at, files, report);
    let servers = match raw.redis.as_ref()? {
        raw::Redis::Servers(urls) => servers(urls, raw, at.key("redis"), report)?,
        raw::Redis::Sentinel(sentinel) => sentinels(sentinel, raw, at.key("redis"), files, report)?,
    };
    let tls = servers.tls(raw, at, files, report);
    if servers.is_secure && tls.is_none() {
        return None;
    }
    Some(Settings {
        credentials: servers.credentials.unwrap_or(credentials?),
        topology: servers.topology,
        tls,
        prefix: prefix.into(),
        timeout,
        weight: raw.weight.unwrap_or(NonZeroU16::MIN),
        instance: raw.instance.as_deref().map(Into::into),
    })
}

/// Checks the prefix, which every key begins with. Braces are not allowed, because they mark the part of a
/// key that determines its slot in a Redis Cluster.
fn check_prefix(prefix: &str) -> Result<(), Fault> {
    if prefix.is_empty() {
        return Err("empty, expected a prefix for keys".into());
    }
    if prefix.bytes().any(|byte| !byte.is_ascii_graphic()) {
        return Err(Fault::new(format!("a prefix must be visible ASCII, got {}", quoted(prefix))));
    }
    if prefix.contains(['{', '}']) {
        return Err(Fault::new(format!("a prefix must not contain braces, got {}", quoted(prefix)))
            .hint("Redis Cluster reads braces in a key as a hash tag"));
    }
    if prefix.len() > defaults::MAX_STORE_PREFIX {
        let most = defaults::MAX_STORE_PREFIX;
        return Err(Fault::new(format!("a prefix has at most {most} characters, got {}", prefix.len())));
    }
    Ok(())
}

/// The servers in `redis`.
struct Servers {
    topology: Topology,
    is_secure: bool,
    /// Credentials of the URL; `None` if they are given by keys.
    credentials: Option<Credentials>,
}

impl Servers {
    fn tls(
        &self,
        raw: &raw::Store,
        at: At<'_>,
        files: &mut Files,
        report: &mut Report<'_>,
    ) -> Option<crate::tls::client::TlsClientSettings> {
        let places: Vec<&Place> = match &self.topology {
            Topology::Single(server) => vec![&server.place],
            Topology::Cluster(places) => places.iter().collect(),
            Topology::Sentinel(sentinel) => sentinel.sentinels.iter().collect(),
        };
        let hosts = places.into_iter().filter_map(|place| match place {
            Place::Tcp(host, _) => Some(&**host),
            Place::Unix(_) => None,
        });
        let peer = Peer { hosts: hosts.collect(), is_secure: self.is_secure, ..SERVER };
        upstream_tls::settings(raw.tls.as_deref(), &peer, (at, at.key("redis")), files, report)
    }
}

fn servers(
    urls: &raw::OneOrMany<raw::RedisUrl>,
    store: &raw::Store,
    at: At<'_>,
    report: &mut Report<'_>,
) -> Option<Servers> {
    let is_list = matches!(urls, raw::OneOrMany::Many(_));
    let has_user = store.username.is_some() || store.password.is_some();
    let mut first: Option<RedisServer> = None;
    let servers = each(urls, at.same(), |url, at| {
        let server = report.take(at.same(), parse::redis_url(&url.0))?;
        let fault = if has_user && server.credentials != Credentials::default() {
            Some(
                Fault::new("credentials both in the URL and in `username` or `password`")
                    .hint("configure them in one place"),
            )
        } else if is_list {
            not_in_a_cluster(&server, first.as_ref())
        } else {
            None
        };
        if let Some(fault) = fault {
            report.value(at, fault);
        }
        first.get_or_insert_with(|| server.clone());
        Some(server)
    });
    let RedisServer { place, is_secure, credentials, db } = first?;
    let topology = if is_list {
        Topology::Cluster(servers.into_iter().map(|server| server.place).collect())
    } else {
        Topology::Single(Server { place, db: db.unwrap_or(0) })
    };
    Some(Servers { topology, is_secure, credentials: Some(credentials).filter(|_| !has_user) })
}

fn not_in_a_cluster(server: &RedisServer, first: Option<&RedisServer>) -> Option<Fault> {
    let differs =
        |of: fn(&RedisServer) -> (bool, &Credentials)| first.is_some_and(|first| of(first) != of(server));
    if matches!(server.place, Place::Unix(_)) {
        Some(
            Fault::new("Redis Cluster does not support Unix sockets")
                .hint("write a single server without a list"),
        )
    } else if server.db.is_some_and(|db| db != 0) {
        Some(Fault::new("Redis Cluster has only database 0").hint("write a single server without a list"))
    } else if differs(|server| (server.is_secure, &server.credentials)) {
        Some(
            Fault::new("servers of a Redis Cluster must have the same scheme, user and password")
                .hint("set `username` and `password` beside `redis`"),
        )
    } else {
        None
    }
}

fn sentinels(
    raw: &raw::Sentinel,
    store: &raw::Store,
    at: At<'_>,
    files: &mut Files,
    report: &mut Report<'_>,
) -> Option<Servers> {
    let user = (raw.sentinel_username.as_deref(), raw.sentinel_password.as_ref());
    let credentials = credentials(user, ("sentinel_username", "sentinel_password"), at, files, report);
    let sentinels = each(raw.sentinel.as_ref()?, at.key("sentinel"), |address, at| {
        report.take(at, parse::sentinel_address(&address.0))
    });
    let master = raw.master.as_deref()?;
    report.take(at.key("master"), check_name(master));
    let topology = Topology::Sentinel(Sentinel {
        sentinels,
        master: master.into(),
        credentials: credentials?,
        db: raw.db.unwrap_or(0),
    });
    Some(Servers { topology, is_secure: store.tls.is_some(), credentials: None })
}

/// Reads the credentials at `at`; `name` and `secret` are the keys of the user name and the password.
fn credentials(
    (username, password): (Option<&str>, Option<&raw::SecretOrFile>),
    (name, secret): (&'static str, &'static str),
    at: At<'_>,
    files: &mut Files,
    report: &mut Report<'_>,
) -> Option<Credentials> {
    if username.is_some() && password.is_none() && !report.is_faulty(at.key(secret)) {
        report.key(at.key(name), format!("`{name}` without its `{secret}`"));
    }
    if username.is_some_and(str::is_empty) {
        report.value(at.key(name), "empty, expected a user name");
    }
    let password = match password {
        None => None,
        Some(raw::SecretOrFile::Text(text)) if text.expose().is_empty() => {
            report.value(at.key(secret), "empty, expected a password");
            return None;
        }
        Some(raw::SecretOrFile::Text(text)) => Some(text.expose().as_str().into()),
        Some(raw::SecretOrFile::File(name)) => {
            let at = at.key(secret);
            let read = files.load(name.file.as_deref()?, &SECRET, at.key("file"), report)?;
            let text = std::str::from_utf8(&read.0).map_err(|_| "expected a password in UTF-8");
            Some(report.take(at.key("file"), text)?.into())
        }
    };
    Some(Credentials { username: username.map(Into::into), password })
}
