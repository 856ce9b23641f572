//! Controller of one adaptive concurrency limit: a gradient of latency, with a baseline that is learned without
//! interrupting the traffic.
//!
//! Responses are collected in windows. The *baseline* is the latency without a queue. At the end of a window, the limit
//! is multiplied by baseline to latency, and its square root is added: room for the queue that random arrivals need
//! ([`Tolerance`]). It grows only if it is used. A share of failures lowers it without regard to latency.
//!
//! The baseline falls with every faster window. It rises only where the limit cannot be the cause of the latency: while
//! most of the limit is unused, or in a *probe*. A probe lowers the limit for a few latencies below the estimated
//! concurrency of the upstream, so that its queue drains, and takes what is then measured.
//!
//! The simulation in `tests/elastic/concurrency.rs` compares this with other algorithms, with these constants.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::AdaptiveRange;
use crate::control::samples::{STEPS, Samples, seconds};
use crate::control::{approach, concurrency_aim, decay_factor};

/// Minimum length of a window.
const MIN_WINDOW: Duration = Duration::from_millis(100);
/// Minimum length as a multiple of the current latency, so that a window shows the effect of the previous one.
const WINDOW_LATENCIES: f64 = 1.5;
/// Number of responses and failures at which a window of minimum length ends.
const ENOUGH: u64 = 10;
/// Length at which a window ends with fewer, if there are any.
const MAX_WINDOW: Duration = Duration::from_secs(1);

/// Number of standard deviations of a window's mean that are tolerated in addition.
const CERTAINTY: f64 = 1.5;
/// Part of the way to the new limit that one window goes.
const SMOOTHING: f64 = 0.4;
/// Part of the limit that must have been used in a window for the limit to grow.
const USED: f64 = 0.5;
/// Growth per window until the first window with a queue.
const SLOW_START: f64 = 2.0;
/// Gradient below which a window shows a queue.
const QUEUE: f64 = 0.9;
/// Share of failures from which the limit is lowered.
const MAX_FAILURES: f64 = 0.1;
/// Number of successful requests that are added, because one failure in two requests is no rate.
const SUPPOSED: f64 = 3.0;

/// Part of the way to a lower latency that the baseline goes in one window.
const FASTER: f64 = 0.3;
/// Number of responses of a window that halves that part: few say little, and the lowest of many would be too low.
const FEW: f64 = 20.0;
/// Time constant with which it follows a higher latency while the limit is not used.
const SLOWER: Duration = Duration::from_secs(10);
/// Time after which a baseline that nothing has confirmed is probed.
const PROBE_INTERVAL: Duration = Duration::from_secs(30);
/// The same for a first baseline, and after the limit has fallen. It doubles with each probe, up to [`PROBE_INTERVAL`].
const FIRST_PROBE_INTERVAL: Duration = Duration::from_secs(3);
/// Minimum interval as a multiple of the current latency: a probe costs about one latency of throughput.
const PROBE_LATENCIES: f64 = 50.0;
/// Part of its value at the last probe below which the limit has fallen so far that the baseline may be another one.
const FALLEN: f64 = 0.6;
/// Part of the estimated concurrency of the upstream that a probe admits.
const PROBE_DEPTH: f64 = 0.75;
/// Averaging time of the variance.
const VARIANCE: Duration = Duration::from_secs(5);

/// How far a limit may exceed the concurrency of the upstream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Latency over the baseline, as a factor.
    pub latency: f64,
    /// Requests that may queue at the upstream, as a multiple of the square root of the limit.
    pub queue: f64,
}

impl Tolerance {
    /// For limits that reject: the upstream's queue is the only one, and absorbs random arrivals.
    pub const QUEUE_UPSTREAM: Self = Self { latency: 1.25, queue: 1.0 };
    /// For requests that wait here: the upstream needs only enough to be busy.
    pub const QUEUE_HERE: Self = Self { latency: 1.08, queue: 0.3 };
}

/// Measurements of one tick.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reading {
    /// Latencies of responses.
    pub latencies: Samples,
    /// Number of requests that failed for lack of capacity.
    pub failed: u64,
    /// Maximum number of requests in flight.
    pub peak: u32,
}

impl Reading {
    /// Whether there was no request.
    pub(super) const fn is_empty(&self) -> bool {
        self.latencies.count == 0 && self.failed == 0 && self.peak == 0
    }
}

/// Values of a controller, for operators.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ControllerState {
    /// The limit in force.
    pub limit: u32,
    /// Latency without a queue, in seconds, if known.
    pub baseline: Option<f64>,
    /// Latency in the last window, in seconds, if there was any.
    pub latency: Option<f64>,
}

