//! The request path, read top to bottom.

use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::request;

use super::View;
use super::answers::{self, Reply, Unread};
use super::body::{Incoming, RequestBody};
use super::connection::Connection;
use super::decide::{self, CachedFallbacks};
use super::exchange::Exchange;
use super::fallback::Arrived;
use super::forward::{forward, response_timeout};
use super::grpc;
use super::headers::envoy::Controls;
use super::headers::{self, Expectation, Given, Hop, Unacceptable};
use crate::headers::FieldLines;
use crate::identify::{self, identify};
use crate::limits::{Admission, Pending, Rejected};
use crate::response::fallback::Kept;
use crate::response::rate_limit_headers::X_WEIR_OVER_LIMIT;
use crate::rules::selection::Selection;
use crate::telemetry::metrics::DecisionOutcome;
use crate::upstream::Upstream;
use crate::upstream::outgoing::Outgoing;

/// Answers one request: identifies it, asks the rules and the limiter, and refuses or forwards it.
///
/// Everything up to a refusal happens at once. Only a request that goes on needs a future, in memory of its
/// own: the server moves what it gets, and a refusal should not move the size of a forwarding.
pub(super) fn handle(
    connection: &Rc<Connection>,
    (mut head, body): (request::Parts, Incoming),
) -> Handling<impl Future<Output = Reply> + use<>> {
    let worker = &connection.worker;
    let view = worker.view();
    let policy = &view.policy;
    let now = worker.shared.clock.now();
    let mut exchange = Exchange::begin(connection, &mut head, now, view.stall);
    if let Err(by) = exchange.acquire_permit() {
        let unread = Unread::new(Expectation::of(&head.headers), body);
        return answered(answers::overloaded(exchange, by, unread));
    }
    let given = match validate(connection, &mut head, &policy.identify) {
        Ok(given) => given,
        Err(unacceptable) => return answered(answers::malformed(exchange, unacceptable)),
    };
    let civil = worker.shared.clock.civil(now);
    let identified =
        identify(&head.method, &head.uri, &head.headers, connection.peer, &policy.identify, civil);
    let Ok(mut attributes) = identified else {
        return answered(answers::malformed(exchange, Unacceptable::Malformed));
    };
    attributes.certificate = connection.certificate();
    let hop = connection.hop(attributes.client, worker.random());
    exchange.note_client(attributes.client.ip, policy.identify.ipv6_prefix);
    worker.warn_of_untrusted_proxy(&hop, given);

    let mut pending = match policy.rules.select(&attributes, worker.shared.elastic.headroom()) {
        Selection::Exempt(rule) => {
            view.limits.record(rule, DecisionOutcome::Exempt);
            Pending::none(now)
        }
        Selection::Denied(rule, denial) => {
            view.limits.record(rule, DecisionOutcome::Denied);
            exchange.note_rules(policy, std::iter::once(rule), &attributes);
            exchange.note_refused(view.limits.rule_name(rule), (&mut head, given), &hop);
            let unread = Unread::new(given.expectation(), body);
            return answered(answers::denied(exchange, &view, denial, unread));
        }
        Selection::Limited(all, beside) => Pending::check(&view.limits, all, beside, now),
    };
    exchange.note_rules(policy, pending.rules(), &attributes);
    let delay = match pending.admission() {
        Admission::Pass(delay) => delay,
        Admission::Reject(rejected) => {
            // Looked for before the log has the head made into what the upstream would have seen.
            let arrived = Arrived { head: &head, body: &body, hop: &hop, attributes: &attributes };
            let kept = view.fallbacks.recall(rejected.rule, arrived, &view, now);
            return answered(reject(exchange, &view, (&rejected, kept), (head, given, &hop), body));
        }
    };

    let upstream = view.upstream(&attributes).map(Rc::clone);
    upstream.as_deref().inspect(|upstream| exchange.goes_to(upstream));
    exchange.reserve(pending.settlement(&view.limits));
    let arrived = Arrived { head: &head, body: &body, hop: &hop, attributes: &attributes };
    let fallbacks = CachedFallbacks::look_up(&pending, &view, arrived, now);
    exchange.listen(view.fallbacks.listen(&pending, arrived, &view, now));
    let (mut request, controls) =
        outgoing((head, given), &hop, &mut exchange, &pending, (&view, upstream.as_deref()));
    Handling::Forwarding(Box::pin(async move {
        let Outgoing { head: request::Parts { method, headers, .. }, .. } = &mut request;
        let limits = match decide::resolve(&view, &mut exchange, &mut pending, (delay, headers)).await {
            Ok(limits) => limits,
            Err(rejected) => {
                let unread = Unread::new(given.expectation(), body);
                return answers::rejected_remotely(exchange, &view, &rejected, (fallbacks, method), unread);
            }
        };
        grpc::mind_deadline(&mut exchange, headers);
        let upstream = upstream.as_deref();
        let body = RequestBody::new(body, &mut exchange, response_timeout(upstream, controls.as_deref()));
        let answer = forward(&view, upstream, &mut exchange, (&mut request, body), controls.as_deref()).await;
        let mut reply = answers::upstream(exchange, upstream, limits, answer);
        limits.write_all(&mut reply.headers, &view.limits);
        reply
    }))
}

