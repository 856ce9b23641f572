//! One place of an upstream, as all workers share it.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use super::settings::Address;

/// The last health check went wrong, or too many in a row.
pub(super) const FAILED_CHECK: u8 = 1;
/// It has failed too many requests and is left out for a while.
pub(super) const EJECTED: u8 = 2;

/// All places of an upstream at one moment.
pub(super) type Hosts = Arc<[Arc<Host>]>;

/// One place of an upstream.
#[derive(Debug)]
pub struct Host {
    /// Its address in logs and numbers.
    pub name: Box<str>,
    /// As what it was configured.
    pub hostname: Box<str>,
    pub(super) target: Target,
    /// Requests in flight, where they are counted.
    pub(super) in_flight: AtomicU32,
    /// Requests failed in a row.
    pub(super) failures: AtomicU32,
    flags: AtomicU8,
    /// There was no TLS with it when that was last tried.
    pub(super) is_distrusted: AtomicBool,
    /// Whether it had been checked before this upstream had it.
    pub(super) was_checked: bool,
}

/// Where a connection is made to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Ip(SocketAddr),
    /// Looked up at each connection, which is made to the first of its addresses that takes it.
    Name(Box<str>, u16),
    Unix(Box<Path>),
    Echo,
}

impl Target {
    /// Where `address` is; `None` for a name that has to be looked up.
    pub(super) fn of(address: &Address) -> Option<Self> {
        match address {
            Address::Tcp { host, port } => match host.parse::<IpAddr>() {
                Ok(ip) => Some(Self::Ip(SocketAddr::new(ip, *port))),
                // One service with two addresses, and often only one of them is listened on.
                Err(_) if &**host == "localhost" => Some(Self::Name(host.clone(), *port)),
                Err(_) => None,
            },
            Address::Unix(path) => Some(Self::Unix(path.clone())),
            Address::Echo => Some(Self::Echo),
        }
    }
}

impl Host {
    /// The place at `target`, healthy as far as anybody knows.
    pub(super) fn new(target: Target, hostname: Box<str>) -> Self {
        let name = match &target {
            Target::Ip(address) => address.to_string().into(),
            Target::Name(..) | Target::Unix(_) | Target::Echo => hostname.clone(),
        };
        Self {
            name,
            hostname,
            target,
            in_flight: AtomicU32::new(0),
            failures: AtomicU32::new(0),
            flags: AtomicU8::new(0),
            is_distrusted: AtomicBool::new(false),
            was_checked: false,
        }
    }

    /// The same place for another upstream, as it is at the moment; `was_checked` says whether anybody asks it.
    pub(super) fn again(&self, was_checked: bool) -> Self {
        Self {
            failures: AtomicU32::new(self.failures.load(Ordering::Relaxed)),
            flags: AtomicU8::new(self.flags.load(Ordering::Relaxed)),
            is_distrusted: AtomicBool::new(self.is_distrusted.load(Ordering::Relaxed)),
            was_checked,
            ..Self::new(self.target.clone(), self.hostname.clone())
        }
    }

    /// The name or address that it was configured by, without the port.
    pub(super) fn authority_host(&self) -> &str {
        let host = self.hostname.rsplit_once(':').map_or(&*self.hostname, |(host, _)| host);
        host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
    }

    /// Whether it may get requests.
    pub(super) fn is_usable(&self) -> bool {
        self.flags.load(Ordering::Relaxed) == 0
    }

    /// Whether the flag is up.
    pub(super) fn is(&self, flag: u8) -> bool {
        self.flags.load(Ordering::Relaxed) & flag != 0
    }

    /// Puts a flag up; whether it was down.
    pub(super) fn raise(&self, flag: u8) -> bool {
        self.flags.fetch_or(flag, Ordering::Relaxed) & flag == 0
    }

    /// Takes a flag down; whether it was up.
    pub(super) fn lower(&self, flag: u8) -> bool {
        self.flags.fetch_and(!flag, Ordering::Relaxed) & flag != 0
    }

    /// How it is, in Envoy's words.
    pub(super) fn health(&self) -> &'static str {
        match self.flags.load(Ordering::Relaxed) {
            0 => "healthy",
            FAILED_CHECK => "/failed_active_hc",
            EJECTED => "/failed_outlier_check",
            _ => "/failed_active_hc/failed_outlier_check",
        }
    }
}
