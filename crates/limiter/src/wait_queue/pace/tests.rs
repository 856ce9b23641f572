//! Simulations of a queue that never runs empty, with timers as late as those of a runtime.

use proptest::prelude::*;

use super::*;
use crate::algorithm::Algorithm;
use crate::feedback::LimitShare;
use crate::quota::{Limit, Period, TimeUnit};

const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000_000_000;
/// Length of the buckets in which the distribution of requests is measured.
const BUCKET: u64 = 10 * MILLISECOND;

/// A limit of a window, of which other instances use a part.
struct Window {
    limit: u64,
    /// Units that others take in each window, at its start.
    others: fn(u64) -> u64,
    used: u64,
    number: u64,
}

impl Window {
    /// Takes a unit; otherwise returns the time until the next window.
    fn take(&mut self, now: u64) -> Result<(), u64> {
        let number = now / SECOND;
        if number != self.number {
            (self.number, self.used) = (number, 0);
        }
        if self.used + (self.others)(number) < self.limit {
            self.used += 1;
            return Ok(());
        }
        Err((number + 1) * SECOND - now)
    }
}

/// Admits requests for `seconds`, and returns the times at which they are forwarded. Timers have a resolution of a
/// millisecond and are up to `jitter` late.
fn run(pace: Option<&Pace>, mut window: Window, seconds: u64, jitter: u64) -> Vec<u64> {
    let (mut now, mut admitted) = (0, Vec::new());
    let mut pacer = pace.map(|pace| Pacer::new(pace, Timestamp::from_nanos(0)));
    let mut random = 12345_u64;
    let mut late = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % (jitter + 1)
    };
    while now < seconds * SECOND {
        let at = Timestamp::from_nanos(now);
        let slot = pacer.as_mut().zip(pace).map(|(pacer, pace)| pacer.reserve(pace, at));
        let wait = match slot.unwrap_or(PaceSlot::UNPACED) {
            PaceSlot::After(wait) => saturating_nanos(wait),
            PaceSlot::Taken(delay) => match window.take(now) {
                Ok(()) => {
                    admitted.push(now + saturating_nanos(delay));
                    // The next request is decided a little later.
                    now += 2_000;
                    continue;
                }
                Err(wait) => {
                    pacer.iter_mut().for_each(|pacer| pacer.cancel(true, at));
                    wait
                }
            },
        };
        now = (now + wait).div_ceil(MILLISECOND) * MILLISECOND + late();
    }
    admitted
}

/// Coefficient of variation of the number of requests in each bucket, after the first `skip` seconds.
fn variation(admitted: &[u64], skip: u64, seconds: u64) -> f64 {
    let mut buckets = vec![0.0_f64; ((seconds - skip) * SECOND / BUCKET) as usize];
    for at in admitted.iter().filter(|at| (skip * SECOND..seconds * SECOND).contains(at)) {
        buckets[((at - skip * SECOND) / BUCKET) as usize] += 1.0;
    }
    let mean = buckets.iter().sum::<f64>() / buckets.len() as f64;
    let variance = buckets.iter().map(|count| (count - mean).powi(2)).sum::<f64>() / buckets.len() as f64;
    variance.sqrt() / mean
}

fn share_used(admitted: &[u64], skip: u64, seconds: u64, available: u64) -> f64 {
    let counted = admitted.iter().filter(|at| (skip * SECOND..seconds * SECOND).contains(at)).count();
    counted as f64 / ((seconds - skip) * available) as f64
}

fn pace(mode: PaceMode, limit: u64, expected: u64) -> Pace {
    Pace {
        mode,
        limit: limit as f64,
        expected: expected as f64,
        cost: 1.0,
        window: Duration::from_secs(1),
        is_refilled: false,
    }
}

fn alone(limit: u64) -> Window {
    Window { limit, others: |_| 0, used: 0, number: 0 }
}

proptest! {
    // Each case simulates many seconds.
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn paces_use_the_whole_limit_and_spread_it(limit in 500_u64..5000, jitter in 0_u64..2_000_000) {
        let bursty = variation(&run(None, alone(limit), 10, jitter), 1, 10);
        for mode in [PaceMode::Even, PaceMode::Pid] {
            let admitted = run(Some(&pace(mode, limit, limit)), alone(limit), 10, jitter);
            let used = share_used(&admitted, 1, 10, limit);
            prop_assert!(used >= 0.99, "{mode:?} of {limit}: {used}");
            let spread = variation(&admitted, 1, 10);
            prop_assert!(spread < 0.35 && spread < bursty / 5.0, "{mode:?} of {limit}: {spread}, {bursty}");
        }
    }

    #[test]
    fn pid_learns_a_share_that_it_does_not_know(limit in 1000_u64..4000) {
        // Others use half as much in the second half of the time.
        let others = |number: u64| if number < 30 { 600 } else { 300 };
        for expected in [limit, limit / 8] {
            let window = Window { limit, others, used: 0, number: 0 };
            let admitted = run(Some(&pace(PaceMode::Pid, limit, expected)), window, 60, MILLISECOND);
            for (from, to, available) in [(15, 30, limit - 600), (45, 60, limit - 300)] {
                let used = share_used(&admitted, from, to, available);
                prop_assert!(used >= 0.97, "{limit}, {expected}: {used} from {from}");
            }
            let spread = variation(&admitted, 45, 60);
            prop_assert!(spread < 0.6, "{limit}, {expected}: {spread}");
        }
    }

    #[test]
    fn even_pace_keeps_the_interval(limit in 1_u64..2000, arrivals in prop::collection::vec(0_u64..SECOND, 1..200)) {
        let pace = pace(PaceMode::Even, limit, limit);
        let mut pacer = Pacer::new(&pace, Timestamp::from_nanos(0));
        let (mut now, mut last) = (0, None);
        for gap in arrivals {
            now += gap / 50;
            if let PaceSlot::Taken(delay) = pacer.reserve(&pace, Timestamp::from_nanos(now)) {
                let at = now + saturating_nanos(delay);
                if let Some(last) = last {
                    prop_assert!(at - last >= SECOND / limit, "{last} and {at}");
                }
                last = Some(at);
            }
        }
    }
}

