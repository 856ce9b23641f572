//! Division of a limit's tokens among clients.
//!
//! Each client gets its demand plus a quarter, up to an equal share of what is left. Tokens without demand are divided
//! equally. So clients with little demand leave the rest to others, and none that needs more gets less than an equal
//! share.

use super::StreamId;

/// Divisor of the part of a limit that all clients together keep even without demand (1/20).
const MIN_SHARE_DIVISOR: u64 = 20;

#[derive(Clone, Copy, Debug)]
pub(super) struct ClientDemand {
    pub(super) client: StreamId,
    /// Demand in tokens; `None` for a client that has not reported for long enough.
    pub(super) demand: Option<f64>,
}

/// Divides `tokens` according to demand.
pub(super) fn divide(tokens: u64, demands: &[ClientDemand]) -> Vec<(StreamId, u64)> {
    let count = demands.len() as u64;
    let min_share = (tokens / (MIN_SHARE_DIVISOR * count.max(1))).max(1);
    // The demand of a new client is unknown; it starts with a quarter of an equal share.
    let initial_share = (tokens / (4 * count.max(1))).max(min_share);
    let demanded_share = |client: &ClientDemand| match client.demand {
        None => initial_share,
        // A float above the range of the type becomes its largest value.
        Some(demand) => ((demand * 1.25).ceil() as u64).max(min_share),
    };
    let mut shares: Vec<(StreamId, u64)> =
        demands.iter().map(|wish| (wish.client, demanded_share(wish))).collect();
    // In order of demand, so that tokens not needed go to the others.
    shares.sort_unstable_by_key(|&(client, demanded)| (demanded, client));
    let mut left = tokens;
    for (index, (_, share)) in shares.iter_mut().enumerate() {
        *share = (*share).min(left / (count - index as u64));
        left -= *share;
    }
    let (each, remainder) = (left / count.max(1), left % count.max(1));
    shares.iter_mut().for_each(|(_, share)| *share += each);
    if let Some((_, last)) = shares.last_mut() {
        *last += remainder;
    }
    shares
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shares(tokens: u64, demands: &[Option<f64>]) -> Vec<u64> {
        let demands = (0..).zip(demands).map(|(client, demand)| ClientDemand { client, demand: *demand });
        let mut shares = divide(tokens, &demands.collect::<Vec<_>>());
        shares.sort_unstable();
        shares.into_iter().map(|(_, share)| share).collect()
    }

    #[test]
    fn quota_division_gives_nearly_all_tokens_to_busy_clients() {
        assert_eq!(shares(100, &[Some(0.0)]), [100]);
        assert_eq!(shares(100, &[Some(0.0), Some(500.0)]), [2, 98]);
        assert_eq!(shares(100, &[Some(500.0), Some(500.0)]), [50, 50]);
        assert_eq!(shares(100, &[Some(8.0), Some(500.0), Some(500.0)]), [10, 45, 45]);
        assert_eq!(shares(100, &[None, Some(500.0)]), [12, 88]);
        assert_eq!(shares(100, &[None, None]), [50, 50]);
        assert_eq!(shares(100, &[Some(8.0), Some(40.0)]), [30, 70], "unclaimed tokens are divided equally");
        assert_eq!(shares(0, &[None, Some(3.0)]), [0, 0]);
        assert_eq!(shares(1, &[Some(3.0), Some(3.0), Some(3.0)]), [0, 0, 1]);
    }

    proptest! {
        #[test]
        fn quota_division_assigns_exactly_the_limit(
            tokens in 0_u64..100_000,
            demands in prop::collection::vec(prop::option::of(0.0_f64..1e12), 1..40),
        ) {
            let shares = shares(tokens, &demands);
            prop_assert_eq!(shares.iter().sum::<u64>(), tokens);
        }
    }
}
