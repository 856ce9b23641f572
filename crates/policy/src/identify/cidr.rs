//! Sets of address ranges with look-up by binary search.
//!
//! An IPv4-mapped IPv6 address is treated as the IPv4 address, so both are in the same sets. Ranges of the two families
//! are stored separately: a million IPv4 networks take 8 MB, and a search touches fewer cache lines. All rules and
//! generations that use a list share its ranges.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

/// The IPv4-mapped block of IPv6 addresses (RFC 4291, section 2.5.5.2).
const MAPPED: (u128, u128) = (0xffff << 32, (0xffff << 32) | 0xffff_ffff);

/// A set of addresses; empty by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CidrSet {
    /// An address is in the set if it is in any of these.
    parts: Box<[Arc<Ranges>]>,
}

/// Disjoint, non-adjacent ranges of addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges {
    /// IPv4 ranges, ascending, both ends included.
    v4: Box<[(u32, u32)]>,
    /// IPv6 ranges without mapped addresses, ascending, both ends included.
    v6: Box<[(u128, u128)]>,
}

impl CidrSet {
    /// Returns the union of `parts`.
    pub fn from_ranges(parts: impl IntoIterator<Item = Arc<Ranges>>) -> Self {
        Self { parts: parts.into_iter().filter(|part| !part.is_empty()).collect() }
    }

    pub fn contains(&self, ip: IpAddr) -> bool {
        self.parts.iter().any(|part| part.contains(ip))
    }

    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Whether one of the parts contains all addresses of a family.
    pub fn holds_a_family(&self) -> bool {
        self.parts.iter().any(|part| part.holds_a_family())
    }

    /// Whether every range of this set lies in one range of `wider`. Sufficient for being a subset, and not necessary:
    /// ranges of different parts are not merged.
    pub fn is_within(&self, wider: &Self) -> bool {
        let v4 = |range: &(u32, u32)| wider.parts.iter().any(|part| is_range_within(&part.v4, *range));
        let v6 = |range: &(u128, u128)| wider.parts.iter().any(|part| is_range_within(&part.v6, *range));
        self.parts.iter().all(|part| part.v4.iter().all(v4) && part.v6.iter().all(v6))
    }

    /// Whether no address is in both sets.
    pub fn is_disjoint(&self, other: &Self) -> bool {
        let pairs = self.parts.iter().flat_map(|one| other.parts.iter().map(move |two| (one, two)));
        pairs.into_iter().all(|(one, two)| !have_overlap(&one.v4, &two.v4) && !have_overlap(&one.v6, &two.v6))
    }
}

impl FromIterator<IpNet> for CidrSet {
    fn from_iter<I: IntoIterator<Item = IpNet>>(networks: I) -> Self {
        Self::from_ranges([Arc::new(networks.into_iter().collect())])
    }
}

impl Ranges {
    pub fn contains(&self, ip: IpAddr) -> bool {
        match ip.to_canonical() {
            IpAddr::V4(v4) => is_within(&self.v4, v4.to_bits()),
            IpAddr::V6(v6) => is_within(&self.v6, v6.to_bits()),
        }
    }

    /// Whether there are no ranges.
    pub fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }

    /// Whether the ranges contain all addresses of a family.
    pub fn holds_a_family(&self) -> bool {
        *self.v4 == [(0, u32::MAX)] || *self.v6 == [(0, u128::MAX)]
    }
}

impl FromIterator<IpNet> for Ranges {
    fn from_iter<I: IntoIterator<Item = IpNet>>(networks: I) -> Self {
        let mut v4: Vec<(u32, u32)> = Vec::new();
        let mut v6: Vec<(u128, u128)> = Vec::new();
        for network in networks {
            match network {
                IpNet::V4(net) => v4.push((net.network().to_bits(), net.broadcast().to_bits())),
                IpNet::V6(net) => {
                    let (first, last) = (net.network().to_bits(), net.broadcast().to_bits());
                    // Networks are aligned: each is inside the mapped block, contains it, or is disjoint from it.
                    if first >= MAPPED.0 && last <= MAPPED.1 {
                        v4.push(((first & 0xffff_ffff) as u32, (last & 0xffff_ffff) as u32));
                        continue;
                    }
                    if first <= MAPPED.0 && last >= MAPPED.1 {
                        v4.push((0, u32::MAX));
                    }
                    v6.push((first, last));
                }
            }
        }
        Self { v4: merged(v4, |last| last.saturating_add(1)), v6: merged(v6, |last| last.saturating_add(1)) }
    }
}

fn is_within<T: Ord + Copy>(ranges: &[(T, T)], number: T) -> bool {
    let after = ranges.partition_point(|(first, _)| *first <= number);
    after > 0 && number <= ranges[after - 1].1
}

fn is_range_within<T: Ord + Copy>(ranges: &[(T, T)], range: (T, T)) -> bool {
    let after = ranges.partition_point(|(first, _)| *first <= range.0);
    after > 0 && range.1 <= ranges[after - 1].1
}

/// Whether a range of one list overlaps one of the other; both are ascending.
fn have_overlap<T: Ord + Copy>(one: &[(T, T)], two: &[(T, T)]) -> bool {
    let (mut left, mut right) = (one.iter().peekable(), two.iter().peekable());
    while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
        if a.1 < b.0 {
            left.next();
        } else if b.1 < a.0 {
            right.next();
        } else {
            return true;
        }
    }
    false
}

