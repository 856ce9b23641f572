//! The request path: admit, validate, identify, select, decide, forward, finish. [`handle`] is the order, the stages are
//! below it in the same order.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{StatusCode, request};
use hyper::body::Body as _;

use super::body::{Incoming, RequestBody, ResponseBody};
use super::connection::Connection;
use super::decide::{self, CachedFallbacks};
use super::failure::Failure;
use super::fallback::IncomingRequest;
use super::finish;
use super::forward::{AttemptResult, forward, response_timeout};
use super::grpc;
use super::headers::overrides::{RequestOverrides, SERVICE_TIME};
use super::headers::{self, Expectation, Hop, RequestHeaderFlags, Unacceptable};
use super::local_reply::{self, PendingBody, Reply, closing_if, is_last};
use super::request_context::{LogRecord, RequestContext, ResponseFlag};
use super::tunnel;
use super::view::View;
use crate::engine::Policy;
use crate::headers::{FieldLines, Response};
use crate::identify::{self, Attributes, client_ip, identify};
use crate::limiter::timestamp::{Timestamp, saturating_millis};
use crate::limits::{self, Admission, Limits, Pending};
use crate::overload::LoadShed;
use crate::response::rate_limit_headers::X_WEIR_OVER_LIMIT;
use crate::rules::RuleIndex;
use crate::rules::selection::Selection;
use crate::rules::tariff::Ending;
use crate::telemetry::metrics::DecisionOutcome;
use crate::upstream::Upstream;
use crate::upstream::answer::Answer;
use crate::upstream::error::Error as UpstreamError;
use crate::upstream::outgoing::Outgoing;

/// Responds to one request.
///
/// Everything up to a rejection happens at once. Only a request that is forwarded needs a future, in memory of its own: the
/// server moves what it gets, and a rejection should not move the size of a forwarding.
pub(super) fn handle(
    connection: &Rc<Connection>,
    mut head: request::Parts,
    body: Incoming,
) -> ResponseFuture<impl Future<Output = Reply> + use<>> {
    let worker = &connection.worker;
    let view = worker.view();
    let now = worker.shared.clock.now();

    let (mut context, admission) = admit(connection, &mut head, now, view.stream_idle_timeout);
    if let Err(by) = admission {
        let pending = PendingBody::new(Expectation::of(&head.headers), body);
        return ready(local_reply::overloaded(context, by, pending));
    }
    let flags = match validate(connection, &mut head, &view.policy.identify) {
        Ok(flags) => flags,
        Err(unacceptable) => return ready(local_reply::malformed(context, unacceptable)),
    };
    let (civil, settings) = (worker.shared.clock.civil(now), &view.policy.identify);
    let identified = identify(&head.method, &head.uri, &head.headers, connection.peer, settings, civil);
    let Ok(mut attributes) = identified else {
        return ready(local_reply::malformed(context, Unacceptable::Malformed));
    };
    attributes.certificate = connection.certificate();
    let hop = connection.hop(attributes.client, worker.random());
    set_client(&mut context, &hop, flags, view.policy.identify.ipv6_prefix);
    let mut pending = match view.policy.rules.select(&attributes, worker.shared.elastic.headroom()) {
        Selection::Exempt(rule) => {
            view.limits.record(rule, DecisionOutcome::Exempt);
            Pending::none(now)
        }
        Selection::Limited(selected, side_effects) => {
            Pending::check(&view.limits, selected, side_effects, now)
        }
        Selection::Denied(rule, denial) => {
            view.limits.record(rule, DecisionOutcome::Denied);
            set_route(&mut context, &view.policy, std::iter::once(rule), &attributes);
            log_rejection(&mut context, view.limits.rule_name(rule), &mut head, flags, &hop);
            let unread = PendingBody::new(flags.expectation(), body);
            return ready(local_reply::denied(context, &view.policy.denied, denial, unread));
        }
    };
    set_route(&mut context, &view.policy, pending.rules(), &attributes);
    let has_body = !body.is_end_stream();
    let incoming = IncomingRequest::new(&head, has_body, &hop, &attributes, &view.policy, &view.upstreams);
    let delay = match pending.admission() {
        Admission::Pass(delay) => delay,
        Admission::Reject(rejected) => {
            // Looked up before the log has the head made into what the upstream would have seen.
            let cached = view.fallbacks.look_up(rejected.rule, incoming, now);
            log_rejection(&mut context, view.limits.rule_name(rejected.rule), &mut head, flags, &hop);
            let unread = PendingBody::new(flags.expectation(), body);
            return ready(local_reply::rate_limited(context, &view.limits, &rejected, cached, head, unread));
        }
    };

    let upstream = view.upstream(&attributes).map(Rc::clone);
    let cached = CachedFallbacks::look_up(&view.fallbacks, &pending, incoming, now);
    context.recorder = view.fallbacks.record(&pending, incoming, now);
    context.settlement = pending.settlement(&view.limits);
    let (mut request, overrides) =
        prepare(&mut context, head, flags, &hop, &pending, &view.limits, upstream.as_deref());
    // Captured as they are: a struct around them would be moved once more.
    ResponseFuture::Forwarding(Box::pin(async move {
        let request::Parts { method, headers, .. } = &mut request.head;
        let limits = match decide::resolve(&view.limits, &mut context, &mut pending, delay, headers).await {
            Ok(limits) => limits,
            Err(rejected) => {
                let (view, unread) = (&view.limits, PendingBody::new(flags.expectation(), body));
                return local_reply::rejected_remotely(context, view, &rejected, cached, method, unread);
            }
        };
        grpc::apply_client_deadline(&mut context, headers);
        let (upstream, overrides) = (upstream.as_deref(), overrides.as_deref());
        let body = RequestBody::new(body, &mut context, response_timeout(upstream, overrides));
        let result = forward(upstream, &mut context, &mut request, body, overrides).await;
        respond(context, &view, upstream, limits, result)
    }))
}

