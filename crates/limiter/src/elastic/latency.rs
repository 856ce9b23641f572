//! Latency of an upstream: the current and the usual time until a response begins.
//!
//! Means are geometric. One response in a hundred that takes a thousand times as long raises them by seven per cent
//! instead of tenfold, so a slow upload or a single expensive route does not dominate.
//!
//! The usual latency is learned while limits are as configured. Afterwards, while limits are raised, it may only fall.
//! Otherwise raised limits would make the upstream a little slower, that would become the usual latency, and limits
//! would rise again.

use std::time::Duration;

use crate::control::samples::{STEPS, Samples, seconds};
use crate::control::{approach, decay_factor};

/// Mean of the current latency, with its averaging time and minimum number of responses.
const NOW: DecayingMean = DecayingMean::new(Duration::from_millis(250), 30.0);
/// Mean of the recent latency, from which the usual one is learned.
const LATELY: DecayingMean = DecayingMean::new(Duration::from_secs(5), 150.0);
/// Time constant with which the usual latency follows a lower one.
const FASTER: Duration = Duration::from_secs(10);
/// Time constant with which it follows a higher one while limits are as configured.
const SLOWER: Duration = Duration::from_secs(120);
/// Time constant with which it follows a higher latency that is level. A queue grows as long as there is an overload,
/// whereas an upstream that has changed for good has its new latency from the first response on.
const SETTLED: Duration = Duration::from_secs(8);
/// Maximum distance of the usual latency from that in the long run, in steps.
const MAX_RISE: f64 = 2.0 * STEPS as f64;
/// Mean that [`LATELY`] is compared with, to find out whether latency is level.
const SOON: DecayingMean = DecayingMean::new(Duration::from_millis(1500), 60.0);
/// Maximum distance of the two means of a level latency: in steps, plus this many standard deviations.
const LEVEL: (f64, f64) = (0.12 * STEPS as f64, 1.5);
/// Factor over the usual latency that is the threshold.
const MAX_SLOWDOWN: f64 = 2.0;
/// Number of standard deviations of the mean that are added to the usual latency first.
const CERTAINTY: f64 = 2.5;
/// Increase of the usual latency, in steps, that counts as another upstream.
const SHIFT: f64 = 0.5 * STEPS as f64;
/// Distance from the usual latency, in steps, at which it has caught up.
const NEAR: f64 = 0.1 * STEPS as f64;
/// Time without responses after which the current latency is unknown.
const SILENCE: Duration = Duration::from_secs(5);

/// Mean with exponential decay, which slows down so that it always rests on a minimum number of samples.
#[derive(Clone, Copy, Debug)]
struct DecayingMean {
    time: Duration,
    min_count: f64,
    count: f64,
    logarithms: f64,
    squares: f64,
}

impl DecayingMean {
    /// Creates a mean without samples that averages over `time`, but over at least `least` samples.
    const fn new(time: Duration, least: f64) -> Self {
        Self { time, min_count: least, count: 0.0, logarithms: 0.0, squares: 0.0 }
    }

    fn add(&mut self, samples: Samples, elapsed: Duration) {
        let count = samples.count as f64;
        let by_time = decay_factor(elapsed, self.time);
        let needed =
            if self.count > 0.0 { ((self.min_count - count) / self.count).clamp(0.0, 1.0) } else { 0.0 };
        let kept = by_time.max(needed);
        self.count = self.count * kept + count;
        self.logarithms = self.logarithms * kept + samples.logarithms as f64;
        self.squares = self.squares * kept + samples.squares as f64;
    }

    fn mean(&self) -> Option<f64> {
        // Tolerates rounding errors.
        (self.count > self.min_count - 0.5).then(|| self.logarithms / self.count)
    }

    /// Standard deviation of the mean.
    fn uncertainty(&self) -> f64 {
        let mean = self.logarithms / self.count;
        ((self.squares / self.count - mean * mean).max(0.0) / self.count).sqrt()
    }
}

/// Learns the latency of an upstream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Latency {
    now: DecayingMean,
    soon: DecayingMean,
    lately: DecayingMean,
    usual: Option<f64>,
    /// Usual latency in the long run, which rises only by [`SLOWER`].
    long_term_baseline: f64,
    /// Lowest usual latency since the last shift.
    reported: Option<f64>,
    /// Whether a latency higher than usual has still to be learned.
    behind: bool,
    silent_for: Duration,
}

impl Default for Latency {
    fn default() -> Self {
        Self {
            now: NOW,
            soon: SOON,
            lately: LATELY,
            usual: None,
            long_term_baseline: 0.0,
            reported: None,
            behind: false,
            silent_for: Duration::ZERO,
        }
    }
}

