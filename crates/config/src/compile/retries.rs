//! Retries of requests to an upstream.

use std::time::Duration;

use super::cost::parse_statuses_or_word;
use super::{endpoints, map_items};
use crate::at::At;
use crate::diagnostic::ValueError;
use crate::quoting::{backquoted_list, quoted};
use crate::{defaults, parse, raw};
use weir_policy::rules::grpc::GrpcStatus;
use weir_upstream::settings::{Retries, RetryOn};

/// Conditions of `retry_on` in addition to status codes.
const RETRY_CONDITIONS: [&str; 3] = ["connect_failure", "reset", "timeout"];

/// Attempts at other endpoints if `retries` is not configured. Applies only if no connection can be made,
/// when a retry is always safe.
const DEFAULT_ATTEMPTS: u32 = defaults::CONNECT_RETRIES;

/// Compiles `retries`.
pub(super) fn compile(raw: Option<&raw::Retries>, at: At<'_>) -> Retries {
    let connect_failure_only = RetryOn { connect_failure: true, ..RetryOn::default() };
    let Some(raw) = raw else {
        return Retries {
            attempts: DEFAULT_ATTEMPTS,
            on: connect_failure_only,
            backoff: defaults::RETRY_BACKOFF,
            budget: 0,
            per_try_timeout: None,
            attempt_count: false,
            idempotency_key: true,
            max_wait: defaults::MAX_RETRY_WAIT,
        };
    };
    let default_on = RetryOn { reset: true, statuses: [(503, 503)].into(), ..connect_failure_only };
    let backoff = raw.backoff.as_ref().and_then(|raw| at.key("backoff").ok(parse_backoff(&raw.0)));
    Retries {
        attempts: raw.attempts.unwrap_or(defaults::RETRIES),
        on: raw.retry_on.as_ref().map_or(default_on, |raw| compile_retry_on(raw, at.key("retry_on"))),
        backoff: backoff.unwrap_or(defaults::RETRY_BACKOFF),
        budget: endpoints::read_percent(raw.budget.as_ref(), defaults::RETRY_BUDGET, at.key("budget")),
        per_try_timeout: at.key("per_try_timeout").nonzero_duration(raw.per_try_timeout.as_ref()),
        attempt_count: raw.attempt_count.unwrap_or(false),
        idempotency_key: raw.idempotency_key.unwrap_or(true),
        max_wait: at.key("max_wait").duration(raw.max_wait.as_ref()).unwrap_or(defaults::MAX_RETRY_WAIT),
    }
}

fn compile_retry_on(raw: &raw::OneOrMany<raw::OutcomePattern>, at: At<'_>) -> RetryOn {
    let (mut on, mut calls) = (RetryOn::default(), Vec::new());
    let statuses = map_items(raw, at, |raw, at| {
        let text = match raw {
            raw::OutcomePattern::Code(code) => code.to_string(),
            raw::OutcomePattern::Pattern(text) => text.clone(),
        };
        match text.as_str() {
            "connect_failure" => on.connect_failure = true,
            "reset" => on.reset = true,
            "timeout" => on.timeout = true,
            name => match GrpcStatus::from_name(name) {
                Some(call) => calls.push(call.code()),
                None => {
                    let known = backquoted_list(RETRY_CONDITIONS);
                    let expected = format!("{known} or status codes such as `503`");
                    let words = RETRY_CONDITIONS.into_iter().chain(GrpcStatus::names());
                    let range = at.ok(parse_statuses_or_word(words, &expected, name))?;
                    return Some((*range.start(), *range.end()));
                }
            },
        }
        None
    });
    RetryOn { statuses: statuses.into(), grpc_codes: calls.into(), ..on }
}

/// Parses a range such as `25ms..250ms`, or one duration for both ends.
pub(super) fn parse_backoff(text: &str) -> Result<(Duration, Duration), ValueError> {
    let (base, max) = text.split_once("..").unwrap_or((text, text));
    let (base, max) = (parse::duration(base)?, parse::duration(max)?);
    if base > max {
        let error = ValueError::new(format!("expected the shorter duration first, got {}", quoted(text)));
        return Err(error.with_hint(format!(
            "write `{}..{}`",
            parse::format_duration(max),
            parse::format_duration(base)
        )));
    }
    Ok((base, max))
}
