//! Envelopes of quotas: bounds on what a quota admits, for comparing two quotas without running them.
//!
//! Every quota admits at most `units + rate · t` in any span of time `t` (the arrival curve of network calculus). If
//! that is less than another quota always admits, the other one never rejects a request that passes the first. The
//! comparison is sufficient and not necessary: `false` means "not proven".

use super::{Quota, TimeUnit};
use crate::algorithm::{Algorithm, Refill};

/// Upper bound on the units admitted in any span of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Envelope {
    /// Units admitted at once.
    units: u128,
    /// Units added per `nanos`.
    count: u128,
    nanos: u128,
}

/// Bounds on the true length of a period, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PeriodLength {
    min: u128,
    max: u128,
}

impl Envelope {
    /// Returns the bound for a span of time.
    const fn units_in(&self, nanos: u128) -> u128 {
        self.units.saturating_add(self.count.saturating_mul(nanos).div_ceil(self.nanos))
    }

    /// Whether the rate is at most `count` per `nanos`.
    const fn is_at_most(&self, count: u128, nanos: u128) -> bool {
        self.count.saturating_mul(nanos) <= count.saturating_mul(self.nanos)
    }
}

impl Quota {
    /// Whether this quota rejects no request that costs `units`, provided that all of them must also pass `tighter`,
    /// which is charged at least as much for each of them and sees all of them.
    ///
    /// Then this quota has room even for a request that `tighter` rejects, so it never decides anything.
    pub fn is_unreachable_behind(&self, tighter: &Self, units: u32) -> bool {
        let Some(passed) = tighter.envelope() else { return false };
        let (count, burst) = (u128::from(self.limit().count.get()), u128::from(self.burst().get()));
        let nominal = u128::from(self.period_nanos());
        // Room for the request itself, and a unit for buckets that count in whole units.
        let needed = passed.units.saturating_add(units.into()).saturating_add(1);
        let fits_into = |nanos: u128| passed.units_in(nanos).saturating_add(units.into()) <= count;
        match self.algorithm().refill() {
            Refill::Continuous => needed <= burst && passed.is_at_most(count, nominal),
            // A refill may be up to one period late, compared with a continuous one.
            Refill::Batches => needed.saturating_add(count) <= burst && passed.is_at_most(count, nominal),
            Refill::Window => fits_into(self.period_length().max),
            Refill::Sliding if self.is_exact() => fits_into(nominal),
            // The estimate is at most what was admitted in the current window and the one before.
            Refill::Sliding => fits_into(nominal.saturating_mul(2)),
            Refill::None => false,
        }
    }

    fn envelope(&self) -> Option<Envelope> {
        let (count, burst) = (u128::from(self.limit().count.get()), u128::from(self.burst().get()));
        let (units, nanos) = match self.algorithm().refill() {
            Refill::Continuous => (burst, u128::from(self.period_nanos())),
            // The first refill may come at once.
            Refill::Batches => (burst.saturating_add(count), u128::from(self.period_nanos())),
            // A span begins and ends inside windows.
            Refill::Window => (count.saturating_mul(2), self.period_length().min),
            Refill::Sliding if self.is_exact() => (count, u128::from(self.period_nanos())),
            Refill::Sliding => (count.saturating_mul(2), self.lookback_nanos()),
            Refill::None => return None,
        };
        Some(Envelope { units, count, nanos })
    }

    /// Whether any span of one period has at most the limit's count, which a sliding window only estimates.
    fn is_exact(&self) -> bool {
        self.algorithm() == Algorithm::SlidingLog
    }

    /// Returns the time in which a sliding window surely admits at most its count: without its oldest sub-window,
    /// which is only estimated.
    fn lookback_nanos(&self) -> u128 {
        let (period, parts) = (u128::from(self.period_nanos()), u128::from(self.precision()));
        if parts > 1 { (period / parts).saturating_mul(parts - 1).max(1) } else { period }
    }

    /// Returns bounds on the length of a window. Windows of days and longer follow a calendar: days have 23 to 25
    /// hours, months 28 to 31 days, and a zone may even skip a day.
    fn period_length(&self) -> PeriodLength {
        let nominal = u128::from(self.period_nanos());
        if self.algorithm() == Algorithm::FixedWindow && self.window().unit() >= TimeUnit::Day {
            return PeriodLength { min: nominal / 2, max: nominal.saturating_add(nominal / 2) };
        }
        PeriodLength { min: nominal, max: nominal }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::quota::{Limit, Period};

    fn quota(algorithm: Algorithm, limit: &str, burst: u32) -> Quota {
        let (count, unit) = limit.split_once('/').unwrap();
        let unit = TimeUnit::ALL.into_iter().find(|known| known.as_str() == unit).unwrap();
        let limit = Limit::new(count.parse().unwrap(), Period::new(NonZeroU32::MIN, unit));
        Quota::new(algorithm, limit, NonZeroU32::new(burst).filter(|_| algorithm.has_burst())).unwrap()
    }

    fn is_unreachable(looser: Quota, tighter: Quota) -> bool {
        looser.is_unreachable_behind(&tighter, 1)
    }

    #[test]
    fn looser_bucket_behind_a_tighter_one_is_unreachable() {
        let gcra = |limit, burst| quota(Algorithm::Gcra, limit, burst);
        assert!(is_unreachable(gcra("1000/min", 1000), gcra("10/s", 10)));
        assert!(!is_unreachable(gcra("10/s", 10), gcra("1000/min", 1000)));
        // Equal limits reject at the same time, and either may be reported.
        assert!(!is_unreachable(gcra("10/s", 10), gcra("10/s", 10)));
        // A higher rate, but a smaller burst.
        assert!(!is_unreachable(gcra("20/s", 5), gcra("10/s", 10)));
        // 600 a minute in the long run, more than 500.
        assert!(!is_unreachable(gcra("500/min", 500), gcra("10/s", 10)));
    }

    #[test]
    fn window_is_unreachable_if_less_than_its_count_can_pass() {
        let (window, log) = (Algorithm::FixedWindow, Algorithm::SlidingLog);
        let second = quota(Algorithm::Gcra, "10/s", 10);
        assert!(is_unreachable(quota(window, "611/min", 0), second));
        assert!(!is_unreachable(quota(window, "610/min", 0), second));
        assert!(is_unreachable(quota(log, "611/min", 0), second));
        assert!(!is_unreachable(quota(Algorithm::SlidingWindow, "611/min", 0), second));
        assert!(is_unreachable(quota(window, "1000/d", 0), quota(window, "5/h", 0)));
    }
}
