//! The request path, read top to bottom.

use std::convert::Infallible;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderMap, Response, request};

use super::View;
use super::answers::{self, Unread};
use super::asking::{self, Recalled, Refusal};
use super::body::{Incoming, RequestBody, ResponseBody};
use super::connection::Connection;
use super::exchange::Exchange;
use super::forward::forward;
use super::grpc;
use super::headers::envoy::Controls;
use super::headers::{self, Expectation, Unacceptable};
use super::limits::Limits;
use crate::identify::identify;
use crate::rules::selection::Selection;
use crate::telemetry::metrics::DecisionOutcome;
use crate::throttle::{self, Action};
use crate::upstream::Upstream;

/// Answers one request: identifies it, asks the rules and the limiter, and refuses or forwards it.
///
/// Everything up to a refusal happens at once. Only a request that goes on needs a future, in memory of its
/// own: the server moves what it gets, and a refusal should not move the size of a forwarding.
pub(super) fn handle(
    connection: &Rc<Connection>,
    (mut head, body): (request::Parts, Incoming),
) -> Handling<impl Future<Output = Response<ResponseBody>> + use<>> {
    let worker = &connection.worker;
    let view = worker.view();
    let policy = &view.policy;
    let now = worker.shared.clock.now();
    let mut exchange = Exchange::begin(connection, &mut head, now, view.stall);
    if let Err(refusal) = exchange.take_place() {
        let unread = Unread::new(Expectation::of(&head.headers), body);
        return answered(answers::overloaded(exchange, refusal, unread));
    }
    let given = match headers::validate(&head, connection.limits.headers) {
        Ok(given) => given,
        Err(unacceptable) => return answered(answers::malformed(exchange, unacceptable)),
    };
    headers::join_cookies(&mut head);
    let identified = identify(&head.method, &head.uri, &head.headers, connection.peer, &policy.identify, now);
    let Ok(mut attributes) = identified else {
        return answered(answers::malformed(exchange, Unacceptable::Malformed));
    };
    attributes.certificate = connection.certificate();
    let hop = connection.hop(attributes.client, worker.random());
    exchange.note_client(attributes.client.ip);
    worker.warn_of_untrusted_proxy(&hop, given);

    let mut limits = match policy.rules.select(&attributes, worker.shared.elastic.headroom()) {
        Selection::Exempt(rule) => {
            view.record(rule, DecisionOutcome::Exempt);
            Limits::none(now)
        }
        Selection::Denied(rule, denial) => {
            view.record(rule, DecisionOutcome::Denied);
            exchange.note_rules(policy, std::iter::once(rule), &attributes);
            exchange.note_refused(view.rule_name(rule), (&mut head, given), &hop);
            let unread = Unread::new(given.expectation(), body);
            return answered(answers::denied(exchange, &view, denial, unread));
        }
        Selection::Limited(all, aside) => Limits::check(&worker.shared.limiter, all, aside, now),
    };
    limits.record_unless_asking(&view);
    exchange.note_rules(policy, limits.rules(), &attributes);
    let delay = match throttle::resolve(limits.decision()) {
        Action::Forward => None,
        Action::Delay(delay) => Some(delay),
        Action::Refuse { by, retry_after } => {
            // Looked for before the log has the head made into what the upstream would have seen.
            let kept = view.fallbacks.recall(limits.rule(by), &head, now);
            exchange.note_refused(view.rule_name(limits.rule(by)), (&mut head, given), &hop);
            let unread = Unread::new(given.expectation(), body);
            return answered(answers::limited(exchange, &view, (&limits, by, retry_after), kept, unread));
        }
    };

    let upstream = view.upstream(&attributes).map(Rc::clone);
    exchange.bodies_may_rest(upstream.as_ref().map_or(view.stall, |to| to.settings().idle_timeout));
    exchange.reserve(&limits, policy);
    let recalled = Recalled::of(&limits, &view, &head, now);
    exchange.listen(view.fallbacks.listen(limits.rules(), &head, attributes.certificate.is_some(), now));
    let wishes = headers::prepare_request(&mut head, given, &hop, upgrades(upstream.as_deref()));
    let controls = exchange.note_wishes(wishes);
    limits.write_marks(&mut head.headers, &view);
    exchange.note_headers(&mut head.headers);
    Handling::Forwarding(Box::pin(async move {
        if let Err(refusal) = pass(&view, &mut exchange, &mut limits, (delay, &mut head.headers)).await {
            let unread = Unread::new(given.expectation(), body);
            return answers::refused_elsewhere(exchange, &view, (&limits, refusal), recalled, unread);
        }
        let upstream = upstream.as_deref();
        let body = RequestBody::new(body, &mut exchange, timeout(upstream, controls.as_deref()));
        let answer = forward(&view, upstream, &mut exchange, (&mut head, body), controls.as_deref()).await;
        let mut response = answers::upstream(exchange, upstream, &mut limits, answer);
        limits.write_all(response.headers_mut(), &view);
        response
    }))
}

/// Waits until the request may go on, and asks whoever else may have it refused.
async fn pass(
    view: &Rc<View>,
    exchange: &mut Exchange,
    limits: &mut Limits,
    (delay, headers): (Option<Duration>, &mut HeaderMap),
) -> Result<(), Refusal> {
    if limits.is_asking() {
        asking::ask(view, exchange, limits, (delay, headers)).await?;
    } else if let Some(delay) = delay {
        exchange.wait(delay).await;
    }
    grpc::mind_deadline(exchange, headers);
    Ok(())
}

/// What a request may go over to.
fn upgrades(upstream: Option<&Upstream>) -> &[Box<str>] {
    upstream.map_or(&[], |upstream| &*upstream.settings().upgrades)
}

/// How long the upstream has for its answer: what somebody inside asks for, or what the configuration says.
fn timeout(upstream: Option<&Upstream>, controls: Option<&Controls>) -> Duration {
    let own = || upstream.map_or(Duration::MAX, |upstream| upstream.settings().timeout);
    controls.and_then(|controls| controls.timeout).unwrap_or_else(own)
}

fn answered<F>(response: Response<ResponseBody>) -> Handling<F> {
    Handling::Answered(Some(response))
}

/// A request being answered.
pub(super) enum Handling<F> {
    /// Done already; taken when asked for.
    Answered(Option<Response<ResponseBody>>),
    /// Waiting for the upstream.
    Forwarding(Pin<Box<F>>),
}

impl<F: Future<Output = Response<ResponseBody>>> Future for Handling<F> {
    type Output = Result<Response<ResponseBody>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            // A future that is asked again after its answer may wait for ever.
            Self::Answered(response) => {
                response.take().map_or(Poll::Pending, |response| Poll::Ready(Ok(response)))
            }
            Self::Forwarding(forwarding) => forwarding.as_mut().poll(cx).map(Ok),
        }
    }
}
