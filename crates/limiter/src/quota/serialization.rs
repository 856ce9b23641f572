//! Serialises quotas, which are saved with the counters that were written under them.
//!
//! A quota that is read is validated like one from configuration, because a [`Quota`] is always valid.

use std::num::{NonZeroU16, NonZeroU32};
use std::time::Duration;

use super::{Ban, MAX_LOGGED_UNITS, Period, Quota, TimeUnit};
use crate::algorithm::{Algorithm, CounterKind};
use crate::saved::bytes::{ByteReader, ByteWriter};
use crate::zone::Zone;

/// Algorithms whose counters are valid in another process.
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
    /// Appends the serialised quota to `out`.
    pub(crate) fn write(&self, out: &mut ByteWriter<'_>) {
        // Destructured, so that a new field does not compile until it is saved or derived from those that are.
        let Self {
            interval,
            tolerance,
            // A remainder, or the parameters.
            interval_remainder: _,
            tolerance_remainder: _,
            count,
            periods,
            burst,
            units_per_request: shares,
            unit,
            algorithm,
        } = *self;
        out.text(algorithm.as_str());
        match algorithm.counter_kind() {
            CounterKind::Bans => {
                out.u64(interval);
                out.u64(tolerance);
            }
            CounterKind::Rate | CounterKind::InFlight => {
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

    /// Reads a quota that [`Self::write`] wrote; `None` if it is not valid.
    pub(crate) fn read(input: &mut ByteReader<'_>) -> Option<Self> {
        let name = input.text()?;
        let algorithm = SAVED.into_iter().find(|algorithm| algorithm.as_str() == name)?;
        if algorithm == Algorithm::Ban {
            let [first, most] = [input.u64()?, input.u64()?].map(Duration::from_nanos);
            return Some(Self::ban(Ban { initial_duration: first, max_duration: most }));
        }
        let name = input.text()?;
        let unit = TimeUnit::ALL.into_iter().find(|unit| unit.as_str() == name)?;
        let period = Period::new(NonZeroU32::new(input.u32()?)?, unit);
        let [count, burst] = [NonZeroU32::new(input.u32()?)?, NonZeroU32::new(input.u32()?)?];
        let shares = NonZeroU16::new(input.u16()?)?;
        let (zone, precision) = (input.text()?, input.u16()?);
        let quota = Self::from_saved_units(algorithm, period, count, burst, shares)?;
        if precision > 1 {
            return quota.with_precision(u8::try_from(precision).ok()?);
        }
        // If no current limit uses the zone, UTC is used; existing counters store the end of their window.
        let zone = Zone::named(zone).unwrap_or_default();
        if zone == Zone::UTC { Some(quota) } else { quota.in_zone(zone) }
    }

    /// As [`Self::from_units`], but `None` for a quota that [`Self::write`] cannot have written.
    fn from_saved_units(
        algorithm: Algorithm,
        period: Period,
        count: NonZeroU32,
        burst: NonZeroU32,
        shares: NonZeroU16,
    ) -> Option<Self> {
        let whole = |units: NonZeroU32| units.get().is_multiple_of(shares.get().into());
        let is_valid = u64::from(count.get()) <= period.nanos()
            && (algorithm.has_burst() || burst == count)
            && (algorithm != Algorithm::RefillBucket || burst >= count)
            && (algorithm != Algorithm::SlidingLog
                || count.get() / u32::from(shares.get()) <= MAX_LOGGED_UNITS)
            && whole(count)
            && whole(burst);
        Self::from_units(algorithm, period, count, burst, shares).filter(|_| is_valid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elastic::ElasticRange;
    use crate::quota::Limit;

    fn round_trip(quota: Quota) -> Option<Quota> {
        let mut bytes = Vec::new();
        quota.write(&mut ByteWriter(&mut bytes));
        let mut input = ByteReader(&bytes);
        Quota::read(&mut input).filter(|_| input.is_empty())
    }

    #[test]
    fn quota_serialization_round_trips() {
        let limit = |count, unit| Limit::new(NonZeroU32::new(count).unwrap(), Period::one(unit));
        for algorithm in Algorithm::RATES {
            for unit in TimeUnit::ALL {
                let quota = Quota::new(algorithm, limit(3, unit), None).unwrap();
                assert_eq!(round_trip(quota), Some(quota));
            }
        }
        let burst = Quota::new(Algorithm::Gcra, limit(100, TimeUnit::Second), NonZeroU32::new(7)).unwrap();
        let (elastic, _) = burst.to_elastic(ElasticRange::from_hundredths(300).unwrap()).unwrap();
        let ban = Quota::ban(Ban {
            initial_duration: Duration::from_secs(600),
            max_duration: Duration::from_secs(86_400),
        });
        let berlin = Zone::register(&jiff::tz::TimeZone::get("Europe/Berlin").unwrap()).unwrap();
        let window = |algorithm| Quota::new(algorithm, limit(3, TimeUnit::Day), None).unwrap();
        let daily = window(Algorithm::FixedWindow).in_zone(berlin).unwrap();
        let fine = window(Algorithm::SlidingWindow).with_precision(60).unwrap();
        for quota in [burst, elastic, ban, daily, fine] {
            assert_eq!(round_trip(quota), Some(quota));
        }
    }

    #[test]
    fn in_flight_quota_is_not_deserialized() {
        assert_eq!(round_trip(Quota::in_flight(NonZeroU32::new(5).unwrap())), None);
    }

    #[test]
    fn invalid_saved_quota_is_rejected() {
        let second = Period::one(TimeUnit::Second);
        let read = |algorithm, period, count, burst, shares| {
            let (count, burst) = (NonZeroU32::new(count).unwrap(), NonZeroU32::new(burst).unwrap());
            Quota::from_saved_units(algorithm, period, count, burst, NonZeroU16::new(shares).unwrap())
        };
        assert!(read(Algorithm::Gcra, second, 6, 12, 3).is_some());
        assert_eq!(read(Algorithm::Gcra, second, 7, 12, 3), None);
        assert_eq!(read(Algorithm::FixedWindow, second, 6, 12, 1), None);
        assert_eq!(read(Algorithm::Gcra, second, 2_000_000_000, 1, 1), None);
        assert_eq!(read(Algorithm::Gcra, Period::one(TimeUnit::Year), 1, 101, 1), None);
    }
}
