//! Client address: the IP address that a request is counted under.
//!
//! It is the peer's address unless the peer is a trusted proxy. Then the recorded hops are examined from the nearest to
//! the farthest, and the first one that is not trusted is the client. Hops beyond it were written by the client and are
//! ignored. An unreadable hop ends the search; the client is then the last trusted hop before it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::HeaderMap;

use super::cidr::CidrSet;
use super::client_headers::AddressHeader;
use super::forwarded;

/// Maximum number of hops that are examined, more than any real chain has.
const MAX_HOPS: usize = 64;

/// Address of the client, and how it was determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientAddress {
    /// The address; IPv4-mapped IPv6 is converted to IPv4.
    pub ip: IpAddr,
    /// Whether the peer is a trusted proxy.
    pub peer_is_trusted: bool,
    /// Whether the request is internal: the peer, and every address in X-Forwarded-For and in the header that names
    /// the client, are trusted.
    pub is_internal: bool,
}

/// Returns the address of the client behind `peer`, as recorded by `trusted` proxies in the first of the headers `named`
/// that is present.
pub fn resolve(
    peer: IpAddr,
    headers: &HeaderMap,
    trusted: &CidrSet,
    named: &[AddressHeader],
) -> ClientAddress {
    let peer = peer.to_canonical();
    if trusted.is_empty() || !trusted.contains(peer) {
        return ClientAddress { ip: peer, peer_is_trusted: false, is_internal: false };
    }
    let forwarded_for = || walk(peer, forwarded::hops_from_nearest(headers), trusted);
    let (ip, is_internal) = match named.iter().find(|named| headers.contains_key(named.name())) {
        Some(named) if *named.name() != forwarded::X_FORWARDED_FOR => {
            let (ip, is_trusted) = walk(peer, named.hops_from_nearest(headers), trusted);
            (ip, is_trusted && forwarded_for().1)
        }
        Some(_) => forwarded_for(),
        None => (peer, forwarded_for().1),
    };
    ClientAddress { ip, peer_is_trusted: true, is_internal }
}

/// Returns the first of `hops` that is not trusted, or the last one before an unreadable hop, and whether all are trusted.
fn walk(peer: IpAddr, hops: impl Iterator<Item = Option<IpAddr>>, trusted: &CidrSet) -> (IpAddr, bool) {
    let mut client = peer;
    // A hop that is untrusted or unreadable is external; hops beyond the maximum are assumed to be.
    for (index, hop) in hops.enumerate() {
        let hop = hop.filter(|_| index < MAX_HOPS);
        client = hop.unwrap_or(client);
        if !hop.is_some_and(|hop| trusted.contains(hop)) {
            return (client, false);
        }
    }
    (client, true)
}

/// Whether X-Forwarded-For contains nothing that the client may have written: every hop is an address, and only
/// `trusted` proxies follow the first one.
pub fn is_chain_trusted(client: ClientAddress, headers: &HeaderMap, trusted: &CidrSet) -> bool {
    let mut hops = forwarded::hops_from_nearest(headers);
    let chain = hops.by_ref().take(MAX_HOPS).find(|hop| hop.is_none_or(|hop| !trusted.contains(hop)));
    client.peer_is_trusted && chain != Some(None) && hops.next().is_none()
}

