//! From what is measured to how far limits may stretch.
//!
//! Called ten times a second. Every signal is compared with its threshold, and the one that has come nearest
//! to it binds. Well below, headroom grows, slowly. From most of the way on it is given back little by little, which
//! is where it comes to rest. A threshold that is crossed costs a cut at once; where that has not helped by the
//! time its effect must have been seen, the rest goes as well, and limits are as written within two seconds. Where it
//! had to turn round is remembered: up to near that point headroom comes back as before, from there on slowly at
//! first, so that it touches the limit lightly instead of running into it again and again.
//!
//! The numbers are those with which the simulation in `tests/elastic` holds what it claims.

use std::time::Duration;

use super::Headroom;
use super::concurrency::Concurrency;
use super::latency::{Latency, share_left};
use super::signal::{Level, Reading, Signal, Signals};
use crate::limiter::timestamp::Timestamp;

/// How often the controller wants to be asked.
pub const TICK: Duration = Duration::from_millis(100);

/// The share of requests that may fail.
const MOST_FAILURES: f64 = 0.1;
/// Of what the upstream has: beyond it, queues grow faster than load.
const MOST_UTILIZATION: f64 = 0.9;
/// The share of time that work may wait for a CPU.
const MOST_CPU: f64 = 0.5;

/// Below this part of every threshold there is headroom to gain.
const ROOM: f64 = 0.7;
/// For so long there must have been, before any is gained.
const CALM: Duration = Duration::from_millis(500);
/// Headroom gained in a second: all of it in ten.
const GROWTH: f64 = 0.1;
/// The same near the point where it had to turn round, doubling every so many seconds without a turn.
const CAREFUL_GROWTH: f64 = 0.002;
const DOUBLING: f64 = 15.0;
/// From this part of it on, and up to that.
const NEAR: f64 = 0.9;
const PAST: f64 = 1.2;
/// The same where pressure is low: at the lower of these.
const EASY_GROWTH: f64 = 0.02;
const EASY: (f64, f64) = (0.42, 0.52);
/// What pressure is averaged over for that.
const LATELY: Duration = Duration::from_secs(2);
/// Pressure that is still there when this part of the headroom is left does not come from the limits.
const NO_HELP: f64 = 0.5;
/// From this part of a threshold on headroom is given back: at the threshold itself, this part of it a second.
const TIGHT: f64 = 0.75;
const RETREAT: f64 = 0.15;

/// What crossing a threshold costs at once, as a part of the headroom there is: no more than that of any factor.
const CUT: f64 = 0.15;
/// How long its effect takes to be seen: so long, and so many times what answers take, but not longer than that.
const EFFECT: Duration = Duration::from_millis(500);
const EFFECT_LATENCIES: f64 = 2.0;
const LATEST_EFFECT: Duration = Duration::from_millis(700);
/// For so long a pressure is given that falls after the cut.
const PATIENCE: Duration = Duration::from_secs(1);
/// The time in which all headroom is lost at the greatest speed, and in which that speed is reached, in seconds.
const COLLAPSE: f64 = 0.7;
const RAMP: f64 = 0.5;
/// How far beyond its threshold a signal must be for that; less takes longer, but never less than this part of it.
const HEAVY: f64 = 0.7;
const LIGHTEST: f64 = 0.3;
/// Pressures between which it grows to its greatest at once.
const FAR: (f64, f64) = (1.75, 2.25);
/// What the pressure before fades in.
const BEFORE: Duration = Duration::from_millis(200);

/// What failures fade in, and how many requests without one are supposed: one failure of three is no rate.
const FAILURES_FADE: Duration = Duration::from_millis(500);
const SUPPOSED: f64 = 10.0;
/// What reports fade in, and after what time they are too old.
const REPORTS_FADE: Duration = Duration::from_millis(300);
const REPORTS_LAST: Duration = Duration::from_secs(10);

/// Where headroom is going.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trend {
    /// More is being gained.
    Growing,
    /// It stays: near a threshold, just after one was crossed, or with nothing left to gain.
    #[default]
    Steady,
    /// A threshold is crossed.
    Shrinking,
}

impl Trend {
    /// In a word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Growing => "growing",
            Self::Steady => "steady",
            Self::Shrinking => "shrinking",
        }
    }
}

/// The controller's opinion at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Assessment {
    /// How far limits may stretch.
    pub headroom: Headroom,
    /// Where that is going.
    pub trend: Trend,
    /// Every signal that says something, beside [`Signal::ALL`].
    pub levels: [Option<Level>; Signal::ALL.len()],
}

impl Assessment {
    /// The signal that has come nearest to its threshold.
    pub fn binding(&self) -> Option<Level> {
        self.levels.iter().flatten().copied().max_by(|a, b| a.pressure().total_cmp(&b.pressure()))
    }
}

/// What is known of the upstream. Starts without headroom.
#[derive(Clone, Copy, Debug, Default)]
pub struct Controller {
    at: Option<Timestamp>,
    latency: Latency,
    concurrency: Concurrency,
    failures: Failures,
    utilization: Report,
    cpu: Report,
    course: Course,
}

