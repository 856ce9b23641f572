//! What a text in the configuration means: the only place where units are read.
//!
//! Every function takes one value and answers with it or with a [`Fault`] that says what would be right.
//! Numbers of any length are read without overflow; nothing here panics, whatever it is given.

mod address;
mod document_url;
mod network;
mod place;
mod plan;
mod protocol;
mod redis_url;
mod schedule;
mod status;
mod throttle;
mod zone;

use std::num::NonZeroU32;
use std::time::Duration;

pub use self::address::{UpstreamPlace, collector, host, listen_address, listener_address, upstream_address};
pub use self::document_url::document_url;
pub use self::network::network;
pub use self::place::{asn, continent, country};
pub use self::plan::plan;
pub use self::protocol::protocol;
pub use self::redis_url::{RedisServer, redis_url, sentinel_address};
pub use self::schedule::schedule;
pub use self::status::statuses;
pub use self::throttle::{delay, factor, margin, share, throttle};
pub use self::zone::zone;
use super::problem::{Fault, quoted};
use crate::config::defaults::LONGEST_DURATION;
use crate::limiter::quota::{Limit, Period, Unit};

/// The units of sizes: powers of 1024, and plain bytes.
const SIZES: [(&str, u64); 4] = [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];

/// Reads a rate, e.g. `100/s`, `10/30s` or `10 per minute`.
///
/// # Errors
/// A [`Fault`] that says which part cannot be read.
pub fn rate(text: &str) -> Result<Limit, Fault> {
    let Some((count, period)) = split_rate(text) else { return Err(not_a_rate(text)) };
    let (count, period) = (count.trim(), period.trim());
    if count.is_empty() {
        return Err(Fault::new(format!("missing count before the period in {}", quoted(text))));
    }
    if !is_digits(count) {
        return Err(bad_count(count, period));
    }
    Ok(Limit::new(whole(count, "count")?, self::period(period, text)?))
}

/// Reads a duration, e.g. `250ms`, `5s` or `2h`; zero only as `0s` and the like.
///
/// # Errors
/// A [`Fault`] that says which part cannot be read.
pub fn duration(text: &str) -> Result<Duration, Fault> {
    let (count, name) = split_number(text.trim());
    if count.is_empty() || name.is_empty() {
        let fault = Fault::new(format!("expected a duration such as `5s`, got {}", quoted(text)));
        return Err(if name.is_empty() && !count.is_empty() {
            fault.hint(format!("add the unit, as in `{count}s`"))
        } else {
            fault
        });
    }
    let units = Unit::ALL.into_iter().filter(|unit| *unit <= Unit::Week);
    let unit = unit(name, units)?;
    let count: u64 = count.parse().unwrap_or(u64::MAX);
    let duration = Duration::from_nanos(unit.nanos().saturating_mul(count));
    if duration > LONGEST_DURATION {
        return Err(Fault::new(format!("longer than 365 days, got {}", quoted(text))));
    }
    Ok(duration)
}

/// `duration` as a period, in the largest unit that keeps it whole; nothing for what is shorter than a millisecond.
pub fn whole_period(duration: Duration) -> Option<Period> {
    let nanos = u64::try_from(duration.as_nanos()).ok()?;
    let units = Unit::ALL.into_iter().filter(|unit| *unit <= Unit::Day).rev();
    let period = |unit: Unit| {
        let count = u32::try_from(nanos / unit.nanos()).ok().and_then(NonZeroU32::new)?;
        nanos.is_multiple_of(unit.nanos()).then(|| Period::new(count, unit))
    };
    units.into_iter().find_map(period)
}

/// Reads a size, e.g. `64KiB` or `512B`.
///
/// # Errors
/// A [`Fault`] that says which part cannot be read.
pub fn size(text: &str) -> Result<u64, Fault> {
    let (count, name) = split_number(text.trim());
    if count.is_empty() || name.is_empty() {
        return Err(Fault::new(format!("expected a size such as `64KiB`, got {}", quoted(text))));
    }
    let Some((_, bytes)) = SIZES.into_iter().find(|(known, _)| *known == name) else {
        let known = SIZES.map(|(known, _)| known).join(", ");
        return Err(Fault::new(format!("unknown unit {}, expected one of {known}", quoted(name))));
    };
    let count: Option<u64> = count.parse().ok();
    count
        .and_then(|count| count.checked_mul(bytes))
        .ok_or_else(|| Fault::new(format!("above 18446744073709551615 bytes, got {}", quoted(text))))
}

/// `duration` as configuration has it, in the largest unit up to the hour that keeps it whole.
pub fn duration_text(duration: Duration) -> String {
    let millis = duration.as_millis();
    for (unit, length) in [("h", 3_600_000), ("m", 60_000), ("s", 1000)] {
        if millis.is_multiple_of(length) && (millis > 0 || unit == "s") {
            return format!("{}{unit}", millis / length);
        }
    }
    format!("{millis}ms")
}

