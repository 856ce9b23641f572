//! IPv4 addresses inside IPv6 addresses: a packet to such an address may be translated or tunnelled to the IPv4 address.
//!
//! Prefixes of translators that a network has chosen for itself (RFC 6052 section 2.2, RFC 5969) cannot be recognised.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smallvec::SmallVec;

/// IPv4 addresses that may be reached through one IPv6 address.
pub(super) type EmbeddedAddresses = SmallVec<[Ipv4Addr; 4]>;

/// Prefixes, with their length, of addresses that exist only to carry IPv4 addresses.
const CARRIERS: [(Ipv6Addr, u32); 6] = [
    // IPv4-compatible (RFC 4291 section 2.5.5.1).
    (Ipv6Addr::UNSPECIFIED, 96),
    // IPv4-translated (RFC 2765).
    (Ipv6Addr::new(0, 0, 0, 0, 0xffff, 0, 0, 0), 96),
    // NAT64 (RFC 6052).
    (Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96),
    // NAT64 for local use (RFC 8215).
    (Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, 0, 0), 48),
    // Teredo (RFC 4380).
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 32),
    // 6to4 (RFC 3056).
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16),
];

/// Whether the address is of a range that exists only to carry IPv4 addresses.
pub(super) fn is_carrier(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if CARRIERS.iter().any(|(prefix, length)| has_prefix(ip, *prefix, *length)))
}

/// Returns the IPv4 addresses inside an address. A mapped address (`::ffff:a.b.c.d`) has none: it is the IPv4 address
/// itself wherever addresses are compared.
pub(super) fn embedded_addresses(ip: IpAddr) -> EmbeddedAddresses {
    let mut found = EmbeddedAddresses::new();
    let IpAddr::V6(ip) = ip.to_canonical() else { return found };
    let is_special = ip.is_unspecified() || ip.is_loopback();
    match CARRIERS.iter().position(|(prefix, length)| has_prefix(ip, *prefix, *length)) {
        Some(0) if is_special => {}
        Some(0..=2) => found.push(ipv4_at(ip, 96)),
        Some(3) => push_local_nat64(ip, &mut found),
        // The server, and the client's address inverted.
        Some(4) => {
            found.push(ipv4_at(ip, 32));
            found.push(Ipv4Addr::from_bits(!ipv4_at(ip, 96).to_bits()));
        }
        Some(_) => found.push(ipv4_at(ip, 16)),
        None => {}
    }
    if is_isatap(ip) {
        found.push(ipv4_at(ip, 96));
    }
    found
}

/// The position depends on the length of the prefix that the network has chosen (RFC 6052 section 2.2). Where it is
/// another one, the rest of the address is mostly zero and reads as an address in `0.0.0.0/8`.
fn push_local_nat64(ip: Ipv6Addr, found: &mut EmbeddedAddresses) {
    let bits = ip.to_bits();
    // Bits 64 to 71 are reserved and in the middle of the address.
    let rest = (bits >> 64 << 56) | (bits & ((1 << 56) - 1));
    let behind = |prefix: u32| Ipv4Addr::from_bits(low_32(rest >> (120 - 32 - prefix)));
    let of_96 = ipv4_at(ip, 96);
    let all = [behind(48), behind(56), behind(64), of_96];
    found.extend(all.into_iter().filter(|address| address.octets()[0] != 0));
    if found.is_empty() {
        found.push(of_96);
    }
}

/// Whether the interface identifier is that of ISATAP (RFC 5214 section 6.1), for a private or a public IPv4 address.
fn is_isatap(ip: Ipv6Addr) -> bool {
    let [.., marker, oui, _, _] = ip.segments();
    oui == 0x5efe && marker & !0x0300 == 0
}

fn ipv4_at(ip: Ipv6Addr, bit: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(low_32(ip.to_bits() >> (96 - bit)))
}

const fn low_32(bits: u128) -> u32 {
    (bits & 0xffff_ffff) as u32
}

fn has_prefix(ip: Ipv6Addr, prefix: Ipv6Addr, length: u32) -> bool {
    (ip.to_bits() ^ prefix.to_bits()) >> (128 - length) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_inside_each_kind_of_address_is_found() {
        for (ip, expected) in [
            ("::127.0.0.1", "127.0.0.1"),
            ("::ffff:0:127.0.0.1", "127.0.0.1"),
            ("64:ff9b::127.0.0.1", "127.0.0.1"),
            ("64:ff9b:1::127.0.0.1", "127.0.0.1"),
            ("64:ff9b:1:7f00:0:100::", "127.0.0.1"),
            ("64:ff9b:1:7f:0:1::", "127.0.0.1"),
            ("64:ff9b:1:0:7f:0:100::", "127.0.0.1"),
            ("64:ff9b:1:abcd::127.0.0.1", "127.0.0.1"),
            ("2002:7f00:1::", "127.0.0.1"),
            ("2002:a9fe:a9fe::1", "169.254.169.254"),
            ("2001:0:7f00:1::", "127.0.0.1"),
            ("2001:0:cb00:7101::80ff:fffe", "127.0.0.1"),
            ("2001:db8::5efe:127.0.0.1", "127.0.0.1"),
            ("2001:db8::200:5efe:127.0.0.1", "127.0.0.1"),
            ("fe80::5efe:10.0.0.1", "10.0.0.1"),
        ] {
            let found = embedded_addresses(ip.parse().unwrap());
            assert!(found.contains(&expected.parse().unwrap()), "{ip}: {found:?}");
        }
    }

    #[test]
    fn other_addresses_have_none_inside() {
        for ip in
            ["127.0.0.1", "::ffff:127.0.0.1", "::1", "::", "2001:db8::1", "2001:4860:4860::8888", "fd00::1"]
        {
            assert!(embedded_addresses(ip.parse().unwrap()).is_empty(), "{ip}");
        }
        let public = embedded_addresses("64:ff9b:1::203.0.113.1".parse().unwrap());
        assert_eq!(&public[..], [Ipv4Addr::new(203, 0, 113, 1)], "zeros are no address");
    }
}