impl Controller {
    /// Takes in what was measured since the last call and answers how far limits may stretch from `now` on,
    /// going by `signals`.
    pub fn assess(&mut self, reading: &Reading, signals: Signals, now: Timestamp) -> Assessment {
        // After a pause, as of a suspended machine, the world is another: no more than a second counts.
        let elapsed = self.at.map_or(Duration::ZERO, |at| now.since(at)).min(Duration::from_secs(1));
        self.at = Some(now);
        self.latency.learn(reading.answers, elapsed, self.course.is_unaffected_by_limits());
        if self.latency.has_shifted() {
            // Where another upstream had its limit says nothing of this one's.
            self.course.turned_at = None;
        }
        let pace = self.latency.now_and_most();
        let gradient = pace.map(|(now, most)| most / now);
        self.concurrency.adapt(reading.in_flight, gradient, elapsed);
        self.failures.add(reading, elapsed);
        self.utilization.add(reading.utilization, elapsed);
        self.cpu.add(reading.cpu, elapsed);
        let levels = Signal::ALL.map(|signal| self.level(signal).filter(|_| signals.contains(signal)));
        let pressure = levels.iter().flatten().map(Level::pressure).fold(0.0, f64::max);
        let answers_take =
            pace.map_or(0.0, |(now, _)| now * EFFECT_LATENCIES).min(LATEST_EFFECT.as_secs_f64());
        let effect = EFFECT.max(Duration::from_secs_f64(answers_take));
        let trend = self.course.steer(pressure, effect, elapsed);
        Assessment { headroom: Headroom::from_fraction(self.course.headroom), trend, levels }
    }

    fn level(&self, signal: Signal) -> Option<Level> {
        let (value, threshold) = match signal {
            Signal::InFlight => (self.concurrency.in_flight, self.concurrency.limit),
            Signal::Latency => self.latency.now_and_most()?,
            Signal::Failures => (self.failures.share(), MOST_FAILURES),
            Signal::Utilization => (self.utilization.value()?, MOST_UTILIZATION),
            Signal::Cpu => (self.cpu.value()?, MOST_CPU),
        };
        Some(Level { signal, value, threshold })
    }
}

/// Headroom on its way between none and all.
#[derive(Clone, Copy, Debug, Default)]
struct Course {
    headroom: f64,
    /// Where it had to turn round last.
    turned_at: Option<f64>,
    /// The pressure of just before, and that of the last seconds.
    before: f64,
    lately: f64,
    /// The headroom there was when pressure began to leave no room.
    tight_from: Option<f64>,
    crossed_for: Duration,
    since_cut: Duration,
    calm_for: Duration,
}

impl Course {
    fn is_at_base(&self) -> bool {
        self.headroom <= 0.0
    }

    /// Whether the upstream does as it does whatever the limits are: they are as written, or shrinking them has not helped.
    fn is_unaffected_by_limits(&self) -> bool {
        self.is_at_base() || self.tight_from.is_some_and(|from| self.headroom <= from * NO_HELP)
    }

    fn steer(&mut self, pressure: f64, effect: Duration, elapsed: Duration) -> Trend {
        let falls = pressure < self.before;
        self.before = pressure + (self.before - pressure) * share_left(elapsed, BEFORE);
        self.lately = pressure + (self.lately - pressure) * share_left(elapsed, LATELY);
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

    /// A cut first, as most often it does: what was too much was little. What is still too much when its effect
    /// should have been seen is an overload.
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
        let heavy = ((pressure - 1.0) / HEAVY).clamp(LIGHTEST, 1.0);
        let speed = far.max(long * heavy).clamp(0.0, 1.0) / COLLAPSE;
        self.headroom = (self.headroom - speed * elapsed.as_secs_f64()).max(0.0);
    }

    fn grow(&mut self, elapsed: Duration) {
        let speed = match self.turned_at {
            // So far beyond, and nothing has happened: it is another upstream now.
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

/// Failures of late.
#[derive(Clone, Copy, Debug, Default)]
struct Failures {
    ended: f64,
    failed: f64,
}

impl Failures {
    fn add(&mut self, reading: &Reading, elapsed: Duration) {
        let kept = share_left(elapsed, FAILURES_FADE);
        self.ended = self.ended * kept + reading.ended as f64;
        self.failed = self.failed * kept + reading.failed as f64;
    }

    fn share(&self) -> f64 {
        self.failed / (self.ended + SUPPOSED)
    }
}

/// A number that others report now and then.
#[derive(Clone, Copy, Debug, Default)]
struct Report {
    value: Option<f64>,
    age: Duration,
}

impl Report {
    fn add(&mut self, reported: Option<f64>, elapsed: Duration) {
        let Some(reported) = reported.filter(|reported| reported.is_finite()) else {
            self.age = self.age.saturating_add(elapsed);
            return;
        };
        // What has not been heard of for long is no part of the mean.
        let kept = share_left(self.age.saturating_add(elapsed), REPORTS_FADE);
        self.value = Some(self.value.map_or(reported, |value| reported + (value - reported) * kept));
        self.age = Duration::ZERO;
    }

    fn value(&self) -> Option<f64> {
        self.value.filter(|_| self.age < REPORTS_LAST)
    }
}

#[cfg(test)]
mod tests;
