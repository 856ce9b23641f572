use std::num::NonZeroU32;
use std::time::Duration;

use super::*;
use crate::Limiter;
use crate::algorithm::Algorithm;
use crate::algorithm::conversion::OnChange;
use crate::quota::{Limit, Period, TimeUnit};
use crate::{LimitIdentity, LimitSpec, LimiterSettings};

const START: Timestamp = Timestamp::from_secs(1_795_248_000);

fn limiter() -> (Limiter, LimitHandle) {
    let limiter = Limiter::new(LimiterSettings { max_keys: 1000, secret: [7, 11] });
    let limit = Limit::new(NonZeroU32::new(1_000_000_000).unwrap(), Period::one(TimeUnit::Minute));
    let spec = LimitSpec {
        identity: LimitIdentity { rule: "operations".into(), key: "minute".into() },
        quota: Quota::new(Algorithm::FixedWindow, limit, None).unwrap(),
        on_change: OnChange::Keep,
        lease_policy: None,
    };
    let handle = limiter.install(&[spec], START)[0];
    (limiter, handle)
}

struct CountFixture {
    limiter: Limiter,
    handle: LimitHandle,
}

impl CountFixture {
    fn new() -> Self {
        let (limiter, handle) = limiter();
        Self { limiter, handle }
    }

    fn operation(&self, key: &str, amount: i64, limit: u32) -> CountOperation {
        CountOperation { handle: self.handle, key: self.limiter.hasher().hash(key.as_bytes()), amount, limit }
    }

    fn count(&self, operations: &[CountOperation], selection: CountSelection) -> Vec<(u64, u64, bool)> {
        let read = self.limiter.count_unconditionally(operations, |_| selection, START);
        read.iter().map(|read| (read.before, read.after, read.is_over)).collect()
    }

    fn used(&self, key: &str) -> u32 {
        self.limiter.usage(self.handle, self.limiter.hasher().hash(key.as_bytes()), START).unwrap().used
    }
}

#[test]
fn unconditional_count_continues_beyond_the_limit() {
    let bench = CountFixture::new();
    let operation = [bench.operation("a", 2, 3)];
    assert_eq!(bench.count(&operation, CountSelection::All), [(0, 2, false)]);
    assert_eq!(bench.count(&operation, CountSelection::All), [(2, 4, true)]);
    assert_eq!(bench.count(&operation, CountSelection::All), [(4, 6, true)]);
    assert_eq!(bench.used("a"), 6);
}

#[test]
fn count_of_zero_creates_no_counter() {
    let bench = CountFixture::new();
    assert_eq!(bench.count(&[bench.operation("a", 0, 0)], CountSelection::All), [(0, 0, false)]);
    assert_eq!(bench.limiter.live_keys(), 0);
}

#[test]
fn negative_count_stops_at_an_unused_counter() {
    let bench = CountFixture::new();
    bench.count(&[bench.operation("a", 5, 10)], CountSelection::All);
    assert_eq!(bench.count(&[bench.operation("a", -3, 10)], CountSelection::All), [(5, 2, false)]);
    assert_eq!(bench.count(&[bench.operation("a", i64::MIN, 10)], CountSelection::All), [(2, 0, false)]);
    assert_eq!(bench.used("a"), 0);
}

#[test]
fn count_saturates_and_stays_over_the_limit() {
    let bench = CountFixture::new();
    let max_count = [bench.operation("a", i64::MAX, u32::MAX)];
    assert!(bench.count(&max_count, CountSelection::All)[0].2);
    assert_eq!(
        bench.count(&[bench.operation("a", 1, u32::MAX)], CountSelection::All),
        [(u64::from(u32::MAX), u64::from(u32::MAX) + 1, true)]
    );
}

#[test]
fn count_selection_over_counts_only_exceeded_limits() {
    let bench = CountFixture::new();
    let both = [bench.operation("a", 2, 1), bench.operation("b", 2, 10)];
    assert_eq!(bench.count(&both, CountSelection::Over), [(0, 2, true), (0, 0, false)]);
    assert_eq!((bench.used("a"), bench.used("b")), (2, 0));
}

#[test]
fn count_selection_within_counts_only_limits_with_room() {
    let bench = CountFixture::new();
    let both = [bench.operation("a", 2, 1), bench.operation("b", 2, 10)];
    assert_eq!(bench.count(&both, CountSelection::Within), [(0, 2, true), (0, 2, false)]);
    assert_eq!((bench.used("a"), bench.used("b")), (0, 2));
    assert_eq!(bench.count(&both, CountSelection::Nothing), [(0, 2, true), (2, 2, false)]);
    assert_eq!((bench.used("a"), bench.used("b")), (0, 2));
}

#[test]
fn unselected_negative_count_leaves_the_counter_over_its_limit() {
    let bench = CountFixture::new();
    bench.count(&[bench.operation("a", 4, 3)], CountSelection::All);
    let both = [bench.operation("a", -1, 3), bench.operation("b", 2, 1)];
    assert_eq!(bench.count(&both, CountSelection::Over), [(4, 4, true), (0, 2, true)]);
    assert_eq!((bench.used("a"), bench.used("b")), (4, 2));
}

#[test]
fn duplicate_counter_in_an_operation_list_counts_twice() {
    let bench = CountFixture::new();
    let twice = [bench.operation("a", 2, 3), bench.operation("a", 2, 3)];
    assert_eq!(bench.count(&twice, CountSelection::All), [(0, 2, false), (2, 4, true)]);
    assert_eq!(bench.used("a"), 4);
}

#[test]
fn count_selection_receives_the_prospective_results() {
    let bench = CountFixture::new();
    let mut seen = Vec::new();
    bench.limiter.count_unconditionally(
        &[bench.operation("a", 2, 1), bench.operation("b", 1, 1)],
        |read| {
            seen.extend(read.iter().map(|read| read.is_over));
            CountSelection::Nothing
        },
        START,
    );
    assert_eq!(seen, [true, false]);
}

#[test]
fn count_restarts_in_the_next_window() {
    let bench = CountFixture::new();
    bench.count(&[bench.operation("a", 5, 3)], CountSelection::All);
    let later = START.saturating_add(Duration::from_secs(60));
    let read =
        bench.limiter.count_unconditionally(&[bench.operation("a", 1, 3)], |_| CountSelection::All, later);
    assert_eq!((read[0].before, read[0].after), (0, 1));
}

#[test]
fn removed_limit_counts_nothing() {
    let bench = CountFixture::new();
    bench.limiter.retire_others(&[], START);
    assert_eq!(bench.count(&[bench.operation("a", 5, 3)], CountSelection::All), [(0, 0, false)]);
}

#[test]
fn concurrent_counts_are_atomic_and_unique() {
    let bench = CountFixture::new();
    let mut numbers: Vec<u64> = std::thread::scope(|scope| {
        let count = || {
            let operations = [bench.operation("a", 1, 100), bench.operation("b", 1, 100)];
            let read = (0..250)
                .map(|_| bench.limiter.count_unconditionally(&operations, |_| CountSelection::All, START));
            read.map(|read| {
                // Both counters are counted at one moment, so they always agree.
                assert_eq!(read[0], read[1]);
                read[0].after
            })
            .collect::<Vec<_>>()
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(count)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(1..=1000));
}
