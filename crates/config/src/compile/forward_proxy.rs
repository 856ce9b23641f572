//! Forward proxy of a listener: who may use it to reach what, and the connections to destinations.

use std::collections::BTreeSet;

use super::{endpoints, map_items, networks, retries, upstream_tls};
use crate::at::At;
use crate::data_files::DataFiles;
use crate::diagnostic::ValueError;
use crate::{defaults, parse, raw};
use weir_net::listener::ListenAddress;
use weir_net::tls::client::{ServerVerification, TlsClientSettings};
use weir_net::tls::pem::Authorities;
use weir_upstream::forward_proxy::ForwardProxySettings;
use weir_upstream::forward_proxy::access::{DestinationList, PermittedNetwork};
use weir_upstream::settings::{Balance, CircuitBreakerLimits, ClientShare, HeadRewrite, UpstreamSettings};

/// Compiles the forward proxy of the listener at `address`; `None` if the listener is not a forward proxy.
pub(super) fn compile(
    raw: Option<&raw::ForwardProxy>,
    listener: &str,
    address: &ListenAddress,
    at: At<'_>,
    files: &mut DataFiles,
) -> Option<ForwardProxySettings> {
    let empty = raw::ForwardProxyMap::default();
    let raw = match raw? {
        raw::ForwardProxy::Switch(false) => return None,
        raw::ForwardProxy::Switch(true) => &empty,
        raw::ForwardProxy::Map(map) => map,
    };
    check_openness(raw, address, at);
    let clients = raw.clients.as_ref().map(|list| networks::compile_set(list, at.key("clients"), files));
    if clients.as_ref().is_some_and(|clients| clients.holds_a_family()) {
        at.key("clients").note("every client may use this proxy");
    }
    let destinations =
        raw.destinations.as_ref().map(|list| compile_destinations(list, at.key("destinations")));
    let default_ports = || BTreeSet::from(defaults::CONNECT_PORTS);
    let connect_ports = raw
        .connect_ports
        .as_ref()
        .map_or_else(default_ports, |list| compile_ports(list, at.key("connect_ports")));
    let read = |raw: &Option<raw::Duration>, default, key| at.key(key).timeout(raw, default);
    let dns_refresh = read(&raw.dns_refresh, defaults::DESTINATION_DNS_REFRESH, "dns_refresh");
    let upstream = compile_connections(raw, listener, at);
    let tls = compile_tls(raw.tls.as_ref(), at, files);
    Some(ForwardProxySettings { clients, destinations, connect_ports, dns_refresh, upstream, tls })
}

/// Requires both allow lists unless the listener is on loopback, so that no proxy is open by accident.
fn check_openness(raw: &raw::ForwardProxyMap, address: &ListenAddress, at: At<'_>) {
    let is_local = match address {
        ListenAddress::Tcp(address) => address.ip().to_canonical().is_loopback(),
        ListenAddress::Unix(_) => true,
    };
    let missing = [("clients", raw.clients.is_none()), ("destinations", raw.destinations.is_none())];
    for (key, is_missing) in missing {
        if is_missing && !is_local && !at.key(key).is_reported() {
            let error = format!("missing, `{key}` is required because {address} is not loopback");
            let hint = "listen on 127.0.0.1 for a proxy that only this host may use";
            at.key(key).error(ValueError::new(error).with_hint(hint));
        }
    }
}

fn compile_destinations(list: &raw::OneOrMany<raw::Destination>, at: At<'_>) -> DestinationList {
    let (mut names, mut networks) = (Vec::new(), Vec::new());
    let mut has_family = false;
    map_items(list, at, |raw, at| {
        match at.ok(parse::destination(&raw.0))? {
            parse::DestinationEntry::Name(pattern, port) => names.push((pattern, port)),
            parse::DestinationEntry::Network(network, port) => {
                has_family |= network.prefix_len() == 0;
                networks.push(PermittedNetwork::new(network, port));
            }
        }
        Some(())
    });
    if has_family {
        at.note("every destination may be reached, except local addresses");
    }
    DestinationList { names: names.into(), networks: networks.into() }
}

fn compile_ports(list: &raw::ZeroOrMany<u16>, at: At<'_>) -> BTreeSet<u16> {
    let ports = map_items(list, at, |port, at| {
        if *port == 0 {
            at.error("expected a port from 1 to 65535, got 0");
        }
        Some(*port)
    });
    ports.into_iter().collect()
}

/// Returns the settings of the connections to each destination.
fn compile_connections(raw: &raw::ForwardProxyMap, listener: &str, at: At<'_>) -> UpstreamSettings {
    let read = |raw: &Option<raw::Duration>, default, key| at.key(key).timeout(raw, default);
    UpstreamSettings {
        name: format!("forward_proxy:{listener}").into(),
        addresses: Box::default(),
        has_adaptive_throttle: raw.adaptive_throttle.unwrap_or(false),
        concurrency: None,
        http2: false,
        upgrades: defaults::UPGRADE_PROTOCOLS.map(Into::into).into(),
        connect_timeout: read(&raw.connect_timeout, defaults::CONNECT_TIMEOUT, "connect_timeout"),
        timeout: read(&raw.timeout, defaults::UPSTREAM_TIMEOUT, "timeout"),
        idle_timeout: read(&raw.idle_timeout, defaults::UPSTREAM_IDLE_TIMEOUT, "idle_timeout"),
        dns_refresh: defaults::DESTINATION_DNS_REFRESH,
        balance: Balance::RoundRobin,
        health_check: None,
        // A destination that fails would otherwise have no endpoint.
        outliers: None,
        panic_threshold: 0,
        // The one client of an egress proxy may use all of it.
        limits: CircuitBreakerLimits {
            requests_per_client: ClientShare::All,
            min_client_rate: None,
            ..endpoints::compile_circuit_breaker(None, at)
        },
        retries: retries::compile(None, at),
        rewrite: HeadRewrite { hides_client: true, ..HeadRewrite::default() },
        server_name_from_host: false,
    }
}

/// Returns the TLS settings for destinations; `None` if the system has no certificate authorities, which only `https`
/// URLs need.
fn compile_tls(
    raw: Option<&raw::ForwardProxyTls>,
    at: At<'_>,
    files: &mut DataFiles,
) -> Option<TlsClientSettings> {
    let verification = match raw.and_then(|raw| raw.ca.as_deref()) {
        Some(name) => upstream_tls::load_authorities(name, at.key("tls").key("ca"), files)?,
        None => ServerVerification::System(Authorities::from_system()?.into()),
    };
    Some(TlsClientSettings { verification, key_pair: None, name: None })
}
