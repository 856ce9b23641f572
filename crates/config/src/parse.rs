//! Parsers of single values in the configuration: the only place where units are read.
//!
//! Every function takes one text and returns its value or a [`ValueError`] that describes what is expected.
//! Numbers of any length are read without overflow. No input causes a panic.

mod address;
mod destination;
mod http_url;
mod location;
pub(super) mod misspelling;
mod network;
mod origin;
mod plan;
mod protocol;
mod redis_url;
mod schedule;
mod status;
mod throttle;
mod time_zone;

use std::num::NonZeroU32;
use std::time::Duration;

pub use self::address::{UpstreamUrl, host_name, listen_address, listener_address, upstream_address};
pub use self::destination::{DestinationEntry, destination};
pub use self::http_url::{collector_url, document_url};
pub use self::location::{asn, continent, country};
pub use self::network::network;
pub use self::origin::origin;
pub use self::plan::plan_name;
pub use self::protocol::upgrade_protocol;
pub use self::redis_url::{RedisServer, redis_url, sentinel_address};
pub use self::schedule::schedule;
pub use self::status::status_range;
pub use self::throttle::{delay, elastic_factor, margin, percentage, throttle};
pub use self::time_zone::time_zone;
use super::diagnostic::ValueError;
use super::quoting::quoted;
use crate::defaults::MAX_DURATION;
use weir_limiter::quota::{Limit, Period, TimeUnit};

/// Units of sizes: bytes, and powers of 1024.
const SIZE_UNITS: [(&str, u64); 4] = [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];

/// Parses a rate, e.g. `100/s`, `10/30s` or `10 per minute`.
///
/// # Errors
/// Returns a [`ValueError`] that names the part that cannot be read.
pub fn rate(text: &str) -> Result<Limit, ValueError> {
    parse_rate(text).map_err(|error| match misspelling::other_rate(text.trim()) {
        Some(rate) if error.hint.is_none() => error.with_hint(format!("write `{rate}`")),
        _ => error,
    })
}

/// As [`rate`], without hints for the notations of other programs.
fn parse_rate(text: &str) -> Result<Limit, ValueError> {
    let Some((count, period)) = split_rate(text) else { return Err(invalid_rate(text)) };
    let (count, period) = (count.trim(), period.trim());
    if count.is_empty() {
        return Err(ValueError::new(format!("missing count before the period in {}", quoted(text))));
    }
    if !is_digits(count) {
        return Err(invalid_count(count, period));
    }
    Ok(Limit::new(positive_number(count, "count")?, self::period(period, text)?))
}

/// Parses a number of bytes per period, e.g. `1MiB/s`.
///
/// # Errors
/// Returns a [`ValueError`] that names the part that cannot be read.
pub fn byte_rate(text: &str) -> Result<Limit, ValueError> {
    let expected =
        || ValueError::new(format!("expected a size per period such as `1MiB/s`, got {}", quoted(text)));
    let Some((bytes, period)) = split_rate(text) else {
        let error = expected();
        return Err(match size(text) {
            Ok(_) => error.with_hint(format!("add the period, as in `{}/s`", text.trim())),
            Err(_) => error,
        });
    };
    if misspelling::is_in_bits(bytes) {
        return Err(expected().with_hint("it is in bytes, not bits: eight bits are a byte"));
    }
    let (written, period) = (bytes.trim(), period.trim());
    let count = u32::try_from(size(written)?).ok().and_then(NonZeroU32::new);
    let outside =
        || ValueError::new(format!("expected 1B to {}B per period, got {}", u32::MAX, quoted(written)));
    Ok(Limit::new(count.ok_or_else(outside)?, self::period(period, text)?))
}

/// Parses a duration, e.g. `250ms`, `5s` or `2h`. Zero needs a unit, too: `0s`.
///
/// # Errors
/// Returns a [`ValueError`] that names the part that cannot be read.
pub fn duration(text: &str) -> Result<Duration, ValueError> {
    parse_duration(text).map_err(|error| match misspelling::compound_duration(text.trim()) {
        Some(written) if error.hint.is_none() => error.with_hint(format!("write `{written}`")),
        _ => error,
    })
}

