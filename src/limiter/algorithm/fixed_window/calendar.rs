//! Marks of a calendar: where days, weeks, months and years begin in a time zone.

use jiff::SignedDuration;
use jiff::civil::Date;
use jiff::tz::TimeZone;

use crate::limiter::quota::{Period, Unit};

const EPOCH: Date = Date::constant(1970, 1, 1);
/// 1970-01-01 was a Thursday.
const DAYS_SINCE_MONDAY: i64 = 3;

/// The first mark of `period` after `now`, both in nanoseconds since the epoch; `None` beyond the calendar.
///
/// A day has as many hours as the zone's clocks show: 23 or 25 where they change.
pub(super) fn next_mark(period: Period, zone: &TimeZone, now: u64) -> Option<u64> {
    let at = jiff::Timestamp::from_nanosecond(i64::try_from(now).ok()?.into()).ok()?;
    let today = at.to_zoned(zone.clone()).date();
    // A clock put back across midnight shows the end of a day twice. The second time the next day's window
    // is open already, and ends with that day.
    (1..=2).filter_map(|windows| instant(first_day(period, today, windows)?, zone)).find(|mark| *mark > now)
}

/// The first day of the window that many windows after the one `today` is in. Counted from 1970-01-01 in days,
/// from the Monday before in weeks, from January of year 0 in months.
fn first_day(period: Period, today: Date, windows: i64) -> Option<Date> {
    let count = i64::from(period.count().get());
    let first = |number: i64, size: i64| number.div_euclid(size).checked_add(windows)?.checked_mul(size);
    let months = |count| {
        let next = first(i64::from(today.year()) * 12 + i64::from(today.month()) - 1, count)?;
        let (year, month) = (i16::try_from(next / 12).ok()?, i8::try_from(next % 12 + 1).ok()?);
        Date::new(year, month, 1).ok()
    };
    let days = today.duration_since(EPOCH).as_hours() / 24;
    let after = |days: i64| EPOCH.checked_add(SignedDuration::from_hours(days.checked_mul(24)?)).ok();
    match period.unit() {
        Unit::Year => months(count.checked_mul(12)?),
        Unit::Month => months(count),
        Unit::Week => after(first(days + DAYS_SINCE_MONDAY, count.checked_mul(7)?)? - DAYS_SINCE_MONDAY),
        _ => after(first(days, count)?),
    }
}

/// When the day begins: at midnight, or when the clock is put forward across it.
fn instant(day: Date, zone: &TimeZone) -> Option<u64> {
    u64::try_from(day.to_zoned(zone.clone()).ok()?.timestamp().as_nanosecond()).ok()
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    /// The marks of so many units in a row, from `from` on.
    fn marks(count: u32, unit: Unit, zone: &str, from: &str, number: usize) -> Vec<String> {
        let zone = TimeZone::get(zone).unwrap();
        let period = Period::new(NonZeroU32::new(count).unwrap(), unit);
        let mut now = from.parse::<jiff::Timestamp>().unwrap().as_nanosecond() as u64;
        let next = |_| {
            now = next_mark(period, &zone, now).unwrap();
            let mark = jiff::Timestamp::from_nanosecond(now.into()).unwrap();
            mark.to_zoned(zone.clone()).strftime("%Y-%m-%d %H:%M %:z").to_string()
        };
        (0..number).map(next).collect()
    }

    fn mark(count: u32, unit: Unit, zone: &str, from: &str) -> String {
        marks(count, unit, zone, from, 1).remove(0)
    }

    #[test]
    fn a_day_has_as_many_hours_as_the_clocks_show() {
        assert_eq!(
            marks(1, Unit::Day, "Europe/Berlin", "2026-03-28T12:00:00Z", 3),
            ["2026-03-29 00:00 +01:00", "2026-03-30 00:00 +02:00", "2026-03-31 00:00 +02:00"]
        );
        assert_eq!(
            marks(1, Unit::Day, "Europe/Berlin", "2026-10-24T22:00:00Z", 2),
            ["2026-10-26 00:00 +01:00", "2026-10-27 00:00 +01:00"]
        );
    }

    #[test]
    fn a_day_without_midnight_begins_when_the_clock_is_put_forward() {
        assert_eq!(
            marks(1, Unit::Day, "Asia/Beirut", "2024-03-30T12:00:00Z", 2),
            ["2024-03-31 01:00 +03:00", "2024-04-01 00:00 +03:00"]
        );
    }

    #[test]
    fn a_midnight_that_comes_twice_ends_one_day_once() {
        // 00:01 on the 29th became 23:01 on the 28th.
        assert_eq!(
            marks(1, Unit::Day, "America/St_Johns", "2006-10-28T12:00:00Z", 2),
            ["2006-10-29 00:00 -02:30", "2006-10-30 00:00 -03:30"]
        );
        assert_eq!(
            mark(1, Unit::Day, "America/St_Johns", "2006-10-29T03:00:00Z"),
            "2006-10-30 00:00 -03:30",
            "in the hour that comes again"
        );
    }

    #[test]
    fn a_day_that_an_island_left_out_has_no_window() {
        assert_eq!(
            marks(1, Unit::Day, "Pacific/Apia", "2011-12-30T00:00:00Z", 2),
            ["2011-12-31 00:00 +14:00", "2012-01-01 00:00 +14:00"]
        );
    }

    #[test]
    fn weeks_months_and_years_begin_at_the_zones_midnight() {
        let at = "2026-11-21T08:00:00Z"; // a Saturday
        assert_eq!(mark(1, Unit::Week, "America/New_York", at), "2026-11-23 00:00 -05:00");
        assert_eq!(mark(1, Unit::Month, "America/New_York", at), "2026-12-01 00:00 -05:00");
        assert_eq!(mark(1, Unit::Year, "Asia/Kolkata", at), "2027-01-01 00:00 +05:30");
        assert_eq!(mark(3, Unit::Month, "Asia/Kolkata", at), "2027-01-01 00:00 +05:30");
        // The last evening of October in New York is November in Berlin.
        assert_eq!(
            mark(1, Unit::Month, "America/New_York", "2026-11-01T02:00:00Z"),
            "2026-11-01 00:00 -04:00"
        );
        assert_eq!(mark(1, Unit::Month, "Europe/Berlin", "2026-11-01T02:00:00Z"), "2026-12-01 00:00 +01:00");
    }

    #[test]
    fn groups_of_days_are_those_of_universal_time_where_the_clocks_agree() {
        let from = "2026-11-21T08:00:00Z";
        assert_eq!(marks(10, Unit::Day, "Etc/GMT", from, 2), marks(10, Unit::Day, "UTC", from, 2),);
        assert_eq!(marks(10, Unit::Day, "UTC", from, 1), ["2026-11-23 00:00 +00:00"]);
    }
}
