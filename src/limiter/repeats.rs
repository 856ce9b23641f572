//! Counters that a request names more than once.
//!
//! The second naming of a counter has to see what the first one leaves. The links between them are found before any
//! shard is locked, in a time that grows with the list and not with its square.

use smallvec::SmallVec;

use super::key::Fingerprint;

/// Up to so many counters, comparing each with all others is cheaper than sorting.
const MAX_COMPARED: usize = 8;

/// For each position of a list of counters, the nearest earlier position of the same counter.
#[derive(Debug)]
pub(super) struct Repeats(SmallVec<[Option<u32>; 4]>);

impl Repeats {
    /// The links within `keys`.
    pub(super) fn of(keys: &[Fingerprint]) -> Self {
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

    /// The nearest position before `position` that names the same counter.
    pub(super) fn earlier(&self, position: usize) -> Option<usize> {
        self.0[position].map(|at| at as usize)
    }
}

/// A request never names four billion counters.
fn index(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn repeats_are_linked_to_the_nearest_earlier_position(
            keys in prop::collection::vec(0_u64..6, 0..40),
        ) {
            let keys: Vec<_> = keys.into_iter().map(|key| Fingerprint::of([key, 0])).collect();
            let repeats = Repeats::of(&keys);
            for at in 0..keys.len() {
                let nearest = (0..at).rev().find(|&earlier| keys[earlier] == keys[at]);
                prop_assert_eq!(repeats.earlier(at), nearest);
            }
        }
    }
}
