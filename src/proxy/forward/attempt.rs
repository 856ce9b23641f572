//! One attempt to send a request to an upstream, up to the head of the response.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use http::header::{CONNECTION, UPGRADE};
use http::{StatusCode, request};
use smallvec::SmallVec;

use super::plan::RetryPlan;
use crate::headers::Response;
use crate::proxy::body::RequestBody;
use crate::proxy::failure::Failure;
use crate::proxy::request_context::RequestContext;
use crate::proxy::timeouts::{RequestTimer, TimeoutKind};
use crate::telemetry::metrics::UpstreamOutcome;
use crate::upstream::Upstream;
use crate::upstream::answer::Answer;
use crate::upstream::endpoint::{Endpoint, Line};
use crate::upstream::error::{Error as UpstreamError, Unanswered};
use crate::upstream::host::Host;
use crate::upstream::outgoing::Outgoing;

/// The endpoints that a request has been sent to.
pub(super) type Tried = SmallVec<[Arc<Host>; 2]>;

/// The response that an attempt got.
pub(in crate::proxy) type AttemptResult = Result<Response<Answer<RequestBody>>, Failure>;

/// One attempt. Where no connection can be made to an endpoint nothing is sent, and another one is tried; so is one where
/// a pooled connection was gone and no other could be made.
pub(in crate::proxy) async fn attempt(
    upstream: &Upstream,
    context: &mut RequestContext,
    request: &mut Outgoing,
    mut body: RequestBody,
    plan: &RetryPlan<'_>,
    tried: &mut Tried,
) -> AttemptResult {
    let endpoint = match upstream.pick(tried) {
        Some(endpoint) => endpoint,
        None => Box::pin(upstream.find()).await.ok_or(Failure::NoEndpoint)?,
    };
    if !tried.is_empty() {
        endpoint.metrics().retried();
    }
    let mut attempt = Attempt::start(endpoint, context);
    loop {
        let line = match attempt.endpoint.kept(context.client, context.is_grpc) {
            Ok(Some(line)) => line,
            // Connecting is rare and its future large: it does not burden the requests that need none.
            Ok(None) => {
                let (connected, line) = Box::pin(connect(upstream, context, plan, tried, attempt)).await?;
                attempt = connected;
                line
            }
            Err(error) => return Err(attempt.failed(Failure::Upstream(error), context)),
        };
        if context.upgrade.protocol.is_some()
            && let Err(failure) = Box::pin(ensure_extended_connect(context, &mut request.head, &line)).await
        {
            return Err(attempt.failed(failure, context));
        }
        let answered = {
            // In place: what is passed on by value has its place in each future on the way.
            let sending = pin!(attempt.endpoint.send(line, request, body, &context.connection.interims));
            match plan.per_try_timeout {
                None => or_timeout(&context.timer, sending).await,
                Some(each) => {
                    let sending = Box::pin(tokio::time::timeout(each.time, sending));
                    match or_timeout(&context.timer, sending).await {
                        Ok(Ok(answered)) => Ok(answered),
                        Ok(Err(_)) => Err(Failure::TryLate(each.set_by)),
                        Err(failure) => Err(failure),
                    }
                }
            }
        };
        let answered = match answered {
            // A body that broke off breaks the upstream's connection too; the fault is the client's.
            Ok(Err(_)) if context.upload_has_failed() => Err(Failure::BrokenRequest),
            Ok(Err(Unanswered { error, body: Some(untouched) })) if is_of_endpoint(&error) => {
                attempt = attempt.moved(error, upstream, plan, tried, context)?;
                body = untouched;
                continue;
            }
            Ok(Err(Unanswered { error, .. })) => Err(Failure::Upstream(error)),
            Ok(Ok(response)) if !is_followed(&response, context) => Err(Failure::Unreadable),
            Ok(Ok(response)) => Ok(response),
            Err(failure) => Err(failure),
        };
        if plan.outlasts_answers() {
            tried.push(Arc::clone(attempt.endpoint.host()));
        }
        attempt.end(&answered, context);
        return answered;
    }
}

/// A request may ask to leave HTTP only where the upstream allows it (over HTTP/2: SETTINGS_ENABLE_CONNECT_PROTOCOL). Else
/// it fails for a client that requires it; for others it is sent without.
async fn ensure_extended_connect(
    context: &RequestContext,
    head: &mut request::Parts,
    line: &Line,
) -> Result<(), Failure> {
    if or_timeout(&context.timer, pin!(line.can_switch())).await? {
        return Ok(());
    }
    if context.requires_upgrade() {
        return Err(Failure::NoProtocol);
    }
    head.headers.remove(UPGRADE);
    head.headers.remove(CONNECTION);
    Ok(())
}