/// What a controller has learned.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LearnedController {
    limit: f64,
    baseline: Option<f64>,
    latency: Option<f64>,
    variance: f64,
    slow_start: bool,
}

/// The controller of one limit.
#[derive(Clone, Copy, Debug)]
pub struct LimitController {
    tolerance: Tolerance,
    limit: f64,
    /// Latency without a queue, as a logarithm.
    baseline: Option<f64>,
    /// Latency in the last window, as a logarithm.
    latency: Option<f64>,
    /// Variance of the logarithms of latencies.
    variance: f64,
    slow_start: bool,
    window: Window,
    probe: Probe,
}

/// The window that is being collected.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    latencies: Samples,
    failed: u64,
    peak: u32,
    length: Duration,
}

/// State of probes.
#[derive(Clone, Copy, Debug)]
struct Probe {
    phase: Phase,
    /// Time since the last probe, or since the baseline was last confirmed.
    since: Duration,
    /// Time until the next probe.
    interval: Duration,
    /// The highest limit since then.
    limit_then: f64,
    /// Random number that spreads the probes of several instances.
    random: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// No probe.
    Off,
    /// The queue drains for this time.
    Draining { limit: f64, left: Duration },
    /// The next window is measured.
    Measuring { limit: f64 },
}

impl LimitController {
    /// Creates a controller at the minimum of `range`. `seed` spreads its probes.
    pub fn new(range: AdaptiveRange, tolerance: Tolerance, seed: u64) -> Self {
        let limit = f64::from(range.min().get());
        Self {
            tolerance,
            limit,
            baseline: None,
            latency: None,
            variance: 0.0,
            slow_start: true,
            window: Window::default(),
            probe: Probe {
                phase: Phase::Off,
                since: Duration::ZERO,
                interval: FIRST_PROBE_INTERVAL,
                limit_then: limit,
                random: seed | 1,
            },
        }
    }

    /// Returns what it has learned.
    pub const fn learned(&self) -> LearnedController {
        let Self { limit, baseline, latency, variance, slow_start, .. } = *self;
        LearnedController { limit, baseline, latency, variance, slow_start }
    }

    /// Creates a controller that continues with what another one has learned.
    pub fn from_learned(
        learned: LearnedController,
        range: AdaptiveRange,
        tolerance: Tolerance,
        seed: u64,
    ) -> Self {
        let LearnedController { limit, baseline, latency, variance, slow_start } = learned;
        let mut new = Self { baseline, latency, variance, slow_start, ..Self::new(range, tolerance, seed) };
        new.limit = limit.clamp(range.min().get().into(), range.max().get().into());
        new.probe.confirm(new.limit);
        new
    }

    /// Processes the measurements of the last `elapsed` time; returns the limit from now on.
    pub fn adapt(&mut self, reading: &Reading, range: AdaptiveRange, elapsed: Duration) -> u32 {
        self.window.add(reading, elapsed);
        self.probe.since = self.probe.since.saturating_add(elapsed);
        if let Phase::Draining { limit, left } = self.probe.phase {
            // What completes now was queued before.
            self.window = Window::default();
            let left = left.saturating_sub(elapsed);
            self.probe.phase = match left.is_zero() {
                true => Phase::Measuring { limit },
                false => Phase::Draining { limit, left },
            };
        } else if self.window.is_complete(self.latency) {
            let window = std::mem::take(&mut self.window);
            self.end_window(&window);
        }
        self.limit = self.limit.clamp(range.min().get().into(), range.max().get().into());
        self.state(range).limit
    }

    /// Returns the limit in force, and what it is computed from.
    pub fn state(&self, range: AdaptiveRange) -> ControllerState {
        let limit = match self.probe.phase {
            Phase::Off => self.limit,
            Phase::Draining { limit, .. } | Phase::Measuring { limit } => limit,
        };
        // The conversion saturates.
        let limit = (limit as u32).clamp(range.min().get(), range.max().get());
        ControllerState { limit, baseline: self.baseline.map(seconds), latency: self.latency.map(seconds) }
    }

    fn end_window(&mut self, window: &Window) {
        let measured = window.latencies.mean_and_variance();
        let failures = window.failure_share();
        if let Phase::Measuring { .. } = self.probe.phase {
            self.end_probe(measured.map(|(mean, _)| mean));
            return;
        }
        let is_used = f64::from(window.peak) >= self.limit * USED;
        let mut gradient = 1.0;
        if let Some((mean, variance)) = measured {
            self.variance = match self.latency {
                None => variance,
                Some(_) => approach(self.variance, variance, window.length, VARIANCE),
            };
            self.latency = Some(mean);
            let baseline = self.learn(mean, window.latencies.count as f64, is_used, window.length);
            let doubt = CERTAINTY * (self.variance / window.latencies.count as f64).sqrt();
            gradient = seconds(baseline + doubt) * self.tolerance.latency / seconds(mean);
        }
        if failures >= MAX_FAILURES {
            gradient = gradient.min(1.0 - failures);
        }
        self.move_limit(gradient, is_used && measured.is_some(), failures);
        self.start_probe_if_due();
    }

