//! The last stage: what a request is charged and what is recorded of it, however it ends.
//!
//! A request ends when its context is dropped: with the response's body that was sent to its end, with the connection that
//! broke off, or with a panic.

use std::time::Duration;

use http::{HeaderMap, HeaderValue};

use super::grpc;
use super::request_context::{LogRecord, RequestContext, ResponseFlag};
use crate::limits::Limits;
use crate::rules::grpc::{GRPC_STATUS, GrpcStatus};
use crate::rules::tariff::Ending;
use crate::telemetry::access_log::Entry;
use crate::telemetry::spans::{Decision, Notes};

/// Settles what the request reserved, now that its outcome is known, and records in `limits` how the client stands.
pub(super) fn settle(context: &mut RequestContext, ending: &Ending<'_>, limits: &mut Limits) {
    let received = context.bytes_received();
    if let Some(settlement) = &mut context.settlement {
        let call = grpc::call_status(context.is_grpc, ending);
        let shared = &context.connection.worker.shared;
        let now = shared.clock.now();
        // The upstream knows the client's deadline too, and may be the first to give up.
        let is_past = context.deadline.is_some_and(|deadline| deadline <= now);
        let gave_up = is_past && ending.may_be_by_deadline(call);
        let ending = if gave_up { &Ending::Abandoned } else { ending };
        let mut note = |position, settled| limits.note_settled(position, settled, now);
        settlement.settle(ending, call, &shared.limiter, now, &mut note);
        settlement.octets(received, 0, &shared.limiter, now, &mut note);
    }
}

/// The status of a gRPC call is known, which may decide what it is charged.
fn settle_call(context: &mut RequestContext, status: GrpcStatus) {
    if let Some(settlement) = context.settlement.as_mut().filter(|settlement| settlement.awaits_call()) {
        let shared = &context.connection.worker.shared;
        let now = shared.clock.now();
        // A call that fails once the client's deadline has passed is one that the client has left.
        let gave_up = !status.is_ok() && context.deadline.is_some_and(|deadline| deadline <= now);
        settlement.settle_call((!gave_up).then_some(status), &shared.limiter, now);
    }
}

/// The response has ended with these trailers.
pub(super) fn trailers(context: &mut RequestContext, trailers: &HeaderMap) {
    if let Some(status) = GrpcStatus::of_field(trailers.get(GRPC_STATUS).map(HeaderValue::as_bytes)) {
        settle_call(context, status);
    }
}

/// The response's body has been sent to its end.
pub(super) fn response_complete(context: &mut RequestContext) {
    context.is_complete = true;
    if let Some(status) = context.status.filter(|_| context.is_grpc) {
        settle_call(context, GrpcStatus::of_silence(status));
    }
    if let Some(recorder) = context.recorder.take() {
        recorder.keep();
    }
}

/// The response goes without its body, as that to HEAD does.
pub(super) fn body_omitted(context: &mut RequestContext) {
    context.is_complete = true;
    context.recorder = None;
}

/// The response's body broke off.
pub(super) fn response_broken_off(context: &mut RequestContext) {
    settle_call(context, GrpcStatus::UNAVAILABLE);
    context.flag = ResponseFlag::UpstreamClosed;
    context.is_complete = true;
    context.recorder = None;
}

impl Drop for RequestContext {
    fn drop(&mut self) {
        finish(self);
    }
}

/// Charges, counts and logs a request that has ended, and times its connection again.
fn finish(context: &mut RequestContext) {
    let worker = &context.connection.worker;
    let now = worker.shared.clock.now();
    let duration = now.since(context.started);
    if let Some(mut settlement) = context.settlement.take() {
        settlement.end(context.bytes_received(), context.bytes_sent, &worker.shared.limiter, now);
    }
    match context.status {
        Some(status) if context.is_complete => {
            worker.metrics.request_finished(context.connection.listener, status, duration);
        }
        _ => worker.metrics.request_reset(context.connection.listener),
    }
    log(context, duration);
    context.timer.response_ended();
}

fn log(context: &RequestContext, duration: Duration) {
    let Some(record) = &context.log else { return };
    let shared = &context.connection.worker.shared;
    let flag = if context.is_complete { context.flag } else { ResponseFlag::DownstreamClosed };
    let entry = Entry {
        start: shared.clock.civil(context.started),
        method: &record.method,
        path: &record.target,
        protocol: record.protocol,
        status: context.status,
        flags: if context.retries_exhausted { flag.exhausted() } else { flag.as_str() },
        attempts: record.upstream.as_ref().map_or(0, |_| context.retries.saturating_add(1)),
        bytes_received: context.bytes_received(),
        bytes_sent: context.bytes_sent,
        duration,
        upstream_time: record.upstream_time,
        x_forwarded_for: record.forwarded_for.as_ref().map(HeaderValue::as_bytes),
        user_agent: record.user_agent.as_ref().map(HeaderValue::as_bytes),
        request_id: record.request_id.as_ref().map(HeaderValue::as_bytes),
        authority: record.authority.as_ref().map(HeaderValue::as_bytes),
        upstream_host: record.upstream.as_deref(),
        rule: record.rule.as_deref(),
        client_ip: record.client.unwrap_or(context.connection.peer),
    };
    if let Some(log) = &shared.access_log {
        log.log(&entry);
    }
    let Some((tracer, trace)) = shared.tracer.as_ref().zip(record.trace.as_deref()) else { return };
    let notes = Notes {
        is_secure: context.connection.tls.is_some(),
        route: record.route.as_deref(),
        decision: decision(context, record),
        peer: context.connection.peer,
    };
    tracer.end(trace, &entry, &notes);
}

fn decision(context: &RequestContext, record: &LogRecord) -> Option<Decision> {
    let delay = context.forwarded.since(context.started);
    match context.flag {
        ResponseFlag::RateLimited => Some(Decision::Limited),
        ResponseFlag::Denied => Some(Decision::Denied),
        _ if !delay.is_zero() => Some(Decision::Delayed(delay)),
        // Rules are selected as soon as it is known who the client is.
        _ => record.client.map(|_| Decision::Allowed),
    }
}