/// Admits a request, unless it is shed: its timer starts, and it is counted from now on. One for a stream that is to leave
/// HTTP is made what it would be in HTTP/1.1.
fn admit(
    connection: &Rc<Connection>,
    head: &mut request::Parts,
    now: Timestamp,
    stream_idle_timeout: Duration,
) -> (Box<RequestContext>, Result<(), LoadShed>) {
    let worker = &connection.worker;
    let stream = headers::connect::take(head, || worker.random());
    let timer = connection.start_request(head.version, stream_idle_timeout);
    worker.metrics.request_started(connection.listener);
    let mut context = RequestContext::new(connection, timer, now);
    let (log, tracer) = (&worker.shared.access_log, &worker.shared.tracer);
    if log.is_some() || tracer.is_some() {
        context.log = LogRecord::new(head, log.is_some(), tracer.as_deref(), || worker.random());
    }
    context.is_grpc = grpc::is_call(head);
    context.upgrade.stream = stream;
    let admission = worker.shared.overload.acquire_request().map(|permit| context.permit = permit);
    if let Err(by) = admission {
        worker.metrics.load_shed(by);
    }
    (context, admission)
}

/// Checks a request's head, and removes what the client must not say.
fn validate(
    connection: &Connection,
    head: &mut request::Parts,
    settings: &identify::Settings,
) -> Result<RequestHeaderFlags, Unacceptable> {
    headers::normalise_length(head)?;
    let flags = headers::validate(head, connection.limits.headers)?;
    let believed = || connection.is_believed_on_certificates(settings);
    headers::sanitize_certificate(&mut head.headers, flags, believed);
    headers::join_cookies(head);
    Ok(flags)
}

/// Who the rules say the client is; an IPv6 client is a network with this prefix.
fn set_client(context: &mut RequestContext, hop: &Hop<'_>, flags: RequestHeaderFlags, ipv6_prefix: u8) {
    let ip = hop.client.ip;
    context.connection.worker.warn_of_untrusted_proxy(hop, flags);
    context.client = client_ip::network(ip, 32, ipv6_prefix);
    if let Some(log) = &mut context.log {
        log.client = Some(ip);
    }
}

/// The route of the request's span.
fn set_route(
    context: &mut RequestContext,
    policy: &Policy,
    rules: impl Iterator<Item = RuleIndex>,
    attributes: &Attributes<'_>,
) {
    if let Some(log) = &mut context.log {
        log.set_route(policy, rules, attributes);
    }
}

/// Logs the rule that rejects a request, and its headers as the upstream would have seen them.
fn log_rejection(
    context: &mut RequestContext,
    rule: &str,
    head: &mut request::Parts,
    flags: RequestHeaderFlags,
    hop: &Hop<'_>,
) {
    if let Some(log) = &mut context.log {
        log.rule = Some(rule.into());
        let _ = headers::prepare_request(head, flags, hop, &[], None);
        log.copy_headers(&head.headers);
    }
}

/// Makes the request what the upstream sees, and sets the timeouts that the upstream has. The request, and what a trusted
/// client overrides for it.
fn prepare(
    context: &mut RequestContext,
    mut head: request::Parts,
    flags: RequestHeaderFlags,
    hop: &Hop<'_>,
    pending: &Pending,
    view: &limits::View,
    upstream: Option<&Upstream>,
) -> (Outgoing, Option<Box<RequestOverrides>>) {
    if let Some(upstream) = upstream {
        context.timer.set_stream_idle_timeout(upstream.settings().idle_timeout);
        if let Some(scarcity) = upstream.scarcity() {
            // The messages of a gRPC call come when they come.
            context.timer.require_min_rate(Rc::clone(scarcity), !context.is_grpc);
        }
    }
    let mut ours = FieldLines::default();
    let added = can_serialize_directly(context, pending, upstream).then_some(&mut ours);
    let upgrades = upstream.map_or(&[][..], |upstream| &*upstream.settings().upgrades);
    let asked = headers::prepare_request(&mut head, flags, hop, upgrades, added);
    context.upgrade.protocol = asked.upgrade;
    for mark in pending.so_far().marks(view) {
        head.headers.append(X_WEIR_OVER_LIMIT, mark);
    }
    if let Some(log) = &mut context.log {
        log.copy_headers(&head.headers);
        log.inject_trace_context(&mut head.headers);
    }
    // HTTP/2 has no raw headers.
    let wants_map = !context.owns_connection();
    (Outgoing { head, ours, wants_map }, asked.overrides)
}