/// Sorts ranges and merges those that overlap or touch. `next` returns the number after a range's last.
fn merged<T: Ord + Copy>(mut all: Vec<(T, T)>, next: impl Fn(T) -> T) -> Box<[(T, T)]> {
    all.sort_unstable();
    let mut ranges: Vec<(T, T)> = Vec::with_capacity(all.len());
    for (first, last) in all {
        match ranges.last_mut() {
            Some(range) if first <= next(range.1) => range.1 = range.1.max(last),
            _ => ranges.push((first, last)),
        }
    }
    ranges.into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn set(networks: &[&str]) -> CidrSet {
        networks.iter().map(|net| net.parse::<IpNet>().unwrap()).collect()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn cidr_set_includes_exactly_its_networks() {
        let set = set(&["10.0.0.0/8", "192.0.2.7/32", "2001:db8::/32"]);
        for inside in ["10.0.0.0", "10.255.255.255", "192.0.2.7", "2001:db8::1", "::ffff:10.1.2.3"] {
            assert!(set.contains(ip(inside)), "{inside}");
        }
        for outside in ["9.255.255.255", "11.0.0.0", "192.0.2.6", "192.0.2.8", "2001:db9::", "::1"] {
            assert!(!set.contains(ip(outside)), "{outside}");
        }
        assert!(!CidrSet::default().contains(ip("127.0.0.1")));
    }

    #[test]
    fn overlapping_and_adjacent_networks_are_merged() {
        let set = set(&["10.0.0.0/9", "10.128.0.0/9", "10.1.0.0/16"]);
        assert_eq!(set.parts[0].v4.len(), 1);
        assert!(set.contains(ip("10.200.0.1")));
    }

    #[test]
    fn cidr_set_of_all_addresses_contains_every_address() {
        let set = set(&["0.0.0.0/0", "::/0"]);
        assert!(set.contains(ip("255.255.255.255")) && set.contains(ip("ffff::")));
        assert!(set.holds_a_family());
        let half: Ranges =
            ["0.0.0.0/1", "8000::/1"].iter().map(|net| net.parse::<IpNet>().unwrap()).collect();
        assert!(!half.holds_a_family());
    }

    #[test]
    fn cidr_sets_are_compared_by_range() {
        let office = set(&["10.1.0.0/16", "192.0.2.7/32"]);
        assert!(office.is_within(&set(&["10.0.0.0/8", "192.0.2.0/24"])));
        assert!(!office.is_within(&set(&["10.0.0.0/8"])) && !set(&["10.0.0.0/8"]).is_within(&office));
        assert!(set(&["10.0.0.0/8"]).is_within(&set(&["10.0.0.0/9", "10.128.0.0/9"])));
        assert!(office.is_disjoint(&set(&["10.2.0.0/16", "192.0.2.8/32", "2001:db8::/32"])));
        assert!(
            !office.is_disjoint(&set(&["0.0.0.0/0"])) && !set(&["::1/128"]).is_disjoint(&set(&["::/64"]))
        );
    }

    #[test]
    fn cidr_set_from_ranges_is_their_union() {
        let list = |net: &str| Arc::new([net.parse::<IpNet>().unwrap()].into_iter().collect::<Ranges>());
        let both = CidrSet::from_ranges([list("10.0.0.0/8"), Arc::default(), list("2001:db8::/32")]);
        assert!(both.contains(ip("10.0.0.1")) && both.contains(ip("2001:db8::1")));
        assert!(!both.contains(ip("11.0.0.1")) && !both.is_empty());
        assert!(CidrSet::from_ranges([Arc::default()]).is_empty());
    }

    /// Generates adjacent networks of both families and of the mapped block, so that they overlap and touch.
    fn network() -> impl Strategy<Value = IpNet> {
        let v4 = (0_u32..2048, 21_u8..=32).prop_map(|(low, length)| {
            IpNet::new(IpAddr::V4((0x0a00_0000 + low).into()), length).unwrap().trunc()
        });
        let mapped = (0_u128..2048, 85_u8..=128).prop_map(|(low, length)| {
            IpNet::new(IpAddr::V6((MAPPED.0 + 0x0a00_0000 + low).into()), length).unwrap().trunc()
        });
        let v6 = (0_u128..2048, 117_u8..=128)
            .prop_map(|(low, length)| IpNet::new(IpAddr::V6(low.into()), length).unwrap().trunc());
        prop_oneof![v4, mapped, v6]
    }

    proptest! {
        /// Compares the set with a linear search through all networks that tests both spellings of an IPv4 address.
        #[test]
        fn cidr_set_matches_a_linear_search(
            networks in prop::collection::vec(network(), 0..40),
            low in 0_u32..2100,
        ) {
            let set: CidrSet = networks.iter().copied().collect();
            let plain = std::net::Ipv4Addr::from_bits(0x0a00_0000 + low);
            let v6 = std::net::Ipv6Addr::from_bits(low.into());
            for ip in [IpAddr::V4(plain), IpAddr::V6(plain.to_ipv6_mapped()), IpAddr::V6(v6)] {
                let spellings = match ip.to_canonical() {
                    IpAddr::V4(v4) => vec![IpAddr::V4(v4), IpAddr::V6(v4.to_ipv6_mapped())],
                    other @ IpAddr::V6(_) => vec![other],
                };
                let expected =
                    networks.iter().any(|network| spellings.iter().any(|ip| network.contains(ip)));
                prop_assert_eq!(set.contains(ip), expected, "{}", ip);
            }
        }
    }
}