/// As [`duration`], without hints for the notations of other programs.
fn parse_duration(text: &str) -> Result<Duration, ValueError> {
    let (count, name) = split_number(text.trim());
    if count.is_empty() || name.is_empty() {
        let error = ValueError::new(format!("expected a duration such as `5s`, got {}", quoted(text)));
        return Err(if name.is_empty() && !count.is_empty() {
            error.with_hint(format!("add the unit, as in `{count}s`"))
        } else {
            error
        });
    }
    let units = TimeUnit::ALL.into_iter().filter(|unit| *unit <= TimeUnit::Week);
    if let Some(whole) = misspelling::whole_duration(text.trim(), |name| unit(name, units.clone()).ok()) {
        let error = ValueError::new(format!("expected a whole number and a unit, got {}", quoted(text)));
        return Err(error.with_hint(format!("write `{}`", format_duration(whole))));
    }
    let unit = unit(name, units)?;
    let count: u64 = count.parse().unwrap_or(u64::MAX);
    let duration = Duration::from_nanos(unit.nanos().saturating_mul(count));
    if duration > MAX_DURATION {
        return Err(ValueError::new(format!("longer than 365 days, got {}", quoted(text))));
    }
    Ok(duration)
}

/// Converts `duration` to a period in the largest unit of which it is a multiple; `None` if it is zero or not
/// a whole number of milliseconds.
pub fn period_from_duration(duration: Duration) -> Option<Period> {
    let nanos = u64::try_from(duration.as_nanos()).ok()?;
    let units = TimeUnit::ALL.into_iter().filter(|unit| *unit <= TimeUnit::Day).rev();
    let period = |unit: TimeUnit| {
        let count = u32::try_from(nanos / unit.nanos()).ok().and_then(NonZeroU32::new)?;
        nanos.is_multiple_of(unit.nanos()).then(|| Period::new(count, unit))
    };
    units.into_iter().find_map(period)
}

/// Parses a size, e.g. `64KiB` or `512B`, into bytes.
///
/// # Errors
/// Returns a [`ValueError`] that names the part that cannot be read.
pub fn size(text: &str) -> Result<u64, ValueError> {
    let (count, name) = split_number(text.trim());
    if count.is_empty() || name.is_empty() {
        return Err(ValueError::new(format!("expected a size such as `64KiB`, got {}", quoted(text))));
    }
    let Some((_, bytes)) = SIZE_UNITS.into_iter().find(|(known, _)| *known == name) else {
        let known = SIZE_UNITS.map(|(known, _)| known).join(", ");
        let error = ValueError::new(format!("unknown unit {}, expected one of {known}", quoted(name)));
        return Err(match misspelling::size_unit(name) {
            Some(unit) => error.with_hint(format!("write `{count}{unit}`")),
            None => error,
        });
    };
    let count: Option<u64> = count.parse().ok();
    count
        .and_then(|count| count.checked_mul(bytes))
        .ok_or_else(|| ValueError::new(format!("above 18446744073709551615 bytes, got {}", quoted(text))))
}

/// Formats `duration` as the configuration does, in the largest unit up to the hour of which it is a
/// multiple.
pub fn format_duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    for (unit, length) in [("h", 3_600_000), ("m", 60_000), ("s", 1000)] {
        if millis.is_multiple_of(length) && (millis > 0 || unit == "s") {
            return format!("{}{unit}", millis / length);
        }
    }
    format!("{millis}ms")
}

/// Splits a rate at the first `/`, or at the word `per`.
fn split_rate(text: &str) -> Option<(&str, &str)> {
    if let Some(parts) = text.split_once('/') {
        return Some(parts);
    }
    let (count, rest) = text.trim_start().split_once(char::is_whitespace)?;
    let period = rest.trim_start().strip_prefix("per")?;
    (period.is_empty() || period.starts_with(char::is_whitespace)).then_some((count, period))
}

fn invalid_rate(text: &str) -> ValueError {
    let error = ValueError::new(format!("expected a rate such as `100/s`, got {}", quoted(text)));
    match text.trim() {
        "unlimited" | "none" | "inf" | "infinite" | "off" | "-1" => {
            error.with_hint("without a limit, leave the rule out, or write `action: allow`")
        }
        count if is_digits(count) => error.with_hint(format!("add the period, as in `{count}/s`")),
        text => match misspelling::rate_without_slash(text) {
            Some(rate) => error.with_hint(format!("write `{rate}`")),
            None => error,
        },
    }
}

fn invalid_count(count: &str, period: &str) -> ValueError {
    let error = ValueError::new(format!("expected a whole number before the period, got {}", quoted(count)));
    if let Some(plain) = misspelling::plain_count(count)
        && self::period(period, period).is_ok()
    {
        return error.with_hint(format!("write `{plain}/{period}`"));
    }
    match count.split_once('.') {
        Some((whole, tenths)) if is_digits(whole) && is_digits(tenths) && tenths.len() == 1 => {
            match self::period(period, period) {
                Ok(period) if period.count() == NonZeroU32::MIN => {
                    let count = format!("{whole}{tenths}");
                    let count = count.trim_start_matches('0');
                    error.with_hint(format!("write `{count}/10{}`", period.unit().as_str()))
                }
                _ => error,
            }
        }
        _ => error,
    }
}

