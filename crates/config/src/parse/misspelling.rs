//! Values in the notation of other programs, and how they are written here. Only hints use it.

use std::time::Duration;

use super::{is_digits, split_number};
use weir_limiter::quota::TimeUnit;

/// Words for requests between a count and a period: `100 req/s`, or nginx's `100r/s`.
const REQUEST_WORDS: [&str; 6] = ["r", "req", "reqs", "request", "requests", "hits"];

/// Returns the duration that a decimal fraction such as `1.5s` means; `None` if it is not one, or not a whole number of
/// milliseconds. `unit` finds a unit by its name.
pub(super) fn whole_duration(text: &str, unit: impl Fn(&str) -> Option<TimeUnit>) -> Option<Duration> {
    let (whole, rest) = text.split_once('.')?;
    let (tenths, name) = split_number(rest);
    if !is_digits(whole) || !is_digits(tenths) || whole.len() > 6 || tenths.len() > 6 {
        return None;
    }
    let scale = 10_u128.pow(u32::try_from(tenths.len()).ok()?);
    let units: u128 = format!("{whole}{tenths}").parse().ok()?;
    let nanos = u128::from(unit(name)?.nanos()).checked_mul(units)? / scale;
    let duration = Duration::from_nanos(u64::try_from(nanos).ok()?);
    (nanos.is_multiple_of(1_000_000) && !duration.is_zero()).then_some(duration)
}

/// Returns the unit of sizes that is probably meant.
pub(super) fn size_unit(name: &str) -> Option<&'static str> {
    match name.to_lowercase().as_str() {
        "b" | "byte" | "bytes" => Some("B"),
        "k" | "kb" | "ki" | "kib" | "kbyte" | "kilobytes" => Some("KiB"),
        "m" | "mb" | "mi" | "mib" | "mbyte" | "megabytes" => Some("MiB"),
        "g" | "gb" | "gi" | "gib" | "gbyte" | "gigabytes" => Some("GiB"),
        _ => None,
    }
}

/// Whether a size is in bits, such as `8Mbit`.
pub(super) fn is_in_bits(size: &str) -> bool {
    let size = size.trim();
    size.to_lowercase().trim_end_matches('s').ends_with("bit")
        || size.ends_with("Mb")
        || size.ends_with("Kb")
        || size.ends_with("Gb")
}

/// Whether `name`, in lower case and without a final `s`, is an abbreviation of the unit.
pub(super) fn is_unit(name: &str, unit: TimeUnit) -> bool {
    matches!(
        (name, unit),
        ("msec" | "milli", TimeUnit::Millisecond)
            | ("mn" | "mim" | "mni", TimeUnit::Minute)
            | ("hr", TimeUnit::Hour)
            | ("dy", TimeUnit::Day)
            | ("wk", TimeUnit::Week)
            | ("mo" | "mth" | "mnth", TimeUnit::Month)
            | ("yr" | "y", TimeUnit::Year)
    )
}

/// Returns a rate such as `100/s` for `100rps` or `100 requests per second`.
pub(super) fn rate_without_slash(text: &str) -> Option<String> {
    if let Some((count, period)) = text.split_once(" per ") {
        return Some(format!("{}/{}", plain_count(count.trim())?, period.trim()));
    }
    let (count, name) = split_number(text);
    let period = match name.to_lowercase().as_str() {
        "rps" | "qps" | "req/s" => "s",
        "rpm" | "qpm" => "min",
        "rph" => "h",
        _ => return None,
    };
    is_digits(count).then(|| format!("{count}/{period}"))
}

/// Returns the digits of a count such as `10k`, `1,000`, `1_000`, `100r` or `100 requests`.
pub(super) fn plain_count(count: &str) -> Option<String> {
    let joined = count.replace([',', '_', ' ', '\''], "");
    let (digits, word) = split_number(&joined);
    let is_grouped = digits.len() < 16 && is_digits(digits);
    match word.to_lowercase().as_str() {
        _ if !is_grouped => None,
        "" => Some(digits.to_owned()),
        "k" => Some(format!("{digits}000")),
        "m" => Some(format!("{digits}000000")),
        word => REQUEST_WORDS.contains(&word).then(|| digits.to_owned()),
    }
}

