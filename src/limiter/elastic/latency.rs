//! How long the upstream takes: now, and usually.
//!
//! Means are geometric. One answer in a hundred that takes a thousand times as long moves them by seven per
//! cent and not tenfold, so a client that uploads slowly, or the one expensive route, does not speak for all.
//!
//! What is usual is learned at the written limits. Once that is done it may only fall while limits are stretched:
//! if it could rise as well, limits would make the upstream a little slower, take that for usual, and go on from
//! there.

use std::time::Duration;

use crate::limiter::timestamp::saturating_nanos;

/// Steps to a doubling.
const STEPS: u64 = 1024;

/// The time in which what counts as now fades, and the answers it is kept to.
const NOW: (Duration, f64) = (Duration::from_millis(250), 30.0);
/// The same for what the usual is compared with and learned from.
const LATELY: (Duration, f64) = (Duration::from_secs(5), 150.0);
/// How long the usual takes to follow what is faster.
const FASTER: Duration = Duration::from_secs(10);
/// How long it takes to follow what is slower at the written limits.
const SLOWER: Duration = Duration::from_secs(120);
/// How long it takes where what is slower does not get any slower, and no further than so many steps beyond what
/// it would have learned otherwise. A queue grows as long as there is an overload; an upstream that has changed for good takes
/// its new time from the first answer on.
const SETTLED: Duration = Duration::from_secs(8);
const MAX_RISE: f64 = 2.0 * STEPS as f64;
/// What lately is compared with for that, and how far they may be apart, in steps and in standard deviations.
const SOON: (Duration, f64) = (Duration::from_millis(1500), 60.0);
const LEVEL: (f64, f64) = (0.12 * STEPS as f64, 1.5);
/// Answers may begin so many times later than usual.
const MOST: f64 = 2.0;
/// And so many standard deviations of their mean later than that.
const CERTAINTY: f64 = 2.5;
/// So many steps more make it another upstream.
const SHIFT: f64 = 0.5 * STEPS as f64;
/// As near as this, in steps, it has caught up.
const NEAR: f64 = 0.1 * STEPS as f64;
/// Without answers for this long, nothing is known of now.
const SILENCE: Duration = Duration::from_secs(5);

/// Durations, counted and added up by their logarithms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Samples {
    /// How many.
    pub count: u64,
    /// The sum of [`logarithm`].
    pub logarithms: u64,
    /// The sum of their squares.
    pub squares: u64,
}

impl Samples {
    /// Counts another one.
    pub fn add(&mut self, duration: Duration) {
        let logarithm = logarithm(duration);
        self.count = self.count.wrapping_add(1);
        self.logarithms = self.logarithms.wrapping_add(logarithm);
        self.squares = self.squares.wrapping_add(logarithm * logarithm);
    }

    /// What came after `earlier`; sums that wrapped round in between come out right.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            count: self.count.wrapping_sub(earlier.count),
            logarithms: self.logarithms.wrapping_sub(earlier.logarithms),
            squares: self.squares.wrapping_sub(earlier.squares),
        }
    }
}

/// The logarithm of a duration to base two, in steps of a thousandth of a doubling, straight lines between whole
/// doublings: three instructions, never off by more than six per cent, and exact for what is equal.
pub fn logarithm(duration: Duration) -> u64 {
    let nanos = saturating_nanos(duration).max(1);
    let zeros = nanos.leading_zeros();
    let whole = u64::from(63 - zeros);
    let part = (nanos << zeros << 1) >> 54;
    whole * STEPS + part
}

/// Seconds of such a logarithm, which may be a mean.
fn seconds(logarithm: f64) -> f64 {
    let steps = STEPS as f64;
    let whole = (logarithm / steps).floor();
    whole.exp2() * (1.0 + logarithm / steps - whole) / 1e9
}

/// A mean that forgets, but never so fast that it rests on too few samples.
#[derive(Clone, Copy, Debug)]
struct Fading {
    time: Duration,
    least: f64,
    count: f64,
    logarithms: f64,
    squares: f64,
}

