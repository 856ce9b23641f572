//! Controller of elastic limits: computes the headroom from measurements, ten times a second.
//!
//! Every signal is compared with its threshold. The pressure is the highest ratio of a signal's value to its threshold.
//! At low pressure headroom grows, slowly. From three quarters of the threshold on, a little is given back, so headroom
//! comes to rest there. When a threshold is crossed, headroom is cut at once. If pressure is still above the threshold
//! when the cut must have taken effect, the rest follows, and limits are as configured within two seconds.
//!
//! The point at which headroom had to turn is remembered. Headroom grows back as before up to near that point, and
//! slowly at first from there, so that it approaches the limit gently instead of overshooting again and again.
//!
//! The simulation in `tests/elastic` verifies these claims with these constants.

use std::time::Duration;

use super::Headroom;
use super::concurrency::Concurrency;
use super::latency::Latency;
use super::signal::{Signal, SignalLevel, SignalSet, UpstreamMeasurement};
use crate::control::{LastTick, approach, decay_factor};
use crate::timestamp::Timestamp;

/// Threshold of failures: share of requests.
const MAX_FAILURE_SHARE: f64 = 0.1;
/// Threshold of utilization. Above it, queues grow faster than load.
const MAX_UTILIZATION: f64 = 0.9;
/// Threshold of CPU pressure: share of time in which work waits for a CPU.
const MAX_CPU_WAIT: f64 = 0.5;

/// Pressure below which headroom may grow.
const ROOM: f64 = 0.7;
/// Time for which pressure must have been that low before headroom grows.
const CALM: Duration = Duration::from_millis(500);
/// Growth of headroom per second: all of it in ten seconds.
const GROWTH: f64 = 0.1;
/// Growth per second near the last turning point; doubles every [`DOUBLING`] seconds without a turn.
const CAREFUL_GROWTH: f64 = 0.002;
/// Seconds in which careful growth doubles.
const DOUBLING: f64 = 15.0;
/// Part of the turning point from which growth is careful.
const NEAR: f64 = 0.9;
/// Multiple of the turning point beyond which it is forgotten, if pressure is low.
const PAST: f64 = 1.2;
/// Maximum growth per second near the turning point while pressure is low.
const EASY_GROWTH: f64 = 0.02;
/// Pressures between which that growth falls from all of it to none.
const EASY: (f64, f64) = (0.42, 0.52);
/// Averaging time of that pressure.
const LATELY: Duration = Duration::from_secs(2);
/// If pressure remains when this part of the headroom is left, limits are not its cause.
const NO_HELP: f64 = 0.5;
/// Pressure from which headroom is given back.
const TIGHT: f64 = 0.75;
/// Part of the headroom that is given back per second, just below the threshold.
const RETREAT: f64 = 0.15;

/// Part of the headroom that crossing a threshold costs at once. The elastic factor falls by no larger part.
const CUT: f64 = 0.15;
/// Minimum time in which the effect of a cut becomes visible.
const EFFECT: Duration = Duration::from_millis(500);
/// The same as a multiple of the current latency, if that is longer.
const EFFECT_LATENCIES: f64 = 2.0;
/// Maximum of that multiple.
const MAX_EFFECT_TIME: Duration = Duration::from_millis(700);
/// Time for which falling pressure after a cut is tolerated, and minimum time between two cuts.
const PATIENCE: Duration = Duration::from_secs(1);
/// Seconds in which all headroom is lost at maximum speed.
const COLLAPSE: f64 = 0.7;
/// Seconds in which that speed is reached.
const RAMP: f64 = 0.5;
/// Excess over the threshold at which the maximum speed is reached.
const HEAVY: f64 = 0.7;
/// Minimum part of the speed for a smaller excess.
const MIN_EXCESS_WEIGHT: f64 = 0.3;
/// Pressures between which speed rises to its maximum without waiting for the effect of a cut.
const FAR: (f64, f64) = (1.75, 2.25);
/// Averaging time of the previous pressure.
const BEFORE: Duration = Duration::from_millis(200);

/// Averaging time of failures.
const FAILURES_FADE: Duration = Duration::from_millis(500);
/// Number of successful requests that are added, because one failure in three requests is no rate.
const SUPPOSED: f64 = 10.0;
/// Averaging time of load reports.
const REPORTS_FADE: Duration = Duration::from_millis(300);
/// Age at which a report is ignored.
const REPORTS_LAST: Duration = Duration::from_secs(10);