/// Returns the pattern here for a path in the notation of nginx (`^~ /api`, `= /login`, `~* \.php$`), Traefik
/// (``PathPrefix(`/api`)``) or Ant (`/api/**`).
pub(crate) fn path_pattern(text: &str) -> Option<String> {
    let below = |path: &str| {
        let path = path.trim();
        path.starts_with('/').then(|| format!("{}/*", path.trim_end_matches('/')))
    };
    let quoted = |name: &str| {
        let inner = text.strip_prefix(name)?.strip_prefix('(')?.strip_suffix(')')?;
        Some(inner.trim_matches(['`', '"', '\'']))
    };
    if let Some(regex) = text.strip_prefix("~*") {
        return Some(format!("~(?i){}", regex.trim()));
    }
    if let Some(path) = text.strip_prefix("^~") {
        return below(path);
    }
    if let Some(path) = text.strip_prefix("= ") {
        return path.trim().starts_with('/').then(|| path.trim().to_owned());
    }
    if let Some(path) = text.strip_suffix("/**") {
        return below(path);
    }
    if let Some(path) = quoted("PathPrefix") {
        return below(path);
    }
    quoted("PathRegexp").map(|regex| format!("~{regex}")).or_else(|| quoted("Path").map(ToOwned::to_owned))
}

/// Returns the rate here for one in other notations: `rate=10r/m`, `10/s;`, `10/1m30s`, `1s/10`, or HAProxy's
/// `http_req_rate(10s) gt 20`.
pub(super) fn other_rate(text: &str) -> Option<String> {
    if let Some((period, count)) = text.strip_prefix("http_req_rate(").and_then(|rest| rest.split_once(')')) {
        let count = count.trim().trim_start_matches("gt").trim_start_matches("ge").trim();
        return is_digits(count).then(|| format!("{count}/{period}"));
    }
    let text = text.strip_prefix("rate=").unwrap_or(text).trim_end_matches([';', ',']);
    let (count, period) = text.split_once('/')?;
    let (count, period) = (count.trim(), period.trim());
    if is_digits(period) && split_number(count).0 != count {
        return super::parse_rate(&format!("{period}/{count}")).ok().map(|_| format!("{period}/{count}"));
    }
    let count = plain_count(count)?;
    let period = compound_duration(period).unwrap_or_else(|| period.to_owned());
    let rate = format!("{count}/{period}");
    super::parse_rate(&rate).ok().map(|_| rate)
}

/// Returns a duration such as Go's `1m30s` or ISO 8601's `PT1M30S` in one unit.
pub(super) fn compound_duration(text: &str) -> Option<String> {
    let text = text.strip_prefix("PT").or_else(|| text.strip_prefix('P')).unwrap_or(text).to_lowercase();
    let (mut rest, mut total) = (text.as_str(), Duration::ZERO);
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let letters = rest[digits..].bytes().take_while(u8::is_ascii_lowercase).count();
        let part =
            super::parse_duration(&rest[..digits + letters]).ok().filter(|_| digits > 0 && letters > 0)?;
        total = total.saturating_add(part);
        rest = &rest[digits + letters..];
    }
    (!total.is_zero()).then(|| super::format_duration(total))
}

#[cfg(test)]
mod tests {
    use crate::parse::{duration, rate, size};

    #[test]
    fn durations_with_a_fraction_are_suggested_in_a_smaller_unit() {
        let hint = |text: &str| duration(text).unwrap_err().hint.unwrap_or_default();
        assert_eq!(hint("1.5s"), "write `1500ms`");
        assert_eq!(hint("0.5h"), "write `30m`");
        assert_eq!(hint("1.5 days"), "write `36h`");
        assert_eq!(hint("0.0001ms"), "");
        assert_eq!(hint("1.2.3s"), "");
    }

    #[test]
    fn sizes_in_decimal_units_are_suggested_in_binary_ones() {
        let hint = |text: &str| size(text).unwrap_err().hint.unwrap_or_default();
        assert_eq!((hint("10 MB").as_str(), hint("64k").as_str()), ("write `10MiB`", "write `64KiB`"));
        assert_eq!(hint("10 parsecs"), "");
    }

    #[test]
    fn rates_of_other_programs_are_suggested_as_written_here() {
        let hint = |text: &str| rate(text).unwrap_err().hint.unwrap_or_default();
        for (text, expected) in [
            ("100r/s", "write `100/s`"),
            ("100 req/min", "write `100/min`"),
            ("100 requests per minute", "write `100/minute`"),
            ("10k/min", "write `10000/min`"),
            ("1,000/s", "write `1000/s`"),
            ("100rps", "write `100/s`"),
            ("100/mn", "write `min`"),
            ("100/hr", "write `h`"),
            ("100/mins", "write `min`"),
            ("100/minuts", "write `min`"),
            ("10/1.5s", "write `10/1500ms`"),
            ("10 per 0.5 hours", "write `10/30m`"),
            ("100 apples/s", ""),
        ] {
            assert_eq!(hint(text), expected, "{text}");
        }
    }
}
