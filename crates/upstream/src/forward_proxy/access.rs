//! Access control of a forward proxy: the allow list of destinations.
//!
//! A name is checked twice: by its text when the request arrives, and by the addresses that it resolves to. A
//! connection is made to an address that was checked, so a name that resolves to something else the next time (DNS
//! rebinding) leads nowhere. An IPv4 address inside an IPv6 address is checked as well.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::LazyLock;

use ipnet::IpNet;

use super::destination::{Destination, DestinationHost};
use super::embedded::{embedded_addresses, is_carrier};
use weir_policy::identify::cidr::CidrSet;
use weir_policy::rules::pattern::HostPattern;

/// Local addresses: those of this host and its link, those that are not of one host, and those of metadata services.
/// What listens there often trusts its clients, such as admin ports and services that hand out credentials.
static LOCAL: LazyLock<CidrSet> = LazyLock::new(|| {
    let v4 = |a, b, c, d, prefix| IpNet::new_assert(Ipv4Addr::new(a, b, c, d).into(), prefix);
    let v6 = |bits, prefix| IpNet::new_assert(Ipv6Addr::from_bits(bits).into(), prefix);
    [
        v4(0, 0, 0, 0, 8),
        v4(127, 0, 0, 0, 8),
        v4(169, 254, 0, 0, 16),
        v4(224, 0, 0, 0, 4),
        v4(255, 255, 255, 255, 32),
        // Alibaba Cloud and Azure.
        v4(100, 100, 100, 200, 32),
        v4(168, 63, 129, 16, 32),
        v6(0, 128),
        v6(1, 128),
        v6(0xfe80 << 112, 10),
        v6(0xff << 120, 8),
        // AWS (`fd00:ec2::254`, and `::23` for pods), Google Cloud (`fd20:ce::254`), Oracle Cloud (`fd00:c1::a9fe:a9fe`).
        v6((0xfd00_0ec2 << 96) | 0x254, 128),
        v6((0xfd00_0ec2 << 96) | 0x23, 128),
        v6((0xfd20_00ce << 96) | 0x254, 128),
        v6((0xfd00_00c1 << 96) | 0xa9fe_a9fe, 128),
    ]
    .into_iter()
    .collect()
});

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
    pub networks: Box<[PermittedNetwork]>,
}

/// Entry that permits the addresses of a network.
#[derive(Clone, Debug, PartialEq)]
pub struct PermittedNetwork {
    network: CidrSet,
    /// The only port, if the entry has one.
    port: Option<u16>,
    /// Whether it permits local addresses, because it has no others.
    is_local: bool,
    /// Whether it permits IPv6 addresses whatever IPv4 address is inside, because it has no others.
    is_carrier: bool,
}

impl PermittedNetwork {
    /// Creates an entry.
    pub fn new(network: IpNet, port: Option<u16>) -> Self {
        let is_one_local = network.prefix_len() == network.max_prefix_len() && is_local(network.addr());
        let is_carrier = is_carrier(network.network()) && is_carrier(network.broadcast());
        let network: CidrSet = std::iter::once(network).collect();
        let is_local = is_one_local || network.is_within(&LOCAL);
        Self { network, port, is_local, is_carrier }
    }

    fn permits(&self, ip: IpAddr) -> bool {
        self.network.contains(ip) && (self.is_local || !is_local(ip))
    }
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
            DestinationHost::Name(_) => self.networks.iter().map(|entry| entry.port).collect(),
        };
        let names_port = ports.contains(&Some(destination.port));
        let is_permitted = (names_port || ports.contains(&None))
            && match &destination.host {
                DestinationHost::Ip(ip) => self.permits_embedded(destination, *ip),
                DestinationHost::Name(_) => true,
            };
        is_permitted.then_some(Permission { names_port }).ok_or(Refusal::Destination)
    }

    /// Whether a connection to the destination may use this address. A name that is permitted by a pattern may have any
    /// address except local ones, which have to be permitted by a network that has no others. The same holds for IPv4
    /// addresses inside an IPv6 address.
    pub(super) fn permits_address(&self, destination: &Destination, ip: IpAddr) -> bool {
        self.permits_one(destination, ip) && self.permits_embedded(destination, ip)
    }

    /// Whether a name with these addresses leads inside: beside others it has a local one that is not permitted.
    pub(super) fn leads_inside(&self, destination: &Destination, addresses: &[SocketAddr]) -> bool {
        let is_trap = |ip| is_local(ip) && !self.permits_address(destination, ip);
        addresses.iter().any(|address| is_trap(address.ip()))
            && addresses.iter().any(|address| !is_local(address.ip()))
    }

    /// Whether the IPv4 addresses inside an IPv6 address are permitted too, or the entry is for such addresses.
    fn permits_embedded(&self, destination: &Destination, ip: IpAddr) -> bool {
        let port = destination.port;
        let is_named = |entry: &PermittedNetwork| {
            entry.is_carrier && entry.permits(ip) && entry.port.is_none_or(|only| only == port)
        };
        let permits = |inside| self.permits_one(destination, IpAddr::V4(inside));
        embedded_addresses(ip).into_iter().all(permits) || self.networks.iter().any(is_named)
    }

    fn permits_one(&self, destination: &Destination, ip: IpAddr) -> bool {
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
        self.networks.iter().filter(move |entry| entry.permits(ip)).map(|entry| entry.port)
    }
}

