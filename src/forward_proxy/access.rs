//! Access control of a forward proxy: the allow list of destinations.
//!
//! A name is checked twice: by its text when the request arrives, and by the addresses that it resolves to. A
//! connection is made to an address that was checked, so a name that resolves to something else the next time (DNS
//! rebinding) leads nowhere.

use std::net::IpAddr;

use super::destination::{Destination, DestinationHost};
use crate::identify::cidr::CidrSet;
use crate::rules::pattern::HostPattern;

/// Why a forward proxy does not serve a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The client is not allowed to use the proxy.
    Client,
    /// The target is not a valid destination.
    Malformed,
    /// The destination is not allowed.
    Destination,
    /// The port is not one that CONNECT may reach.
    ConnectPort,
    /// The destination is this process.
    Loop,
    /// No certificate authority is known by which the destination could be verified.
    NoAuthorities,
}

/// Destinations that a forward proxy may reach.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DestinationList {
    /// Patterns of names, each with its port if it has one.
    pub names: Box<[(HostPattern, Option<u16>)]>,
    /// Networks, each with its port if it has one.
    pub networks: Box<[(CidrSet, Option<u16>)]>,
}

/// Entry that permits a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Permission {
    /// Whether the entry names the port.
    pub(super) names_port: bool,
}

impl DestinationList {
    /// Checks the name or address of a destination. A name without a matching pattern is permitted if an entry is a
    /// network: its addresses decide.
    pub(super) fn check(&self, destination: &Destination) -> Result<Permission, Refusal> {
        let ports: Vec<Option<u16>> = match &destination.host {
            DestinationHost::Ip(ip) => self.ports_of_address(*ip).collect(),
            DestinationHost::Name(name) if self.has_name(name, destination.port) => {
                self.ports_of_name(name).collect()
            }
            DestinationHost::Name(_) => self.networks.iter().map(|(_, port)| *port).collect(),
        };
        let names_port = ports.contains(&Some(destination.port));
        let is_permitted = names_port || ports.contains(&None);
        is_permitted.then_some(Permission { names_port }).ok_or(Refusal::Destination)
    }

    /// Whether a connection to the destination may use this address. A name that is permitted by a pattern may have any
    /// address except those of this host and its link, which have to be permitted as networks.
    pub(super) fn permits_address(&self, destination: &Destination, ip: IpAddr) -> bool {
        let port = destination.port;
        if self.ports_of_address(ip).any(|only| only.is_none_or(|only| only == port)) {
            return true;
        }
        match &destination.host {
            DestinationHost::Ip(_) => false,
            DestinationHost::Name(name) => self.has_name(name, port) && !is_local(ip),
        }
    }

    fn has_name(&self, name: &str, port: u16) -> bool {
        self.ports_of_name(name).any(|only| only.is_none_or(|only| only == port))
    }

    fn ports_of_name(&self, name: &str) -> impl Iterator<Item = Option<u16>> {
        self.names.iter().filter(move |(pattern, _)| pattern.matches(name)).map(|(_, port)| *port)
    }

    fn ports_of_address(&self, ip: IpAddr) -> impl Iterator<Item = Option<u16>> {
        self.networks.iter().filter(move |(network, _)| network.contains(ip)).map(|(_, port)| *port)
    }
}

/// Whether the address is one of this host or its link, or not that of a host. Services there often trust their
/// clients: admin ports, metadata services.
fn is_local(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(v4) => {
            v4.octets()[0] == 0
                || v4.is_loopback()
                || v4.is_link_local()
                || v4.is_multicast()
                || v4.is_broadcast()
        }
        IpAddr::V6(v6) => {
            v6.is_unspecified() || v6.is_loopback() || v6.is_unicast_link_local() || v6.is_multicast()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list() -> DestinationList {
        let name = |text: &str, port| (HostPattern::parse(text).unwrap(), port);
        let network = |text: &str, port| ([text.parse().unwrap()].into_iter().collect(), port);
        DestinationList {
            names: [name("api.test", None), name("*.db.test", Some(5432))].into(),
            networks: [network("10.2.0.0/16", Some(8080))].into(),
        }
    }

    fn check(authority: &str) -> Result<bool, Refusal> {
        let destination = Destination::of_connect(authority).unwrap();
        list().check(&destination).map(|permission| permission.names_port)
    }

    #[test]
    fn destination_needs_a_matching_entry() {
        for (authority, expected) in [
            ("api.test:443", Ok(false)),
            ("api.test:80", Ok(false)),
            ("a.db.test:5432", Ok(true)),
            ("a.db.test:443", Err(Refusal::Destination)),
            ("10.2.3.4:8080", Ok(true)),
            ("10.2.3.4:80", Err(Refusal::Destination)),
            ("10.3.0.1:8080", Err(Refusal::Destination)),
            ("[::1]:8080", Err(Refusal::Destination)),
            // Its addresses decide.
            ("other.test:8080", Ok(true)),
            ("other.test:80", Err(Refusal::Destination)),
        ] {
            assert_eq!(check(authority), expected, "{authority}");
        }
    }

    #[test]
    fn addresses_of_names_are_checked() {
        for (authority, ip, is_permitted) in [
            ("api.test:443", "203.0.113.1", true),
            ("api.test:443", "10.9.9.9", true),
            ("api.test:443", "127.0.0.1", false),
            ("api.test:443", "::ffff:127.0.0.1", false),
            ("api.test:443", "0.0.0.0", false),
            ("api.test:443", "169.254.169.254", false),
            ("api.test:443", "::1", false),
            ("api.test:443", "fe80::1", false),
            ("other.test:8080", "10.2.0.1", true),
            ("other.test:8080", "203.0.113.1", false),
            ("other.test:80", "10.2.0.1", false),
        ] {
            let destination = Destination::of_connect(authority).unwrap();
            let ip = ip.parse().unwrap();
            assert_eq!(list().permits_address(&destination, ip), is_permitted, "{authority} at {ip}");
        }
    }
}
