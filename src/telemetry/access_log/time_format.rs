//! Formats of `%START_TIME(FORMAT)%`, with the specifiers of strftime that Envoy has and that mean the same in UTC.

use std::io::Write;

use jiff::tz::TimeZone;

use crate::limiter::timestamp::Timestamp;
use crate::telemetry::jiff_timestamp;

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

/// Returns the supported specifiers for messages.
pub(super) fn known_specifiers() -> String {
    let letters = SPECIFIERS.chars().map(|letter| format!("%{letter}"));
    letters.chain(["%1f to %9f".to_owned()]).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
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
