//! Times in access logs: RFC 3339, the common log format, and seconds or smaller units since the epoch.

use super::scan::number;
use weir_limiter::timestamp::Timestamp;

const SECONDS_PER_DAY: i64 = 86_400;
const NANOS_PER_SECOND: u64 = 1_000_000_000;
const MONTHS: [&[u8]; 12] =
    [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];

/// Parser of times. It remembers the last date and clock, since those of the next line are usually the same.
#[derive(Clone, Debug)]
pub(crate) struct TimeParser {
    /// Date and clock of the last time in RFC 3339.
    rfc3339: Remembered<19>,
    /// The same of the common log format, with its offset.
    common: Remembered<26>,
}

/// A text and the seconds since the epoch for which it stands.
#[derive(Clone, Debug)]
struct Remembered<const LENGTH: usize> {
    text: [u8; LENGTH],
    seconds: i64,
}

impl Default for TimeParser {
    fn default() -> Self {
        Self {
            rfc3339: Remembered { text: *b"1970-01-01T00:00:00", seconds: 0 },
            common: Remembered { text: *b"01/Jan/1970:00:00:00 +0000", seconds: 0 },
        }
    }
}

impl<const LENGTH: usize> Remembered<LENGTH> {
    /// Returns the seconds of `text`, which `parse` computes if it is another text than before.
    #[inline]
    fn seconds_of(
        &mut self,
        text: &[u8; LENGTH],
        parse: impl FnOnce(&[u8; LENGTH]) -> Option<i64>,
    ) -> Option<i64> {
        if *text != self.text {
            self.seconds = parse(text)?;
            self.text = *text;
        }
        Some(self.seconds)
    }
}

impl TimeParser {
    /// Parses a time in any of the forms.
    #[inline]
    pub(super) fn parse(&mut self, text: &[u8]) -> Option<Timestamp> {
        match text {
            [_, _, b'/', ..] => self.common(text),
            [_, _, _, _, b'-', ..] => self.rfc3339(text),
            _ => epoch(text),
        }
    }

    /// Parses a time such as `2026-11-23T20:07:02.123Z`. The offset may be `+02:00`, `+0200` or `+02`.
    #[inline]
    pub(super) fn rfc3339(&mut self, text: &[u8]) -> Option<Timestamp> {
        let (date, rest) = text.split_first_chunk::<19>()?;
        let seconds = self.rfc3339.seconds_of(date, rfc3339_seconds)?;
        let (nanos, zone) = fraction(rest);
        timestamp(seconds - offset_seconds(zone)?, nanos)
    }

    /// Parses a time of the common log format, such as `10/Oct/2000:13:55:36 -0700`.
    #[inline]
    pub(super) fn common(&mut self, text: &[u8]) -> Option<Timestamp> {
        let seconds = match <&[u8; 26]>::try_from(text) {
            Ok(text) => self.common.seconds_of(text, |text| common_seconds(text)),
            Err(_) => common_seconds(text),
        };
        timestamp(seconds?, 0)
    }
}

/// Returns the seconds of a date and clock such as `2026-11-23T20:07:02`, without its offset.
fn rfc3339_seconds(date: &[u8; 19]) -> Option<i64> {
    if date[4] != b'-' || date[7] != b'-' || !matches!(date[10], b'T' | b't' | b' ') {
        return None;
    }
    let year = i64::from(two_digits(&date[0..2])?) * 100 + i64::from(two_digits(&date[2..4])?);
    let (month, day) = (two_digits(&date[5..7])?, two_digits(&date[8..10])?);
    civil_seconds(year, month, day, &date[11..19])
}

/// Returns the seconds of a time of the common log format.
fn common_seconds(text: &[u8]) -> Option<i64> {
    let (date, zone) = text.split_at_checked(20)?;
    if date[2] != b'/' || date[6] != b'/' || date[11] != b':' {
        return None;
    }
    let month = MONTHS.iter().position(|name| name.eq_ignore_ascii_case(&date[3..6]))? as u32 + 1;
    let year = i64::from(two_digits(&date[7..9])?) * 100 + i64::from(two_digits(&date[9..11])?);
    let seconds = civil_seconds(year, month, two_digits(&date[0..2])?, &date[12..20])?;
    Some(seconds - offset_seconds(zone.trim_ascii_start())?)
}

