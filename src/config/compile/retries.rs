//! Retries of requests to an upstream.

use std::time::Duration;

use super::tariff::statuses_or;
use super::{each, endpoints, positive};
use crate::config::at::At;
use crate::config::problem::{Fault, Report, listed, quoted};
use crate::config::{defaults, parse, raw};
use crate::upstream::settings::{Retries, RetryOn};

/// Conditions of `retry_on` in addition to status codes.
const WORDS: [&str; 3] = ["connect_failure", "reset", "timeout"];

/// Attempts at other endpoints if `retries` is not configured. Applies only if no connection can be made,
/// when a retry is always safe.
const UNSAID: u32 = defaults::MOVES;

/// Compiles `retries`.
pub(super) fn compile(raw: Option<&raw::Retries>, at: At<'_>, report: &mut Report<'_>) -> Retries {
    let connecting = RetryOn { connect_failure: true, ..RetryOn::default() };
    let Some(raw) = raw else {
        return Retries {
            attempts: UNSAID,
            on: connecting,
            backoff: defaults::BACKOFF,
            budget: 0,
            per_try_timeout: None,
            attempt_count: false,
        };
    };
    let usual = RetryOn { reset: true, statuses: [(503, 503)].into(), ..connecting };
    let backoff = raw.backoff.as_ref().and_then(|raw| report.take(at.key("backoff"), backoff(&raw.0)));
    Retries {
        attempts: raw.attempts.unwrap_or(defaults::RETRIES),
        on: raw.retry_on.as_ref().map_or(usual, |raw| retry_on(raw, at.key("retry_on"), report)),
        backoff: backoff.unwrap_or(defaults::BACKOFF),
        budget: endpoints::percent(raw.budget.as_ref(), defaults::RETRY_BUDGET, at.key("budget"), report),
        per_try_timeout: positive(raw.per_try_timeout.as_ref(), at.key("per_try_timeout"), report),
        attempt_count: raw.attempt_count.unwrap_or(false),
    }
}

fn retry_on(raw: &raw::OneOrMany<raw::Refund>, at: At<'_>, report: &mut Report<'_>) -> RetryOn {
    let mut on = RetryOn::default();
    let statuses = each(raw, at, |raw, at| {
        let text = match raw {
            raw::Refund::Code(code) => code.to_string(),
            raw::Refund::Pattern(text) => text.clone(),
        };
        match text.as_str() {
            "connect_failure" => on.connect_failure = true,
            "reset" => on.reset = true,
            "timeout" => on.timeout = true,
            _ => {
                let expected = format!("{} or status codes such as `503`", listed(WORDS));
                let range = report.take(at, statuses_or(WORDS, &expected, &text))?;
                return Some((*range.start(), *range.end()));
            }
        }
        None
    });
    RetryOn { statuses: statuses.into(), ..on }
}

/// Parses a range such as `25ms..250ms`, or one duration for both ends.
pub(super) fn backoff(text: &str) -> Result<(Duration, Duration), Fault> {
    let (base, most) = text.split_once("..").unwrap_or((text, text));
    let (base, most) = (parse::duration(base)?, parse::duration(most)?);
    if base > most {
        let fault = Fault::new(format!("expected the shorter duration first, got {}", quoted(text)));
        return Err(fault.hint(format!(
            "write `{}..{}`",
            parse::duration_text(most),
            parse::duration_text(base)
        )));
    }
    Ok((base, most))
}
