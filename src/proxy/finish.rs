//! Last stage of the pipeline: charges, counts and logs a request, however it ends.
//!
//! A request ends when its context is dropped: after the last byte of the response body, when its connection is closed
//! early, or on a panic.

use std::rc::Rc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use smallvec::SmallVec;

use super::grpc;
use super::request_context::{LogRecord, RequestContext, ResponseFlag};
use weir_bodies::response::ResponseReader;
use weir_limits::{AppliedLimits, DecisionSummary, FieldsRead, ProviderSignals, Settlement, TunnelRoom};
use weir_policy::rules::RuleIndex;
use weir_policy::rules::cost::RequestEnd;
use weir_policy::rules::grpc::{GRPC_STATUS, GrpcStatus};
use weir_telemetry::access_log::{AccessLogEntry, LoggedRule};
use weir_telemetry::metrics::{DecisionOutcome, FinalOutcome};
use weir_telemetry::spans::{SpanDecision, SpanDetails};

/// Settles what the request reserved, once its outcome is known, and updates the client's remaining units in `limits`.
pub(super) fn settle(context: &mut RequestContext, request_end: &RequestEnd<'_>, limits: &mut AppliedLimits) {
    let received = context.bytes_received();
    if let Some(settlement) = &mut context.settlement {
        let call = grpc::call_status(context.is_grpc, request_end);
        let shared = &context.connection.worker.shared;
        let now = shared.clock.now();
        // The upstream may have received the client's deadline too, and may give up first.
        let is_past = context.deadline.is_some_and(|deadline| deadline <= now);
        let gave_up = is_past && request_end.may_be_by_deadline(call);
        let request_end = if gave_up { &RequestEnd::Unanswered } else { request_end };
        let mut note = |position, settled| limits.record_settlement(position, settled, now);
        settlement.settle(request_end, call, &shared.limiter, now, &mut note);
        if let RequestEnd::Responded { headers, .. } = request_end {
            match settlement.response_reader(headers) {
                Ok(reader) => context.stated_cost = reader,
                Err(_) => settlement.settle_fields(FieldsRead::Unreadable, &shared.limiter, now),
            }
        }
        settlement.charge_bytes(received, 0, &shared.limiter, now, &mut note);
    }
}

/// Refunds an admitted request that is shed.
pub(super) fn refund_shed(context: &mut RequestContext, limits: &mut AppliedLimits) {
    let connection = Rc::clone(&context.connection);
    let shared = &connection.worker.shared;
    let now = shared.clock.now();
    if let Some(followed) = context.followed.take() {
        followed.refund_owed(now);
    }
    limits.refund_unsettled(&shared.limiter, now);
    settle(context, &RequestEnd::Rejected, limits);
    connection.postpone_shed_call();
}

/// Charges a running request for the bytes that its tunnel has transferred so far.
pub(super) fn charge_bytes(context: &mut RequestContext, received: u64, sent: u64) {
    if let Some(settlement) = &mut context.settlement {
        let shared = &context.connection.worker.shared;
        settlement.charge_bytes(received, sent, &shared.limiter, shared.clock.now(), |_, _| {});
    }
}

/// Whether a limit on bytes may slow the tunnel of a request.
pub(super) fn slows_tunnel(context: &RequestContext) -> bool {
    context.settlement.as_ref().is_some_and(|settlement| settlement.slows_tunnel())
}

/// Returns when the limits on bytes have room for more.
pub(super) fn tunnel_room(context: &RequestContext) -> TunnelRoom {
    let shared = &context.connection.worker.shared;
    let room = |settlement: &Settlement| settlement.tunnel_room(&shared.limiter, shared.clock.now());
    context.settlement.as_deref().map_or(TunnelRoom::Available, room)
}

/// Settles charges that depend on the status of a gRPC call, which is now known.
fn settle_grpc_status(context: &mut RequestContext, status: GrpcStatus) {
    if let Some(settlement) = context.settlement.as_mut().filter(|settlement| settlement.awaits_call()) {
        let shared = &context.connection.worker.shared;
        let now = shared.clock.now();
        // A call that fails after the client's deadline counts as abandoned by the client.
        let gave_up = !status.is_ok() && context.deadline.is_some_and(|deadline| deadline <= now);
        settlement.settle_call((!gave_up).then_some(status), &shared.limiter, now);
    }
}

