//! Classes of requests, and the concurrency of upstreams that they share.

use std::num::NonZeroU32;

use http::header::{AUTHORIZATION, COOKIE, FORWARDED, PROXY_AUTHORIZATION};
use http::{HeaderName, HeaderValue};

use super::context::CompileContext;
use super::{map_items, matching, nested_networks, rules, upstream_headers};
use crate::at::At;
use crate::diagnostic::ValueError;
use crate::quoting::backquoted;
use crate::raw;
use crate::{UpstreamConfig, defaults};
use weir_limiter::adaptive::AdaptiveRange;
use weir_policy::identify::client_headers::names_client_or_target;
use weir_policy::rules::attribute::Attribute;
use weir_policy::rules::classes::{Classes, DEFAULT_CLASS, RequestClass, X_WEIR_CRITICALITY};
use weir_policy::rules::key::KeyTemplate;
use weir_policy::rules::matcher::Matcher;
use weir_upstream::settings::{CircuitBreakerLimits, SlotSettings};

/// Maximum number of classes: each freed slot compares all of them.
const MAX_CLASSES: usize = 32;

/// Compiles `classes`; `None` if there are none.
pub(super) fn compile(raw: &raw::Root, root: At<'_>, context: &mut CompileContext<'_>) -> Option<Classes> {
    let header = compile_header(raw, root.key("criticality_header"), context);
    let at = root.key("classes");
    let Some(list) = &raw.classes else {
        if raw.criticality_header.is_some() && !at.is_reported() {
            let note = ValueError::new("has no effect without `classes`");
            root.key("criticality_header").note(note.with_hint("the header names one of the `classes`"));
        }
        return None;
    };
    let mut classes: Vec<RequestClass> = Vec::new();
    map_items(list, at, |raw, at| {
        let class = compile_class(raw, at.single_item(), context)?;
        check_order(&class, &classes, at);
        classes.push(class);
        Some(())
    });
    if classes.len() > MAX_CLASSES {
        at.error(format!("expected at most {MAX_CLASSES} classes, got {}", classes.len()));
    }
    if classes.iter().all(|class| class.matcher.is_some()) {
        classes.push(rest(&classes));
    }
    Some(Classes::new(classes, header))
}

/// Gives the upstreams their slots. Returns the classes of their requests, if any upstream has slots.
pub(super) fn divide(
    classes: Option<Classes>,
    upstreams: &mut [UpstreamConfig],
    at: At<'_>,
) -> Option<Classes> {
    if classes.is_some() && upstreams.is_empty() {
        let note = ValueError::new("have no effect, because no listener forwards to an upstream");
        at.note(note.with_hint("classes divide the concurrency of `upstream` or `upstreams`"));
    }
    let is_divided = classes.is_some();
    let is_limited = upstreams.iter().any(|upstream| upstream.settings.concurrency.is_some());
    let classes = classes.or_else(|| is_limited.then(|| Classes::new([rest(&[])], None)))?;
    let shares = classes.all().iter().map(|class| (class.name().into(), class.gate_share()));
    let shares: Box<[_]> = shares.collect();
    for upstream in upstreams {
        let concurrency = &mut upstream.settings.concurrency;
        if is_divided {
            let limits = upstream.settings.limits;
            concurrency.get_or_insert_with(|| SlotSettings::new(within(AdaptiveRange::default(), limits)));
        }
        if let Some(concurrency) = concurrency {
            concurrency.classes.clone_from(&shares);
        }
    }
    Some(classes)
}

/// Returns the bounds within those of the circuit breaker, which rejects requests beyond them without waiting.
pub(super) fn within(range: AdaptiveRange, limits: CircuitBreakerLimits) -> AdaptiveRange {
    let max = NonZeroU32::new(limits.requests).unwrap_or(NonZeroU32::MIN).min(range.max());
    AdaptiveRange::new(range.min().min(max), max).unwrap_or(range)
}

