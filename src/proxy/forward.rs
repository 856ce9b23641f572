//! One request to the upstream, up to the head of its answer.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http::header::{CONNECTION, UPGRADE};
use http::{StatusCode, request};
use smallvec::SmallVec;

use super::View;
use super::body::RequestBody;
use super::exchange::Exchange;
use super::headers::envoy::{self, Controls};
use super::retry::{self, Plan};
use super::timeouts::{RequestTimer, SetBy, Timeout, TimeoutKind};
use crate::headers::Response;
use crate::limiter::timestamp::saturating_millis;
use crate::telemetry::metrics::UpstreamOutcome;
use crate::upstream::Upstream;
use crate::upstream::answer::Answer;
use crate::upstream::endpoint::{Endpoint, Line};
use crate::upstream::error::{Error as UpstreamError, Unanswered};
use crate::upstream::host::Host;
use crate::upstream::outgoing::Outgoing;

/// Why a request got no answer from the upstream.
#[derive(Debug)]
pub(super) enum Failure {
    /// No upstream takes such a request.
    NoRoute,
    /// The upstream is not asked for such a protocol, and the client wants nothing else.
    NoProtocol,
    /// The upstream is nowhere.
    NoEndpoint,
    /// Between us and the upstream.
    Upstream(UpstreamError),
    /// The answer is the beginning of a protocol that we cannot follow.
    Unreadable,
    /// The answer's head did not come in time, by a timeout that this party set.
    Late(SetBy),
    /// It did not come in the time that one attempt has, by whoever set that.
    TryLate(SetBy),
    /// The client stopped sending in the middle of its request.
    Stalled,
    /// What the client sent is no body.
    BrokenRequest,
    /// The answer broke off after its head, of which the client has seen nothing.
    BrokenOff,
}

/// The endpoints that a request has been sent to.
pub(super) type Tried = SmallVec<[Arc<Host>; 2]>;

type Answered = Result<Response<Answer<RequestBody>>, Failure>;

/// Sends a request and waits for the head of the answer.
pub(super) async fn forward(
    view: &View,
    upstream: Option<&Upstream>,
    exchange: &mut Exchange,
    (request, body): (&mut Outgoing, RequestBody),
    controls: Option<&Controls>,
) -> Answered {
    let upstream = upstream.ok_or(Failure::NoRoute)?;
    if exchange.insists() && exchange.wanted().is_none() {
        return Err(Failure::NoProtocol);
    }
    let plan = Plan::of(upstream.settings(), controls);
    let timeout = response_timeout(Some(upstream), controls);
    request.ours.push_number(&envoy::EXPECTED_TIMEOUT, saturating_millis(timeout.time));
    let answered = if plan.repeats(&request.head.method) {
        Box::pin(retry::forward(upstream, exchange, (request, body), &plan)).await
    } else {
        once(upstream, exchange, (request, body), &plan, &mut SmallVec::new()).await
    };
    exchange.timer().response_started();
    if let Ok(response) = &answered
        && view.policy.rules.is_elastic()
    {
        exchange.load().answered(exchange.upstream_took(), response.status, &response.headers);
    }
    answered
}

