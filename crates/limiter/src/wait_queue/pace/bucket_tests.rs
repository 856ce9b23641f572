//! Simulations of a queue that never runs empty, before a bucket of the limiter, with timers as late as those of a loaded
//! machine.

use proptest::prelude::*;

use super::*;
use crate::algorithm::Algorithm;
use crate::quota::{Limit, Period, TimeUnit};
use crate::wait_queue::tests::charged_ahead;
use crate::{Check, Limiter};

const START: u64 = 1_795_248_000_000_000_000;
const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
const SECONDS: u64 = 10;

/// A limit whose waiting requests are charged ahead.
struct Bucket {
    limiter: Limiter,
    check: Check,
}

impl Bucket {
    fn new(quota: Quota) -> Self {
        let (limiter, check) = charged_ahead(quota, Timestamp::from_nanos(START));
        Self { limiter, check }
    }

    /// Returns the delay of the next request; otherwise the time until it can be charged.
    fn take(&self, now: u64) -> Result<Duration, Duration> {
        let decision = self.limiter.check(&[self.check], Timestamp::from_nanos(now));
        match decision.is_rejected() {
            true => Err(decision.verdicts()[0].retry_after()),
            false => Ok(decision.delay()),
        }
    }
}

/// Returns the times at which requests are forwarded, from the start on. Timers have a resolution of a millisecond and are
/// up to `lateness` late.
fn departures(quota: &Quota, mode: Option<PaceMode>, lateness: u64, seed: u64) -> Vec<u64> {
    let bucket = Bucket::new(*quota);
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut now, mut departures) = (START, Vec::new());
    let pace = mode.map(|mode| Pace::new(mode, quota, NonZeroU32::MIN, 1));
    let mut pacer = pace.as_ref().map(|pace| Pacer::new(pace, Timestamp::from_nanos(now)));
    while now < START + SECONDS * SECOND {
        let at = Timestamp::from_nanos(now);
        let slot = pacer.as_mut().zip(pace.as_ref()).map(|(pacer, pace)| pacer.reserve(pace, at));
        let wait = match slot.unwrap_or(PaceSlot::UNPACED) {
            PaceSlot::After(wait) => wait,
            PaceSlot::Taken(spacing) => match bucket.take(now) {
                Ok(delay) => {
                    departures.push(now + saturating_nanos(delay.max(spacing)) - START);
                    now += 2_000;
                    continue;
                }
                Err(wait) => {
                    pacer.iter_mut().for_each(|pacer| pacer.cancel(true, at));
                    wait
                }
            },
        };
        now = (now + saturating_nanos(wait)).div_ceil(MILLISECOND) * MILLISECOND;
        now += random.u64(0..=lateness);
    }
    departures
}

proptest! {
    // Each case simulates ten seconds.
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn late_timers_lose_no_units_of_a_bucket(
        algorithm in prop::sample::select(vec![Algorithm::Gcra, Algorithm::TokenBucket, Algorithm::LeakyBucket]),
        mode in prop::sample::select(vec![None, Some(PaceMode::Even), Some(PaceMode::Pid)]),
        limit in prop_oneof![10_u32..200, 200_u32..5000],
        burst in 1_u32..10,
        lateness in 0_u64..10 * MILLISECOND,
        seed in any::<u64>(),
    ) {
        let count = |number| NonZeroU32::new(number).expect("not zero");
        let quota = Limit::new(count(limit), Period::one(TimeUnit::Second));
        let quota = Quota::new(algorithm, quota, Some(count(burst))).expect("valid");
        let departures = departures(&quota, mode, lateness, seed);
        let (from, to) = (SECOND, SECONDS * SECOND);
        let used = departures.iter().filter(|at| (from..to).contains(at)).count() as f64;
        let available = f64::from(limit) * (SECONDS - 1) as f64;
        prop_assert!(used + 1.0 >= 0.99 * available, "{used} of {available}");
        // None leaves early.
        let most = (limit + burst) as usize;
        for window in departures.windows(most + 1) {
            prop_assert!(window[most] - window[0] >= SECOND, "{most} in less than a second");
        }
    }
}
