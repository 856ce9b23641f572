//! Latency of calls: whether the store is overloaded, and how long requests wait for it by default.
//!
//! A store that cannot keep up responds later and later, until all responses come after the requests have stopped
//! waiting. Then it works for nothing, and the limit is hardly used. So while it is overloaded, queries whose response
//! would come too late are not sent, and neither are those that only give units back.

use std::time::Duration;

use weir_limiter::timestamp::Timestamp;

/// Weight of a new latency in the mean: one in this many.
const SMOOTHING: u32 = 4;
/// Without calls, the mean halves in this time, so that the store is tried again.
const HALF_LIFE: Duration = Duration::from_millis(20);
/// Interval at which the base rises, so that it follows a route to the store that has become longer.
const BASE_INTERVAL: Duration = Duration::from_secs(10);
/// Part by which the base rises in each interval: one in this many.
const BASE_RISE: u32 = 8;
/// Multiple of the base from which the store counts as overloaded.
const OVERLOAD_MULTIPLE: u32 = 4;
/// Time in which the highest latency halves while calls are faster.
const PEAK_HALF_LIFE: Duration = Duration::from_secs(10);
/// Wait for the store by default, as a multiple of the highest latency: a query waits for the one before it, and the
/// next stall may be longer than the last.
const WAIT_MULTIPLE: u32 = 4;
/// Minimum of that wait. A request only waits for so long if the store is slower than it was of late.
pub(super) const MIN_WAIT: Duration = Duration::from_millis(50);
/// Maximum of that wait.
const MAX_WAIT: Duration = Duration::from_millis(500);
/// Latency up to which no store counts as overloaded: short delays of a busy machine.
const MIN_OVERLOAD: Duration = Duration::from_millis(2);

/// Mean latency of the latest calls, and the latency of the store without load.
#[derive(Debug, Default)]
pub(super) struct CallLatency {
    mean: Duration,
    latest: Duration,
    recorded_at: Timestamp,
    /// The lowest latency, which rises slowly; `None` before the first call.
    base: Option<Duration>,
    raised_at: Timestamp,
    /// The highest latency, and when it was measured.
    peak: (Duration, Timestamp),
}

impl CallLatency {
    pub(super) fn record(&mut self, latency: Duration, now: Timestamp) {
        self.record_peak(latency, now);
        let mean = self.expected(now);
        self.mean = match self.base {
            None => latency,
            Some(_) => mean.saturating_sub(mean / SMOOTHING).saturating_add(latency / SMOOTHING),
        };
        (self.latest, self.recorded_at) = (latency, now);
        let base = self.base.unwrap_or(latency);
        if latency <= base {
            (self.base, self.raised_at) = (Some(latency), now);
        } else if now.since(self.raised_at) >= BASE_INTERVAL {
            (self.base, self.raised_at) = (Some(base.saturating_add(base / BASE_RISE)), now);
        }
    }

    /// Records the latency of a call that is of another kind, or has failed. It only counts as an upper bound.
    pub(super) fn record_peak(&mut self, latency: Duration, now: Timestamp) {
        if latency >= self.peak(now) {
            self.peak = (latency, now);
        }
    }

    fn peak(&self, now: Timestamp) -> Duration {
        let (peak, at) = self.peak;
        peak.mul_f64((-(now.since(at).as_secs_f64() / PEAK_HALF_LIFE.as_secs_f64())).exp2())
    }

    /// Returns the time that requests wait for the store by default.
    pub(super) fn wait(&self, now: Timestamp) -> Duration {
        self.peak(now).saturating_mul(WAIT_MULTIPLE).clamp(MIN_WAIT, MAX_WAIT)
    }

    pub(super) fn expected(&self, now: Timestamp) -> Duration {
        let half_lives = now.since(self.recorded_at).as_nanos() / HALF_LIFE.as_nanos();
        let divisor = u32::try_from(half_lives).ok().and_then(|times| 1_u32.checked_shl(times));
        divisor.map_or(Duration::ZERO, |divisor| self.mean / divisor)
    }

    /// Returns the latency that a call has if the store is as slow as it was of late. Unlike the expected one, it does not
    /// decrease without calls.
    pub(super) fn of_next_call(&self, now: Timestamp) -> Duration {
        self.latest.max(self.expected(now))
    }

    /// Returns whether the store is overloaded.
    pub(super) fn is_overloaded(&self, now: Timestamp) -> bool {
        let base = self.base.unwrap_or_default();
        self.expected(now) > base.saturating_mul(OVERLOAD_MULTIPLE).saturating_add(MIN_OVERLOAD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp::from_nanos(1_700_000_000_000_000_000);

    fn at(millis: u64) -> Timestamp {
        START.saturating_add(Duration::from_millis(millis))
    }

    /// Records calls of `latency` milliseconds, one per millisecond from `from` to `to`.
    fn calls(measured: &mut CallLatency, latency: u64, from: u64, to: u64) {
        (from..to).for_each(|millis| measured.record(Duration::from_millis(latency), at(millis)));
    }

    #[test]
    fn distant_store_is_not_overloaded() {
        let mut measured = CallLatency::default();
        calls(&mut measured, 80, 0, 1000);
        assert!(!measured.is_overloaded(at(1000)));
        assert_eq!(measured.expected(at(1000)), Duration::from_millis(80));
    }

    #[test]
    fn store_that_responds_many_times_as_late_is_overloaded_until_it_recovers() {
        let mut measured = CallLatency::default();
        calls(&mut measured, 1, 0, 100);
        calls(&mut measured, 30, 100, 200);
        assert!(measured.is_overloaded(at(200)));
        calls(&mut measured, 1, 200, 300);
        assert!(!measured.is_overloaded(at(300)));
    }

    #[test]
    fn overloaded_store_without_calls_is_tried_again() {
        let mut measured = CallLatency::default();
        calls(&mut measured, 1, 0, 100);
        calls(&mut measured, 30, 100, 200);
        assert!(!measured.is_overloaded(at(300)));
        assert_eq!(measured.expected(at(60_000)), Duration::ZERO);
    }

    #[test]
    fn default_wait_follows_the_slowest_calls_of_late() {
        let mut measured = CallLatency::default();
        assert_eq!(measured.wait(at(0)), MIN_WAIT);
        calls(&mut measured, 1, 0, 1000);
        assert_eq!(measured.wait(at(1000)), MIN_WAIT);
        calls(&mut measured, 40, 1000, 1001);
        calls(&mut measured, 1, 1001, 2000);
        assert!(measured.wait(at(2000)) > Duration::from_millis(140), "{:?}", measured.wait(at(2000)));
        calls(&mut measured, 900, 2000, 2001);
        assert_eq!(measured.wait(at(2001)), MAX_WAIT);
        assert_eq!(measured.wait(at(120_000)), MIN_WAIT);
    }

    #[test]
    fn longer_route_becomes_the_base() {
        let mut measured = CallLatency::default();
        calls(&mut measured, 1, 0, 100);
        let mut is_overloaded = false;
        for second in 1..400 {
            calls(&mut measured, 20, 1000 * second, 1000 * second + 100);
            is_overloaded = measured.is_overloaded(at(1000 * second + 100));
        }
        assert!(!is_overloaded);
    }
}