/// Whether the address, or one inside it, is local.
fn is_local(ip: IpAddr) -> bool {
    LOCAL.contains(ip) || embedded_addresses(ip).into_iter().any(|inside| LOCAL.contains(inside.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list() -> DestinationList {
        let name = |text: &str, port| (HostPattern::parse(text).unwrap(), port);
        let network = |text: &str, port| PermittedNetwork::new(text.parse().unwrap(), port);
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

    #[test]
    fn name_with_a_public_and_a_local_address_leads_inside() {
        let list = |network: &str| DestinationList {
            networks: [PermittedNetwork::new(network.parse().unwrap(), None)].into(),
            ..list()
        };
        let leads_inside = |network: &str, ips: &[&str]| {
            let addresses: Vec<SocketAddr> =
                ips.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), 443)).collect();
            list(network).leads_inside(&Destination::of_connect("api.test:443").unwrap(), &addresses)
        };
        for local in ["127.0.0.1", "::1", "::ffff:127.0.0.1", "64:ff9b::169.254.169.254", "2002:7f00:1::"] {
            assert!(leads_inside("10.2.0.0/16", &["203.0.113.1", local]), "{local}");
        }
        assert!(!leads_inside("10.2.0.0/16", &["203.0.113.1", "10.9.0.1"]));
        assert!(!leads_inside("127.0.0.0/8", &["203.0.113.1", "127.0.0.1"]), "an entry permits it");
        assert!(!leads_inside("127.0.0.0/8", &["::1", "127.0.0.1"]), "the permitted one is used");
    }

    #[test]
    fn address_inside_an_address_is_checked() {
        let insides = [
            "64:ff9b::{}",
            "64:ff9b:1::{}",
            "::{}",
            "::ffff:0:{}",
            "2001:db8::5efe:{}",
            "2001:db8::200:5efe:{}",
        ];
        let permits = |authority: &str, ip: &str| {
            list().permits_address(&Destination::of_connect(authority).unwrap(), ip.parse().unwrap())
        };
        for form in insides {
            let with = |ip: &str| form.replace("{}", ip);
            assert!(permits("api.test:443", &with("203.0.113.1")), "{form}");
            for local in ["127.0.0.1", "169.254.169.254", "100.100.100.200"] {
                assert!(!permits("api.test:443", &with(local)), "{form} of {local}");
            }
            assert!(
                !permits("other.test:8080", &with("10.2.0.1")),
                "{form}: no entry permits the IPv6 address"
            );
        }
        assert!(!permits("api.test:443", "2002:7f00:1::1") && permits("api.test:443", "2002:cb00:7101::1"));
        assert!(!permits("api.test:443", "2001:0:cb00:7101::80ff:fffe"), "Teredo client at 127.0.0.1");
    }

    fn list_of(networks: &[&str]) -> DestinationList {
        let networks = networks.iter().map(|text| PermittedNetwork::new(text.parse().unwrap(), None));
        DestinationList { networks: networks.collect(), ..DestinationList::default() }
    }

    #[test]
    fn networks_of_ipv6_addresses_do_not_permit_ipv4_addresses_inside() {
        let permits = |networks: &[&str], ip: &str| {
            list_of(networks).check(&Destination::of_connect(&format!("[{ip}]:80")).unwrap()).is_ok()
        };
        let (wide, documented) = (["2000::/3", "64::/16"], ["2000::/3", "64::/16", "203.0.113.0/24"]);
        for form in ["64:ff9b::{}", "64:ff9b:1::{}", "2001:db8::5efe:{}"] {
            let with = |ip: &str| form.replace("{}", ip);
            assert!(!permits(&wide, &with("10.0.0.1")) && !permits(&documented, &with("10.0.0.1")), "{form}");
            assert!(permits(&documented, &with("203.0.113.9")), "{form}");
        }
        assert!(!permits(&wide, "2002:a00:1::") && permits(&documented, "2002:cb00:7101::"));
        assert!(permits(&["64:ff9b::/96"], "64:ff9b::10.0.0.1"), "the entry is for such addresses");
        assert!(!permits(&["64:ff9b::/96"], "64:ff9b::127.0.0.1"));
        assert!(permits(&["64:ff9b::127.0.0.1/128"], "64:ff9b::127.0.0.1"));
    }

    #[test]
    fn only_networks_of_local_addresses_permit_local_addresses() {
        let permits = |networks: &[&str], ip: &str| {
            let authority = if ip.contains(':') { format!("[{ip}]:80") } else { format!("{ip}:80") };
            list_of(networks).check(&Destination::of_connect(&authority).unwrap()).is_ok()
        };
        let all = ["0.0.0.0/0", "::/0"];
        for ip in ["127.0.0.1", "169.254.169.254", "100.100.100.200", "::1", "fe80::1", "fd00:ec2::254"] {
            assert!(!permits(&all, ip), "{ip}");
            assert!(!permits(&["::ffff:0:0/96"], ip), "{ip}");
        }
        assert!(permits(&all, "10.0.0.1") && permits(&all, "2001:db8::1") && permits(&all, "fd00:ec2::255"));
        assert!(
            permits(&["127.0.0.0/8"], "127.0.0.1") && permits(&["127.0.0.1/32", "0.0.0.0/0"], "127.0.0.1")
        );
        assert!(permits(&["169.254.169.254/32"], "169.254.169.254") && permits(&["::1/128"], "::1"));
        assert!(!permits(&["126.0.0.0/7"], "127.0.0.1"));
    }
}