/// Direction in which headroom moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trend {
    /// It grows.
    Growing,
    /// It is steady: near a threshold, after one was crossed, or at its maximum.
    #[default]
    Steady,
    /// A threshold is crossed.
    Shrinking,
}

impl Trend {
    /// Returns the name of the trend.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Growing => "growing",
            Self::Steady => "steady",
            Self::Shrinking => "shrinking",
        }
    }
}

/// State of the controller at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Assessment {
    /// Share of the range of factors that is in force, from 0 to 1.
    pub headroom: Headroom,
    /// Its direction.
    pub trend: Trend,
    /// Level of every signal that has a value, indexed as [`Signal::ALL`].
    pub levels: [Option<SignalLevel>; Signal::ALL.len()],
}

impl Assessment {
    /// Returns the signal with the highest pressure.
    pub fn binding(&self) -> Option<SignalLevel> {
        self.levels.iter().flatten().copied().max_by(|a, b| a.pressure().total_cmp(&b.pressure()))
    }
}

/// The controller of one upstream. It starts without headroom.
#[derive(Clone, Copy, Debug, Default)]
pub struct Controller {
    last_tick: LastTick,
    latency: Latency,
    concurrency: Concurrency,
    failures: Failures,
    utilization: ReportedValue,
    cpu: ReportedValue,
    tracker: HeadroomTracker,
}

impl Controller {
    /// Processes the measurements since the last call; returns the headroom from `now` on, according to `signals`.
    pub fn assess(
        &mut self,
        reading: &UpstreamMeasurement,
        signals: SignalSet,
        now: Timestamp,
    ) -> Assessment {
        let elapsed = self.last_tick.elapsed(now, Duration::ZERO);
        self.latency.learn(reading.response_times, elapsed, self.tracker.is_unaffected_by_limits());
        if self.latency.has_shifted() {
            // The turning point of another upstream does not apply to this one.
            self.tracker.turned_at = None;
        }
        let pace = self.latency.current_and_threshold();
        let gradient = pace.map(|(now, most)| most / now);
        self.concurrency.adapt(reading.in_flight, gradient, elapsed);
        self.failures.add(reading, elapsed);
        self.utilization.add(reading.utilization, elapsed);
        self.cpu.add(reading.cpu, elapsed);
        let levels = Signal::ALL.map(|signal| self.level(signal).filter(|_| signals.contains(signal)));
        let pressure = levels.iter().flatten().map(SignalLevel::pressure).fold(0.0, f64::max);
        let response_time =
            pace.map_or(0.0, |(now, _)| now * EFFECT_LATENCIES).min(MAX_EFFECT_TIME.as_secs_f64());
        let effect = EFFECT.max(Duration::from_secs_f64(response_time));
        let trend = self.tracker.steer(pressure, effect, elapsed);
        Assessment { headroom: Headroom::from_fraction(self.tracker.headroom), trend, levels }
    }

    fn level(&self, signal: Signal) -> Option<SignalLevel> {
        let (value, threshold) = match signal {
            Signal::InFlight => (self.concurrency.in_flight, self.concurrency.limit),
            Signal::Latency => self.latency.current_and_threshold()?,
            Signal::Failures => (self.failures.share(), MAX_FAILURE_SHARE),
            Signal::Utilization => (self.utilization.value()?, MAX_UTILIZATION),
            Signal::Cpu => (self.cpu.value()?, MAX_CPU_WAIT),
        };
        Some(SignalLevel { signal, value, threshold })
    }
}

/// Headroom and the state by which it moves.
#[derive(Clone, Copy, Debug, Default)]
struct HeadroomTracker {
    headroom: f64,
    /// Headroom at the last turn.
    turned_at: Option<f64>,
    /// Average pressure of the last moments.
    before: f64,
    /// Average pressure of the last seconds.
    lately: f64,
    /// Headroom when pressure began to leave no room.
    tight_from: Option<f64>,
    crossed_for: Duration,
    since_cut: Duration,
    calm_for: Duration,
}

impl HeadroomTracker {
    fn is_at_base(&self) -> bool {
        self.headroom <= 0.0
    }

    /// Whether limits do not affect the upstream: they are as configured, or shrinking them has not helped.
    fn is_unaffected_by_limits(&self) -> bool {
        self.is_at_base() || self.tight_from.is_some_and(|from| self.headroom <= from * NO_HELP)
    }

