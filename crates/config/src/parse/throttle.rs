//! Handling of requests above a limit: `hard`, `soft 10%`, `delay 500ms` and so on, with their percentages
//! and factors.

use std::time::Duration;

use super::{duration, is_digits, nearest_name};
use crate::diagnostic::ValueError;
use crate::foreign::throttle_word;
use crate::quoting::quoted;
use weir_limiter::check_options::DelayPolicy;
use weir_limiter::elastic::ElasticRange;
use weir_limiter::percent::Percent;
use weir_policy::rules::rule::Throttle;

const EXPECTED_THROTTLE: &str = "expected hard, shadow, soft 10%, delay 500ms or elastic 3x";
const THROTTLE_NAMES: [&str; 5] = ["hard", "shadow", "soft", "delay", "elastic"];

/// Maximum delay. Clients do not wait longer, and a delayed request occupies a connection and memory.
const MAX_DELAY: Duration = Duration::from_secs(3600);
/// Maximum margin; a larger one is better expressed as another limit.
const MAX_MARGIN: Percent = Percent::from_hundredths(1000 * 100);

/// Parses `hard`, `shadow`, `soft 10%`, `delay 500ms` or `elastic 3x`.
///
/// # Errors
/// Returns a [`ValueError`] that names the part that cannot be read.
pub fn throttle(text: &str) -> Result<Throttle, ValueError> {
    let mut words = text.split_whitespace();
    let (word, value, rest) = (words.next().unwrap_or_default(), words.next(), words.next());
    let unknown = || ValueError::new(format!("unknown throttle {}, {EXPECTED_THROTTLE}", quoted(text)));
    if rest.is_some() {
        return Err(unknown().with_hint("write several as a map, such as `{ soft: 10%, delay: 50ms }`"));
    }
    match (word, value) {
        ("hard", None) => Ok(Throttle::Hard),
        ("shadow", None) => Ok(Throttle::Shadow),
        ("soft", Some(value)) => Ok(Throttle::Soft { margin: margin(value)?, delay: None }),
        ("delay", Some(value)) => Ok(Throttle::Delay(DelayPolicy::new(delay(value)?, None))),
        ("elastic", Some(value)) => Ok(Throttle::Elastic(elastic_factor(value)?)),
        ("soft", None) => Err(missing_value(text, "soft 10%")),
        ("delay", None) => Err(missing_value("delay", "delay 500ms")),
        ("wait", None) => Err(unknown().with_hint("write the map `{ wait: { max: 2s } }`")),
        ("elastic", None) => Err(missing_value(text, "elastic 3x")),
        ("wait", Some(value)) => {
            Err(unknown().with_hint(format!("write the map `{{ wait: {{ max: {value} }} }}`")))
        }
        ("hard" | "shadow", Some(_)) => Err(unknown().with_hint(format!("write `{word}`"))),
        _ => Err(match throttle_word(text) {
            Some(hint) => unknown().with_hint(hint),
            None => unknown().with_suggestion(nearest_name(word, THROTTLE_NAMES)),
        }),
    }
}

/// Parses the margin by which a limit may be exceeded: above 0 %, at most 1000 %.
///
/// # Errors
/// Returns a [`ValueError`] if it is not such a percentage.
pub fn margin(text: &str) -> Result<Percent, ValueError> {
    match unbounded_percentage(text)? {
        margin if margin.hundredths() == 0 => {
            Err(ValueError::new(format!("must be above 0%, got {}", quoted(text)))
                .with_hint("`throttle: hard` has no margin"))
        }
        margin if margin > MAX_MARGIN => {
            Err(ValueError::new(format!("above {MAX_MARGIN}, got {}", quoted(text)))
                .with_hint("raise the limit"))
        }
        margin => Ok(margin),
    }
}

/// Parses a percentage from `0%` to `100%`.
///
/// # Errors
/// Returns a [`ValueError`] if it is not such a percentage.
pub fn percentage(text: &str) -> Result<Percent, ValueError> {
    match unbounded_percentage(text)? {
        share if share > Percent::ONE_HUNDRED => {
            Err(ValueError::new(format!("above 100%, got {}", quoted(text))))
        }
        share => Ok(share),
    }
}

/// Parses the maximum delay of a request: above zero, at most an hour.
///
/// # Errors
/// Returns a [`ValueError`] if it is not such a duration.
pub fn delay(text: &str) -> Result<Duration, ValueError> {
    match duration(text)? {
        Duration::ZERO => Err("must be longer than 0, got 0".into()),
        delay if delay > MAX_DELAY => {
            Err(ValueError::new(format!("longer than an hour, got {}", quoted(text))))
        }
        delay => Ok(delay),
    }
}

/// Parses a factor such as `3x`: above 1, at most 100.
///
/// # Errors
/// Returns a [`ValueError`] if it is not such a factor.
pub fn elastic_factor(text: &str) -> Result<ElasticRange, ValueError> {
    let number = text.trim().strip_suffix('x');
    let Some(hundredths) = number.and_then(parse_hundredths) else {
        let error = ValueError::new(format!("expected a factor such as `3x`, got {}", quoted(text)));
        return Err(match trimmed_hundredths(text) {
            Some(_) => error.with_hint(format!("write `{}x`", text.trim())),
            None => error,
        });
    };
    ElasticRange::from_hundredths(hundredths)
        .ok_or_else(|| ValueError::new(format!("must be above 1x and at most 100x, got {}", quoted(text))))
}

fn unbounded_percentage(text: &str) -> Result<Percent, ValueError> {
    let number = text.trim().strip_suffix('%');
    let Some(hundredths) = number.and_then(|number| parse_hundredths(number.trim_end())) else {
        let error = ValueError::new(format!("expected a percentage such as `10%`, got {}", quoted(text)));
        return Err(match trimmed_hundredths(text) {
            Some(_) => error.with_hint(format!("write `{}%`", text.trim())),
            None => error,
        });
    };
    Ok(Percent::from_hundredths(hundredths))
}

fn trimmed_hundredths(text: &str) -> Option<u32> {
    parse_hundredths(text.trim())
}

/// Parses a number with at most two decimals, in hundredths; saturates at `u32::MAX`.
fn parse_hundredths(text: &str) -> Option<u32> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    if !is_digits(whole) || !is_digits(decimals) || decimals.len() > 2 {
        return None;
    }
    let decimals: u32 = format!("{decimals:0<2}").parse().ok()?;
    let whole: u32 = whole.parse().unwrap_or(u32::MAX);
    Some(whole.saturating_mul(100).saturating_add(decimals))
}

fn missing_value(given: &str, example: &str) -> ValueError {
    ValueError::new(format!("missing value after {}", quoted(given.trim())))
        .with_hint(format!("write `{example}`"))
}
