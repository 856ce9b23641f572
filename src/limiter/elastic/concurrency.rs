//! How many requests may be under way: as many as the upstream answers without making them wait.
//!
//! An adaptive limit in the manner of Netflix' Gradient2: answers slower than they may be shrink it in
//! proportion, else it grows by the square root of itself, which is the queue that random arrivals need. It only
//! grows where it is used, or an idle upstream would be thought capable of anything. Nobody is refused by it;
//! it is what the requests under way are compared with, and it tells most where nothing is answered any more.

use std::time::Duration;

use super::latency::share_left;

const FIRST: f64 = 20.0;
const LEAST: f64 = 10.0;
const MOST: f64 = 1e6;
/// The most that one step may take off.
const STEEPEST: f64 = 0.5;
/// What the limit follows its gradient in, and what the number under way fades in.
const FOLLOW: Duration = Duration::from_millis(500);
const FADE: Duration = Duration::from_millis(300);

/// Requests under way and the limit they are compared with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Concurrency {
    /// Requests in flight of late.
    pub(super) in_flight: f64,
    /// As many as there may be.
    pub(super) limit: f64,
}

impl Default for Concurrency {
    fn default() -> Self {
        Self { in_flight: 0.0, limit: FIRST }
    }
}

impl Concurrency {
    /// There are `in_flight` at this moment; answers may take `gradient` times as long as they do, if that is
    /// known.
    pub(super) fn adapt(&mut self, in_flight: u64, gradient: Option<f64>, elapsed: Duration) {
        let now = in_flight as f64;
        self.in_flight = now + (self.in_flight - now) * share_left(elapsed, FADE);
        let Some(gradient) = gradient else { return };
        let aim = self.limit * gradient.clamp(STEEPEST, 1.0) + self.limit.sqrt();
        let is_used = self.in_flight * 2.0 > self.limit;
        if is_used || aim < self.limit {
            let limit = aim + (self.limit - aim) * share_left(elapsed, FOLLOW);
            self.limit = limit.clamp(LEAST, MOST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(100);

    fn after(ticks: u32, in_flight: u64, gradient: f64, concurrency: &mut Concurrency) -> f64 {
        (0..ticks).for_each(|_| concurrency.adapt(in_flight, Some(gradient), TICK));
        concurrency.limit
    }

    #[test]
    fn it_grows_to_twice_what_is_used_and_no_further() {
        let mut concurrency = Concurrency::default();
        assert!((after(600, 4, 1.5, &mut concurrency) - FIRST).abs() < f64::EPSILON);
        let limit = after(600, 200, 1.5, &mut concurrency);
        assert!((400.0..430.0).contains(&limit), "{limit}");
    }

    #[test]
    fn slow_answers_shrink_it_to_its_least() {
        let mut concurrency = Concurrency::default();
        after(600, 200, 1.5, &mut concurrency);
        let limit = after(20, 200, 0.2, &mut concurrency);
        assert!(limit < 100.0, "{limit}");
        assert!((after(600, 200, 0.2, &mut concurrency) - LEAST).abs() < 1.0);
    }

    #[test]
    fn it_stays_where_nothing_is_answered() {
        let mut concurrency = Concurrency::default();
        (0..50).for_each(|_| concurrency.adapt(500, None, TICK));
        assert!((concurrency.limit - FIRST).abs() < f64::EPSILON);
        assert!((concurrency.in_flight - 500.0).abs() < 1.0);
    }
}
