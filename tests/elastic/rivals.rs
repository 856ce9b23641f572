//! Algorithms of concurrency limits for the simulation: Weir's, and models of those that it is compared with, written
//! from their documentation, with the defaults stated there.

use std::time::Duration;

use weir_limiter::adaptive::AdaptiveRange;
use weir_limiter::adaptive::controller::{LimitController, Reading, Tolerance};

use super::queue::{Algorithm, TICK};

/// Limits of all algorithms.
const MIN: f64 = 4.0;
const MAX: f64 = 1000.0;

/// Weir's controller.
pub(crate) struct Weir {
    pub(crate) controller: LimitController,
    pub(crate) range: AdaptiveRange,
    reading: Reading,
    limit: u32,
}

impl Weir {
    pub(crate) fn new(range: AdaptiveRange) -> Self {
        let controller = LimitController::new(range, Tolerance::QUEUE_UPSTREAM, 7);
        Self { controller, range, reading: Reading::default(), limit: range.min().get() }
    }
}

impl Algorithm for Weir {
    fn limit(&self) -> u32 {
        self.limit
    }

    fn respond(&mut self, latency: Duration, _: u32) {
        self.reading.latencies.add(latency);
    }

    fn fail(&mut self) {
        self.reading.failed += 1;
    }

    fn tick(&mut self, peak: u32) {
        let reading = Reading { peak, ..std::mem::take(&mut self.reading) };
        self.limit = self.controller.adapt(&reading, self.range, Duration::from_secs_f64(TICK));
    }
}

/// Envoy's gradient controller: windows of 100 ms, the median, and a minimum latency that is measured every 60 s with
/// three requests in flight until there are 50 responses.
#[derive(Default)]
pub(crate) struct EnvoyGradient {
    limit: f64,
    latencies: Vec<f64>,
    min_latency: Option<f64>,
    since: f64,
    windows_at_min: u32,
}

impl EnvoyGradient {
    const MIN: f64 = 3.0;

    pub(crate) fn new() -> Self {
        Self { limit: Self::MIN, ..Self::default() }
    }

    fn median(&mut self) -> f64 {
        self.latencies.sort_by(f64::total_cmp);
        let median = self.latencies[self.latencies.len() / 2];
        self.latencies.clear();
        median
    }
}

impl Algorithm for EnvoyGradient {
    fn limit(&self) -> u32 {
        if self.min_latency.is_none() { Self::MIN as u32 } else { self.limit as u32 }
    }

    fn respond(&mut self, latency: Duration, _: u32) {
        self.latencies.push(latency.as_secs_f64());
    }

    fn fail(&mut self) {}

    fn tick(&mut self, _: u32) {
        self.since += TICK;
        let Some(min_latency) = self.min_latency else {
            if self.latencies.len() >= 50 {
                self.min_latency = Some(self.median());
                self.since = 0.0;
            }
            return;
        };
        if !self.latencies.is_empty() {
            let gradient = (min_latency * 1.25 / self.median()).clamp(0.5, 2.0);
            self.limit = (self.limit * gradient + self.limit.sqrt()).clamp(Self::MIN, MAX);
            self.windows_at_min = if self.limit <= Self::MIN { self.windows_at_min + 1 } else { 0 };
        }
        if self.since >= 60.0 || self.windows_at_min >= 5 {
            self.windows_at_min = 0;
            self.min_latency = None;
        }
    }
}

/// Netflix's Gradient2: the mean of windows of a second, against an exponential mean over 600 windows.
pub(crate) struct Gradient2 {
    limit: f64,
    long: f64,
    warm_up: f64,
    sum: f64,
    count: f64,
    peak: u32,
    length: f64,
}

impl Gradient2 {
    pub(crate) const fn new() -> Self {
        Self { limit: 20.0, long: 0.0, warm_up: 0.0, sum: 0.0, count: 0.0, peak: 0, length: 0.0 }
    }

    fn end_window(&mut self) {
        let short = self.sum / self.count;
        self.warm_up += 1.0;
        if self.warm_up <= 10.0 {
            self.long += (short - self.long) / self.warm_up;
        } else {
            self.long += (short - self.long) * 2.0 / 601.0;
        }
        if self.long / short > 2.0 {
            self.long *= 0.95;
        }
        if f64::from(self.peak) >= self.limit / 2.0 {
            let gradient = (1.5 * self.long / short).clamp(0.5, 1.0);
            let aim = self.limit * gradient + 4.0;
            self.limit = (self.limit * 0.8 + aim * 0.2).clamp(MIN, MAX);
        }
        *self = Self { sum: 0.0, count: 0.0, peak: 0, length: 0.0, ..*self };
    }
}

impl Algorithm for Gradient2 {
    fn limit(&self) -> u32 {
        self.limit as u32
    }

    fn respond(&mut self, latency: Duration, _: u32) {
        self.sum += latency.as_secs_f64();
        self.count += 1.0;
    }

    fn fail(&mut self) {}

    fn tick(&mut self, peak: u32) {
        self.peak = self.peak.max(peak);
        self.length += TICK;
        if self.length >= 0.95 && self.count >= 10.0 {
            self.end_window();
        }
    }
}

/// Netflix's Vegas: the queue is estimated from the lowest latency seen since the last reset, which comes after 30
/// times the limit in responses.
pub(crate) struct Vegas {
    limit: f64,
    lowest: f64,
    responses: f64,
}

impl Vegas {
    pub(crate) const fn new() -> Self {
        Self { limit: 20.0, lowest: f64::MAX, responses: 0.0 }
    }
}

impl Algorithm for Vegas {
    fn limit(&self) -> u32 {
        self.limit as u32
    }

    fn respond(&mut self, latency: Duration, in_flight: u32) {
        let latency = latency.as_secs_f64();
        self.responses += 1.0;
        if self.responses >= 30.0 * self.limit {
            (self.responses, self.lowest) = (0.0, latency);
            return;
        }
        self.lowest = self.lowest.min(latency);
        if f64::from(in_flight) * 2.0 < self.limit {
            return;
        }
        let queue = (self.limit * (1.0 - self.lowest / latency)).ceil();
        let step = self.limit.log10().max(1.0).floor();
        self.limit = match queue {
            _ if queue <= step => self.limit + 6.0 * step,
            _ if queue < 3.0 * step => self.limit + step,
            _ if queue > 6.0 * step => self.limit - step,
            _ => self.limit,
        }
        .clamp(MIN, MAX);
    }

    fn fail(&mut self) {
        self.limit = (self.limit - self.limit.log10().max(1.0)).max(MIN);
    }

    fn tick(&mut self, _: u32) {}
}

/// Additive increase, multiplicative decrease: a tenth less after a window with a failure or a latency above 5 s.
pub(crate) struct Aimd {
    limit: f64,
    has_failed: bool,
}

impl Aimd {
    pub(crate) const fn new() -> Self {
        Self { limit: 20.0, has_failed: false }
    }
}

impl Algorithm for Aimd {
    fn limit(&self) -> u32 {
        self.limit as u32
    }

    fn respond(&mut self, latency: Duration, _: u32) {
        self.has_failed |= latency > Duration::from_secs(5);
    }

    fn fail(&mut self) {
        self.has_failed = true;
    }

    fn tick(&mut self, peak: u32) {
        if std::mem::take(&mut self.has_failed) {
            self.limit = (self.limit * 0.9).max(MIN);
        } else if f64::from(peak) * 2.0 >= self.limit {
            self.limit = (self.limit + 1.0).min(MAX);
        }
    }
}
