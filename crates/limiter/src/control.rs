//! What control loops share: the tick, decay, samples of durations, and the step of a concurrency limit.

pub mod samples;

use std::time::Duration;

use super::timestamp::Timestamp;

/// Interval at which control loops run.
pub const TICK: Duration = Duration::from_millis(100);
/// Maximum time that counts between two ticks. After a pause, such as a suspended machine, earlier state says little.
const MAX_ELAPSED: Duration = Duration::from_secs(1);
/// Minimum gradient: the part of a concurrency limit that one step leaves.
const MIN_GRADIENT: f64 = 0.5;

/// When a control loop last ran.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LastTick(Option<Timestamp>);

impl LastTick {
    /// Records a tick at `now`; returns the time since the last one, which is `first` for the first one.
    pub(super) fn elapsed(&mut self, now: Timestamp, first: Duration) -> Duration {
        self.0.replace(now).map_or(first, |at| now.since(at)).min(MAX_ELAPSED)
    }
}

/// Remaining fraction after `elapsed` of something that decays with time constant `time`.
pub(super) fn decay_factor(elapsed: Duration, time: Duration) -> f64 {
    (-elapsed.as_secs_f64() / time.as_secs_f64()).exp()
}

/// Returns where a value is that has moved from `from` towards `to` for `elapsed`, with time constant `time`.
pub(super) fn approach(from: f64, to: f64, elapsed: Duration, time: Duration) -> f64 {
    to + (from - to) * decay_factor(elapsed, time)
}

/// Returns where a concurrency limit moves in proportion to `gradient`, with room for a `queue`; `None` if it stays. It
/// grows only if it is used, because an idle upstream would otherwise seem capable of anything.
pub(super) fn concurrency_aim(limit: f64, gradient: f64, queue: f64, is_used: bool) -> Option<f64> {
    let aim = limit * gradient.clamp(MIN_GRADIENT, 1.0) + queue;
    (is_used || aim < limit).then_some(aim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_between_ticks_is_bounded() {
        let mut last = LastTick::default();
        let at = |millis| Timestamp::from_secs(1000).saturating_add(Duration::from_millis(millis));
        assert_eq!(last.elapsed(at(0), TICK), TICK);
        assert_eq!(last.elapsed(at(150), TICK), Duration::from_millis(150));
        assert_eq!(last.elapsed(at(60_000), TICK), MAX_ELAPSED);
        assert_eq!(last.elapsed(at(0), TICK), Duration::ZERO, "time does not run backwards");
    }

    #[test]
    fn unused_concurrency_limit_only_falls() {
        assert_eq!(concurrency_aim(16.0, 1.0, 4.0, true), Some(20.0));
        assert_eq!(concurrency_aim(16.0, 1.0, 4.0, false), None);
        assert_eq!(concurrency_aim(16.0, 0.1, 4.0, false), Some(12.0), "by half of it at most");
    }
}