/// Parses a number since the epoch, with or without a fraction. Its size determines the unit: seconds up to the year
/// 5138, then milliseconds, microseconds and nanoseconds.
pub(super) fn epoch(text: &[u8]) -> Option<Timestamp> {
    let (whole, fraction) = decimal(text)?;
    let unit = match whole {
        0..100_000_000_000 => NANOS_PER_SECOND,
        100_000_000_000..100_000_000_000_000 => 1_000_000,
        100_000_000_000_000..100_000_000_000_000_000 => 1_000,
        _ => 1,
    };
    let nanos = whole.saturating_mul(unit).saturating_add(fraction / (NANOS_PER_SECOND / unit));
    Some(Timestamp::from_nanos(nanos))
}

/// Parses a decimal number; returns its whole part, and its fraction in 10⁻⁹.
pub(super) fn decimal(text: &[u8]) -> Option<(u64, u64)> {
    let Some(point) = text.iter().position(|byte| *byte == b'.') else { return Some((number(text)?, 0)) };
    let digits = text.get(point + 1..)?;
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some((number(&text[..point])?, billionths(digits)))
}

/// Converts the digits of a fraction to 10⁻⁹; further digits are cut off.
#[inline]
fn billionths(digits: &[u8]) -> u64 {
    let mut value = 0;
    for index in 0..9 {
        value = value * 10 + digits.get(index).map_or(0, |digit| u64::from(digit.wrapping_sub(b'0')));
    }
    value
}

/// Splits a fraction of a second from what follows it.
#[inline]
fn fraction(text: &[u8]) -> (u64, &[u8]) {
    // The usual form.
    if let [b'.', digits @ .., b'Z'] = text
        && digits.len() == 3
        && let Some(millis) = number(digits)
    {
        return (millis * 1_000_000, b"Z");
    }
    let Some(digits) = text.strip_prefix(b".").or_else(|| text.strip_prefix(b",")) else { return (0, text) };
    let length = digits.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(digits.len());
    (billionths(&digits[..length]), &digits[length..])
}

#[inline]
fn two_digits(text: &[u8]) -> Option<u32> {
    let [tens, ones] = text else { return None };
    let (tens, ones) = (tens.wrapping_sub(b'0'), ones.wrapping_sub(b'0'));
    (tens <= 9 && ones <= 9).then(|| u32::from(tens) * 10 + u32::from(ones))
}

/// Returns the seconds between the epoch and this date at `clock`, such as `20:07:02`.
#[inline]
fn civil_seconds(year: i64, month: u32, day: u32, clock: &[u8]) -> Option<i64> {
    let (hour, minute, second) =
        (two_digits(&clock[0..2])?, two_digits(&clock[3..5])?, two_digits(&clock[6..8])?);
    let is_clock = clock[2] == b':' && clock[5] == b':' && hour <= 24 && minute < 60 && second <= 60;
    if !is_clock || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let of_day = i64::from(hour) * 3600 + i64::from(minute) * 60 + i64::from(second);
    Some(days_from_epoch(year, i64::from(month), i64::from(day)) * SECONDS_PER_DAY + of_day)
}

/// Returns the days between the epoch and a date of the Gregorian calendar. Years begin in March here, so that the leap
/// day is the last of its year.
const fn days_from_epoch(year: i64, month: i64, day: i64) -> i64 {
    let (year, months) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days_before_month = (153 * months + 2) / 5;
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    // From 0000-03-01 to 1970-01-01 there are 719468 days.
    year * 365 + leap_days + days_before_month + day - 1 - 719_468
}