/// Handles the trailers at the end of a response.
pub(super) fn record_trailers(context: &mut RequestContext, trailers: &HeaderMap) {
    if let Some(status) = GrpcStatus::from_field_value(trailers.get(GRPC_STATUS).map(HeaderValue::as_bytes)) {
        if let Some(followed) = &context.followed {
            let now = context.connection.worker.shared.clock.now();
            followed.call_ended(status, ProviderSignals::from_trailers(trailers), now);
        }
        settle_grpc_status(context, status);
    }
}

/// Settles a charge that the response's body states, of which no more is read.
fn settle_stated_cost(
    context: &mut RequestContext,
    read: impl FnOnce(&mut ResponseReader) -> FieldsRead<'_>,
) {
    let (Some(mut reader), Some(settlement)) = (context.stated_cost.take(), &mut context.settlement) else {
        return;
    };
    let shared = &context.connection.worker.shared;
    settlement.settle_fields(read(&mut reader), &shared.limiter, shared.clock.now());
}

/// Records that the response body has been sent completely.
pub(super) fn response_complete(context: &mut RequestContext) {
    context.is_complete = true;
    let lacks_usage = context.lacks_usage;
    settle_stated_cost(context, |reader| {
        // A body that ends with its connection may end anywhere.
        if reader.is_within_document() {
            return FieldsRead::BrokenOff(reader.latest());
        }
        let all = if lacks_usage { FieldsRead::Unasked } else { FieldsRead::All };
        reader.end().map_or(FieldsRead::Unreadable, all)
    });
    if let Some(status) = context.status.filter(|_| context.is_grpc) {
        settle_grpc_status(context, GrpcStatus::from_http_status(status));
    }
    if let Some(recorder) = context.recorder.take() {
        recorder.store();
    }
}

/// Records that the response is complete without its body, as for HEAD.
pub(super) fn body_omitted(context: &mut RequestContext) {
    context.is_complete = true;
    settle_stated_cost(context, |_| FieldsRead::Unreadable);
    context.recorder = None;
}

/// Records that the response body has failed.
pub(super) fn response_broken_off(context: &mut RequestContext) {
    settle_stated_cost(context, |reader| FieldsRead::BrokenOff(reader.latest()));
    settle_grpc_status(context, GrpcStatus::UNAVAILABLE);
    context.flag = ResponseFlag::UpstreamClosed;
    context.is_complete = true;
    context.recorder = None;
}

impl Drop for RequestContext {
    fn drop(&mut self) {
        finish(self);
    }
}

/// Charges, counts and logs a request that has ended, and returns its connection to idle.
fn finish(context: &mut RequestContext) {
    settle_stated_cost(context, |reader| FieldsRead::Abandoned(reader.latest()));
    let worker = &context.connection.worker;
    let now = worker.shared.clock.now();
    let duration = now.since(context.started_at);
    let mut charged = None;
    if let Some(mut settlement) = context.settlement.take() {
        let was_sent = context.timer.was_sent();
        let received = context.bytes_received();
        settlement.finish(received, context.bytes_sent, was_sent, &worker.shared.limiter, now);
        let logged = context.log.as_ref().and_then(|log| log.decision.as_ref());
        charged = logged.and_then(|decided| settlement.charged(decided.summary.rule));
    }
    match &context.connection.stored {
        None => {
            count(context, duration);
            log(context, duration, charged);
        }
        Some(stored) if stored.is_postponed() => {}
        Some(_) => log(context, duration, charged),
    }
    context.timer.response_ended();
}

/// Counts a client's request. A stored one was counted when it was accepted.
fn count(context: &RequestContext, duration: Duration) {
    let metrics = &context.connection.worker.metrics;
    if let Some(location) = context.location {
        metrics.record_country(location.country, context.flag.is_rejection());
    }
    let outcome = outcome(context);
    match context.status {
        Some(status) if context.is_complete => {
            metrics.request_finished(context.connection.listener, status, duration, outcome);
        }
        _ => metrics.request_reset(context.connection.listener, outcome),
    }
}

