//! Times in lines: in RFC 3339, and in the formats of `%START_TIME(FORMAT)%`, with the specifiers of strftime that Envoy
//! has and that mean the same in UTC.

use std::io::Write;

use jiff::tz::TimeZone;

use crate::jiff_timestamp;
use weir_limiter::timestamp::Timestamp;

/// Specifiers of one letter. `f` may follow a number of digits.
const SPECIFIERS: &str = "YmdeHIMSsfFTRjaAbBhpuwzZ%";

/// A parsed format of times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TimeFormat(Box<str>);

impl TimeFormat {
    /// Parses a format; returns the specifier that is not supported as an error.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut format = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('%') {
            let digits = after.find(|letter: char| !('1'..='9').contains(&letter)).unwrap_or(after.len());
            let letter = after[digits..].chars().next();
            let specifier = &after[..digits + letter.map_or(0, char::len_utf8)];
            let is_known = match (digits, letter) {
                (0, Some(letter)) => SPECIFIERS.contains(letter),
                (1, letter) => letter == Some('f'),
                _ => false,
            };
            if !is_known {
                return Err(format!("%{specifier}"));
            }
            format.push_str(before);
            format.push('%');
            // Envoy's %f has nine digits.
            format.push_str(if specifier == "f" { "9f" } else { specifier });
            rest = &after[specifier.len()..];
        }
        format.push_str(rest);
        Ok(Self(format.into()))
    }

    /// Appends a time in UTC.
    pub(super) fn write(&self, time: Timestamp, line: &mut Vec<u8>) {
        // Writing to a vector cannot fail, and every specifier is known.
        let _ = write!(line, "{}", jiff_timestamp(time).to_zoned(TimeZone::UTC).strftime(&*self.0));
    }
}

/// Appends a time as in RFC 3339, in UTC with milliseconds.
pub(super) fn push_time(line: &mut Vec<u8>, time: Timestamp) {
    let seconds = time.as_nanos() / 1_000_000_000;
    let (millis, second_of_day) = (time.as_nanos() / 1_000_000 % 1000, seconds % 86_400);
    let (year, month, day) = civil_date(seconds / 86_400);
    let mut text = *b"0000-00-00T00:00:00.000Z";
    for (position, number) in [
        (0, year / 100),
        (2, year % 100),
        (5, month),
        (8, day),
        (11, second_of_day / 3600),
        (14, second_of_day / 60 % 60),
        (17, second_of_day % 60),
        (21, millis % 100),
    ] {
        text[position] = digit(number / 10);
        text[position + 1] = digit(number % 10);
    }
    text[20] = digit(millis / 100);
    line.extend_from_slice(&text);
}

const fn digit(number: u64) -> u8 {
    b'0' + (number % 10) as u8
}

/// Returns year, month and day of a day counted from the epoch, in the Gregorian calendar. Years begin in March here,
/// so that the leap day is the last one: 146,097 days are 400 years, and 153 days are five months from March on.
const fn civil_date(days: u64) -> (u64, u64, u64) {
    // From 1 March of the year 0 to the epoch.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year;
    (if month <= 2 { year + 1 } else { year }, month, day)
}

/// Returns the supported specifiers for messages.
pub(super) fn known_specifiers() -> String {
    let letters = SPECIFIERS.chars().map(|letter| format!("%{letter}"));
    letters.chain(["%1f to %9f".to_owned()]).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// 2026-11-21T05:32:33.704000123Z
    const TIME: Timestamp = Timestamp::from_nanos(1_795_239_153_704_000_123);

    fn written(format: &str) -> String {
        let mut line = Vec::new();
        TimeFormat::parse(format).unwrap().write(TIME, &mut line);
        String::from_utf8(line).unwrap()
    }

    #[test]
    fn specifiers_write_what_strftime_does() {
        for (format, expected) in [
            ("%Y/%m/%dT%H:%M:%S%z %s", "2026/11/21T05:32:33+0000 1795239153"),
            ("%s.%3f", "1795239153.704"),
            ("%6f %9f %f %1f", "704000 704000123 704000123 7"),
            ("%F %T %R %Z", "2026-11-21 05:32:33 05:32 UTC"),
            ("%a %A %b %B %h %j %u %w", "Sat Saturday Nov November Nov 325 6 6"),
            ("%I %p %e|100%%|ä", "05 AM 21|100%|ä"),
            ("plain", "plain"),
        ] {
            assert_eq!(written(format), expected, "{format}");
        }
    }

    #[test]
    fn every_known_specifier_writes_something() {
        for letter in SPECIFIERS.chars() {
            assert!(!written(&format!("%{letter}")).is_empty(), "%{letter}");
        }
    }

    proptest! {
        #[test]
        fn rfc_3339_is_written_as_jiff_does(nanos in any::<u64>()) {
            let time = Timestamp::from_nanos(nanos);
            let mut line = Vec::new();
            push_time(&mut line, time);
            prop_assert_eq!(String::from_utf8(line).unwrap(), crate::rfc3339(time));
        }
    }

    #[test]
    fn rfc_3339_is_right_on_every_day_of_four_centuries() {
        for day in 0..146_097 {
            let time = Timestamp::from_nanos(day * 86_400_000_000_000);
            let mut line = Vec::new();
            push_time(&mut line, time);
            assert_eq!(String::from_utf8(line).unwrap(), crate::rfc3339(time));
        }
    }

    #[test]
    fn other_specifiers_are_rejected() {
        for (format, unknown) in [
            ("%Y%Q", "%Q"),
            ("%", "%"),
            ("%3", "%3"),
            ("%3Y", "%3Y"),
            ("%33f", "%33f"),
            ("%0f", "%0"),
            ("%ä", "%ä"),
        ] {
            assert_eq!(TimeFormat::parse(format), Err(unknown.to_owned()), "{format}");
        }
    }
}
