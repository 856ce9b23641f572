//! Peers that send `X-Forwarded-For` and are not trusted. If most requests come from few of them, they are probably load
//! balancers, and rules by `client_ip` count each of them as one client.

use std::collections::HashMap;
use std::net::IpAddr;

use foldhash::fast::FixedState;

use super::format::scan;
use super::record::{LoggedRequest, ParsedBlock};
use super::report::per_cent;
use weir_policy::identify::IdentifySettings;
use weir_policy::identify::recorded::RecordedAddress;

/// Maximum number of peers that are counted.
const MAX_PEERS: usize = 1000;
/// Maximum number of peers that a note names.
const MAX_NAMED: usize = 5;
/// Share of the forwarded requests that these peers must have sent, in per cent.
const MIN_SHARE: u64 = 95;
/// Mean number of requests of these peers, at least. Fewer are no sign of a load balancer.
const MIN_REQUESTS: u64 = 10;

/// Numbers of requests with `X-Forwarded-For` by untrusted peer.
#[derive(Debug, Default)]
pub(super) struct ForwardingPeers {
    counts: HashMap<IpAddr, u64, FixedState>,
    /// Requests of all peers, also of those that are not counted.
    total: u64,
}

impl ForwardingPeers {
    /// Counts a request if its peer forwarded it for another address and is not trusted.
    #[inline]
    pub(super) fn count(
        &mut self,
        block: &ParsedBlock,
        request: &LoggedRequest,
        settings: &IdentifySettings,
    ) {
        if let RecordedAddress::Peer(peer) = request.address
            && !request.is_only_hop
            && let Some(hops) = request.forwarded_for.text(&block.data)
            && !settings.trusted_proxies.contains(peer)
            // Proxies append their peer, so a list of only that states no other client.
            && hops.split(|byte| *byte == b',').any(|hop| scan::address(hop.trim_ascii()) != Some(peer))
        {
            self.total += 1;
            if let Some(count) = self.counts.get_mut(&peer) {
                *count += 1;
            } else if self.counts.len() < MAX_PEERS {
                self.counts.insert(peer, 1);
            }
        }
    }

    /// Returns a note if few peers sent most of the `requests`.
    pub(super) fn note(&self, requests: u64) -> Option<String> {
        let mut peers: Vec<(u64, IpAddr)> = self.counts.iter().map(|(peer, count)| (*count, *peer)).collect();
        peers.sort_unstable_by(|one, other| other.cmp(one));
        let mut sum = 0_u64;
        let is_enough = |sum: u64| sum.saturating_mul(100) >= self.total.saturating_mul(MIN_SHARE);
        let last = peers.iter().take(MAX_NAMED).position(|(count, _)| {
            sum += count;
            is_enough(sum)
        })?;
        let named: Vec<String> = peers[..=last].iter().map(|(_, peer)| peer.to_string()).collect();
        let is_note = sum >= MIN_REQUESTS * named.len() as u64 && self.total.saturating_mul(2) >= requests;
        let (peer, they, proxies) = if last == 0 {
            ("peer", "it", "it is your proxy")
        } else {
            ("peers", "them", "they are your proxies")
        };
        is_note.then(|| {
            format!(
                "{} {peer} ({}) sent {} of the requests with X-Forwarded-For, which does not count: if {proxies}, add {they} to \
                 client_ip.trusted_proxies",
                named.len(),
                named.join(", "),
                per_cent(sum, self.total)
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::TextSpan;

    /// Counts a request for each of these pairs of a peer and `X-Forwarded-For`; returns the note.
    fn note_of(pairs: &[(&str, &str)]) -> Option<String> {
        let (mut peers, settings) = (ForwardingPeers::default(), IdentifySettings::default());
        for (peer, hops) in pairs {
            let block = ParsedBlock { data: hops.as_bytes().to_vec(), ..ParsedBlock::default() };
            let forwarded_for = if hops.is_empty() { TextSpan::NONE } else { TextSpan::new(0..hops.len()) };
            let address = RecordedAddress::Peer(peer.parse().unwrap());
            peers.count(&block, &LoggedRequest { address, forwarded_for, ..LoggedRequest::EMPTY }, &settings);
        }
        peers.note(pairs.len() as u64)
    }

    #[test]
    fn few_peers_that_forward_most_requests_are_noted() {
        let balancer = [("10.0.0.1", "192.0.2.1")].repeat(99);
        let note = note_of(&[&balancer[..], &[("192.0.2.7", "192.0.2.1")]].concat()).unwrap();
        assert!(note.starts_with("1 peer (10.0.0.1) sent 99.00 % of the requests"), "{note}");
        let two = [("10.0.0.1", "192.0.2.1, 10.0.0.1"), ("10.0.0.2", "192.0.2.2,10.0.0.2")].repeat(50);
        assert!(note_of(&two).unwrap().starts_with("2 peers (10.0.0.2, 10.0.0.1) sent 100.00 %"));
    }

    #[test]
    fn clients_that_forward_are_not_noted() {
        let own = [("192.0.2.1", "192.0.2.1")].repeat(99);
        let none = [("192.0.2.1", "")].repeat(99);
        let few = [&none[..], &[("10.0.0.1", "192.0.2.1")].repeat(20)].concat();
        let peers: Vec<String> = (0..200).map(|index| format!("192.0.2.{index}")).collect();
        let many: Vec<(&str, &str)> = peers.iter().map(|peer| (peer.as_str(), "198.51.100.1")).collect();
        for pairs in [&own, &none, &few, &many, &vec![("10.0.0.1", "192.0.2.1")]] {
            assert_eq!(note_of(pairs), None, "{pairs:?}");
        }
    }
}