fn outcome(context: &RequestContext) -> FinalOutcome {
    match (context.flag, context.decision) {
        (ResponseFlag::NotStored, _) => FinalOutcome::NotStored,
        // Also one that the rules had admitted with a delay for which there was no memory.
        (ResponseFlag::Overloaded, _) => FinalOutcome::Shed,
        (_, Some(decision)) => FinalOutcome::Decided(decision),
        (ResponseFlag::DownstreamProtocol, None) => FinalOutcome::Malformed,
        // A response without a decision of the rules: a forward proxy does not serve the request.
        _ if context.is_complete => FinalOutcome::Decided(DecisionOutcome::Denied),
        _ => FinalOutcome::Abandoned,
    }
}

/// Writes the access log and the span of a request; `charged` are the units that its end has decided.
fn log(context: &RequestContext, duration: Duration, charged: Option<u32>) {
    let Some(record) = &context.log else { return };
    let (decided, rules) = (record.decision.as_ref(), &record.view.policy.rules);
    let rule_name = |rule: RuleIndex| rules.get(rule).map(|rule| &*rule.name);
    let shadow_rules: SmallVec<[&str; 2]> =
        decided.iter().flat_map(|decided| &decided.shadow_rules).copied().filter_map(rule_name).collect();
    let shared = &context.connection.worker.shared;
    let texts = &record.texts;
    let flag = if context.is_complete { context.flag } else { ResponseFlag::DownstreamClosed };
    let entry = AccessLogEntry {
        start: shared.clock.civil_time_at(context.started_at),
        method: &record.method,
        path: texts.target(),
        protocol: record.protocol,
        status: context.status,
        response_flags: if context.retries_exhausted {
            flag.as_str_retries_exhausted()
        } else {
            flag.as_str()
        },
        attempts: record.upstream.as_ref().map_or(0, |_| context.retries.saturating_add(1)),
        bytes_received: context.bytes_received(),
        bytes_sent: context.bytes_sent,
        duration,
        upstream_time: record.upstream_time,
        x_forwarded_for: texts.forwarded_for(),
        user_agent: texts.user_agent(),
        request_id: texts.request_id(),
        authority: texts.authority(),
        upstream_host: record.upstream.as_ref().map(|endpoint| endpoint.name()),
        class: record.view.policy.class_name(context.class),
        other_headers: &record.other_headers,
        decision: decided.and_then(|decided| {
            let DecisionSummary { rule, outcome, standing, delay } = decided.summary;
            Some(LoggedRule {
                rule: rule_name(rule)?,
                outcome,
                key: decided.key.as_deref(),
                limit: standing.map(|standing| standing.limit),
                remaining: standing.map(|standing| standing.remaining),
                delay,
                cost: charged,
                shadow_rules: &shadow_rules,
            })
        }),
        client_ip: record.client.unwrap_or(context.connection.peer),
    };
    if let Some(log) = record.access_log() {
        log.log(&entry);
    }
    let Some((tracer, trace)) = record.view.tracer.as_ref().zip(record.trace.as_deref()) else { return };
    let notes = SpanDetails {
        is_secure: context.connection.tls.is_some(),
        route: record.route.as_deref(),
        decision: decision(context, record),
        peer: context.connection.peer,
    };
    tracer.end_span(trace, &entry, &notes);
}

fn decision(context: &RequestContext, record: &LogRecord) -> Option<SpanDecision> {
    let delay = context.forwarded_at.since(context.started_at);
    match context.flag {
        ResponseFlag::RateLimited => Some(SpanDecision::Limited),
        ResponseFlag::Denied | ResponseFlag::UnreadableBody(_) => Some(SpanDecision::Denied),
        _ if !delay.is_zero() => Some(SpanDecision::Delayed(delay)),
        // Rules are selected once the client is known.
        _ => record.client.map(|_| SpanDecision::Allowed),
    }
}
