//! Addresses of the listeners and of the admin port, and the check that no two of them overlap.

use std::net::{IpAddr, SocketAddr};

use super::{client_limits, decisions, forward_proxy, map_items, own_limits, rules, tls};
use crate::at::At;
use crate::data_files::DataFiles;
use crate::data_files::jwt_keys::SECRET;
use crate::diagnostic::{Diagnostics, ValueError};
use crate::quoting::quoted;
use crate::{AdminSettings, AdminToken, ListenerConfig, defaults, parse, raw};
use weir_net::listener;
use weir_upstream as upstream;

/// Everything that listens on an address.
#[derive(Debug)]
pub(super) struct CompiledListeners {
    pub(super) all: Vec<ListenerConfig>,
    pub(super) admin: AdminSettings,
    pub(super) used_addresses: UsedAddresses,
}

/// The addresses in use, each with the path of its setting.
#[derive(Debug, Default)]
pub(super) struct UsedAddresses(Vec<(listener::ListenAddress, String)>);

pub(super) fn compile(raw: &raw::Root, files: &mut DataFiles, report: &Diagnostics<'_>) -> CompiledListeners {
    let root = report.root();
    let mut used_addresses = UsedAddresses::default();
    let mut all: Vec<ListenerConfig> = Vec::new();
    let client_ip = raw.client_ip.as_ref();
    if let Some(raw) = &raw.listeners {
        map_items(raw, root.key("listeners"), |raw, at| {
            let map = match raw {
                raw::Listener::Address(_) => None,
                raw::Listener::Map(map) => Some(map),
            };
            let (tls, forward) =
                (map.and_then(|map| map.tls.as_deref()), map.and_then(|map| map.forward_proxy.as_ref()));
            let decide = map.and_then(|map| decisions::compile(map, client_ip, at));
            let own_limits = map.and_then(|map| own_limits::compile(map, at));
            let tls = tls.and_then(|raw| tls::compile_server(raw, at.key("tls"), files));
            let settings = compile_listener(raw, at, &mut used_addresses)?;
            if let Some(first) = all.iter().position(|other| other.settings.name == settings.name) {
                let error = ValueError::new(format!("duplicate listener name `{}`", settings.name));
                let first = root.key("listeners").item(first).place();
                at.key("name").error(error.with_hint(format!("first in {first}")));
            }
            let (name, address, forward_at) = (&settings.name, &settings.address, at.key("forward_proxy"));
            let forward_proxy = forward_proxy::compile(forward, name, address, forward_at, files);
            all.push(ListenerConfig { settings, tls, forward_proxy, decide, own_limits });
            Some(())
        });
    }
    let admin = compile_admin(raw.admin.as_ref(), &mut used_addresses, files, report);
    CompiledListeners { all, admin, used_addresses }
}

fn compile_listener(
    raw: &raw::Listener,
    at: At<'_>,
    used_addresses: &mut UsedAddresses,
) -> Option<listener::ListenerSettings> {
    let empty = raw::ListenerMap::default();
    let (raw, address, address_at) = match raw {
        raw::Listener::Address(address) => (&empty, Some(address), at.single_item()),
        raw::Listener::Map(map) => (map, map.address.as_ref(), at.key("address")),
    };
    if let Some(name) = &raw.name {
        at.key("name").ok(rules::check_name(name));
    }
    let limits = client_limits::compile_listener_limits(raw.limits.as_ref(), at.key("limits"));
    let read = |raw: &Option<raw::Duration>, default, key| at.key(key).timeout(raw, default);
    let header_timeout = read(&raw.header_timeout, defaults::HEADER_TIMEOUT, "header_timeout");
    let idle_timeout = read(&raw.idle_timeout, defaults::LISTENER_IDLE_TIMEOUT, "idle_timeout");
    let address = used_addresses.read_listener_address(address, address_at)?;
    Some(listener::ListenerSettings {
        name: raw.name.clone().unwrap_or_else(|| address.to_string()).into(),
        address,
        header_timeout,
        idle_timeout,
        limits,
        proxy_protocol: tls::compile_proxy_protocol(raw.proxy_protocol.as_ref(), at.key("proxy_protocol")),
    })
}

fn compile_admin(
    raw: Option<&raw::Admin>,
    used_addresses: &mut UsedAddresses,
    files: &mut DataFiles,
    report: &Diagnostics<'_>,
) -> AdminSettings {
    let root = report.root();
    let at = root.key("admin");
    let (short, address_at) = match raw {
        Some(raw::Admin::Address(address)) => {
            (raw::AdminMap { address: Some(address.clone()), ..raw::AdminMap::default() }, at.single_item())
        }
        Some(raw::Admin::Map(_)) | None => (raw::AdminMap::default(), at.key("address")),
    };
    let raw = match raw {
        Some(raw::Admin::Map(map)) => map,
        Some(raw::Admin::Address(_)) | None => &short,
    };
    let address = used_addresses.read_tcp_address(raw.address.as_ref(), address_at);
    let probes = used_addresses.read_tcp_address(raw.probes.as_ref(), at.key("probes"));
    let explicit = raw.address.is_some();
    if !explicit
        && let Some(path) =
            used_addresses.find_overlapping(&listener::ListenAddress::Tcp(defaults::ADMIN_ADDRESS))
    {
        let path = path.to_owned();
        at.note(format!("no admin port, because its default address is already in use by `{path}`"));
    }
    if let Some(address) = address.filter(|address| !address.ip().is_loopback() && raw.token.is_none()) {
        let note = ValueError::new(format!("the admin port has no `token`, and {address} is not loopback"));
        address_at.note(note.with_hint("use `probes` for probes and metrics"));
    }
    let token = raw.token.as_ref().and_then(|token| read_token(token, at.key("token"), files));
    let hosts = raw
        .hosts
        .as_ref()
        .map(|hosts| map_items(hosts, at.key("hosts"), |raw, at| at.ok(parse_host_name(raw))));
    AdminSettings {
        address: address.unwrap_or(defaults::ADMIN_ADDRESS),
        probe_address: probes,
        is_explicit: explicit,
        allowed_hosts: hosts.unwrap_or_default().into(),
        token,
    }
}

