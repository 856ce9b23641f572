//! Distribution of counts in bounded memory: exact up to 255, then with an error below 1 %.

/// Bits of a count that are kept exactly.
const PRECISION_BITS: u32 = 7;
/// Buckets per power of two.
const BUCKETS_PER_OCTAVE: usize = 1 << PRECISION_BITS;
/// Buckets for all counts of 32 bits.
const BUCKETS: usize = (32 - PRECISION_BITS as usize + 1) * BUCKETS_PER_OCTAVE;

/// Numbers of occurrences of each count.
#[derive(Clone, Debug)]
pub(crate) struct CountHistogram {
    occurrences: Box<[u64]>,
    total: u64,
}

impl Default for CountHistogram {
    fn default() -> Self {
        Self { occurrences: vec![0; BUCKETS].into(), total: 0 }
    }
}

const fn bucket(count: u32) -> usize {
    let octave = (31 - (count | 1).leading_zeros()).saturating_sub(PRECISION_BITS);
    octave as usize * BUCKETS_PER_OCTAVE + (count >> octave) as usize
}

/// Returns the least count in `bucket`.
const fn lower_bound(bucket: usize) -> u64 {
    if bucket < 2 * BUCKETS_PER_OCTAVE {
        return bucket as u64;
    }
    let octave = bucket / BUCKETS_PER_OCTAVE - 1;
    ((bucket - octave * BUCKETS_PER_OCTAVE) as u64) << octave
}

impl CountHistogram {
    /// Adds one occurrence of `count`.
    #[inline]
    pub(crate) fn add(&mut self, count: u32) {
        if let Some(occurrences) = self.occurrences.get_mut(bucket(count)) {
            *occurrences += 1;
            self.total += 1;
        }
    }

    /// Returns the least count that at least `per_mille` of the occurrences do not exceed; 0 if there are none.
    pub(crate) fn quantile(&self, per_mille: u64) -> u64 {
        let wanted = u128::from(self.total) * u128::from(per_mille);
        let mut seen = 0_u128;
        for (index, occurrences) in self.occurrences.iter().enumerate() {
            seen += u128::from(*occurrences) * 1000;
            if *occurrences > 0 && seen >= wanted {
                return lower_bound(index + 1) - 1;
            }
        }
        0
    }

    /// Returns how many occurrences exceed `limit`, and by how much all of them together.
    pub(crate) fn excess(&self, limit: u64) -> (u64, u64) {
        let above = self.buckets().filter(|(count, _)| *count > limit);
        above.fold((0, 0), |(number, excess): (u64, u64), (count, occurrences)| {
            (number + occurrences, excess.saturating_add((count - limit).saturating_mul(occurrences)))
        })
    }

    /// Yields the counts that occur, each with its number of occurrences. A count above 255 stands for its bucket.
    pub(crate) fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let buckets = self.occurrences.iter().enumerate().filter(|(_, occurrences)| **occurrences > 0);
        buckets.map(|(index, occurrences)| (lower_bound(index), *occurrences))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn buckets_are_less_than_one_per_cent_wide(count in any::<u32>()) {
            let (from, next) = (lower_bound(bucket(count)), lower_bound(bucket(count) + 1));
            let count = u64::from(count);
            prop_assert!((from..next).contains(&count), "{count} is not in {from}..{next}");
            prop_assert!((next - from - 1) * 100 < count.max(1));
        }

        #[test]
        fn small_counts_are_exact(counts in proptest::collection::vec(0_u32..200, 1..50), limit in 0_u64..200) {
            let mut histogram = CountHistogram::default();
            counts.iter().for_each(|count| histogram.add(*count));
            let above: Vec<u64> =
                counts.iter().map(|count| u64::from(*count)).filter(|count| *count > limit).collect();
            let excess = above.iter().map(|count| count - limit).sum();
            prop_assert_eq!(histogram.excess(limit), (above.len() as u64, excess));
            let mut sorted = counts;
            sorted.sort_unstable();
            prop_assert_eq!(histogram.quantile(500), u64::from(sorted[(sorted.len() - 1) / 2]));
            prop_assert_eq!(histogram.quantile(1000), u64::from(sorted[sorted.len() - 1]));
        }
    }

    #[test]
    fn empty_histogram_has_no_quantiles() {
        let histogram = CountHistogram::default();
        assert_eq!((histogram.quantile(500), histogram.excess(0)), (0, (0, 0)));
    }
}
