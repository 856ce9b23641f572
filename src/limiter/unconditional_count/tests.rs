use std::num::NonZeroU32;
use std::time::Duration;

use super::*;
use crate::limiter::algorithm::Algorithm;
use crate::limiter::algorithm::conversion::OnChange;
use crate::limiter::quota::{Limit, Period, TimeUnit};
use crate::limiter::{LimitIdentity, LimitSpec, LimiterSettings};

const START: Timestamp = Timestamp::from_secs(1_795_248_000);

fn limiter() -> (Limiter, LimitHandle) {
    let limiter = Limiter::new(LimiterSettings { max_keys: 1000, secret: [7, 11] });
    let limit = Limit::new(NonZeroU32::new(1_000_000_000).unwrap(), Period::one(TimeUnit::Minute));
    let spec = LimitSpec {
        identity: LimitIdentity { rule: "tallies".into(), key: "minute".into() },
        quota: Quota::new(Algorithm::FixedWindow, limit, None).unwrap(),
        on_change: OnChange::Keep,
        lease_policy: None,
    };
    let meter = limiter.install(&[spec], START)[0];
    (limiter, meter)
}

struct Bench {
    limiter: Limiter,
    meter: LimitHandle,
}

impl Bench {
    fn new() -> Self {
        let (limiter, meter) = limiter();
        Self { limiter, meter }
    }

    fn tally(&self, key: &str, amount: i64, limit: u32) -> CountOperation {
        CountOperation { handle: self.meter, key: self.limiter.hasher().hash(key.as_bytes()), amount, limit }
    }

    fn count(&self, tallies: &[CountOperation], counting: CountSelection) -> Vec<(u64, u64, bool)> {
        let read = self.limiter.count_unconditionally(tallies, |_| counting, START);
        read.iter().map(|read| (read.before, read.after, read.is_over)).collect()
    }

    fn used(&self, key: &str) -> u32 {
        self.limiter.usage(self.meter, self.limiter.hasher().hash(key.as_bytes()), START).unwrap().used
    }
}

#[test]
fn what_is_over_the_limit_goes_on_counting() {
    let bench = Bench::new();
    let tally = [bench.tally("a", 2, 3)];
    assert_eq!(bench.count(&tally, CountSelection::All), [(0, 2, false)]);
    assert_eq!(bench.count(&tally, CountSelection::All), [(2, 4, true)]);
    assert_eq!(bench.count(&tally, CountSelection::All), [(4, 6, true)]);
    assert_eq!(bench.used("a"), 6);
}

#[test]
fn nothing_is_counted_by_nothing_and_no_counter_comes_of_it() {
    let bench = Bench::new();
    assert_eq!(bench.count(&[bench.tally("a", 0, 0)], CountSelection::All), [(0, 0, false)]);
    assert_eq!(bench.limiter.live_keys(), 0);
}

#[test]
fn units_are_given_back_down_to_an_unused_counter() {
    let bench = Bench::new();
    bench.count(&[bench.tally("a", 5, 10)], CountSelection::All);
    assert_eq!(bench.count(&[bench.tally("a", -3, 10)], CountSelection::All), [(5, 2, false)]);
    assert_eq!(bench.count(&[bench.tally("a", i64::MIN, 10)], CountSelection::All), [(2, 0, false)]);
    assert_eq!(bench.used("a"), 0);
}

#[test]
fn a_count_that_cannot_be_held_is_over_and_stays_so() {
    let bench = Bench::new();
    let most = [bench.tally("a", i64::MAX, u32::MAX)];
    assert!(bench.count(&most, CountSelection::All)[0].2);
    assert_eq!(
        bench.count(&[bench.tally("a", 1, u32::MAX)], CountSelection::All),
        [(u64::from(u32::MAX), u64::from(u32::MAX) + 1, true)]
    );
}

#[test]
fn where_only_those_over_count_the_others_read_as_before() {
    let bench = Bench::new();
    let both = [bench.tally("a", 2, 1), bench.tally("b", 2, 10)];
    assert_eq!(bench.count(&both, CountSelection::Over), [(0, 2, true), (0, 0, false)]);
    assert_eq!((bench.used("a"), bench.used("b")), (2, 0));
}

#[test]
fn where_only_those_within_count_the_others_keep_their_value() {
    let bench = Bench::new();
    let both = [bench.tally("a", 2, 1), bench.tally("b", 2, 10)];
    assert_eq!(bench.count(&both, CountSelection::Within), [(0, 2, true), (0, 2, false)]);
    assert_eq!((bench.used("a"), bench.used("b")), (0, 2));
    assert_eq!(bench.count(&both, CountSelection::Nothing), [(0, 2, true), (2, 2, false)]);
    assert_eq!((bench.used("a"), bench.used("b")), (0, 2));
}

#[test]
fn what_is_not_given_back_is_still_over() {
    let bench = Bench::new();
    bench.count(&[bench.tally("a", 4, 3)], CountSelection::All);
    let both = [bench.tally("a", -1, 3), bench.tally("b", 2, 1)];
    assert_eq!(bench.count(&both, CountSelection::Over), [(4, 4, true), (0, 2, true)]);
    assert_eq!((bench.used("a"), bench.used("b")), (4, 2));
}

#[test]
fn a_counter_named_twice_in_a_request_counts_twice() {
    let bench = Bench::new();
    let twice = [bench.tally("a", 2, 3), bench.tally("a", 2, 3)];
    assert_eq!(bench.count(&twice, CountSelection::All), [(0, 2, false), (2, 4, true)]);
    assert_eq!(bench.used("a"), 4);
}

#[test]
fn who_decides_sees_what_every_counter_would_read() {
    let bench = Bench::new();
    let mut seen = Vec::new();
    bench.limiter.count_unconditionally(
        &[bench.tally("a", 2, 1), bench.tally("b", 1, 1)],
        |read| {
            seen.extend(read.iter().map(|read| read.is_over));
            CountSelection::Nothing
        },
        START,
    );
    assert_eq!(seen, [true, false]);
}

#[test]
fn a_window_that_is_over_is_forgotten() {
    let bench = Bench::new();
    bench.count(&[bench.tally("a", 5, 3)], CountSelection::All);
    let later = START.saturating_add(Duration::from_secs(60));
    let read = bench.limiter.count_unconditionally(&[bench.tally("a", 1, 3)], |_| CountSelection::All, later);
    assert_eq!((read[0].before, read[0].after), (0, 1));
}

#[test]
fn a_meter_that_is_gone_limits_nothing() {
    let bench = Bench::new();
    bench.limiter.retire_others(&[], START);
    assert_eq!(bench.count(&[bench.tally("a", 5, 3)], CountSelection::All), [(0, 0, false)]);
}

#[test]
fn counts_of_many_threads_are_all_kept_and_every_number_is_given_once() {
    let bench = Bench::new();
    let mut numbers: Vec<u64> = std::thread::scope(|scope| {
        let count = || {
            let tallies = [bench.tally("a", 1, 100), bench.tally("b", 1, 100)];
            let read = (0..250)
                .map(|_| bench.limiter.count_unconditionally(&tallies, |_| CountSelection::All, START));
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