fn read_token(raw: &raw::SecretOrFile, at: At<'_>, files: &mut DataFiles) -> Option<AdminToken> {
    match raw {
        raw::SecretOrFile::Text(text) => {
            let token = AdminToken::new(text.expose()).map_err(|error| ValueError::new(error.to_string()));
            at.ok(token)
        }
        raw::SecretOrFile::File(name) => {
            let at = at.key("file");
            let read = at.load(files, name.file.as_deref()?, &SECRET)?;
            let text = std::str::from_utf8(&read.0).unwrap_or_default();
            let token = AdminToken::new(text).map_err(|error| ValueError::new(error.to_string()));
            at.ok(token)
        }
    }
}

/// Parses a host name as it appears in `Host`, in lower case.
fn parse_host_name(text: &str) -> Result<Box<str>, ValueError> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if text.is_empty() || !text.bytes().all(is_name) {
        let error = ValueError::new(format!("expected a host name, got {}", quoted(text)));
        return Err(error.with_hint("a name alone, such as `weir.example.com`, without scheme, port or `*`"));
    }
    Ok(text.trim_end_matches('.').to_ascii_lowercase().into())
}

impl UsedAddresses {
    /// Reads the address of a listener and marks it as used.
    pub(super) fn read_listener_address(
        &mut self,
        raw: Option<&raw::Address>,
        at: At<'_>,
    ) -> Option<listener::ListenAddress> {
        let address = at.ok(parse::listener_address(&raw?.0))?;
        self.mark_used(address.clone(), at);
        Some(address)
    }

    /// Reads an address that must be TCP, and marks it as used.
    pub(super) fn read_tcp_address(&mut self, raw: Option<&raw::Address>, at: At<'_>) -> Option<SocketAddr> {
        let address = at.ok(parse::listen_address(&raw?.0))?;
        self.mark_used(listener::ListenAddress::Tcp(address), at);
        Some(address)
    }

    /// Marks `address` as used. The kernel would bind two listeners to one address and distribute connections
    /// between them at random.
    fn mark_used(&mut self, address: listener::ListenAddress, at: At<'_>) {
        match self.find_overlapping(&address) {
            Some(path) => at.error(format!("address already in use by `{path}`, got {address}")),
            None => self.0.push((address, at.to_string())),
        }
    }

    /// Returns the path of the listener that `upstream` leads back to, as far as the addresses show it.
    pub(super) fn find_reached_listener(&self, upstream: &upstream::UpstreamAddress) -> Option<&str> {
        self.0.iter().find(|(taken, _)| is_reached(taken, upstream)).map(|(_, path)| path.as_str())
    }

    fn find_overlapping(&self, address: &listener::ListenAddress) -> Option<&str> {
        self.0.iter().find(|(taken, _)| addresses_overlap(taken, address)).map(|(_, path)| path.as_str())
    }
}

/// Whether both addresses cannot be bound at the same time. Port 0 is a different port each time.
fn addresses_overlap(one: &listener::ListenAddress, other: &listener::ListenAddress) -> bool {
    let (listener::ListenAddress::Tcp(one), listener::ListenAddress::Tcp(other)) = (one, other) else {
        return one == other;
    };
    let same_family = one.is_ipv4() == other.is_ipv4();
    let unspecified = one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() != 0 && one.port() == other.port() && (one.ip() == other.ip() || (same_family && unspecified))
}

fn is_reached(taken: &listener::ListenAddress, upstream: &upstream::UpstreamAddress) -> bool {
    match (taken, upstream) {
        (listener::ListenAddress::Tcp(taken), upstream::UpstreamAddress::Tcp { host, port }) => {
            let ip = match &**host {
                "localhost" => Some(IpAddr::from([127, 0, 0, 1])),
                host => host.parse::<IpAddr>().ok(),
            };
            let reached = |ip: IpAddr| {
                let is_wildcard = taken.ip().is_unspecified() && (ip.is_loopback() || ip.is_unspecified());
                taken.port() == *port && (taken.ip() == ip || is_wildcard)
            };
            ip.is_some_and(reached)
        }
        (listener::ListenAddress::Unix(taken), upstream::UpstreamAddress::Unix(path)) => taken == path,
        _ => false,
    }
}