impl Latency {
    /// Learns from the `samples` of the last `elapsed`; higher latencies only if limits are as configured.
    pub(super) fn learn(&mut self, samples: Samples, elapsed: Duration, as_written: bool) {
        self.silent_for = if samples.count > 0 { Duration::ZERO } else { self.silent_for + elapsed };
        self.now.add(samples, elapsed);
        self.soon.add(samples, elapsed);
        self.lately.add(samples, elapsed);
        let Some(lately) = self.lately.mean() else { return };
        let Some(usual) = self.usual else {
            (self.usual, self.long_term_baseline) = (Some(lately), lately);
            return;
        };
        self.behind = as_written || (self.behind && lately > usual + NEAR);
        let may_rise = self.behind && self.is_level(lately);
        if lately < self.long_term_baseline {
            self.long_term_baseline = approach(self.long_term_baseline, lately, elapsed, FASTER);
        } else if may_rise {
            self.long_term_baseline = approach(self.long_term_baseline, lately, elapsed, SLOWER);
        }
        let farthest = lately.min(self.long_term_baseline + MAX_RISE);
        let usual = if lately < usual {
            approach(usual, lately, elapsed, FASTER)
        } else if may_rise && farthest > usual {
            approach(usual, farthest, elapsed, SETTLED)
        } else {
            usual
        };
        self.usual = Some(usual.max(self.long_term_baseline));
    }

    /// Whether the usual latency has risen more than half a doubling above its lowest value since the last shift. If
    /// so, this is a shift, and the next call compares with the current value.
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

    /// Whether the latency is level: as it was some seconds ago, within the accuracy of the means.
    fn is_level(&self, lately: f64) -> bool {
        let chance = LEVEL.1 * self.soon.uncertainty();
        self.soon.mean().is_some_and(|soon| (soon - lately).abs() < LEVEL.0 + chance)
    }

    /// Returns the current latency and its threshold in seconds, if both are known.
    ///
    /// Responses that are few, or vary much, have a higher threshold: the mean of thirty random times is itself random.
    pub(super) fn current_and_threshold(&self) -> Option<(f64, f64)> {
        let now = self.now.mean().filter(|_| self.silent_for < SILENCE)?;
        let chance = CERTAINTY * self.now.uncertainty();
        Some((seconds(now), seconds(self.usual? + chance) * MAX_SLOWDOWN))
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

    fn latency_after(latency: &mut Latency, ticks: u32, duration: Duration, as_written: bool) -> (f64, f64) {
        for _ in 0..ticks {
            latency.learn(samples(50, duration), TICK, as_written);
        }
        let (now, most) = latency.current_and_threshold().unwrap();
        (now, most / MAX_SLOWDOWN)
    }

    #[test]
    fn latency_ignores_a_few_slow_responses() {
        let mut latency = Latency::default();
        latency_after(&mut latency, 100, Duration::from_millis(10), true);
        let mut mixed = samples(99, Duration::from_millis(10));
        mixed.add(Duration::from_secs(10));
        for _ in 0..50 {
            latency.learn(mixed, TICK, true);
        }
        let (now, _) = latency.current_and_threshold().unwrap();
        assert!((0.010..0.011).contains(&now), "{now}");
    }

    #[test]
    fn usual_latency_rises_only_at_configured_limits_and_always_falls() {
        let mut latency = Latency::default();
        let slow = Duration::from_millis(20);
        latency_after(&mut latency, 100, Duration::from_millis(10), true);
        let (_, before) = latency_after(&mut latency, 10, Duration::from_millis(10), false);
        let (now, usual) = latency_after(&mut latency, 3000, slow, false);
        assert!((now / 0.020 - 1.0).abs() < 0.01 && usual == before, "{now} {usual}");
        latency_after(&mut latency, 1000, slow, true);
        let (_, usual) = latency_after(&mut latency, 10_000, slow, false);
        assert!((0.018..0.0201).contains(&usual), "{usual}");
        let (_, usual) = latency_after(&mut latency, 1000, Duration::from_millis(10), false);
        assert!((usual / 0.010 - 1.0).abs() < 0.01, "{usual}");
    }

    #[test]
    fn latency_needs_enough_recent_responses() {
        let mut latency = Latency::default();
        for _ in 0..29 {
            latency.learn(samples(1, Duration::from_millis(10)), Duration::from_secs(1), true);
        }
        assert_eq!(latency.current_and_threshold(), None, "too few samples");
        for _ in 0..121 {
            latency.learn(samples(1, Duration::from_millis(10)), Duration::from_secs(1), true);
        }
        assert!(latency.current_and_threshold().is_some(), "150 samples suffice, over any time");
        latency.learn(Samples::default(), Duration::from_secs(6), true);
        assert_eq!(latency.current_and_threshold(), None, "no samples for a while");
    }
}