impl Fading {
    const fn new((time, least): (Duration, f64)) -> Self {
        Self { time, least, count: 0.0, logarithms: 0.0, squares: 0.0 }
    }

    fn add(&mut self, samples: Samples, elapsed: Duration) {
        let count = samples.count as f64;
        let by_time = share_left(elapsed, self.time);
        let needed = if self.count > 0.0 { ((self.least - count) / self.count).clamp(0.0, 1.0) } else { 0.0 };
        let kept = by_time.max(needed);
        self.count = self.count * kept + count;
        self.logarithms = self.logarithms * kept + samples.logarithms as f64;
        self.squares = self.squares * kept + samples.squares as f64;
    }

    fn mean(&self) -> Option<f64> {
        // Rounding may have taken a little off.
        (self.count > self.least - 0.5).then(|| self.logarithms / self.count)
    }

    /// The standard deviation of the mean.
    fn uncertainty(&self) -> f64 {
        let mean = self.logarithms / self.count;
        ((self.squares / self.count - mean * mean).max(0.0) / self.count).sqrt()
    }
}

/// What is left after `elapsed` of something that fades in `time`.
pub(super) fn share_left(elapsed: Duration, time: Duration) -> f64 {
    (-elapsed.as_secs_f64() / time.as_secs_f64()).exp()
}

/// The upstream's pace.
#[derive(Clone, Copy, Debug)]
pub(super) struct Latency {
    now: Fading,
    soon: Fading,
    lately: Fading,
    usual: Option<f64>,
    /// What is usual in the long run; rises by [`SLOWER`] alone.
    long_run: f64,
    /// What was usual at the last shift, or less.
    reported: Option<f64>,
    /// Whether what is slower than usual has still to be learned.
    behind: bool,
    silent_for: Duration,
}

impl Default for Latency {
    fn default() -> Self {
        Self {
            now: Fading::new(NOW),
            soon: Fading::new(SOON),
            lately: Fading::new(LATELY),
            usual: None,
            long_run: 0.0,
            reported: None,
            behind: false,
            silent_for: Duration::ZERO,
        }
    }
}

impl Latency {
    /// Learns from `samples` of the last `elapsed`; slower ones only where limits are as written.
    pub(super) fn learn(&mut self, samples: Samples, elapsed: Duration, as_written: bool) {
        self.silent_for = if samples.count > 0 { Duration::ZERO } else { self.silent_for + elapsed };
        self.now.add(samples, elapsed);
        self.soon.add(samples, elapsed);
        self.lately.add(samples, elapsed);
        let Some(lately) = self.lately.mean() else { return };
        let Some(usual) = self.usual else {
            (self.usual, self.long_run) = (Some(lately), lately);
            return;
        };
        self.behind = as_written || (self.behind && lately > usual + NEAR);
        let may_rise = self.behind && self.is_level(lately);
        let towards = |aim: f64, from: f64, time| aim + (from - aim) * share_left(elapsed, time);
        if lately < self.long_run {
            self.long_run = towards(lately, self.long_run, FASTER);
        } else if may_rise {
            self.long_run = towards(lately, self.long_run, SLOWER);
        }
        let farthest = lately.min(self.long_run + MAX_RISE);
        let usual = if lately < usual {
            towards(lately, usual, FASTER)
        } else if may_rise && farthest > usual {
            towards(farthest, usual, SETTLED)
        } else {
            usual
        };
        self.usual = Some(usual.max(self.long_run));
    }

    /// Whether another time has become usual since this was asked last, by half a doubling and more.
    pub(super) fn has_shifted(&mut self) -> bool {
        let usual = self.usual.unwrap_or_default();
        let has_shifted = self.reported.is_some_and(|reported| usual > reported + SHIFT);
        self.reported = Some(if has_shifted {
            usual
        } else {
            self.reported.map_or(usual, |reported| reported.min(usual))
        });
        has_shifted
    }

