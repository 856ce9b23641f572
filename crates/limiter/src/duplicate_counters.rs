//! Finds counters that a request names more than once.
//!
//! The second check of a counter must see the state that the first one leaves. The links between them are computed
//! before any shard is locked, in O(n log n) for n checks.

use smallvec::SmallVec;

use super::Check;
use super::key::Fingerprint;

/// Up to this length, comparing all pairs is faster than sorting.
const MAX_COMPARED: usize = 32;

/// For each position in a list of counters, the nearest earlier position of the same counter. It may be empty if no
/// counter is repeated.
#[derive(Debug)]
pub(super) struct DuplicateCounters(SmallVec<[Option<u32>; 4]>);

impl DuplicateCounters {
    /// Finds the repetitions among the counters of `checks`, which have these `keys`.
    pub(super) fn of_checks(checks: &[&Check], keys: &[Fingerprint]) -> Self {
        // The usual order. Counters of different limits are different, because every limit has a salt of its own.
        match checks.is_sorted_by(|one, next| one.handle.id < next.handle.id) {
            true => Self(SmallVec::new()),
            false => Self::new(keys),
        }
    }

    /// Finds the repetitions in `keys`.
    pub(super) fn new(keys: &[Fingerprint]) -> Self {
        if keys.len() > MAX_COMPARED {
            return Self::sorted(keys);
        }
        let earlier = |at: usize| keys[..at].iter().rposition(|key| *key == keys[at]).map(index);
        Self((0..keys.len()).map(earlier).collect())
    }

    fn sorted(keys: &[Fingerprint]) -> Self {
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_unstable_by_key(|&at| (keys[at], at));
        let mut earlier = SmallVec::from_elem(None, keys.len());
        for pair in order.windows(2).filter(|pair| keys[pair[0]] == keys[pair[1]]) {
            earlier[pair[1]] = Some(index(pair[0]));
        }
        Self(earlier)
    }

    /// Whether any counter is repeated.
    pub(super) fn has_any(&self) -> bool {
        self.0.iter().any(Option::is_some)
    }

    /// Returns the nearest position before `position` with the same counter.
    pub(super) fn earlier(&self, position: usize) -> Option<usize> {
        self.0.get(position)?.map(|at| at as usize)
    }
}

/// Converts a position; a request never has four billion checks.
fn index(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::decision::Enforcement;
    use crate::key::KeyHash;
    use crate::reservation::ChargeTiming;
    use crate::{LimitHandle, LimitId};

    /// Returns a check of the limit with this number, which has a salt of its own.
    fn check(limit: u32) -> Check {
        let handle = LimitHandle { id: LimitId(limit), salt: KeyHash::from_words([limit.into(), 7]) };
        Check {
            handle,
            key: KeyHash::from_words([5, 6]),
            cost: 1,
            enforcement: Enforcement::Enforced,
            charge_timing: ChargeTiming::OnArrival,
            options: None,
        }
    }

    proptest! {
        #[test]
        fn order_of_the_limits_does_not_change_what_is_repeated(
            mut limits in prop::collection::vec(0_u32..9, 0..12),
            is_sorted: bool,
        ) {
            if is_sorted {
                limits.sort_unstable();
            }
            let checks: Vec<_> = limits.iter().map(|limit| check(*limit)).collect();
            let keys: Vec<_> = checks.iter().map(|check| check.key.salted(check.handle.salt)).collect();
            let of_checks = DuplicateCounters::of_checks(&checks.iter().collect::<Vec<_>>(), &keys);
            for at in 0..limits.len() {
                let nearest = (0..at).rev().find(|&earlier| limits[earlier] == limits[at]);
                prop_assert_eq!(of_checks.earlier(at), nearest);
            }
            prop_assert_eq!(of_checks.has_any(), (1..limits.len()).any(|at| limits[..at].contains(&limits[at])));
        }

        #[test]
        fn duplicate_counters_link_to_the_nearest_earlier_position(
            keys in prop::collection::vec(0_u64..6, 0..40),
        ) {
            let keys: Vec<_> = keys.into_iter().map(|key| Fingerprint::with_words([key, 0])).collect();
            let repeats = DuplicateCounters::new(&keys);
            for at in 0..keys.len() {
                let nearest = (0..at).rev().find(|&earlier| keys[earlier] == keys[at]);
                prop_assert_eq!(repeats.earlier(at), nearest);
            }
        }
    }
}
