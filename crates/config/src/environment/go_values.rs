//! Numbers, durations and booleans as Go's standard library reads them, since the reference accepts what that accepts.

use std::time::Duration;

/// Units of a duration, in nanoseconds.
const UNITS: [(&str, i128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// A duration, which may be negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GoDuration {
    nanos: i64,
}

impl GoDuration {
    /// Parses a duration such as `1h30m`, `+5m`, `.5s` or `0`, as `time.ParseDuration` does.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (is_negative, unsigned) = split_sign(text);
        if unsigned == "0" {
            return Some(Self { nanos: 0 });
        }
        let (mut rest, mut nanos) = (unsigned, 0_i128);
        if rest.is_empty() {
            return None;
        }
        while !rest.is_empty() {
            let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
            let (number, after) = rest.split_at(end);
            let end = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
            let (name, after) = after.split_at(end);
            let (_, unit) = UNITS.into_iter().find(|(known, _)| *known == name)?;
            nanos = nanos.checked_add(scaled(number, unit)?)?;
            rest = after;
        }
        let signed = if is_negative { -nanos } else { nanos };
        i64::try_from(signed).ok().map(|nanos| Self { nanos })
    }

    pub(super) const fn is_zero(self) -> bool {
        self.nanos == 0
    }

    pub(super) const fn is_negative(self) -> bool {
        self.nanos < 0
    }

    /// Returns the duration, rounded up to whole milliseconds; zero if it is negative.
    pub(super) fn to_millis(self) -> Duration {
        let nanos = u64::try_from(self.nanos).unwrap_or(0);
        Duration::from_millis(nanos.div_ceil(1_000_000))
    }
}

/// Multiplies a number such as `1.5`, with digits on at least one side of the point, by `unit`.
fn scaled(number: &str, unit: i128) -> Option<i128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let digits = |text: &str| if text.is_empty() { Some(0) } else { text.parse::<i128>().ok() };
    // More digits than nanoseconds have no effect.
    let fraction = &fraction[..fraction.len().min(18)];
    let divisor = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    digits(whole)?.checked_mul(unit)?.checked_add(digits(fraction)?.checked_mul(unit)? / divisor)
}

fn split_sign(text: &str) -> (bool, &str) {
    match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    }
}

/// Parses an integer as `strconv.ParseInt` does without a base: decimal, `0x`, `0o`, `0b` or `0`, with `_` between digits.
pub(super) fn parse_int(text: &str) -> Option<i64> {
    let (is_negative, unsigned) = split_sign(text);
    let lower = unsigned.to_ascii_lowercase();
    let (digits, base) = match lower.as_bytes() {
        [b'0', b'x', ..] => (&lower[2..], 16),
        [b'0', b'o', ..] => (&lower[2..], 8),
        [b'0', b'b', ..] => (&lower[2..], 2),
        [b'0', _, ..] => (&lower[1..], 8),
        _ => (&lower[..], 10),
    };
    // After a prefix, the digits may begin with an underscore.
    let plain = if base == 10 { digits } else { digits.strip_prefix('_').unwrap_or(digits) };
    if plain.starts_with(['_', '+', '-']) || plain.ends_with('_') || plain.contains("__") {
        return None;
    }
    let magnitude = i64::from_str_radix(&plain.replace('_', ""), base).ok()?;
    Some(if is_negative { -magnitude } else { magnitude })
}

/// Parses a boolean as `strconv.ParseBool` does.
pub(super) fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_durations_are_parsed() {
        for (text, nanos) in [
            ("0", 0),
            ("+0", 0),
            ("0s", 0),
            ("1h30m", 5_400_000_000_000),
            ("+5m", 300_000_000_000),
            ("-1.5s", -1_500_000_000),
            (".5s", 500_000_000),
            ("1.s", 1_000_000_000),
            ("150us", 150_000),
            ("150µs", 150_000),
            ("150μs", 150_000),
            ("1.5h", 5_400_000_000_000),
            ("24h0m0s", 86_400_000_000_000),
        ] {
            assert_eq!(GoDuration::parse(text), Some(GoDuration { nanos }), "{text}");
        }
        for wrong in ["", "+", "5", "s", ".s", "1d", "1h30", "1..5s", "1 s", "--1s", "99999999999h"] {
            assert_eq!(GoDuration::parse(wrong), None, "{wrong}");
        }
        assert_eq!(GoDuration::parse("150us").unwrap().to_millis(), Duration::from_millis(1));
    }

    #[test]
    fn go_integers_are_parsed() {
        for (text, value) in [
            ("8081", 8081),
            ("+8081", 8081),
            ("0x1F91", 8081),
            ("0o17", 15),
            ("017", 15),
            ("1_000", 1000),
            ("0", 0),
            ("-5", -5),
            ("0x_f", 15),
        ] {
            assert_eq!(parse_int(text), Some(value), "{text}");
        }
        for wrong in ["", "1.5", "1e3", "08", "_1", "1_", "1__0", "0x", "++1", "a", "99999999999999999999"] {
            assert_eq!(parse_int(wrong), None, "{wrong}");
        }
    }
}
