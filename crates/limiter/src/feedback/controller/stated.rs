//! The limit that the provider states in headers.
//!
//! Its unit and period are unknown, and may be those of another quota. So only a rise counts, as a ratio.

use std::time::Duration;

use super::super::super::timestamp::Timestamp;
use super::super::LimitShare;
use super::MAX_IDLE;

/// Time after the ceiling was found in which stated limits are no rise. A provider with several quotas, or several
/// servers, may state each of them in turn.
const LEARNING: Duration = Duration::from_secs(5);

/// The greatest limit that was stated since the ceiling was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StatedLimits {
    /// 0 if none was stated.
    greatest: u64,
    /// When the first one was stated.
    since: Timestamp,
    /// When the last one was stated.
    stated_at: Timestamp,
    /// Whether the ceiling is due to a rise, and nothing has shown that the provider admits it.
    is_unproven: bool,
}

/// A limit, and the greatest one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StatedRise {
    from: u64,
    to: u64,
}

impl StatedLimits {
    pub(super) const NONE: Self =
        Self { greatest: 0, since: Timestamp::EPOCH, stated_at: Timestamp::EPOCH, is_unproven: false };

    /// Records a limit; returns a rise if it is greater than all that were stated since the ceiling was found.
    pub(super) fn record(&mut self, limit: u64, now: Timestamp) -> Option<StatedRise> {
        if now.since(self.stated_at) > MAX_IDLE {
            *self = Self::NONE;
        }
        self.stated_at = now;
        if self.greatest == 0 {
            self.since = now;
        }
        let from = self.greatest;
        self.greatest = from.max(limit);
        let is_rise = from > 0 && limit > from && now.since(self.since) >= LEARNING;
        self.is_unproven |= is_rise;
        is_rise.then_some(StatedRise { from, to: limit })
    }

    /// Applies that the provider admits the ceiling.
    pub(super) fn ceiling_confirmed(&mut self) {
        self.is_unproven = false;
    }

    /// Applies that the ceiling is another one, for which other limits may be stated. If the last one was due to a rise,
    /// the provider does not enforce the limit that it stated, and what was stated is no rise again.
    pub(super) fn ceiling_replaced(&mut self) {
        if !self.is_unproven {
            *self = Self::NONE;
        }
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
    fn limits_that_are_stated_in_turn_rise_once_whatever_the_time_between_them() {
        for phase in [8, 30, 300] {
            let mut stated = StatedLimits::NONE;
            let mut rises = 0;
            for second in 0..10 * phase {
                let limit = if second / phase % 2 == 0 { 100 } else { 1000 };
                if stated.record(limit, at(second)).is_some() {
                    rises += 1;
                    // The provider rejects, and the ceiling becomes the former one.
                    stated.ceiling_replaced();
                }
            }
            assert_eq!(rises, 1, "{phase}");
        }
    }

    #[test]
    fn limit_that_falls_with_the_ceiling_may_rise_again() {
        let mut stated = StatedLimits::NONE;
        let mut now = 0;
        for _ in 0..3 {
            assert_eq!((stated.record(500, at(now)), stated.record(500, at(now + 10))), (None, None));
            assert!(stated.record(1000, at(now + 11)).is_some());
            stated.ceiling_confirmed();
            stated.ceiling_replaced();
            now += 60;
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