proptest! {
    #[test]
    fn even_pace_follows_costs_and_the_share_of_a_provider(
        limit in 1_u32..5000,
        percent in 1_u32..=100,
        costs in prop::collection::vec(1_u32..20, 2..100),
    ) {
        let count = |number| NonZeroU32::new(number).expect("not zero");
        let quota = Limit::new(count(limit), Period::one(TimeUnit::Second));
        let quota = Quota::new(Algorithm::Gcra, quota, None).expect("valid").to_following().expect("room");
        let share = LimitShare::from_millionths(percent * 10_000);
        let unit_cost = share.cost(quota.units_per_request()).get();
        let paces = costs.iter().map(|cost| Pace::new(PaceMode::Even, &quota, NonZeroU32::MIN, cost * unit_cost));
        let (mut now, mut pacer, mut times) = (0, None, Vec::new());
        for pace in paces {
            let pacer = pacer.get_or_insert_with(|| Pacer::new(&pace, Timestamp::from_nanos(0)));
            loop {
                match pacer.reserve(&pace, Timestamp::from_nanos(now)) {
                    PaceSlot::Taken(delay) => break times.push(now + saturating_nanos(delay)),
                    PaceSlot::After(wait) => now += saturating_nanos(wait),
                }
            }
        }
        for (cost, times) in costs.iter().zip(times.windows(2)) {
            let ideal = f64::from(*cost) * 1e9 / (f64::from(limit) * f64::from(percent) / 100.0);
            let spacing = (times[1] - times[0]) as f64;
            prop_assert!(spacing + 1.0 >= ideal, "{} of {}", spacing, ideal);
            // Costs are whole units, rounded up.
            let rounding = 1.0 + 1.0 / f64::from(quota.units_per_request().get());
            prop_assert!(spacing <= ideal * rounding + 1.0, "{} of {}", spacing, ideal);
        }
    }

    #[test]
    fn pid_pace_uses_the_limit_whatever_requests_cost(
        limit in 500_u64..5000,
        costs in prop::collection::vec(1_u32..8, 1..20),
    ) {
        let (mut now, mut used, mut pacer) = (0, 0, None);
        let mut costs = costs.iter().cycle();
        let mut next = costs.next().copied().unwrap_or(1);
        while now < 10 * SECOND {
            let pace = Pace { cost: f64::from(next), ..pace(PaceMode::Pid, limit, limit) };
            let pacer = pacer.get_or_insert_with(|| Pacer::new(&pace, Timestamp::from_nanos(0)));
            match pacer.reserve(&pace, Timestamp::from_nanos(now)) {
                PaceSlot::Taken(_) => {
                    used += u64::from(next);
                    next = costs.next().copied().unwrap_or(1);
                }
                PaceSlot::After(wait) => now = (now + saturating_nanos(wait)).div_ceil(MILLISECOND) * MILLISECOND,
            }
        }
        let available = 10 * limit;
        prop_assert!(used * 100 >= available * 98 && used * 100 <= available * 104, "{} of {}", used, available);
    }
}

#[test]
fn cancelled_place_is_taken_by_the_next_request() {
    let pace = pace(PaceMode::Even, 10, 10);
    let now = Timestamp::from_nanos(7 * SECOND);
    let mut pacer = Pacer::new(&pace, now);
    assert_eq!(pacer.reserve(&pace, now), PaceSlot::Taken(Duration::ZERO));
    pacer.cancel(true, now);
    assert_eq!(pacer.reserve(&pace, now), PaceSlot::Taken(Duration::ZERO));
    assert_eq!(pacer.reserve(&pace, now), PaceSlot::After(Duration::from_millis(80)));
}

proptest! {
    #[test]
    fn place_behind_others_is_predicted(
        mode in prop::sample::select(vec![PaceMode::Even, PaceMode::Pid]),
        limit in 20_u64..500,
        before in 0_u64..20,
        ahead in 0_usize..300,
        start in 0_u64..SECOND,
    ) {
        let pace = pace(mode, limit, limit);
        let mut now = 9 * SECOND + start;
        let mut pacer = Pacer::new(&pace, Timestamp::from_nanos(now));
        let take = |pacer: &mut Pacer, now: &mut u64| loop {
            match pacer.reserve(&pace, Timestamp::from_nanos(*now)) {
                PaceSlot::Taken(delay) => break *now + saturating_nanos(delay),
                PaceSlot::After(wait) => *now += saturating_nanos(wait),
            }
        };
        for _ in 0..before {
            take(&mut pacer, &mut now);
        }
        let begun = now;
        let bound = saturating_nanos(pacer.min_wait_behind(&pace, ahead, Timestamp::from_nanos(begun)));
        let mut last = 0;
        for _ in 0..=ahead {
            last = take(&mut pacer, &mut now);
        }
        let wait = last - begun;
        // As long as the interval at the least, which is no whole number of nanoseconds.
        let interval = SECOND.div_ceil(limit);
        // The place at the end of a window may be in the next one.
        prop_assert!(bound <= wait + 2 * interval, "{bound} and {wait}");
        // Windows that end meanwhile are made up for in part.
        prop_assert!(wait <= 2 * bound + 4 * interval, "{bound} and {wait}");
    }
}