    fn steer(&mut self, pressure: f64, effect: Duration, elapsed: Duration) -> Trend {
        let falls = pressure < self.before;
        self.before = approach(self.before, pressure, elapsed, BEFORE);
        self.lately = approach(self.lately, pressure, elapsed, LATELY);
        if pressure < ROOM {
            self.tight_from = None;
        } else {
            self.tight_from.get_or_insert(self.headroom);
        }
        self.since_cut = self.since_cut.saturating_add(elapsed);
        if pressure >= 1.0 {
            self.shrink(pressure, falls, effect, elapsed);
            return Trend::Shrinking;
        }
        self.crossed_for = Duration::ZERO;
        if pressure >= ROOM {
            self.calm_for = Duration::ZERO;
            let tightness = ((pressure - TIGHT) / (1.0 - TIGHT)).max(0.0);
            self.headroom *= 1.0 - RETREAT * tightness * elapsed.as_secs_f64();
            return Trend::Steady;
        }
        self.calm_for = self.calm_for.saturating_add(elapsed);
        if self.calm_for < CALM || self.headroom >= 1.0 {
            return Trend::Steady;
        }
        self.grow(elapsed);
        Trend::Growing
    }

    /// Shrinks headroom: first by a cut, which is usually enough. Pressure that remains after the effect of the cut is
    /// an overload.
    fn shrink(&mut self, pressure: f64, falls: bool, effect: Duration, elapsed: Duration) {
        self.calm_for = Duration::ZERO;
        if self.crossed_for.is_zero() && self.since_cut > PATIENCE && !self.is_at_base() {
            self.since_cut = Duration::ZERO;
            self.turned_at = Some(self.headroom);
            self.headroom *= 1.0 - CUT;
        }
        self.crossed_for = self.crossed_for.saturating_add(elapsed);
        if falls && self.crossed_for < PATIENCE {
            return;
        }
        let far = (pressure - FAR.0) / (FAR.1 - FAR.0);
        let long = self.crossed_for.saturating_sub(effect).as_secs_f64() / RAMP;
        let heavy = ((pressure - 1.0) / HEAVY).clamp(MIN_EXCESS_WEIGHT, 1.0);
        let speed = far.max(long * heavy).clamp(0.0, 1.0) / COLLAPSE;
        self.headroom = (self.headroom - speed * elapsed.as_secs_f64()).max(0.0);
    }

    fn grow(&mut self, elapsed: Duration) {
        let speed = match self.turned_at {
            // Well beyond the turning point without pressure: the upstream has changed.
            Some(turned_at) if self.headroom >= turned_at * PAST && self.lately < EASY.1 => {
                self.turned_at = None;
                GROWTH
            }
            Some(turned_at) if self.headroom >= turned_at * NEAR => {
                let careful = CAREFUL_GROWTH * (self.calm_for.as_secs_f64() / DOUBLING).exp2();
                let ease = ((EASY.1 - self.lately) / (EASY.1 - EASY.0)).clamp(0.0, 1.0);
                careful.max(EASY_GROWTH * ease).min(GROWTH)
            }
            _ => GROWTH,
        };
        self.headroom = (self.headroom + speed * elapsed.as_secs_f64()).min(1.0);
    }
}

/// Recent failures.
#[derive(Clone, Copy, Debug, Default)]
struct Failures {
    ended: f64,
    failed: f64,
}

impl Failures {
    fn add(&mut self, reading: &UpstreamMeasurement, elapsed: Duration) {
        let kept = decay_factor(elapsed, FAILURES_FADE);
        self.ended = self.ended * kept + reading.ended as f64;
        self.failed = self.failed * kept + reading.failed as f64;
    }

    fn share(&self) -> f64 {
        self.failed / (self.ended + SUPPOSED)
    }
}

/// A value that is reported at irregular intervals.
#[derive(Clone, Copy, Debug, Default)]
struct ReportedValue {
    value: Option<f64>,
    age: Duration,
}

impl ReportedValue {
    fn add(&mut self, reported: Option<f64>, elapsed: Duration) {
        let Some(reported) = reported.filter(|reported| reported.is_finite()) else {
            self.age = self.age.saturating_add(elapsed);
            return;
        };
        // The old mean fades according to its age.
        let age = self.age.saturating_add(elapsed);
        self.value = Some(self.value.map_or(reported, |value| approach(value, reported, age, REPORTS_FADE)));
        self.age = Duration::ZERO;
    }

    fn value(&self) -> Option<f64> {
        self.value.filter(|_| self.age < REPORTS_LAST)
    }
}

#[cfg(test)]
mod tests;
