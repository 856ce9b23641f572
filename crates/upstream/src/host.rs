//! One host of an upstream, as all workers share it.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use super::settings::UpstreamAddress;
use weir_net::outage::Outage;

/// Flag: the first or too many consecutive health checks failed.
pub(super) const FAILED_CHECK: u8 = 1;
/// Flag: ejected by outlier detection.
pub(super) const EJECTED: u8 = 2;

/// All hosts of an upstream at one moment.
pub(super) type Hosts = Arc<[Arc<UpstreamHost>]>;

#[derive(Debug)]
pub struct UpstreamHost {
    /// Address in logs and metrics.
    pub name: Box<str>,
    /// Configured name or address.
    pub hostname: Box<str>,
    pub(super) target: ConnectTarget,
    /// Number of requests in flight, if the upstream balances by it.
    pub(super) in_flight: AtomicU32,
    /// Number of consecutive failed requests.
    pub(super) failures: Outage,
    flags: AtomicU8,
    /// Number of consecutive failed TLS handshakes.
    pub(super) tls_failures: Outage,
    /// Whether a TLS handshake with it has succeeded, by any name.
    pub(super) has_tls_worked: AtomicBool,
    /// Whether a predecessor of this upstream checked its health.
    pub(super) was_checked: bool,
}

/// Target of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ConnectTarget {
    Ip(SocketAddr),
    /// Resolved for each connection; addresses are tried in order.
    Name(Box<str>, u16),
    Unix(Box<Path>),
    Echo,
}

impl ConnectTarget {
    /// Returns the target of `address`; `None` for a name that must be resolved.
    pub(super) fn from_address(address: &UpstreamAddress) -> Option<Self> {
        match address {
            UpstreamAddress::Tcp { host, port } => match host.parse::<IpAddr>() {
                Ok(ip) => Some(Self::Ip(SocketAddr::new(ip, *port))),
                // `localhost` is one service with two addresses, of which often only one is listened on.
                Err(_) if &**host == "localhost" => Some(Self::Name(host.clone(), *port)),
                Err(_) => None,
            },
            UpstreamAddress::Unix(path) => Some(Self::Unix(path.clone())),
            UpstreamAddress::Echo => Some(Self::Echo),
        }
    }
}

impl UpstreamHost {
    /// Creates a host at `target` that is assumed to be healthy.
    pub(super) fn new(target: ConnectTarget, hostname: Box<str>) -> Self {
        let name = match &target {
            ConnectTarget::Ip(address) => address.to_string().into(),
            ConnectTarget::Name(..) | ConnectTarget::Unix(_) | ConnectTarget::Echo => hostname.clone(),
        };
        Self {
            name,
            hostname,
            target,
            in_flight: AtomicU32::new(0),
            failures: Outage::default(),
            flags: AtomicU8::new(0),
            tls_failures: Outage::default(),
            has_tls_worked: AtomicBool::new(false),
            was_checked: false,
        }
    }

    /// Copies the host for another upstream, with its current state. `was_checked` is whether its health was checked.
    pub(super) fn carried_over(&self, was_checked: bool) -> Self {
        Self {
            failures: self.failures.clone(),
            flags: AtomicU8::new(self.flags.load(Ordering::Relaxed)),
            tls_failures: self.tls_failures.clone(),
            was_checked,
            ..Self::new(self.target.clone(), self.hostname.clone())
        }
    }

    /// Returns the configured name or address without the port.
    pub(super) fn authority_host(&self) -> &str {
        let host = self.hostname.rsplit_once(':').map_or(&*self.hostname, |(host, _)| host);
        host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
    }

    /// Whether it may receive requests.
    pub(super) fn is_usable(&self) -> bool {
        self.flags.load(Ordering::Relaxed) == 0
    }

    /// Whether the flag is set.
    pub(super) fn has_flag(&self, flag: u8) -> bool {
        self.flags.load(Ordering::Relaxed) & flag != 0
    }

    /// Sets a flag; returns whether it was clear.
    pub(super) fn set_flag(&self, flag: u8) -> bool {
        self.flags.fetch_or(flag, Ordering::Relaxed) & flag == 0
    }

    /// Clears a flag; returns whether it was set.
    pub(super) fn clear_flag(&self, flag: u8) -> bool {
        self.flags.fetch_and(!flag, Ordering::Relaxed) & flag != 0
    }

    /// Returns its health in Envoy's terms.
    pub(super) fn health(&self) -> &'static str {
        match self.flags.load(Ordering::Relaxed) {
            0 => "healthy",
            FAILED_CHECK => "/failed_active_hc",
            EJECTED => "/failed_outlier_check",
            _ => "/failed_active_hc/failed_outlier_check",
        }
    }
}
