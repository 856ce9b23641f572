//! Queues of requests that wait for room (`throttle.wait`), and the pace at which they are admitted (`throttle.pace`).

use http::HeaderName;
use serde::Deserialize as _;
use serde::de::value::{Error, StrDeserializer};

use super::context::CompileContext;
use super::matching;
use crate::at::At;
use crate::diagnostic::ValueError;
use crate::quoting::quoted;
use crate::{defaults, parse, raw};
use weir_limiter::check_options::OnDenied;
use weir_limiter::wait_queue::QueueOrder;
use weir_limiter::wait_queue::pace::PaceMode;
use weir_policy::response::rejection::RejectionResponse;
use weir_policy::rules::attribute::Attribute;
use weir_policy::rules::key::KeyTemplate;
use weir_policy::rules::rule::LimitAction;
use weir_policy::rules::wait::WaitPolicy;

/// Words that stand before the key in a fair order.
const FAIR_BY: &str = "fair by ";

/// Compiles the queue of the rule at `at`; `None` if its requests do not wait in one.
pub(super) fn compile(raw: &raw::Rule, at: At<'_>, context: &CompileContext<'_>) -> Option<Box<WaitPolicy>> {
    let Some(raw::Throttle::Map(map)) = raw.throttle.as_deref() else { return None };
    let at = at.key("throttle");
    let Some(wait) = &map.wait else {
        if map.pace.is_some() && !at.key("wait").is_reported() {
            at.key("pace").key_error("`pace` needs `wait`");
        }
        return None;
    };
    let at = at.key("wait");
    let max = wait.max.as_ref().and_then(|max| at.key("max").ok(parse::delay(&max.0)));
    let (order, fair_key) = compile_order(wait.order.as_ref(), at.key("order"), context);
    let deadline = compile_header(wait.deadline.as_ref(), at.key("deadline"));
    let priority = compile_header(wait.priority.as_ref(), at.key("priority"));
    Some(Box::new(WaitPolicy {
        max: max?,
        max_queued: wait.queue.unwrap_or(defaults::MAX_WAITING),
        order,
        fair_key,
        deadline,
        priority,
        pace: map.pace,
    }))
}

fn compile_header(raw: Option<&raw::WaitHeader>, at: At<'_>) -> Option<HeaderName> {
    at.key("header").ok(matching::parse_header_name(raw?.header.as_ref()?))
}

fn compile_order(
    raw: Option<&raw::WaitOrder>,
    at: At<'_>,
    context: &CompileContext<'_>,
) -> (QueueOrder, KeyTemplate) {
    let words = match raw {
        None => return Default::default(),
        Some(raw::WaitOrder::Words(words)) => words.0.trim(),
        Some(raw::WaitOrder::Map(map)) => {
            let parts = map.fair.iter().flat_map(|key| key.items());
            let at = at.key("fair");
            let parts = parts.filter_map(|(index, part)| {
                let at = index.map_or_else(|| at.single_item(), |index| at.item(index));
                let part = matching::compile_key_part(part, at, context)?;
                check_flow(part, at)
            });
            return (QueueOrder::Fair, KeyTemplate(parts.collect()));
        }
    };
    match words {
        "fifo" => (QueueOrder::Fifo, KeyTemplate::default()),
        "lifo" => (QueueOrder::Lifo, KeyTemplate::default()),
        _ => {
            let at = at.single_item();
            let part = at.ok(parse_fair_words(words));
            let part = part.and_then(|part| matching::compile_plain_part(part, at, context));
            let part = part.and_then(|part| check_flow(part, at));
            (QueueOrder::Fair, KeyTemplate(part.into_iter().collect()))
        }
    }
}

/// Parses `fair by KEY`, with a part of a key that needs no name.
fn parse_fair_words(words: &str) -> Result<raw::PlainKey, ValueError> {
    let part = words.strip_prefix(FAIR_BY).map(str::trim).ok_or_else(|| {
        let error =
            ValueError::new(format!("unknown order {}, expected fifo, lifo or fair by KEY", quoted(words)));
        match words == "fair" {
            true => error.with_hint("write `fair by client_ip`"),
            false => error.with_suggestion(parse::nearest_name(words, ["fifo", "lifo", "fair by client_ip"])),
        }
    })?;
    raw::PlainKey::deserialize(StrDeserializer::<Error>::new(part)).map_err(|_| {
        let error = ValueError::new(format!("unknown part of a key {}", quoted(part)));
        error.with_hint("write parts with a name as a map, such as `{ fair: { header: x-tenant } }`")
    })
}

/// Reports a part that requests do not have in a queue.
fn check_flow(part: Attribute, at: At<'_>) -> Option<Attribute> {
    if part == Attribute::Route {
        let error = ValueError::new("`route` cannot tell flows apart");
        at.error(error.with_hint("use `path`"));
        return None;
    }
    Some(part)
}

/// Reports settings of the rule at `at` that contradict its queue, and notes those without an effect.
pub(super) fn check(raw: &raw::Rule, limiting: &LimitAction, at: At<'_>) {
    let Some(wait) = &limiting.wait else { return };
    let throttle_at = at.key("throttle");
    if limiting.ban.is_some() {
        let error = ValueError::new("`ban` cannot be combined with `wait`");
        at.key("on_limit").key("ban").key_error(
            error.with_hint("a rejected request is not a sign of abuse if requests wait; use another rule"),
        );
    }
    if limiting.on_denied == OnDenied::Charge {
        let error = ValueError::new("`on_denied: charge` cannot be combined with `wait`");
        at.key("on_denied").key_error(error.with_hint("waiting requests are charged once admitted"));
    }
    if wait.pace.is_some() && limiting.limits.is_empty() {
        throttle_at.key("pace").key_error("`pace` needs a limit, and this rule has none");
    }
    if wait.pace == Some(PaceMode::Even) && raw.burst.is_some_and(|burst| burst.get() > 1) {
        let note = ValueError::new("`pace: even` spaces requests evenly, so `burst` has no effect");
        at.key("burst").note(note.with_hint("remove `burst`, or use `pace: pid`"));
    }
}

/// Sets the status code of the rule's rejections, if its queue has one.
pub(super) fn set_status(raw: &raw::Rule, rejection: &mut RejectionResponse, at: At<'_>) {
    let Some(raw::Throttle::Map(map)) = raw.throttle.as_deref() else { return };
    let Some(status) = map.wait.as_ref().and_then(|wait| wait.status) else { return };
    let status_at = at.key("throttle");
    let status_at = status_at.key("wait");
    let status_at = status_at.key("status");
    if !matches!(status, 429 | 503) {
        status_at.error(format!("expected 429 or 503, got {status}"));
    }
    if raw.on_limit.as_deref().is_some_and(|given| given.status.is_some()) {
        status_at.key_error("both `wait.status` and `on_limit.status`, expected one of them");
    }
    rejection.status = super::rejection::status_code(Some(status), defaults::REJECTION_STATUS);
}