    /// Learns the baseline from a window; returns it.
    fn learn(&mut self, mean: f64, count: f64, is_used: bool, length: Duration) -> f64 {
        let before = self.baseline.unwrap_or(mean);
        let part = if mean < before {
            FASTER * count / (count + FEW)
        } else if is_used {
            0.0
        } else {
            1.0 - decay_factor(length, SLOWER)
        };
        let baseline = before + (mean - before) * part;
        self.baseline = Some(baseline);
        if !is_used {
            self.probe.confirm(self.limit);
        }
        baseline
    }

    fn move_limit(&mut self, gradient: f64, is_used: bool, failures: f64) {
        self.slow_start &= gradient >= QUEUE;
        if self.slow_start {
            if is_used {
                self.limit *= SLOW_START;
            }
            return;
        }
        let queue = if failures >= MAX_FAILURES { 0.0 } else { self.tolerance.queue * self.limit.sqrt() };
        if let Some(aim) = concurrency_aim(self.limit, gradient, queue, is_used) {
            self.limit += (aim - self.limit) * SMOOTHING;
        }
    }

    fn start_probe_if_due(&mut self) {
        let (Some(baseline), Some(latency)) = (self.baseline.map(seconds), self.latency.map(seconds)) else {
            return;
        };
        if self.probe.is_due(self.limit, latency) {
            let concurrency = self.limit * (baseline / latency).min(1.0);
            let limit = concurrency * PROBE_DEPTH;
            let left = Duration::try_from_secs_f64(latency * WINDOW_LATENCIES).unwrap_or(MAX_WINDOW);
            self.probe.phase = Phase::Draining { limit, left: left.max(MIN_WINDOW) };
        }
    }

    fn end_probe(&mut self, measured: Option<f64>) {
        self.probe.phase = Phase::Off;
        self.probe.confirm(self.limit);
        let Some((mean, baseline)) = measured.zip(self.baseline) else { return };
        // A probe during a disturbance must not teach too much.
        let change = (mean - baseline).min(STEPS as f64);
        self.baseline = Some(baseline + change);
    }
}

impl Window {
    fn add(&mut self, reading: &Reading, elapsed: Duration) {
        self.latencies = self.latencies.combined_with(reading.latencies);
        self.failed = self.failed.saturating_add(reading.failed);
        self.peak = self.peak.max(reading.peak);
        self.length = self.length.saturating_add(elapsed);
    }

    fn ended(&self) -> u64 {
        self.latencies.count.saturating_add(self.failed)
    }

    /// Whether there are enough measurements; `latency` is that of the window before.
    fn is_complete(&self, latency: Option<f64>) -> bool {
        let latencies = latency.map_or(0.0, seconds) * WINDOW_LATENCIES;
        let is_long =
            self.length >= MIN_WINDOW && self.length.as_secs_f64() >= latencies.min(MAX_WINDOW.as_secs_f64());
        is_long && self.ended() >= ENOUGH || self.length >= MAX_WINDOW && self.ended() > 0
    }

    fn failure_share(&self) -> f64 {
        self.failed as f64 / (self.ended() as f64 + SUPPOSED)
    }
}

impl Probe {
    /// Starts the interval until the next probe.
    fn confirm(&mut self, limit: f64) {
        self.since = Duration::ZERO;
        self.limit_then = limit;
    }

    fn is_due(&mut self, limit: f64, latency: f64) -> bool {
        if limit < self.limit_then * FALLEN {
            self.interval = FIRST_PROBE_INTERVAL;
        }
        self.limit_then = self.limit_then.max(limit);
        // Between 85 and 115 per cent.
        let spread = 0.85 + 0.3 * (self.random >> 40) as f64 / (1_u64 << 24) as f64;
        let by_latency = if self.interval < PROBE_INTERVAL { 0.0 } else { latency * PROBE_LATENCIES };
        let is_due = self.since.as_secs_f64() >= self.interval.as_secs_f64().max(by_latency) * spread;
        if is_due {
            self.interval = self.interval.saturating_mul(2).min(PROBE_INTERVAL);
            self.random =
                self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        }
        is_due
    }
}