/// One attempt. Where no connection can be made to an endpoint nothing is sent, and another one is asked; so is one where
/// a kept connection was gone and no other could be had.
pub(super) async fn once(
    upstream: &Upstream,
    exchange: &mut Exchange,
    (request, mut body): (&mut Outgoing, RequestBody),
    plan: &Plan<'_>,
    tried: &mut Tried,
) -> Answered {
    let endpoint = match upstream.pick(tried) {
        Some(endpoint) => endpoint,
        None => Box::pin(upstream.find()).await.ok_or(Failure::NoEndpoint)?,
    };
    if !tried.is_empty() {
        endpoint.metrics().retried();
    }
    let mut attempt = Attempt::begin(endpoint, exchange);
    loop {
        let line = match attempt.endpoint.kept(exchange.client(), exchange.is_grpc()) {
            Ok(Some(line)) => line,
            // Connecting is rare and its future large: it does not burden the requests that need none.
            Ok(None) => {
                let (connected, line) = Box::pin(connect(upstream, exchange, plan, tried, attempt)).await?;
                attempt = connected;
                line
            }
            Err(error) => return Err(attempt.failed(Failure::Upstream(error), exchange)),
        };
        if exchange.wanted().is_some()
            && let Err(failure) = Box::pin(mind_offer(exchange, &mut request.head, &line)).await
        {
            return Err(attempt.failed(failure, exchange));
        }
        let answered = {
            // In place: what is passed on by value has its place in each future on the way.
            let sending = pin!(attempt.endpoint.send(line, request, body, exchange.interims()));
            match plan.per_try_timeout {
                None => or_timeout(exchange.timer(), sending).await,
                Some(each) => {
                    let sending = Box::pin(tokio::time::timeout(each.time, sending));
                    match or_timeout(exchange.timer(), sending).await {
                        Ok(Ok(answered)) => Ok(answered),
                        Ok(Err(_)) => Err(Failure::TryLate(each.set_by)),
                        Err(failure) => Err(failure),
                    }
                }
            }
        };
        let answered = match answered {
            // A body that broke off breaks the upstream's connection too; the fault is the client's.
            Ok(Err(_)) if exchange.request_is_broken() => Err(Failure::BrokenRequest),
            Ok(Err(Unanswered { error, body: Some(untouched) })) if is_of_endpoint(&error) => {
                attempt = attempt.moved(error, (upstream, plan, tried), exchange)?;
                body = untouched;
                continue;
            }
            Ok(Err(Unanswered { error, .. })) => Err(Failure::Upstream(error)),
            Ok(Ok(response)) if !is_followed(&response, exchange) => Err(Failure::Unreadable),
            Ok(Ok(response)) => Ok(response),
            Err(failure) => Err(failure),
        };
        if plan.outlasts_answers() {
            tried.push(Arc::clone(attempt.endpoint.host()));
        }
        attempt.end(&answered, exchange);
        return answered;
    }
}

/// A request may ask to leave HTTP only where the upstream lets it. To a client that wants nothing else that is said;
/// for others it is a request like any.
async fn mind_offer(exchange: &Exchange, head: &mut request::Parts, line: &Line) -> Result<(), Failure> {
    if or_timeout(exchange.timer(), pin!(line.can_switch())).await? {
        return Ok(());
    }
    if exchange.insists() {
        return Err(Failure::NoProtocol);
    }
    head.headers.remove(UPGRADE);
    head.headers.remove(CONNECTION);
    Ok(())
}

/// Whether an answer means to the client what it means to us. A 101 ends HTTP on the connection of a client that may not
/// have asked for anything else, or not for that; and for one that insists any success would.
fn is_followed(response: &Response<Answer<RequestBody>>, exchange: &Exchange) -> bool {
    match response.status {
        StatusCode::SWITCHING_PROTOCOLS => {
            let wanted = exchange.wanted().zip(response.headers.get(&UPGRADE));
            wanted.is_some_and(|(wanted, got)| wanted.as_bytes().eq_ignore_ascii_case(got))
        }
        status => !(exchange.insists() && status.is_success()),
    }
}

/// A fresh connection to the endpoint of `attempt`, or to another one where none can be made.
async fn connect(
    upstream: &Upstream,
    exchange: &mut Exchange,
    plan: &Plan<'_>,
    tried: &mut Tried,
    mut attempt: Attempt,
) -> Result<(Attempt, Line), Failure> {
    loop {
        let connecting = {
            let connecting = pin!(attempt.endpoint.connect(exchange.client(), exchange.is_grpc()));
            or_timeout(exchange.timer(), connecting).await
        };
        match connecting {
            Ok(Ok(line)) => return Ok((attempt, line)),
            Ok(Err(error)) if is_of_endpoint(&error) => {
                attempt = attempt.moved(error, (upstream, plan, tried), exchange)?;
            }
            Ok(Err(error)) => return Err(attempt.failed(Failure::Upstream(error), exchange)),
            Err(failure) => return Err(attempt.failed(failure, exchange)),
        }
    }
}

/// Whether it is this endpoint that cannot be had, so that another one may be.
const fn is_of_endpoint(error: &UpstreamError) -> bool {
    matches!(error, UpstreamError::Connect(_) | UpstreamError::ConnectTimeout | UpstreamError::Reset(_))
}

/// How long the upstream has for its response: what an internal client asks for, else what the configuration says.
pub(super) fn response_timeout(upstream: Option<&Upstream>, controls: Option<&Controls>) -> Timeout {
    match controls.and_then(|controls| controls.timeout) {
        Some(time) => Timeout::by_client(time),
        None => Timeout::configured(upstream.map_or(Duration::MAX, |upstream| upstream.settings().timeout)),
    }
}

