//! A quota as bytes, beside the counters that were written under it. What comes back is checked like what people
//! write, for a quota that exists is valid.

use std::num::{NonZeroU16, NonZeroU32};
use std::time::Duration;

use super::{Ban, MOST_LOGGED, Period, Quota, Unit};
use crate::limiter::algorithm::{Algorithm, Counts};
use crate::limiter::saved::bytes::{Input, Output};
use crate::limiter::zone::Zone;

/// Algorithms whose counters mean something to another process.
const SAVED: [Algorithm; Algorithm::RATES.len() + 1] = {
    let mut all = [Algorithm::Ban; Algorithm::RATES.len() + 1];
    let mut index = 0;
    while index < Algorithm::RATES.len() {
        all[index] = Algorithm::RATES[index];
        index += 1;
    }
    all
};

impl Quota {
    /// Appends what makes this quota to `out`.
    pub(in crate::limiter) fn write(&self, out: &mut Output<'_>) {
        // Named one by one: a field that is new has to be saved too, or to follow from those that are.
        let Self {
            interval,
            tolerance,
            // A remainder, or the parameters.
            interval_part: _,
            tolerance_part: _,
            count,
            periods,
            burst,
            shares,
            unit,
            algorithm,
        } = *self;
        out.text(algorithm.as_str());
        match algorithm.counts() {
            Counts::Bans => {
                out.u64(interval);
                out.u64(tolerance);
            }
            Counts::Rate | Counts::InFlight => {
                out.text(unit.as_str());
                out.u32(periods.get());
                out.u32(count.get());
                out.u32(burst.get());
                out.u16(shares.get());
                out.text(self.zone().name());
                out.u16(self.precision().into());
            }
        }
    }

    /// The quota that [`Self::write`] wrote; nothing where it is none.
    pub(in crate::limiter) fn read(input: &mut Input<'_>) -> Option<Self> {
        let name = input.text()?;
        let algorithm = SAVED.into_iter().find(|algorithm| algorithm.as_str() == name)?;
        if algorithm == Algorithm::Ban {
            let [first, most] = [input.u64()?, input.u64()?].map(Duration::from_nanos);
            return Some(Self::ban(Ban { first, most }));
        }
        let name = input.text()?;
        let unit = Unit::ALL.into_iter().find(|unit| unit.as_str() == name)?;
        let period = Period::new(NonZeroU32::new(input.u32()?)?, unit);
        let [count, burst] = [NonZeroU32::new(input.u32()?)?, NonZeroU32::new(input.u32()?)?];
        let shares = NonZeroU16::new(input.u16()?)?;
        let (zone, precision) = (input.text()?, input.u16()?);
        let quota = Self::of_saved_units(algorithm, period, (count, burst), shares)?;
        if precision > 1 {
            return quota.with_precision(u8::try_from(precision).ok()?);
        }
        // A zone that no limit has any more: what its windows have counted still goes by their ends.
        let zone = Zone::named(zone).unwrap_or_default();
        if zone == Zone::UTC { Some(quota) } else { quota.in_zone(zone) }
    }

    /// As [`Self::of_units`], where such a quota can have been written.
    fn of_saved_units(
        algorithm: Algorithm,
        period: Period,
        (count, burst): (NonZeroU32, NonZeroU32),
        shares: NonZeroU16,
    ) -> Option<Self> {
        let whole = |units: NonZeroU32| units.get().is_multiple_of(shares.get().into());
        let is_valid = u64::from(count.get()) <= period.nanos()
            && (algorithm.has_burst() || burst == count)
            && (algorithm != Algorithm::RefillBucket || burst >= count)
            && (algorithm != Algorithm::SlidingLog || count.get() / u32::from(shares.get()) <= MOST_LOGGED)
            && whole(count)
            && whole(burst);
        Self::of_units(algorithm, period, (count, burst), shares).filter(|_| is_valid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::elastic::Stretch;
    use crate::limiter::quota::Limit;

    fn again(quota: Quota) -> Option<Quota> {
        let mut bytes = Vec::new();
        quota.write(&mut Output(&mut bytes));
        let mut input = Input(&bytes);
        Quota::read(&mut input).filter(|_| input.is_empty())
    }

    #[test]
    fn every_quota_comes_back_as_it_was() {
        let limit = |count, unit| Limit::new(NonZeroU32::new(count).unwrap(), Period::one(unit));
        for algorithm in Algorithm::RATES {
            for unit in Unit::ALL {
                let quota = Quota::new(algorithm, limit(3, unit), None).unwrap();
                assert_eq!(again(quota), Some(quota));
            }
        }
        let burst = Quota::new(Algorithm::Gcra, limit(100, Unit::Second), NonZeroU32::new(7)).unwrap();
        let (elastic, _) = burst.stretched(Stretch::from_hundredths(300).unwrap()).unwrap();
        let ban = Quota::ban(Ban { first: Duration::from_secs(600), most: Duration::from_secs(86_400) });
        let berlin = Zone::of(&jiff::tz::TimeZone::get("Europe/Berlin").unwrap()).unwrap();
        let window = |algorithm| Quota::new(algorithm, limit(3, Unit::Day), None).unwrap();
        let daily = window(Algorithm::FixedWindow).in_zone(berlin).unwrap();
        let fine = window(Algorithm::SlidingWindow).with_precision(60).unwrap();
        for quota in [burst, elastic, ban, daily, fine] {
            assert_eq!(again(quota), Some(quota));
        }
    }

    #[test]
    fn what_is_under_way_does_not_come_back() {
        assert_eq!(again(Quota::in_flight(NonZeroU32::new(5).unwrap())), None);
    }

    #[test]
    fn what_could_not_be_written_is_not_read() {
        let second = Period::one(Unit::Second);
        let read = |algorithm, period, count, burst, shares| {
            let units = (NonZeroU32::new(count).unwrap(), NonZeroU32::new(burst).unwrap());
            Quota::of_saved_units(algorithm, period, units, NonZeroU16::new(shares).unwrap())
        };
        assert!(read(Algorithm::Gcra, second, 6, 12, 3).is_some());
        assert_eq!(read(Algorithm::Gcra, second, 7, 12, 3), None);
        assert_eq!(read(Algorithm::FixedWindow, second, 6, 12, 1), None);
        assert_eq!(read(Algorithm::Gcra, second, 2_000_000_000, 1, 1), None);
        assert_eq!(read(Algorithm::Gcra, Period::one(Unit::Year), 1, 101, 1), None);
    }
}
