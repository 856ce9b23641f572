//! Calendar boundaries: where days, weeks, months and years begin in a time zone.

use jiff::SignedDuration;
use jiff::civil::Date;
use jiff::tz::TimeZone;

use crate::quota::{Period, TimeUnit};

const EPOCH: Date = Date::constant(1970, 1, 1);
/// 1970-01-01 was a Thursday.
const DAYS_SINCE_MONDAY: i64 = 3;

/// Returns the first boundary of `period` after `now`, both in nanoseconds since the epoch; `None` beyond the calendar.
///
/// A day has as many hours as the zone's clocks show: 23 or 25 when they change.
pub(super) fn next_boundary(period: Period, zone: &TimeZone, now: u64) -> Option<u64> {
    let today = number(period, date(zone, now)?)?;
    // A clock that is put back across midnight shows the end of a day twice. The second time the window of the next day
    // is already open, and ends with that day.
    let mark = |windows: i64| instant(first_day(period, today.checked_add(windows)?)?, zone);
    (1..=2).filter_map(mark).find(|mark| *mark > now)
}

/// Returns the boundary `windows` windows after the one at `mark`, both in nanoseconds since the epoch; `None` beyond
/// the calendar.
pub(super) fn later_boundary(period: Period, zone: &TimeZone, mark: u64, windows: u64) -> Option<u64> {
    let first = number(period, date(zone, mark)?)?;
    instant(first_day(period, first.checked_add_unsigned(windows)?)?, zone)
}

/// Number of windows that begin after the boundary `from` and not after `to`, which is not before it. A day that the
/// zone skipped is one of them. `None` beyond the calendar.
pub(super) fn boundaries_between(period: Period, zone: &TimeZone, from: u64, to: u64) -> Option<u64> {
    let [first, last] = [number(period, date(zone, from)?)?, number(period, date(zone, to)?)?];
    let windows = u64::try_from(last.saturating_sub(first)).unwrap_or(0);
    // A clock that is put back across midnight shows the previous day although the next window is already open.
    let is_open =
        later_boundary(period, zone, from, windows.saturating_add(1)).is_some_and(|mark| mark <= to);
    Some(windows.saturating_add(is_open.into()))
}

fn date(zone: &TimeZone, at: u64) -> Option<Date> {
    let at = jiff::Timestamp::from_nanosecond(i64::try_from(at).ok()?.into()).ok()?;
    Some(at.to_zoned(zone.clone()).date())
}

/// Number of the window that contains `day`. Days are counted from 1970-01-01, weeks from the Monday before, months and
/// years from January of year 0.
fn number(period: Period, day: Date) -> Option<i64> {
    let count = i64::from(period.count().get());
    let months = i64::from(day.year()) * 12 + i64::from(day.month()) - 1;
    let days = day.duration_since(EPOCH).as_hours() / 24;
    Some(match period.unit() {
        TimeUnit::Year => months.div_euclid(count.checked_mul(12)?),
        TimeUnit::Month => months.div_euclid(count),
        TimeUnit::Week => (days + DAYS_SINCE_MONDAY).div_euclid(count.checked_mul(7)?),
        _ => days.div_euclid(count),
    })
}

/// First day of the window with this number.
fn first_day(period: Period, number: i64) -> Option<Date> {
    let count = i64::from(period.count().get());
    let months = |size| {
        let first = number.checked_mul(size)?;
        let (year, month) = (i16::try_from(first / 12).ok()?, i8::try_from(first % 12 + 1).ok()?);
        Date::new(year, month, 1).ok()
    };
    let days = |size| number.checked_mul(size);
    let after = |days: i64| EPOCH.checked_add(SignedDuration::from_hours(days.checked_mul(24)?)).ok();
    match period.unit() {
        TimeUnit::Year => months(count.checked_mul(12)?),
        TimeUnit::Month => months(count),
        TimeUnit::Week => after(days(count.checked_mul(7)?)? - DAYS_SINCE_MONDAY),
        _ => after(days(count)?),
    }
}

