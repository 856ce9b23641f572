//! Window numbers of a quota, by an independent calendar.

use weir_limiter::algorithm::Algorithm;
use weir_limiter::quota::{Quota, TimeUnit};

const DAY: u64 = 86_400_000_000_000;

/// Returns the number of the window that contains `at`, in UTC. Only fixed windows follow the calendar.
pub(super) fn window_of(quota: &Quota, at: u64) -> u64 {
    let (period, days) = (quota.window(), at / DAY);
    let count = u64::from(period.count().get());
    match (quota.algorithm(), period.unit()) {
        (Algorithm::FixedWindow, TimeUnit::Day) => days / count,
        // 1970-01-01 was a Thursday.
        (Algorithm::FixedWindow, TimeUnit::Week) => (days + 3) / (7 * count),
        (Algorithm::FixedWindow, TimeUnit::Month) => month_of_day(days) / count,
        (Algorithm::FixedWindow, TimeUnit::Year) => month_of_day(days) / (12 * count),
        _ => at / period.nanos(),
    }
}

/// Returns the number of months from January of year 0 to the month of this day, which is counted from the epoch.
fn month_of_day(mut days: u64) -> u64 {
    for month in 1970 * 12.. {
        let length = days_in_month(month);
        if days < length {
            return month;
        }
        days -= length;
    }
    unreachable!("the iterator is infinite")
}

fn days_in_month(month: u64) -> u64 {
    let year = month / 12;
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    match month % 12 {
        1 if is_leap => 29,
        1 => 28,
        3 | 5 | 8 | 10 => 30,
        _ => 31,
    }
}