/// Parses a period, e.g. `s` or `30 seconds`; `rate` is the text that contains it, for messages.
fn period(text: &str, rate: &str) -> Result<Period, ValueError> {
    let (count, name) = split_number(text);
    let units = TimeUnit::ALL.into_iter().filter(|unit| *unit <= TimeUnit::Week);
    if let Some(whole) = misspelling::whole_duration(text, |name| unit(name, units.clone()).ok()) {
        let error = ValueError::new(format!("expected a whole number in the period, got {}", quoted(text)));
        let whole = format_duration(whole);
        return Err(match split_rate(rate) {
            Some((count, _)) => error.with_hint(format!("write `{}/{whole}`", count.trim())),
            None => error,
        });
    }
    if name.is_empty() {
        return Err(ValueError::new(format!("missing unit after the count in {}", quoted(rate)))
            .with_hint(format!("one of {}", unit_names(TimeUnit::ALL))));
    }
    let unit = unit(name, TimeUnit::ALL)?;
    let count =
        if count.is_empty() { NonZeroU32::MIN } else { positive_number(count, "count of the period")? };
    Ok(Period::new(count, unit))
}

/// Returns the unit of this name among the `known` ones.
fn unit(name: &str, known: impl IntoIterator<Item = TimeUnit> + Clone) -> Result<TimeUnit, ValueError> {
    let unit_named =
        |name: &str| known.clone().into_iter().find(|unit| TimeUnit::from_name(name) == Some(*unit));
    if let Some(unit) = unit_named(name) {
        return Ok(unit);
    }
    let error = ValueError::new(format!(
        "unknown unit {}, expected one of {}",
        quoted(name),
        unit_names(known.clone())
    ));
    // No suggestion of one unit: a capital M may be meant as month or as minute.
    if name == "M" {
        return Err(error.with_hint("write `min` or `month`"));
    }
    let lower = name.to_lowercase();
    let stem = lower.strip_suffix('s').unwrap_or(&lower);
    let has_stem = |unit: &TimeUnit| {
        (stem.len() >= 3 && unit.word().starts_with(stem)) || misspelling::is_unit(stem, *unit)
    };
    match unit_named(&lower).or_else(|| known.into_iter().find(has_stem)) {
        Some(unit) => Err(error.with_hint(format!("write `{}`", unit.as_str()))),
        None => Err(error),
    }
}

fn unit_names(units: impl IntoIterator<Item = TimeUnit>) -> String {
    units.into_iter().map(TimeUnit::as_str).collect::<Vec<_>>().join(", ")
}

/// Splits leading digits from the rest, without the blanks between them.
fn split_number(text: &str) -> (&str, &str) {
    let end = text.bytes().take_while(u8::is_ascii_digit).count();
    (&text[..end], text[end..].trim_start())
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Parses a whole number from 1 to `u32::MAX`, the maximum of counters.
fn positive_number(digits: &str, what: &str) -> Result<NonZeroU32, ValueError> {
    let significant = digits.trim_start_matches('0');
    if significant.is_empty() {
        return Err(ValueError::new(format!("{what} must be at least 1, got {}", quoted(digits))));
    }
    significant
        .parse()
        .map_err(|_| ValueError::new(format!("{what} is above {}, got {}", u32::MAX, quoted(digits))))
}

/// Returns the nearest of the `known` names, if it is near enough to be what was meant.
pub fn nearest_name<'a>(given: &str, known: impl IntoIterator<Item = &'a str> + Clone) -> Option<&'a str> {
    let plain = |text: &str| text.to_lowercase().replace('-', "_");
    let given = plain(given);
    // One edit in names of up to five characters, one more for every three characters after that.
    let allowed = (given.chars().count() / 3).max(1);
    let near_misspelling = known
        .clone()
        .into_iter()
        .map(|name| (strsim::damerau_levenshtein(&given, &plain(name)), name))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance);
    let mut containing = known.into_iter().filter(|name| name.split('_').any(|word| word == given));
    match (near_misspelling, containing.next(), containing.next()) {
        (Some((_, name)), ..) => Some(name),
        (None, Some(name), None) => Some(name),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
