//! Addresses of the listeners and of the admin port, and the check that no two of them overlap.

use std::net::{IpAddr, SocketAddr};

use super::{clients, each, rules, timeout, tls};
use crate::config::at::At;
use crate::config::files::Files;
use crate::config::problem::{Fault, Report, quoted};
use crate::config::{AdminSettings, defaults, parse, raw};
use crate::tls::server;
use crate::{listener, upstream};

/// Everything that listens on an address.
#[derive(Debug)]
pub(super) struct Addresses {
    pub(super) listeners: Vec<listener::ListenerSettings>,
    /// In the order of the listeners.
    pub(super) tls: Vec<Option<server::TlsServerSettings>>,
    pub(super) admin: AdminSettings,
    pub(super) taken: Taken,
}

/// The addresses in use, each with the path of its setting.
#[derive(Debug, Default)]
pub(super) struct Taken(Vec<(listener::ListenAddress, String)>);

pub(super) fn compile(raw: &raw::Root, files: &mut Files, report: &mut Report<'_>) -> Addresses {
    let root = At::ROOT;
    let mut taken = Taken::default();
    let mut listeners: Vec<listener::ListenerSettings> = Vec::new();
    let mut secured = Vec::new();
    if let Some(raw) = &raw.listeners {
        each(raw, root.key("listeners"), |raw, at| {
            let tls = match raw {
                raw::Listener::Address(_) => None,
                raw::Listener::Map(map) => map.tls.as_deref(),
            };
            let tls = tls.and_then(|raw| tls::server(raw, at.key("tls"), files, report));
            let listener = listener(raw, at, &mut taken, report)?;
            if listeners.iter().any(|other| other.name == listener.name) {
                report.value(at.key("name"), format!("duplicate listener name `{}`", listener.name));
            }
            listeners.push(listener);
            secured.push(tls);
            Some(())
        });
    }
    let admin = admin(raw.admin.as_ref(), &mut taken, report);
    Addresses { listeners, tls: secured, admin, taken }
}

fn listener(
    raw: &raw::Listener,
    at: At<'_>,
    taken: &mut Taken,
    report: &mut Report<'_>,
) -> Option<listener::ListenerSettings> {
    let unsaid = raw::ListenerMap::default();
    let (raw, address, address_at) = match raw {
        raw::Listener::Address(address) => (&unsaid, Some(address), at.same()),
        raw::Listener::Map(map) => (map, map.address.as_ref(), at.key("address")),
    };
    if let Some(name) = &raw.name {
        report.take(at.key("name"), rules::check_name(name));
    }
    let limits = clients::limits(raw.limits.as_ref(), at.key("limits"), report);
    let mut read = |raw: &Option<raw::Duration>, default, key| timeout(raw, default, at.key(key), report);
    let header_timeout = read(&raw.header_timeout, defaults::HEADER_TIMEOUT, "header_timeout");
    let idle_timeout = read(&raw.idle_timeout, defaults::LISTENER_IDLE_TIMEOUT, "idle_timeout");
    let address = taken.listener(address, address_at, report)?;
    Some(listener::ListenerSettings {
        name: raw.name.clone().unwrap_or_else(|| address.to_string()).into(),
        address,
        header_timeout,
        idle_timeout,
        limits,
        proxy_protocol: tls::proxy_protocol(raw.proxy_protocol.as_ref(), at.key("proxy_protocol"), report),
    })
}

fn admin(raw: Option<&raw::Admin>, taken: &mut Taken, report: &mut Report<'_>) -> AdminSettings {
    let root = At::ROOT;
    let at = root.key("admin");
    let unsaid = raw::Admin::default();
    let raw = raw.unwrap_or(&unsaid);
    let address = taken.port(raw.address.as_ref(), at.key("address"), report);
    let probes = taken.port(raw.probes.as_ref(), at.key("probes"), report);
    let explicit = raw.address.is_some();
    if !explicit && let Some(path) = taken.by(&listener::ListenAddress::Tcp(defaults::ADMIN_ADDRESS)) {
        let path = path.to_owned();
        report.note(at, format!("no admin port, because its default address is already in use by `{path}`"));
    }
    if let Some(address) = address.filter(|address| !address.ip().is_loopback()) {
        let note = Fault::new(format!("the admin port has no authentication, and {address} is not loopback"));
        report.note(at.key("address"), note.hint("use `probes` for probes and metrics"));
    }
    let hosts = raw
        .hosts
        .as_ref()
        .map(|hosts| each(hosts, at.key("hosts"), |raw, at| report.take(at, host_name(raw))));
    AdminSettings {
        address: address.unwrap_or(defaults::ADMIN_ADDRESS),
        probes,
        explicit,
        hosts: hosts.unwrap_or_default().into(),
    }
}

/// Parses a host name as it appears in `Host`, in lower case.
fn host_name(text: &str) -> Result<Box<str>, Fault> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if text.is_empty() || !text.bytes().all(is_name) {
        let fault = Fault::new(format!("expected a host name, got {}", quoted(text)));
        return Err(fault.hint("a name alone, such as `weir.example.com`, without scheme, port or `*`"));
    }
    Ok(text.trim_end_matches('.').to_ascii_lowercase().into())
}

impl Taken {
    /// Reads the address of a listener and marks it as used.
    pub(super) fn listener(
        &mut self,
        raw: Option<&raw::Address>,
        at: At<'_>,
        report: &mut Report<'_>,
    ) -> Option<listener::ListenAddress> {
        let address = report.take(at, parse::listener_address(&raw?.0))?;
        self.claim(address.clone(), at, report);
        Some(address)
    }

    /// Reads an address that must be TCP, and marks it as used.
    pub(super) fn port(
        &mut self,
        raw: Option<&raw::Address>,
        at: At<'_>,
        report: &mut Report<'_>,
    ) -> Option<SocketAddr> {
        let address = report.take(at, parse::listen_address(&raw?.0))?;
        self.claim(listener::ListenAddress::Tcp(address), at, report);
        Some(address)
    }

    /// Marks `address` as used. The kernel would bind two listeners to one address and distribute connections
    /// between them at random.
    fn claim(&mut self, address: listener::ListenAddress, at: At<'_>, report: &mut Report<'_>) {
        match self.by(&address) {
            Some(path) => report.value(at, format!("address already in use by `{path}`, got {address}")),
            None => self.0.push((address, at.to_string())),
        }
    }

    /// Returns the path of the listener that `upstream` leads back to, as far as the addresses show it.
    pub(super) fn reached_by(&self, upstream: &upstream::UpstreamAddress) -> Option<&str> {
        self.0.iter().find(|(taken, _)| is_reached(taken, upstream)).map(|(_, path)| path.as_str())
    }

    fn by(&self, address: &listener::ListenAddress) -> Option<&str> {
        self.0.iter().find(|(taken, _)| overlap(taken, address)).map(|(_, path)| path.as_str())
    }
}

/// Whether both addresses cannot be bound at the same time. Port 0 is a different port each time.
fn overlap(one: &listener::ListenAddress, other: &listener::ListenAddress) -> bool {
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
                let everywhere = taken.ip().is_unspecified() && (ip.is_loopback() || ip.is_unspecified());
                taken.port() == *port && (taken.ip() == ip || everywhere)
            };
            ip.is_some_and(reached)
        }
        (listener::ListenAddress::Unix(taken), upstream::UpstreamAddress::Unix(path)) => taken == path,
        _ => false,
    }
}
