//! `respond` of a rule: calls that are accepted now and sent later, through the store.

use std::ops::RangeInclusive;

use http::StatusCode;

use super::context::CompileContext;
use super::limit_scope;
use super::retries::parse_backoff;
use crate::at::At;
use crate::diagnostic::ValueError;
use crate::{defaults, parse, raw};
use weir_policy::rules::deferral::Deferral;

/// Valid maximum sizes of a body, in bytes. A call is one command of the store, and several are read at once.
const BODY_RANGE: RangeInclusive<u64> = 1..=8 << 20;

/// Compiles how the rule at `at` accepts calls that are sent later; `None` if it forwards them at once.
pub(super) fn compile(
    rule: &raw::Rule,
    rule_at: At<'_>,
    context: &mut CompileContext<'_>,
) -> Option<Box<Deferral>> {
    let (raw, at) = (rule.respond.as_deref(), rule_at.key("respond"));
    if raw.is_some() && rule.on_limit.is_some() {
        let condition =
            ValueError::new("with `respond`").with_hint("a call over the limit waits in the store");
        rule_at.inapplicable_key("on_limit", condition);
    }
    let short;
    let map = match raw? {
        raw::Respond::Status(status) => {
            short = raw::RespondMap { status: Some(*status), ..raw::RespondMap::default() };
            &short
        }
        raw::Respond::Map(map) => map,
    };
    context.needs_store = true;
    if !context.store.is_given {
        at.error(limit_scope::missing_store());
    }
    let backoff = map.backoff.as_ref().and_then(|raw| at.key("backoff").ok(parse_backoff(&raw.0)));
    let (first_backoff, max_backoff) = backoff.unwrap_or(defaults::DEFERRAL_BACKOFF);
    Some(Box::new(Deferral {
        status: StatusCode::from_u16(map.status.unwrap_or(defaults::DEFERRAL_STATUS))
            .unwrap_or(StatusCode::ACCEPTED),
        attempts: map.attempts.unwrap_or(defaults::DEFERRAL_ATTEMPTS),
        first_backoff,
        max_backoff,
        max_age: at.key("max_age").timeout(&map.max_age, defaults::DEFERRAL_MAX_AGE),
        max_body: read_max_body(map.max_body.as_ref(), at.key("max_body")),
        max_stored: map.max_stored.unwrap_or(defaults::DEFERRAL_MAX_STORED),
    }))
}

fn read_max_body(raw: Option<&raw::Size>, at: At<'_>) -> u32 {
    let size = raw.and_then(|size| at.ok(parse::size(&size.0)));
    let Some(size) = size else { return defaults::DEFERRAL_MAX_BODY };
    if !BODY_RANGE.contains(&size) {
        let error = ValueError::new(format!("expected a size from 1B to 8MiB, got {size} bytes"));
        at.error(error);
    }
    u32::try_from(size).unwrap_or(defaults::DEFERRAL_MAX_BODY)
}