/// Checks a request's head, and removes from it what the client has no business to say.
fn validate(
    connection: &Connection,
    head: &mut request::Parts,
    settings: &identify::Settings,
) -> Result<Given, Unacceptable> {
    headers::settle_length(head)?;
    let given = headers::validate(head, connection.limits.headers)?;
    let believed = || connection.is_believed_on_certificates(settings);
    headers::sanitize_certificate(&mut head.headers, given, believed);
    headers::join_cookies(head);
    Ok(given)
}

/// The response to a request that a limit rejects.
fn reject(
    mut exchange: Box<Exchange>,
    view: &View,
    (rejected, kept): (&Rejected<'_>, Option<Arc<Kept>>),
    (mut head, given, hop): (request::Parts, Given, &Hop<'_>),
    body: Incoming,
) -> Reply {
    exchange.note_refused(view.limits.rule_name(rejected.rule), (&mut head, given), hop);
    let unread = Unread::new(given.expectation(), body);
    answers::limited(exchange, view, rejected, (kept, head), unread)
}

/// The request as it goes on, and what somebody inside asks for it.
fn outgoing(
    (mut head, given): (request::Parts, Given),
    hop: &Hop<'_>,
    exchange: &mut Exchange,
    pending: &Pending,
    (view, upstream): (&View, Option<&Upstream>),
) -> (Outgoing, Option<Box<Controls>>) {
    let mut ours = FieldLines::default();
    let apart = writes_apart(exchange, pending, upstream).then_some(&mut ours);
    let wishes = headers::prepare_request(&mut head, given, hop, upgrades(upstream), apart);
    let controls = exchange.note_wishes(wishes);
    for mark in pending.so_far().marks(&view.limits) {
        head.headers.append(X_WEIR_OVER_LIMIT, mark);
    }
    exchange.note_headers(&mut head.headers);
    // HTTP/2 has no raw headers.
    let wants_map = !exchange.is_alone();
    (Outgoing { head, ours, wants_map }, controls)
}

/// Whether what the request gets from us may be written at once as it goes out: nobody else is to read it.
fn writes_apart(exchange: &Exchange, pending: &Pending, upstream: Option<&Upstream>) -> bool {
    let by_http1 = upstream.is_some_and(|upstream| !upstream.settings().http2 && !exchange.is_grpc());
    by_http1 && !exchange.is_recorded() && !pending.is_remote()
}

/// What a request may go over to.
fn upgrades(upstream: Option<&Upstream>) -> &[Box<str>] {
    upstream.map_or(&[], |upstream| &*upstream.settings().upgrades)
}

fn answered<F>(reply: Reply) -> Handling<F> {
    Handling::Answered(Some(reply))
}

/// A request being answered.
#[expect(clippy::large_enum_variant, reason = "an answer had at once needs no memory of its own")]
pub(super) enum Handling<F> {
    /// Done already; taken when asked for.
    Answered(Option<Reply>),
    /// Waiting for the upstream.
    Forwarding(Pin<Box<F>>),
}

impl<F: Future<Output = Reply>> Future for Handling<F> {
    type Output = Reply;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            // A future that is asked again after its answer may wait for ever.
            Self::Answered(reply) => reply.take().map_or(Poll::Pending, Poll::Ready),
            Self::Forwarding(forwarding) => forwarding.as_mut().poll(cx),
        }
    }
}
