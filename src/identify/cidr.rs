//! Sets of address ranges, looked up by binary search.
//!
//! IPv4 and IPv6 share one number line: an IPv4 address stands at its IPv4-mapped place, so a mapped address
//! and the plain one are in the same sets.

use std::net::IpAddr;

use ipnet::IpNet;

/// A set of addresses; empty by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CidrSet {
    /// Disjoint, ascending, both ends included.
    ranges: Vec<(u128, u128)>,
}

impl CidrSet {
    /// Whether `ip` is in the set.
    pub fn contains(&self, ip: IpAddr) -> bool {
        let number = number(ip);
        let after = self.ranges.partition_point(|(first, _)| *first <= number);
        after > 0 && number <= self.ranges[after - 1].1
    }

    /// Whether nothing is in the set.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }
}

impl FromIterator<IpNet> for CidrSet {
    fn from_iter<I: IntoIterator<Item = IpNet>>(networks: I) -> Self {
        let mut all: Vec<_> =
            networks.into_iter().map(|net| (number(net.network()), number(net.broadcast()))).collect();
        all.sort_unstable();
        let mut ranges: Vec<(u128, u128)> = Vec::with_capacity(all.len());
        for (first, last) in all {
            match ranges.last_mut() {
                Some(range) if first <= range.1.saturating_add(1) => range.1 = range.1.max(last),
                _ => ranges.push((first, last)),
            }
        }
        Self { ranges }
    }
}

fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(networks: &[&str]) -> CidrSet {
        networks.iter().map(|net| net.parse::<IpNet>().unwrap()).collect()
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn ranges_include_both_ends_and_nothing_beside() {
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
    fn overlapping_and_touching_networks_become_one_range() {
        let set = set(&["10.0.0.0/9", "10.128.0.0/9", "10.1.0.0/16"]);
        assert_eq!(set.ranges.len(), 1);
        assert!(set.contains(ip("10.200.0.1")));
    }

    #[test]
    fn everything_is_everything() {
        let set = set(&["0.0.0.0/0", "::/0"]);
        assert!(set.contains(ip("255.255.255.255")) && set.contains(ip("ffff::")));
    }
}
