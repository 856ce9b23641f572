//! Parameters of the commands on single keys.

use std::time::Duration;

use crate::admin::command_error::CommandError;
use crate::admin::query::Query;
use weir_config::parse;
use weir_limiter::quota::{BoostFactor, QuotaChange};
use weir_policy::engine::overrides::OverrideAction;

/// Maximum duration of an override.
const MAX_DURATION: Duration = Duration::from_secs(30 * 86_400);

/// Hundredths in a factor of 1.
const HUNDREDTHS: u32 = 100;

/// Checks that no parameter is repeated, and that all are of every command or among `parameters`.
pub(super) fn check_parameters(query: &Query<'_>, parameters: &[&str]) -> Result<(), CommandError> {
    let known = || ["rule", "key", "fingerprint"].into_iter().chain(parameters.iter().copied());
    let mut seen = Vec::new();
    for (name, _) in query.pairs() {
        if name == "domain" {
            return Err(CommandError::bad_request("`domain`: only /limits/reset knows limits of documents"));
        }
        let Some(known) = known().find(|known| *known == name) else {
            let names = known().collect::<Vec<_>>().join(", ");
            return Err(CommandError::bad_request(format!(
                "unknown parameter `{name}`, expected one of {names}"
            )));
        };
        if seen.contains(&known) {
            return Err(CommandError::bad_request(format!("`{known}` occurs twice")));
        }
        seen.push(known);
    }
    Ok(())
}

/// Reads `for`.
pub(super) fn parse_duration(query: &Query<'_>) -> Result<Duration, CommandError> {
    let text =
        query.get("for").ok_or_else(|| CommandError::bad_request("`for` is missing, such as `for=1h`"))?;
    let duration = parse::duration(&text).map_err(|error| CommandError::invalid("for", &error))?;
    if duration.is_zero() || duration > MAX_DURATION {
        return Err(CommandError::bad_request(format!(
            "for: expected more than 0s and at most 30d, got `{text}`"
        )));
    }
    Ok(duration)
}

/// Reads `factor` or `limit`; `None` is a factor of 1.
pub(super) fn parse_boost(query: &Query<'_>) -> Result<Option<OverrideAction>, CommandError> {
    let change = match (query.get("factor"), query.get("limit")) {
        (Some(factor), None) => parse_factor(&factor)?.map(QuotaChange::Factor),
        (None, Some(limit)) => {
            let limit = parse::rate(&limit).map_err(|error| CommandError::invalid("limit", &error))?;
            Some(QuotaChange::Limit(limit))
        }
        _ => return Err(CommandError::bad_request("expected exactly one of `factor` and `limit`")),
    };
    Ok(change.map(OverrideAction::Boost))
}

/// Reads a factor with up to two decimals; `None` is a factor of 1.
fn parse_factor(text: &str) -> Result<Option<BoostFactor>, CommandError> {
    let invalid = || {
        let most = BoostFactor::MAX;
        let expected = "factor: expected a number from 1 to";
        CommandError::bad_request(format!("{expected} {most} with up to two decimals, got `{text}`"))
    };
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(decimals) || decimals.len() > 2 {
        return Err(invalid());
    }
    let decimals = format!("{decimals:0<2}").parse::<u32>().map_err(|_| invalid())?;
    let hundredths = whole.parse::<u32>().ok().and_then(|whole| whole.checked_mul(HUNDREDTHS));
    let hundredths = hundredths.and_then(|whole| whole.checked_add(decimals)).ok_or_else(invalid)?;
    if hundredths == HUNDREDTHS {
        return Ok(None);
    }
    BoostFactor::from_hundredths(hundredths).map(Some).ok_or_else(invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_have_up_to_two_decimals() {
        let factor = |text: &str| parse_factor(text).map(|factor| factor.map(|factor| factor.to_string()));
        for (text, expected) in
            [("1", None), ("1.00", None), ("3", Some("3")), ("1.5", Some("1.5")), ("1000", Some("1000"))]
        {
            assert_eq!(factor(text).unwrap().as_deref(), expected, "{text}");
        }
        for text in
            ["", "0", "0.5", "-3", "+3", "1.", ".5", "1.555", "1000.01", "1e3", "NaN", "99999999999", "3x"]
        {
            assert!(factor(text).is_err(), "{text}");
        }
    }
}