/// Whether the fields that we add to a request may be written at once as it goes out: nothing else reads them.
fn can_serialize_directly(context: &RequestContext, pending: &Pending, upstream: Option<&Upstream>) -> bool {
    let by_http1 = upstream.is_some_and(|upstream| !upstream.settings().http2 && !context.is_grpc);
    by_http1 && context.log.is_none() && !pending.is_remote()
}

/// Elastic limits go by how the upstream does.
fn record_load(context: &RequestContext, policy: &Policy, result: &AttemptResult) {
    if let Ok(response) = result
        && policy.rules.is_elastic()
    {
        let load = &context.connection.worker.load;
        load.answered(context.upstream_time, response.status, &response.headers);
    }
}

/// The upstream's response, or a local reply in its place. It is settled now, and [finished](finish) with its last byte.
fn respond(
    context: Box<RequestContext>,
    view: &View,
    upstream: Option<&Upstream>,
    limits: &mut Limits,
    result: AttemptResult,
) -> Reply {
    record_load(&context, &view.policy, &result);
    let took = context.upstream_time;
    let mut reply = match result {
        Ok(response) if response.status == StatusCode::SWITCHING_PROTOCOLS => {
            switch_protocols(context, limits, response)
        }
        Ok(response) => {
            upstream.inspect(|upstream| upstream.note_success());
            pass_on(context, limits, response)
        }
        Err(failure) => {
            match (&failure, upstream) {
                (Failure::Upstream(UpstreamError::Overflow), _) => {}
                (Failure::Upstream(error), Some(upstream)) => upstream.note_failure(error),
                _ => {}
            }
            let mut reply = local_reply::upstream_failed(context, limits, &failure);
            limits.write_all(&mut reply.headers, &view.limits);
            return reply;
        }
    };
    reply.headers.set_number(&SERVICE_TIME, saturating_millis(took));
    limits.write_all(&mut reply.headers, &view.limits);
    reply
}

fn pass_on(
    mut context: Box<RequestContext>,
    limits: &mut Limits,
    Response { status, mut headers, body }: Response<Answer<RequestBody>>,
) -> Reply {
    finish::settle(&mut context, &Ending::Answered { status, headers: &headers }, limits);
    headers::prepare_response(&mut headers);
    context.recorder.take_if(|recorder| !recorder.head(status, headers.map_mut()));
    if !context.upload_is_complete() {
        // An early response: if the rest of the request is never read, the response must not be lost.
        context.timer.must_linger();
    }
    context.respond_with(status, ResponseFlag::None);
    let close = is_last(&context);
    closing_if(close, Response { status, headers, body: ResponseBody::upstream(body, context) })
}

/// The upstream has agreed to the protocol that the client asks for.
fn switch_protocols(
    mut context: Box<RequestContext>,
    limits: &mut Limits,
    Response { mut status, mut headers, body }: Response<Answer<RequestBody>>,
) -> Reply {
    finish::settle(&mut context, &Ending::Answered { status, headers: &headers }, limits);
    if context.requires_upgrade() {
        status = StatusCode::OK;
        headers::connect::prepare_answer(&mut headers);
    } else {
        headers::prepare_switch(&mut headers);
    }
    context.respond_with(status, ResponseFlag::None);
    if let Some(upstream) = body.into_tunnel() {
        tunnel::start(context, upstream);
    }
    Response { status, headers, body: ResponseBody::none() }
}

fn ready<F>(reply: Reply) -> ResponseFuture<F> {
    ResponseFuture::Ready(Some(reply))
}

/// The response to a request.
#[expect(clippy::large_enum_variant, reason = "a reply had at once needs no memory of its own")]
pub(super) enum ResponseFuture<F> {
    /// Had at once; taken when polled.
    Ready(Option<Reply>),
    /// Waiting for the upstream.
    Forwarding(Pin<Box<F>>),
}

impl<F: Future<Output = Reply>> Future for ResponseFuture<F> {
    type Output = Reply;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            // A future that is polled again after it was ready may wait for ever.
            Self::Ready(reply) => reply.take().map_or(Poll::Pending, Poll::Ready),
            Self::Forwarding(forwarding) => forwarding.as_mut().poll(cx),
        }
    }
}