/// Around the first `/`, or the word `per`.
fn split_rate(text: &str) -> Option<(&str, &str)> {
    if let Some(parts) = text.split_once('/') {
        return Some(parts);
    }
    let (count, rest) = text.trim_start().split_once(char::is_whitespace)?;
    let period = rest.trim_start().strip_prefix("per")?;
    (period.is_empty() || period.starts_with(char::is_whitespace)).then_some((count, period))
}

fn not_a_rate(text: &str) -> Fault {
    let fault = Fault::new(format!("expected a rate such as `100/s`, got {}", quoted(text)));
    match text.trim() {
        count if is_digits(count) => fault.hint(format!("add the period, as in `{count}/s`")),
        _ => fault,
    }
}

fn bad_count(count: &str, period: &str) -> Fault {
    let fault = Fault::new(format!("expected a whole number before the period, got {}", quoted(count)));
    match count.split_once('.') {
        Some((whole, tenths)) if is_digits(whole) && is_digits(tenths) && tenths.len() == 1 => {
            match self::period(period, period) {
                Ok(period) if period.count() == NonZeroU32::MIN => {
                    let count = format!("{whole}{tenths}");
                    let count = count.trim_start_matches('0');
                    fault.hint(format!("write `{count}/10{}`", period.unit().as_str()))
                }
                _ => fault,
            }
        }
        _ => fault,
    }
}

/// Reads a period, e.g. `s` or `30 seconds`; `rate` is what it stands in.
fn period(text: &str, rate: &str) -> Result<Period, Fault> {
    let (count, name) = split_number(text);
    if name.is_empty() {
        return Err(Fault::new(format!("missing unit after the count in {}", quoted(rate)))
            .hint(format!("one of {}", names(Unit::ALL))));
    }
    let unit = unit(name, Unit::ALL)?;
    let count = if count.is_empty() { NonZeroU32::MIN } else { whole(count, "count of the period")? };
    Ok(Period::new(count, unit))
}

/// The unit of this name among `known` ones.
fn unit(name: &str, known: impl IntoIterator<Item = Unit> + Clone) -> Result<Unit, Fault> {
    let found = |name: &str| known.clone().into_iter().find(|unit| is_name_of(*unit, name));
    if let Some(unit) = found(name) {
        return Ok(unit);
    }
    let fault =
        Fault::new(format!("unknown unit {}, expected one of {}", quoted(name), names(known.clone())));
    // A capital M is a month to some and a minute to others.
    if name == "M" {
        return Err(fault.hint("write `min` or `month`"));
    }
    let lower = name.to_lowercase();
    let stem = lower.strip_suffix('s').unwrap_or(&lower);
    let begun = |unit: &Unit| stem.len() >= 3 && word(*unit).starts_with(stem);
    match found(&lower).or_else(|| known.into_iter().find(begun)) {
        Some(unit) => Err(fault.hint(format!("write `{}`", unit.as_str()))),
        None => Err(fault),
    }
}

fn is_name_of(unit: Unit, name: &str) -> bool {
    let is_minute = unit == Unit::Minute && name == "m";
    is_minute || name == unit.as_str() || name.strip_suffix('s').unwrap_or(name) == word(unit)
}

/// The unit as a word.
pub(super) const fn word(unit: Unit) -> &'static str {
    match unit {
        Unit::Millisecond => "millisecond",
        Unit::Second => "second",
        Unit::Minute => "minute",
        Unit::Hour => "hour",
        Unit::Day => "day",
        Unit::Week => "week",
        Unit::Month => "month",
        Unit::Year => "year",
    }
}

fn names(units: impl IntoIterator<Item = Unit>) -> String {
    units.into_iter().map(Unit::as_str).collect::<Vec<_>>().join(", ")
}

/// Digits and what follows them, blanks between them dropped.
fn split_number(text: &str) -> (&str, &str) {
    let end = text.bytes().take_while(u8::is_ascii_digit).count();
    (&text[..end], text[end..].trim_start())
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// A whole number from 1 to the largest that counters hold.
fn whole(digits: &str, what: &str) -> Result<NonZeroU32, Fault> {
    let significant = digits.trim_start_matches('0');
    if significant.is_empty() {
        return Err(Fault::new(format!("{what} must be at least 1, got {}", quoted(digits))));
    }
    significant
        .parse()
        .map_err(|_| Fault::new(format!("{what} is above {}, got {}", u32::MAX, quoted(digits))))
}

/// The nearest of `known` names, if it is near enough to be what was meant.
pub(super) fn nearest<'a>(given: &str, known: impl IntoIterator<Item = &'a str> + Clone) -> Option<&'a str> {
    let plain = |text: &str| text.to_lowercase().replace('-', "_");
    let given = plain(given);
    // One slip in short names, one more for every three letters after that.
    let allowed = (given.chars().count() / 3).max(1);
    let slip = known
        .clone()
        .into_iter()
        .map(|name| (strsim::damerau_levenshtein(&given, &plain(name)), name))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance);
    let mut containing = known.into_iter().filter(|name| name.split('_').any(|word| word == given));
    match (slip, containing.next(), containing.next()) {
        (Some((_, name)), ..) => Some(name),
        (None, Some(name), None) => Some(name),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