/// Returns the class of requests that no other one matches.
fn rest(others: &[RequestClass]) -> RequestClass {
    let shares: u32 = others.iter().map(|class| class.share.get()).sum();
    let rest = 100_u32.saturating_sub(shares);
    RequestClass {
        name: HeaderValue::from_static(DEFAULT_CLASS),
        matcher: None,
        key: KeyTemplate([Attribute::ClientIp].into()),
        share: NonZeroU32::new(rest).unwrap_or(NonZeroU32::MIN).max(defaults::CLASS_SHARE),
        is_sheddable: false,
    }
}

fn compile_class(
    raw: &raw::RequestClass,
    at: At<'_>,
    context: &mut CompileContext<'_>,
) -> Option<RequestClass> {
    let raw_matcher = raw.matching.as_ref();
    let matcher = raw_matcher.map(|raw| matching::compile_matcher(Some(raw), at.key("match"), context));
    if matcher.as_ref().is_some_and(Matcher::holds_for_all) && !at.key("match").is_reported() {
        let error = ValueError::new("matches every request, so that no later class has any");
        at.key("match").error(error.with_hint("leave out `match` for the class of all other requests"));
    }
    let unconditional = matching::compile_matcher(None, at.key("match"), context);
    if let Some(key) = &raw.key {
        nested_networks::report_limits(key, at.key("key"), "a class has no limits");
    }
    let key = match &raw.key {
        Some(key) => matching::compile_key(key, matcher.as_ref().unwrap_or(&unconditional), at, context),
        None => KeyTemplate([Attribute::ClientIp].into()),
    };
    let share = raw.share.unwrap_or(defaults::CLASS_SHARE);
    let Some(name) = &raw.name else {
        if !at.key("name").is_reported() {
            at.key("name").error("missing, `name` is required");
        }
        return None;
    };
    at.key("name").ok(rules::check_name(name))?;
    if name == DEFAULT_CLASS && matcher.is_some() {
        let error = ValueError::new("`default` is the class of requests that no other class matches");
        at.key("name").error(error.with_hint("leave out its `match`, or rename it"));
    }
    let is_sheddable = raw.sheddable.unwrap_or(false);
    Some(RequestClass { name: HeaderValue::from_str(name).ok()?, matcher, key, share, is_sheddable })
}

/// Reports a second class with the same name, or for all requests.
fn check_order(class: &RequestClass, before: &[RequestClass], at: At<'_>) {
    let name = backquoted(class.name());
    if before.iter().any(|other| other.name == class.name) {
        at.key("name").error(format!("duplicate class name {name}"));
    }
    let is_rest = |class: &&RequestClass| class.matcher.is_none();
    if let Some(rest) = before.iter().find(is_rest).filter(|_| class.matcher.is_none()) {
        let rest = backquoted(rest.name());
        let error = format!("class {rest} already takes all requests that no other class matches");
        at.error(ValueError::new(error).with_hint("add a `match` to one of them"));
    }
}

fn compile_header(raw: &raw::Root, at: At<'_>, context: &CompileContext<'_>) -> Option<HeaderName> {
    let Some(raw) = &raw.criticality_header else { return Some(X_WEIR_CRITICALITY) };
    let error = ValueError::new("expected the name of a header or `false`, got true");
    let name = at.unless_off(raw, error)?;
    if !context.has_trusted_proxies {
        let note = ValueError::new("is set for upstreams only, because no peer is trusted to name a class");
        at.note(note.with_hint("add the networks of peers to `client_ip.trusted_proxies`"));
    }
    let name = at.ok(upstream_headers::parse_name(name))?;
    let is_meant_for_services = [AUTHORIZATION, PROXY_AUTHORIZATION, COOKIE, FORWARDED].contains(&name);
    let names_client = name.as_str().starts_with("x-forwarded-") || names_client_or_target(name.as_str());
    if is_meant_for_services || names_client {
        let error =
            ValueError::new(format!("`{name}` has another meaning, and would be removed from requests"));
        at.error(error.with_hint("choose a name of your own, such as `x-criticality`"));
    }
    Some(name)
}