/// What `future` comes to, unless a timeout of the request expires before.
pub(super) async fn or_timeout<F: Future + Unpin>(
    timer: &RequestTimer,
    mut future: F,
) -> Result<F::Output, Failure> {
    poll_fn(|cx| {
        if let Poll::Ready(output) = Pin::new(&mut future).poll(cx) {
            return Poll::Ready(Ok(output));
        }
        if let Poll::Ready(set_by) = timer.poll_response_timeout(cx) {
            return Poll::Ready(Err(Failure::Late(set_by)));
        }
        // A timeout that expires wakes this connection's task.
        match timer.expired() {
            Some(TimeoutKind::Response(set_by)) => Poll::Ready(Err(Failure::Late(set_by))),
            Some(TimeoutKind::StreamIdle) => Poll::Ready(Err(Failure::Stalled)),
            _ => Poll::Pending,
        }
    })
    .await
}

/// One attempt at an answer, for the numbers: one that is dropped before its end was the client's to give up.
struct Attempt {
    endpoint: Rc<Endpoint>,
    ended: bool,
}

impl Attempt {
    fn begin(endpoint: Rc<Endpoint>, exchange: &mut Exchange) -> Self {
        exchange.note_upstream(endpoint.name());
        endpoint.metrics().request_started();
        Self { endpoint, ended: false }
    }

    /// Its endpoint cannot be had, and has not begun with the request: another one is asked, if there is one and it may be.
    fn moved(
        self,
        error: UpstreamError,
        (upstream, plan, tried): (&Upstream, &Plan<'_>, &mut Tried),
        exchange: &mut Exchange,
    ) -> Result<Self, Failure> {
        tried.push(Arc::clone(self.endpoint.host()));
        let failure = self.failed(Failure::Upstream(error), exchange);
        let may_move = plan.on.connect_failure && plan.allows_after(tried) && upstream.has_other(tried);
        let Some(endpoint) = may_move.then(|| upstream.pick(tried)).flatten() else { return Err(failure) };
        exchange.note_retry();
        endpoint.metrics().retried();
        Ok(Self::begin(endpoint, exchange))
    }

    fn failed(self, failure: Failure, exchange: &mut Exchange) -> Failure {
        let failed = Err(failure);
        self.end(&failed, exchange);
        failed.err().unwrap_or(Failure::NoEndpoint)
    }

    fn end(mut self, answered: &Answered, exchange: &mut Exchange) {
        self.ended = true;
        let metrics = self.endpoint.metrics();
        let outcome = outcome(answered);
        metrics.request_ended(outcome);
        if answered.is_ok() {
            metrics.answered_after(exchange.upstream_answered());
        }
        if let Some(is_good) = is_good(outcome) {
            self.endpoint.note(is_good);
        }
    }
}

fn outcome(answered: &Answered) -> UpstreamOutcome {
    match answered {
        Ok(response) => UpstreamOutcome::Answered(response.status),
        Err(Failure::Upstream(UpstreamError::Connect(_) | UpstreamError::ConnectTimeout)) => {
            UpstreamOutcome::ConnectFailed
        }
        Err(Failure::Upstream(UpstreamError::Malformed(_)) | Failure::Unreadable) => {
            UpstreamOutcome::Malformed
        }
        Err(Failure::Upstream(UpstreamError::Overflow)) => UpstreamOutcome::Overflowed,
        Err(Failure::Late(SetBy::Configuration) | Failure::TryLate(SetBy::Configuration)) => {
            UpstreamOutcome::TimedOut
        }
        Err(Failure::Upstream(UpstreamError::Reset(_)) | Failure::BrokenOff) => UpstreamOutcome::Reset,
        // A client that gives its request no time must not have endpoints ejected.
        Err(
            Failure::Late(SetBy::Client)
            | Failure::TryLate(SetBy::Client)
            | Failure::Stalled
            | Failure::BrokenRequest
            | Failure::NoRoute
            | Failure::NoProtocol
            | Failure::NoEndpoint,
        ) => UpstreamOutcome::Abandoned,
    }
}

/// Whether an attempt speaks for its endpoint or against it; `None` for what is not its doing.
fn is_good(outcome: UpstreamOutcome) -> Option<bool> {
    match outcome {
        UpstreamOutcome::Answered(status) => Some(!status.is_server_error()),
        UpstreamOutcome::ConnectFailed
        | UpstreamOutcome::Malformed
        | UpstreamOutcome::TimedOut
        | UpstreamOutcome::Reset => Some(false),
        UpstreamOutcome::Overflowed | UpstreamOutcome::Abandoned => None,
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if !self.ended {
            self.endpoint.metrics().request_ended(UpstreamOutcome::Abandoned);
        }
    }
}