/// Returns `ip` with all bits after the prefix of its family cleared.
pub fn network(ip: IpAddr, ipv4_prefix: u8, ipv6_prefix: u8) -> IpAddr {
    match ip {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(ipv4_prefix.min(32))).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() & mask))
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(ipv6_prefix.min(128))).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & mask))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(peer: &str, forwarded: &[&str], trusted: &[&str]) -> String {
        let mut headers = HeaderMap::new();
        for line in forwarded {
            headers.append(forwarded::X_FORWARDED_FOR, line.parse().unwrap());
        }
        let trusted = trusted.iter().map(|net| net.parse::<ipnet::IpNet>().unwrap()).collect();
        resolve(peer.parse().unwrap(), &headers, &trusted, &[AddressHeader::default()]).ip.to_string()
    }

    #[test]
    fn untrusted_peer_cannot_choose_its_client_ip() {
        assert_eq!(client("198.51.100.1", &["1.1.1.1"], &[]), "198.51.100.1");
        assert_eq!(client("198.51.100.1", &["1.1.1.1"], &["10.0.0.0/8"]), "198.51.100.1");
    }

    #[test]
    fn client_ip_is_the_nearest_untrusted_hop() {
        let trusted = ["10.0.0.0/8"];
        assert_eq!(client("10.0.0.1", &["6.6.6.6, 1.1.1.1, 10.0.0.2"], &trusted), "1.1.1.1");
        assert_eq!(client("10.0.0.1", &["6.6.6.6", "1.1.1.1", "10.0.0.2"], &trusted), "1.1.1.1");
        assert_eq!(client("::ffff:10.0.0.1", &["1.1.1.1"], &trusted), "1.1.1.1");
    }

    #[test]
    fn client_ip_is_in_the_first_header_that_is_present() {
        let trusted: CidrSet = ["10.0.0.0/8".parse::<ipnet::IpNet>().unwrap()].into_iter().collect();
        let named = ["cf-connecting-ip", "x-real-ip"].map(|name| AddressHeader::new(name.parse().unwrap()));
        let client = |peer: &str, fields: &[(&'static str, &str)]| {
            let fields = fields
                .iter()
                .map(|(name, value)| (http::HeaderName::from_static(name), value.parse().unwrap()));
            let client = resolve(peer.parse().unwrap(), &fields.collect(), &trusted, &named);
            (client.ip.to_string(), client.is_internal)
        };
        let (peer, both) = ("10.0.0.1", [("x-real-ip", "192.0.2.2"), ("cf-connecting-ip", "192.0.2.1")]);
        assert_eq!(client(peer, &both), ("192.0.2.1".into(), false));
        assert_eq!(client(peer, &both[..1]), ("192.0.2.2".into(), false));
        assert_eq!(client("192.0.2.9", &both), ("192.0.2.9".into(), false), "an untrusted peer");
        assert_eq!(client(peer, &[("cf-connecting-ip", "unknown")]), (peer.into(), false));
        let forwarded = ("x-forwarded-for", "192.0.2.7");
        assert_eq!(
            client(peer, &[forwarded]),
            (peer.into(), false),
            "the header is not read, and makes it external"
        );
        let inner = [("cf-connecting-ip", "10.0.0.5"), forwarded];
        assert_eq!(client(peer, &inner), ("10.0.0.5".into(), false));
        assert_eq!(client(peer, &inner[..1]), ("10.0.0.5".into(), true));
    }

    #[test]
    fn malformed_hop_stops_at_the_last_trusted_address() {
        let trusted = ["10.0.0.0/8"];
        assert_eq!(client("10.0.0.1", &["1.1.1.1, unknown, 10.0.0.2"], &trusted), "10.0.0.2");
        assert_eq!(client("10.0.0.1", &["1.1.1.1, , unknown,"], &trusted), "10.0.0.1");
        assert_eq!(
            client("10.0.0.1", &["1.1.1.1, ,10.0.0.2, "], &trusted),
            "1.1.1.1",
            "empty elements are none"
        );
        assert_eq!(client("10.0.0.1", &[], &trusted), "10.0.0.1");
    }

    #[test]
    fn client_ip_is_the_farthest_hop_when_all_are_trusted() {
        assert_eq!(client("10.0.0.1", &["10.0.0.3, 10.0.0.2"], &["10.0.0.0/8"]), "10.0.0.3");
    }

    #[test]
    fn request_is_internal_only_if_every_hop_is_trusted() {
        let trusted: CidrSet = ["10.0.0.0/8".parse::<ipnet::IpNet>().unwrap()].into_iter().collect();
        let is_internal = |peer: &str, forwarded: &str| {
            let mut headers = HeaderMap::new();
            if !forwarded.is_empty() {
                headers.append(forwarded::X_FORWARDED_FOR, forwarded.parse().unwrap());
            }
            resolve(peer.parse().unwrap(), &headers, &trusted, &[AddressHeader::default()]).is_internal
        };
        assert!(is_internal("10.0.0.1", ""));
        assert!(is_internal("10.0.0.1", "10.0.0.3, 10.0.0.2"));
        let endless = vec!["10.0.0.9"; MAX_HOPS + 1].join(",");
        for external in [
            "192.0.2.1",
            "10.0.0.5, 192.0.2.1",
            "192.0.2.1, 10.0.0.2",
            "unknown",
            "10.0.0.5, unknown",
            &endless,
        ] {
            assert!(!is_internal("10.0.0.1", external), "{external}");
        }
        assert!(!is_internal("192.0.2.1", "") && !is_internal("192.0.2.1", "10.0.0.1"));
    }

    #[test]
    fn forwarded_chain_is_read_up_to_max_hops() {
        let line = vec!["10.0.0.9"; 10_000].join(",");
        assert_eq!(client("10.0.0.1", &[&format!("1.1.1.1,{line}")], &["10.0.0.0/8"]), "10.0.0.9");
    }

    #[test]
    fn forwarded_chain_is_trusted_only_up_to_the_client() {
        let is_trusted = |peer: &str, value: &str| {
            let headers = HeaderMap::from_iter([(forwarded::X_FORWARDED_FOR, value.parse().unwrap())]);
            let trusted = ["10.0.0.0/8".parse::<ipnet::IpNet>().unwrap()].into_iter().collect();
            is_chain_trusted(
                resolve(peer.parse().unwrap(), &headers, &trusted, &[AddressHeader::default()]),
                &headers,
                &trusted,
            )
        };
        for chain in ["1.1.1.1", "1.1.1.1, 10.0.0.2", "10.0.0.3, 10.0.0.2"] {
            assert!(is_trusted("10.0.0.1", chain) && !is_trusted("192.0.2.1", chain), "{chain}");
        }
        for chain in ["6.6.6.6, 1.1.1.1", "<script>, 1.1.1.1", "evil.example", "1.1.1.1, x, 10.0.0.2"] {
            assert!(!is_trusted("10.0.0.1", chain), "{chain}");
        }
        let endless = vec!["10.0.0.9"; MAX_HOPS + 1].join(",");
        assert!(!is_trusted("10.0.0.1", &endless));
    }

    #[test]
    fn client_network_uses_the_configured_prefixes() {
        let ip: IpAddr = "2001:db8:1:2:3:4:5:6".parse().unwrap();
        assert_eq!(network(ip, 32, 64).to_string(), "2001:db8:1:2::");
        assert_eq!(network(ip, 32, 128), ip);
        assert_eq!(network(ip, 32, 1).to_string(), "::");
        assert_eq!(network("192.0.2.1".parse().unwrap(), 32, 64).to_string(), "192.0.2.1");
        assert_eq!(network("192.0.2.1".parse().unwrap(), 24, 64).to_string(), "192.0.2.0");
        assert_eq!(network("192.0.2.1".parse().unwrap(), 0, 64).to_string(), "0.0.0.0");
    }
}
