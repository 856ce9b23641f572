//! Forward proxy: which clients may use it, which destinations they may reach, and the connections to those.
//!
//! A listener is a forward proxy if its configuration has `forward_proxy`. HTTP is not part of this module: `proxy`
//! reads the destination of a request and forwards it.

pub mod access;
pub mod destination;
pub mod identity;
pub mod pool;

mod embedded;
mod resolve;

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use self::access::{DestinationList, Refusal};
use self::destination::{Destination, DestinationHost};
use self::embedded::embedded_addresses;
use self::identity::ProxyIdentity;
use self::resolve::{LookupPermits, ResolvedName};
use crate::cluster::Cluster;
use crate::settings::UpstreamSettings;
use weir_net::tls::client::{TlsClient, TlsClientSettings};
use weir_policy::identify::cidr::CidrSet;
use weir_telemetry::metrics::Metrics;

/// Maximum number of destinations that one worker keeps connections to. The one that was used least recently makes room
/// for another.
pub const MAX_DESTINATIONS: usize = 1024;
/// Maximum number of idle connections that one worker keeps, to all destinations together.
const MAX_IDLE_CONNECTIONS: usize = 256;

#[derive(Clone, Debug, PartialEq)]
pub struct ForwardProxySettings {
    /// Clients that may use it; `None` for loopback peers only.
    pub clients: Option<CidrSet>,
    /// Destinations that may be reached; `None` for all.
    pub destinations: Option<DestinationList>,
    /// Ports that CONNECT may reach, in addition to those that `destinations` names.
    pub connect_ports: BTreeSet<u16>,
    /// Interval between two DNS lookups of a destination's name.
    pub dns_refresh: Duration,
    /// Settings of the connections to each destination, with the name under which all of them are counted. The addresses
    /// are replaced.
    pub upstream: UpstreamSettings,
    /// TLS for `https` requests; `None` if no certificate authority is known.
    pub tls: Option<TlsClientSettings>,
}

/// A forward proxy, as all workers share it.
#[derive(Debug)]
pub struct ForwardProxy {
    settings: ForwardProxySettings,
    tls: Option<Arc<TlsClient>>,
    identity: Arc<ProxyIdentity>,
    /// Destinations that some worker uses.
    known: Mutex<HashMap<Destination, Weak<Cluster>>>,
    lookups: LookupPermits,
}

impl ForwardProxy {
    /// Creates a forward proxy without connections.
    ///
    /// # Errors
    /// If the TLS settings are unusable.
    pub fn new(
        settings: ForwardProxySettings,
        identity: &Arc<ProxyIdentity>,
    ) -> Result<Arc<Self>, rustls::Error> {
        let tls = settings.tls.clone().map(TlsClient::new).transpose()?.map(Arc::new);
        let (known, lookups) = (Mutex::default(), LookupPermits::default());
        Ok(Arc::new(Self { settings, tls, identity: Arc::clone(identity), known, lookups }))
    }

    pub fn settings(&self) -> &ForwardProxySettings {
        &self.settings
    }

    /// Returns the names of this process in loop detection.
    pub fn identity(&self) -> &ProxyIdentity {
        &self.identity
    }

    /// Whether `peer` may use the proxy.
    pub fn admits_client(&self, peer: IpAddr) -> bool {
        match &self.settings.clients {
            Some(clients) => clients.contains(peer),
            None => peer.to_canonical().is_loopback(),
        }
    }

    /// Checks a destination as far as its name shows whether it may be reached. Addresses of a name are checked when it
    /// is resolved.
    ///
    /// # Errors
    /// The reason why it may not be reached.
    pub fn check(&self, destination: &Destination, is_connect: bool) -> Result<(), Refusal> {
        let names_port = match &self.settings.destinations {
            Some(list) => list.check(destination)?.names_port,
            None => false,
        };
        if is_connect && !names_port && !self.settings.connect_ports.contains(&destination.port) {
            return Err(Refusal::ConnectPort);
        }
        if destination.is_secure && self.tls.is_none() {
            return Err(Refusal::NoAuthorities);
        }
        match &destination.host {
            DestinationHost::Ip(ip) if self.is_own(*ip, destination.port) => Err(Refusal::Loop),
            DestinationHost::Ip(_) | DestinationHost::Name(_) => Ok(()),
        }
    }

    /// Whether an address, or one inside it, is this process.
    fn is_own(&self, ip: IpAddr, port: u16) -> bool {
        let inside = embedded_addresses(ip);
        self.identity.is_own(ip, port) || inside.into_iter().any(|ip| self.identity.is_own(ip.into(), port))
    }

    /// Whether the connection to a destination may use this address, to which its name resolves.
    fn permits_address(&self, destination: &Destination, ip: IpAddr) -> bool {
        let list = self.settings.destinations.as_ref();
        list.is_none_or(|list| list.permits_address(destination, ip))
    }

    /// Whether a name with these addresses may not be used at all.
    fn leads_inside(&self, destination: &Destination, addresses: &[SocketAddr]) -> bool {
        self.settings.destinations.as_ref().is_some_and(|list| list.leads_inside(destination, addresses))
    }

    /// Returns what all workers share of the destination; a new one is resolved from now on, on behalf of `client`.
    fn cluster(
        self: &Arc<Self>,
        destination: &Destination,
        client: IpAddr,
        metrics: &Metrics,
    ) -> Arc<Cluster> {
        let mut known = self.known.lock();
        if let Some(cluster) = known.get(destination).and_then(Weak::upgrade) {
            return cluster;
        }
        if known.len() >= MAX_DESTINATIONS {
            known.retain(|_, cluster| cluster.strong_count() > 0);
        }
        let address = destination.address();
        let settings = UpstreamSettings { addresses: [address].into(), ..self.settings.upstream.clone() };
        let tls = self.tls.clone().filter(|_| destination.is_secure);
        let cluster = match &destination.host {
            DestinationHost::Ip(_) => Cluster::new(settings, tls, None, metrics),
            DestinationHost::Name(name) => {
                let cluster = Cluster::unresolved(settings, tls, metrics);
                let (proxy, destination, name) = (Arc::clone(self), destination.clone(), name.clone());
                resolve::start(ResolvedName { proxy, destination, name, client }, &cluster);
                cluster
            }
        };
        known.insert(destination.clone(), Arc::downgrade(&cluster));
        cluster
    }
}
