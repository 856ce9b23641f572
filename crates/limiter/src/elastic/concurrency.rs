//! Adaptive concurrency limit: how many requests the upstream serves without queueing them.
//!
//! It follows Netflix' Gradient2. It shrinks in proportion if responses are slower than the threshold; otherwise it
//! grows by its square root, the queue that random arrivals need. It grows only while it is used, because an idle
//! upstream would otherwise seem capable of anything. It rejects no requests. The requests in flight are compared with
//! it, which is the most useful signal when an upstream stops responding.

use std::time::Duration;

use crate::control::{approach, concurrency_aim};

/// Initial limit.
const INITIAL_LIMIT: f64 = 20.0;
/// Minimum limit.
const MIN_LIMIT: f64 = 10.0;
/// Maximum limit.
const MAX_LIMIT: f64 = 1e6;
/// Time constant with which the limit follows its gradient.
const FOLLOW: Duration = Duration::from_millis(500);
/// Averaging time of the requests in flight.
const FADE: Duration = Duration::from_millis(300);

/// Requests in flight, and the limit that they are compared with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Concurrency {
    /// Recent mean of the requests in flight.
    pub(super) in_flight: f64,
    /// The adaptive limit.
    pub(super) limit: f64,
}

impl Default for Concurrency {
    fn default() -> Self {
        Self { in_flight: 0.0, limit: INITIAL_LIMIT }
    }
}

impl Concurrency {
    /// Updates the limit. `in_flight` is the current number, and `gradient` the ratio of the latency threshold to the
    /// current latency, if known.
    pub(super) fn adapt(&mut self, in_flight: u64, gradient: Option<f64>, elapsed: Duration) {
        let now = in_flight as f64;
        self.in_flight = approach(self.in_flight, now, elapsed, FADE);
        let Some(gradient) = gradient else { return };
        let is_used = self.in_flight * 2.0 > self.limit;
        if let Some(aim) = concurrency_aim(self.limit, gradient, self.limit.sqrt(), is_used) {
            let limit = approach(self.limit, aim, elapsed, FOLLOW);
            self.limit = limit.clamp(MIN_LIMIT, MAX_LIMIT);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(100);

    fn limit_after(ticks: u32, in_flight: u64, gradient: f64, concurrency: &mut Concurrency) -> f64 {
        (0..ticks).for_each(|_| concurrency.adapt(in_flight, Some(gradient), TICK));
        concurrency.limit
    }

    #[test]
    fn concurrency_limit_grows_to_at_most_twice_the_usage() {
        let mut concurrency = Concurrency::default();
        assert!((limit_after(600, 4, 1.5, &mut concurrency) - INITIAL_LIMIT).abs() < f64::EPSILON);
        let limit = limit_after(600, 200, 1.5, &mut concurrency);
        assert!((400.0..430.0).contains(&limit), "{limit}");
    }

    #[test]
    fn slow_responses_shrink_the_concurrency_limit_to_its_minimum() {
        let mut concurrency = Concurrency::default();
        limit_after(600, 200, 1.5, &mut concurrency);
        let limit = limit_after(20, 200, 0.2, &mut concurrency);
        assert!(limit < 100.0, "{limit}");
        assert!((limit_after(600, 200, 0.2, &mut concurrency) - MIN_LIMIT).abs() < 1.0);
    }

    #[test]
    fn concurrency_limit_is_unchanged_without_responses() {
        let mut concurrency = Concurrency::default();
        (0..50).for_each(|_| concurrency.adapt(500, None, TICK));
        assert!((concurrency.limit - INITIAL_LIMIT).abs() < f64::EPSILON);
        assert!((concurrency.in_flight - 500.0).abs() < 1.0);
    }
}
