//! Stages of the pipeline that a request passes again after it has waited in a queue.

use std::rc::Rc;

use http::request;

use super::connection::DownstreamConnection;
use super::deferred;
use super::headers::overrides::RequestOverrides;
use super::headers::{self, Hop, RequestHeaderFlags};
use super::request_context::{RequestContext, record_decision};
use super::view::GenerationView;
use weir_http::headers::{FieldLines, take_head};
use weir_limiter::timestamp::Timestamp;
use weir_limits::{DecisionSummary, PendingLimits};
use weir_policy::engine::Policy;
use weir_policy::identify::{Attributes, IdentifySettings, MalformedPath, identify};
use weir_policy::response::rate_limit_headers::X_WEIR_OVER_LIMIT;
use weir_policy::rules::RuleIndex;
use weir_policy::rules::deferral::DeferredRequest;
use weir_policy::rules::selection::Selection;
use weir_telemetry::metrics::DecisionOutcome;
use weir_upstream::Upstream;
use weir_upstream::outgoing::OutgoingRequest;

/// Returns the attributes of a request that arrived on `connection`.
#[inline]
pub(super) fn identify_request<'a>(
    connection: &'a DownstreamConnection,
    head: &'a request::Parts,
    settings: &'a IdentifySettings,
    now: Timestamp,
) -> Result<Attributes<'a>, MalformedPath> {
    let civil = connection.worker.shared.clock.civil_time_at(now);
    let mut attributes = identify(&head.method, &head.uri, &head.headers, connection.peer, settings, civil)?;
    (attributes.certificate, attributes.listener) = (connection.certificate(), connection.listener_name());
    Ok(attributes)
}

/// Matches the rules against a request; `deferral` becomes the rule that defers it. A stored call is only subject to the
/// rule that has stored it: the others were applied when it was accepted.
pub(super) fn select(
    context: &RequestContext,
    view: &GenerationView,
    head: &request::Parts,
    attributes: &Attributes<'_>,
    deferral: &mut Option<DeferredRequest>,
) -> Selection {
    let connection = &context.connection;
    let (rules, headroom) = (&view.policy.rules, connection.worker.shared.elastic.headroom());
    if let Some(stored) = &connection.stored {
        return rules.select_deferred(&stored.deferred, attributes, headroom);
    }
    // Written in place, because it is large.
    let mut selection = Selection::default();
    rules.select_into(&mut selection, attributes, headroom);
    if rules.has_deferrals()
        && let Selection::Limited(..) = selection
    {
        match deferred::find(context, view, head, attributes) {
            Ok(found) => *deferral = found,
            Err(denied) => return Selection::Denied(denied.rule, denied.denial),
        }
    }
    selection
}

/// Keeps what the local reply to a request may repeat, if the reply of any rule needs it.
pub(super) fn keep_details(
    context: &mut RequestContext,
    policy: &Policy,
    head: &request::Parts,
    flags: RequestHeaderFlags,
    hop: &Hop<'_>,
) {
    if policy.has_dynamic_replies {
        context.details = Some(Box::new(headers::request_details(head, flags, hop)));
    }
}

/// Records for the log the headers of a request that is not forwarded as the upstream would have received them, to which
/// `head` is changed.
pub(super) fn log_headers(
    context: &mut RequestContext,
    head: &mut request::Parts,
    flags: RequestHeaderFlags,
    hop: &Hop<'_>,
) {
    if let Some(log) = &mut context.log {
        let mut added = FieldLines::default();
        let _ = headers::prepare_request(head, flags, hop, &[], Some(&mut added));
        log.copy_headers(&head.headers, &added);
    }
}

/// Records what to settle of an admitted request, and how the limits that are counted here admit it, unless the store or
/// another service has yet to decide.
pub(super) fn record_admission(
    context: &mut RequestContext,
    view: &GenerationView,
    pending: &PendingLimits,
    attributes: &Attributes<'_>,
) {
    context.settlement = pending.settlement(&view.limits);
    context.followed = pending.followed(&view.limits);
    if !pending.is_pending() {
        record_decision(context, pending.limits(), None, Some(attributes));
    }
}

/// Records what a rule decided without a limit, also for the log.
pub(super) fn record_without_limit(
    context: &mut RequestContext,
    view: &GenerationView,
    rule: RuleIndex,
    outcome: DecisionOutcome,
    attributes: &Attributes<'_>,
) {
    view.limits.record_without_limit(rule, outcome, attributes, context.started_at);
    context.decision = Some(outcome);
    if let Some(log) = &mut context.log {
        log.set_decision(DecisionSummary::without_limit(rule, outcome));
    }
}

/// Prepares the request for the upstream, and sets the timeouts of that upstream. Returns the request, and the
/// overrides of an internal client.
pub(super) fn prepare(
    context: &mut RequestContext,
    head: &mut request::Parts,
    flags: RequestHeaderFlags,
    hop: &Hop<'_>,
    pending: &PendingLimits,
    view: &GenerationView,
    upstream: Option<&Upstream>,
) -> (OutgoingRequest, Option<Box<RequestOverrides>>) {
    if let Some(upstream) = upstream {
        context.timer.set_stream_idle_timeout(upstream.settings().idle_timeout);
        // A stored call has no client that could be slow.
        if let Some(scarcity) = upstream.scarcity().filter(|_| context.connection.stored.is_none()) {
            // The messages of a gRPC call may arrive at any pace.
            context.timer.require_min_rate(Rc::clone(scarcity), !context.is_grpc);
        }
    }
    if pending.is_pending() {
        // It may still be rejected, when its head is gone.
        keep_details(context, &view.policy, head, flags, hop);
    }
    let rewrite = upstream.map(|upstream| &upstream.settings().rewrite);
    context.hides_client |= rewrite.is_some_and(|rewrite| rewrite.hides_client);
    let hop = &Hop { hides_client: context.hides_client, ..*hop };
    let mut added_headers = FieldLines::default();
    // A rate limit service that has yet to decide may change headers of the request.
    let added = (!pending.is_pending()).then_some(&mut added_headers);
    let upgrades = upstream.map_or(&[][..], |upstream| &*upstream.settings().upgrades);
    let asked = headers::prepare_request(head, flags, hop, upgrades, added);
    context.upgrade.protocol = asked.upgrade;
    let marks = (!context.hides_client).then(|| pending.limits().mark_values(&view.limits));
    for mark in marks.into_iter().flatten() {
        head.headers.append(X_WEIR_OVER_LIMIT, mark);
    }
    if let Some(log) = &mut context.log {
        log.copy_headers(&head.headers, &added_headers);
    }
    if let Some(rewrite) = rewrite {
        headers::rewrite::rewrite_head(head, rewrite);
    }
    (OutgoingRequest { head: take_head(head), added_headers }, asked.overrides)
}