/// Whether a response means to the client what it means to us. A 101 ends HTTP on the connection of a client that may not
/// have asked for anything else, or not for that; for one that requires an upgrade any success would.
fn is_followed(response: &Response<Answer<RequestBody>>, context: &RequestContext) -> bool {
    match response.status {
        StatusCode::SWITCHING_PROTOCOLS => {
            let wanted = context.upgrade.protocol.as_ref().zip(response.headers.get(&UPGRADE));
            wanted.is_some_and(|(wanted, got)| wanted.as_bytes().eq_ignore_ascii_case(got))
        }
        status => !(context.requires_upgrade() && status.is_success()),
    }
}

/// A fresh connection to the endpoint of `attempt`, or to another one where none can be made.
async fn connect(
    upstream: &Upstream,
    context: &mut RequestContext,
    plan: &RetryPlan<'_>,
    tried: &mut Tried,
    mut attempt: Attempt,
) -> Result<(Attempt, Line), Failure> {
    loop {
        let connecting = {
            let connecting = pin!(attempt.endpoint.connect(context.client, context.is_grpc));
            or_timeout(&context.timer, connecting).await
        };
        match connecting {
            Ok(Ok(line)) => return Ok((attempt, line)),
            Ok(Err(error)) if is_of_endpoint(&error) => {
                attempt = attempt.moved(error, upstream, plan, tried, context)?;
            }
            Ok(Err(error)) => return Err(attempt.failed(Failure::Upstream(error), context)),
            Err(failure) => return Err(attempt.failed(failure, context)),
        }
    }
}

/// Whether it is this endpoint that cannot be had, so that another one may be.
const fn is_of_endpoint(error: &UpstreamError) -> bool {
    matches!(error, UpstreamError::Connect(_) | UpstreamError::ConnectTimeout | UpstreamError::Reset(_))
}

/// What `future` comes to, unless a timeout of the request expires before.
pub(in crate::proxy) async fn or_timeout<F: Future + Unpin>(
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

/// One attempt as it is counted: one that is dropped before its end was abandoned by the client.
struct Attempt {
    endpoint: Rc<Endpoint>,
    ended: bool,
}

impl Attempt {
    fn start(endpoint: Rc<Endpoint>, context: &mut RequestContext) -> Self {
        if let Some(log) = &mut context.log {
            log.upstream = Some(endpoint.name().into());
        }
        endpoint.metrics().request_started();
        Self { endpoint, ended: false }
    }

    /// Its endpoint cannot be reached, and has not begun with the request: another one is tried, where there is one and the
    /// plan allows it.
    fn moved(
        self,
        error: UpstreamError,
        upstream: &Upstream,
        plan: &RetryPlan<'_>,
        tried: &mut Tried,
        context: &mut RequestContext,
    ) -> Result<Self, Failure> {
        tried.push(Arc::clone(self.endpoint.host()));
        let failure = self.failed(Failure::Upstream(error), context);
        let may_move = plan.on.connect_failure && plan.allows_after(tried.len()) && upstream.has_other(tried);
        let Some(endpoint) = may_move.then(|| upstream.pick(tried)).flatten() else { return Err(failure) };
        context.retries = context.retries.saturating_add(1);
        endpoint.metrics().retried();
        Ok(Self::start(endpoint, context))
    }

    fn failed(self, failure: Failure, context: &mut RequestContext) -> Failure {
        let failed = Err(failure);
        self.end(&failed, context);
        failed.err().unwrap_or(Failure::NoEndpoint)
    }

    fn end(mut self, result: &AttemptResult, context: &mut RequestContext) {
        self.ended = true;
        let metrics = self.endpoint.metrics();
        let outcome = outcome(result);
        metrics.request_ended(outcome);
        if result.is_ok() {
            let took = context.connection.worker.shared.clock.now().since(context.forwarded);
            context.upstream_time = took;
            if let Some(log) = &mut context.log {
                log.upstream_time = Some(took);
            }
            metrics.answered_after(took);
        }
        if let Some(is_good) = is_good(outcome) {
            self.endpoint.note(is_good);
        }
    }
}

fn outcome(result: &AttemptResult) -> UpstreamOutcome {
    match result {
        Ok(response) => UpstreamOutcome::Answered(response.status),
        Err(failure) => failure.outcome(),
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