/// Parses an offset from UTC, in seconds. Nothing and `Z` are UTC.
#[inline]
fn offset_seconds(zone: &[u8]) -> Option<i64> {
    let (sign, digits) = match zone {
        [] | [b'Z' | b'z'] => return Some(0),
        [b'+', digits @ ..] => (1, digits),
        [b'-', digits @ ..] => (-1, digits),
        _ => return None,
    };
    let (hours, minutes) = match digits.len() {
        2 => (two_digits(digits)?, 0),
        4 => (two_digits(&digits[..2])?, two_digits(&digits[2..])?),
        5 if digits[2] == b':' => (two_digits(&digits[..2])?, two_digits(&digits[3..])?),
        _ => return None,
    };
    Some(sign * (i64::from(hours) * 3600 + i64::from(minutes) * 60))
}

fn timestamp(seconds: i64, nanos: u64) -> Option<Timestamp> {
    let seconds = u64::try_from(seconds).ok()?;
    Some(Timestamp::from_nanos(seconds.saturating_mul(NANOS_PER_SECOND).saturating_add(nanos)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn formatted_times_are_parsed_back(millis in 0_u64..18_000_000_000_000) {
            let time = Timestamp::from_nanos(millis.saturating_mul(1_000_000));
            let text = weir_telemetry::rfc3339(time);
            prop_assert_eq!(TimeParser::default().rfc3339(text.as_bytes()), Some(time));
        }

        #[test]
        fn times_of_any_bytes_do_not_panic(text in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = parse(&text);
        }
    }

    fn parse(text: &[u8]) -> Option<Timestamp> {
        TimeParser::default().parse(text)
    }

    proptest! {
        #[test]
        fn times_do_not_depend_on_those_before(
            texts in proptest::collection::vec(
                "2026-11-2[0-3][T ]20:07:0[0-2](\\.[0-9]{0,4})?(Z|\\+0[0-2]:00)?|2[23]/Nov/2026:20:07:0[0-2] [+-]0[01]00|[0-9:]{19,26}",
                0..20,
            )
        ) {
            let mut times = TimeParser::default();
            for text in texts {
                prop_assert_eq!(times.parse(text.as_bytes()), parse(text.as_bytes()), "{}", text);
            }
            prop_assert_eq!(times.parse(&[0; 19]), None);
        }
    }

    #[test]
    fn all_forms_of_a_time_are_equal() {
        let time = Timestamp::from_secs(1_795_464_422);
        for text in [
            "2026-11-23T20:07:02Z",
            "2026-11-23T22:07:02+02:00",
            "2026-11-23 14:37:02-0530",
            "2026-11-23T20:07:02",
            "23/Nov/2026:20:07:02 +0000",
            "23/Nov/2026:13:07:02 -0700",
            "1795464422",
            "1795464422.000",
            "1795464422000",
            "1795464422000000",
            "1795464422000000000",
        ] {
            assert_eq!(parse(text.as_bytes()), Some(time), "{text}");
        }
        let later = Timestamp::from_nanos(time.as_nanos() + 123_000_000);
        for text in ["2026-11-23T20:07:02.123Z", "1795464422.123", "1795464422123", "1795464422123000.5"] {
            let found = parse(text.as_bytes()).unwrap();
            assert_eq!(found.as_nanos() / 1_000_000, later.as_nanos() / 1_000_000, "{text}");
        }
    }

    #[test]
    fn malformed_times_are_not_parsed() {
        for text in [
            "",
            "-",
            "2026-11-23",
            "2026-13-23T20:07:02Z",
            "2026-11-23T25:07:02Z",
            "2026-11-23T20:07:02X",
            "23/Nux/2026:20:07:02 +0000",
            "23/Nov/2026:20:07:02 0000",
            "1e9",
            "1969-12-31T23:59:59Z",
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn leap_days_are_counted() {
        for (text, seconds) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2000-02-29T00:00:00Z", 951_782_400),
            ("2000-03-01T00:00:00Z", 951_868_800),
            ("2100-03-01T00:00:00Z", 4_107_542_400),
        ] {
            assert_eq!(
                TimeParser::default().rfc3339(text.as_bytes()),
                Some(Timestamp::from_secs(seconds)),
                "{text}"
            );
        }
    }
}