    /// Whether answers take as long as they did some seconds ago, as far as such means tell.
    fn is_level(&self, lately: f64) -> bool {
        let chance = LEVEL.1 * self.soon.uncertainty();
        self.soon.mean().is_some_and(|soon| (soon - lately).abs() < LEVEL.0 + chance)
    }

    /// Seconds until an answer begins now, and the most that is nothing unusual, if both are known.
    ///
    /// Answers that vary much, or are few, have to be later to be remarkable: the mean of thirty random times is a
    /// random number itself.
    pub(super) fn now_and_most(&self) -> Option<(f64, f64)> {
        let now = self.now.mean().filter(|_| self.silent_for < SILENCE)?;
        let chance = CERTAINTY * self.now.uncertainty();
        Some((seconds(now), seconds(self.usual? + chance) * MOST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(100);

    fn samples(count: u64, duration: Duration) -> Samples {
        let mut samples = Samples::default();
        (0..count).for_each(|_| samples.add(duration));
        samples
    }

    fn after(latency: &mut Latency, ticks: u32, duration: Duration, as_written: bool) -> (f64, f64) {
        for _ in 0..ticks {
            latency.learn(samples(50, duration), TICK, as_written);
        }
        let (now, most) = latency.now_and_most().unwrap();
        (now, most / MOST)
    }

    #[test]
    fn logarithms_grow_with_durations_and_lead_back_to_them() {
        let mut last = 0;
        for nanos in [1_u64, 2, 3, 1000, 1023, 1024, 1_000_000, 1_500_000, 60_000_000_000, u64::MAX] {
            let logarithm = logarithm(Duration::from_nanos(nanos));
            assert!(logarithm > last || nanos == 1, "{nanos}");
            last = logarithm;
            let back = seconds(logarithm as f64) * 1e9;
            assert!((back / nanos as f64 - 1.0).abs() < 0.002, "{nanos} became {back}");
        }
        assert_eq!(logarithm(Duration::ZERO), 0);
    }

    #[test]
    fn a_few_slow_answers_do_not_speak_for_all() {
        let mut latency = Latency::default();
        after(&mut latency, 100, Duration::from_millis(10), true);
        let mut mixed = samples(99, Duration::from_millis(10));
        mixed.add(Duration::from_secs(10));
        for _ in 0..50 {
            latency.learn(mixed, TICK, true);
        }
        let (now, _) = latency.now_and_most().unwrap();
        assert!((0.010..0.011).contains(&now), "{now}");
    }

    #[test]
    fn the_usual_rises_from_the_written_limits_on_until_it_has_caught_up_and_falls_always() {
        let mut latency = Latency::default();
        let slow = Duration::from_millis(20);
        after(&mut latency, 100, Duration::from_millis(10), true);
        let (_, before) = after(&mut latency, 10, Duration::from_millis(10), false);
        let (now, usual) = after(&mut latency, 3000, slow, false);
        assert!((now / 0.020 - 1.0).abs() < 0.01 && usual == before, "{now} {usual}");
        after(&mut latency, 1000, slow, true);
        let (_, usual) = after(&mut latency, 10_000, slow, false);
        assert!((0.018..0.0201).contains(&usual), "{usual}");
        let (_, usual) = after(&mut latency, 1000, Duration::from_millis(10), false);
        assert!((usual / 0.010 - 1.0).abs() < 0.01, "{usual}");
    }

    #[test]
    fn few_answers_count_longer_and_silence_says_nothing() {
        let mut latency = Latency::default();
        for _ in 0..29 {
            latency.learn(samples(1, Duration::from_millis(10)), Duration::from_secs(1), true);
        }
        assert_eq!(latency.now_and_most(), None, "too few to say");
        for _ in 0..121 {
            latency.learn(samples(1, Duration::from_millis(10)), Duration::from_secs(1), true);
        }
        assert!(latency.now_and_most().is_some(), "150 are enough, however long they took to come");
        latency.learn(Samples::default(), Duration::from_secs(6), true);
        assert_eq!(latency.now_and_most(), None, "silence");
    }
}
