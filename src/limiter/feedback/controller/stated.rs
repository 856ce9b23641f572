//! The limit that the provider states in headers.
//!
//! Its unit and period are unknown, and may be those of another quota. So only a rise counts, as a ratio.

use std::time::Duration;

use super::super::super::timestamp::Timestamp;
use super::super::LimitShare;

/// Parts of the time in which a limit is remembered. A provider with several quotas, or several servers, may state each
/// of them in turn.
const PART: Duration = Duration::from_secs(5);

/// The greatest limits that were stated lately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StatedLimits {
    since: Timestamp,
    current: u64,
    /// The greatest one in the part before `since`; 0 if none was stated.
    before: u64,
}

/// A limit, and the greatest one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StatedRise {
    from: u64,
    to: u64,
}

impl StatedLimits {
    pub(super) const NONE: Self = Self { since: Timestamp::EPOCH, current: 0, before: 0 };

    /// Records a limit; returns a rise if it is greater than all that were stated in the last seconds.
    pub(super) fn record(&mut self, limit: u64, now: Timestamp) -> Option<StatedRise> {
        let elapsed = now.since(self.since);
        if elapsed >= PART {
            self.before = if elapsed < PART * 2 { self.current } else { 0 };
            (self.current, self.since) = (0, now);
        }
        let from = self.current.max(self.before);
        self.current = self.current.max(limit);
        (self.before > 0 && limit > from).then_some(StatedRise { from, to: limit })
    }
}

impl StatedRise {
    /// Returns `share` raised in proportion, at most to the whole.
    pub(super) fn applied(self, share: LimitShare) -> LimitShare {
        let raised = u128::from(share.millionths()) * u128::from(self.to) / u128::from(self.from.max(1));
        LimitShare::from_millionths(u32::try_from(raised).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_secs(1000 + seconds)
    }

    #[test]
    fn rise_is_stated_once() {
        let mut stated = StatedLimits::NONE;
        assert!((0..10).all(|second| stated.record(500, at(second)).is_none()));
        let rise = stated.record(1000, at(10)).unwrap();
        assert_eq!(rise.applied(LimitShare::from_millionths(400_000)).millionths(), 800_000);
        assert_eq!(rise.applied(LimitShare::from_millionths(600_000)), LimitShare::FULL);
        assert!((11..60).all(|second| stated.record(1000, at(second)).is_none()));
    }

    #[test]
    fn limits_that_are_stated_in_turn_do_not_rise() {
        let mut stated = StatedLimits::NONE;
        for second in 0..100 {
            assert_eq!(stated.record(if second % 4 == 0 { 1000 } else { 100 }, at(second)), None, "{second}");
        }
    }

    #[test]
    fn first_statements_and_those_after_a_pause_are_no_rise() {
        let mut stated = StatedLimits::NONE;
        assert_eq!((stated.record(10, at(0)), stated.record(20, at(1))), (None, None));
        assert_eq!(stated.record(40, at(3600)), None);
        assert_eq!(stated.record(0, at(3606)), None);
    }
}