/// Start of a day: midnight, or the moment at which the clock is put forward across it.
fn instant(day: Date, zone: &TimeZone) -> Option<u64> {
    u64::try_from(day.to_zoned(zone.clone()).ok()?.timestamp().as_nanosecond()).ok()
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    /// Returns `number` consecutive boundaries after `from`, of a period of `count` units.
    fn boundaries(count: u32, unit: TimeUnit, zone: &str, from: &str, number: usize) -> Vec<String> {
        let zone = TimeZone::get(zone).unwrap();
        let period = Period::new(NonZeroU32::new(count).unwrap(), unit);
        let mut now = from.parse::<jiff::Timestamp>().unwrap().as_nanosecond() as u64;
        let next = |_| {
            now = next_boundary(period, &zone, now).unwrap();
            let mark = jiff::Timestamp::from_nanosecond(now.into()).unwrap();
            mark.to_zoned(zone.clone()).strftime("%Y-%m-%d %H:%M %:z").to_string()
        };
        (0..number).map(next).collect()
    }

    fn boundary(count: u32, unit: TimeUnit, zone: &str, from: &str) -> String {
        boundaries(count, unit, zone, from, 1).remove(0)
    }

    #[test]
    fn day_windows_follow_daylight_saving_changes() {
        assert_eq!(
            boundaries(1, TimeUnit::Day, "Europe/Berlin", "2026-03-28T12:00:00Z", 3),
            ["2026-03-29 00:00 +01:00", "2026-03-30 00:00 +02:00", "2026-03-31 00:00 +02:00"]
        );
        assert_eq!(
            boundaries(1, TimeUnit::Day, "Europe/Berlin", "2026-10-24T22:00:00Z", 2),
            ["2026-10-26 00:00 +01:00", "2026-10-27 00:00 +01:00"]
        );
    }

    #[test]
    fn day_window_without_midnight_starts_at_the_clock_change() {
        assert_eq!(
            boundaries(1, TimeUnit::Day, "Asia/Beirut", "2024-03-30T12:00:00Z", 2),
            ["2024-03-31 01:00 +03:00", "2024-04-01 00:00 +03:00"]
        );
    }

    #[test]
    fn repeated_midnight_ends_the_day_window_once() {
        // 00:01 on the 29th became 23:01 on the 28th.
        assert_eq!(
            boundaries(1, TimeUnit::Day, "America/St_Johns", "2006-10-28T12:00:00Z", 2),
            ["2006-10-29 00:00 -02:30", "2006-10-30 00:00 -03:30"]
        );
        assert_eq!(
            boundary(1, TimeUnit::Day, "America/St_Johns", "2006-10-29T03:00:00Z"),
            "2006-10-30 00:00 -03:30",
            "in the repeated hour"
        );
    }

    #[test]
    fn skipped_calendar_day_has_no_window() {
        assert_eq!(
            boundaries(1, TimeUnit::Day, "Pacific/Apia", "2011-12-30T00:00:00Z", 2),
            ["2011-12-31 00:00 +14:00", "2012-01-01 00:00 +14:00"]
        );
    }

    #[test]
    fn week_month_and_year_windows_start_at_local_midnight() {
        let at = "2026-11-21T08:00:00Z"; // a Saturday
        assert_eq!(boundary(1, TimeUnit::Week, "America/New_York", at), "2026-11-23 00:00 -05:00");
        assert_eq!(boundary(1, TimeUnit::Month, "America/New_York", at), "2026-12-01 00:00 -05:00");
        assert_eq!(boundary(1, TimeUnit::Year, "Asia/Kolkata", at), "2027-01-01 00:00 +05:30");
        assert_eq!(boundary(3, TimeUnit::Month, "Asia/Kolkata", at), "2027-01-01 00:00 +05:30");
        // The last evening of October in New York is November in Berlin.
        assert_eq!(
            boundary(1, TimeUnit::Month, "America/New_York", "2026-11-01T02:00:00Z"),
            "2026-11-01 00:00 -04:00"
        );
        assert_eq!(
            boundary(1, TimeUnit::Month, "Europe/Berlin", "2026-11-01T02:00:00Z"),
            "2026-12-01 00:00 +01:00"
        );
    }

    #[test]
    fn counted_boundaries_match_enumerated_ones() {
        let nanos = |text: &str| text.parse::<jiff::Timestamp>().unwrap().as_nanosecond() as u64;
        for (zone, unit, count, from) in [
            ("Europe/Berlin", TimeUnit::Day, 1, "2026-03-25T12:00:00Z"),
            ("Asia/Beirut", TimeUnit::Day, 1, "2024-03-28T12:00:00Z"),
            ("America/St_Johns", TimeUnit::Day, 1, "2006-10-26T12:00:00Z"),
            ("Asia/Kolkata", TimeUnit::Week, 2, "2026-11-21T08:00:00Z"),
            ("UTC", TimeUnit::Month, 5, "2024-02-28T13:37:42Z"),
            ("America/New_York", TimeUnit::Year, 3, "2026-11-21T08:00:00Z"),
        ] {
            let period = Period::new(NonZeroU32::new(count).unwrap(), unit);
            let zone = TimeZone::get(zone).unwrap();
            let mut marks = vec![next_boundary(period, &zone, nanos(from)).unwrap()];
            for _ in 0..6 {
                marks.push(next_boundary(period, &zone, marks[marks.len() - 1]).unwrap());
            }
            for (number, mark) in marks.iter().enumerate() {
                let number = number as u64;
                assert_eq!(later_boundary(period, &zone, marks[0], number), Some(*mark), "{period} {number}");
                assert_eq!(boundaries_between(period, &zone, marks[0], *mark), Some(number), "{period}");
                if number > 0 {
                    assert_eq!(
                        boundaries_between(period, &zone, marks[0], mark - 1),
                        Some(number - 1),
                        "{period}"
                    );
                }
                // The hour after a repeated midnight belongs to the new day.
                assert_eq!(boundaries_between(period, &zone, marks[0], mark + 1), Some(number), "{period}");
            }
        }
    }

    #[test]
    fn multi_day_windows_agree_with_utc() {
        let from = "2026-11-21T08:00:00Z";
        assert_eq!(
            boundaries(10, TimeUnit::Day, "Etc/GMT", from, 2),
            boundaries(10, TimeUnit::Day, "UTC", from, 2),
        );
        assert_eq!(boundaries(10, TimeUnit::Day, "UTC", from, 1), ["2026-11-23 00:00 +00:00"]);
    }
}
