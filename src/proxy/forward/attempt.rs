//! One attempt to send a request to an upstream, up to the head of the response.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use http::header::{CONNECTION, UPGRADE};
use http::{HeaderValue, StatusCode, request};
use smallvec::SmallVec;

use super::plan::RetryPlan;
use crate::proxy::adaptive;
use crate::proxy::body::RequestBody;
use crate::proxy::failure::ForwardFailure;
use crate::proxy::grpc;
use crate::proxy::request_context::RequestContext;
use crate::proxy::timeouts::{RequestTimer, TimeoutKind};
use weir_http::headers::Response;
use weir_http::http1::head::list_elements;
use weir_limiter::timestamp::Timestamp;
use weir_limits::ProviderSignals;
use weir_policy::rules::cost::RequestEnd;
use weir_telemetry::metrics::UpstreamOutcome;
use weir_upstream::Upstream;
use weir_upstream::endpoint::{Endpoint, PooledConnection};
use weir_upstream::error::{SendError, UpstreamError};
use weir_upstream::host::UpstreamHost;
use weir_upstream::outgoing::OutgoingRequest;
use weir_upstream::response_body::UpstreamResponseBody;

/// Endpoints to which the request has been sent.
pub(super) type TriedHosts = SmallVec<[Arc<UpstreamHost>; 2]>;

/// Result of an attempt.
pub(in crate::proxy) type AttemptResult = Result<Response<UpstreamResponseBody<RequestBody>>, ForwardFailure>;

/// Sends a request once. If no connection to the endpoint can be made, nothing has been sent, and another endpoint is
/// tried. The same applies if a pooled connection turns out to be closed and no new one can be made.
#[expect(
    clippy::manual_async_fn,
    reason = "the future of an async function has room for its parameters twice"
)]
pub(in crate::proxy) fn attempt(
    upstream: &Upstream,
    context: &mut RequestContext,
    request: &mut OutgoingRequest,
    mut body: RequestBody,
    plan: &RetryPlan<'_>,
    tried: &mut TriedHosts,
) -> impl Future<Output = AttemptResult> {
    async move {
        let endpoint = match upstream.pick(tried) {
            Some(endpoint) => endpoint,
            None => pick_when_resolved(upstream).await?,
        };
        if !tried.is_empty() {
            endpoint.metrics().request_retried();
        }
        let mut attempt = UpstreamAttempt::start(endpoint, context);
        attempt.name_may_be_served = !tried.is_empty();
        loop {
            let line = match attempt.endpoint.try_checkout(context.client, context.is_grpc) {
                Ok(Some(line)) => line,
                // Boxed: connecting is rare and its future large, and most requests do not need it.
                Ok(None) => {
                    let (connected, line) =
                        Box::pin(connect(upstream, context, plan, tried, attempt)).await?;
                    attempt = connected;
                    line
                }
                Err(error) => return Err(attempt.fail(ForwardFailure::Upstream(error), context)),
            };
            if context.upgrade.protocol.is_some()
                && let Err(failure) =
                    Box::pin(ensure_extended_connect(context, &mut request.head, &line)).await
            {
                return Err(attempt.fail(failure, context));
            }
            set_awaits_cost(context);
            let answered = {
                // Pinned in place: a future passed by value would take space in each future on the way.
                let (interims, was_sent) = (&context.connection.interims, context.timer.attempt_sent());
                let sending =
                    pin!(attempt.endpoint.send(line, request, &context.received, body, interims, was_sent));
                match plan.per_try_timeout {
                    None => with_request_timeout(&context.timer, sending).await,
                    Some(each) => {
                        let sending = Box::pin(tokio::time::timeout(each.time, sending));
                        match with_request_timeout(&context.timer, sending).await {
                            Ok(Ok(answered)) => Ok(answered),
                            Ok(Err(_)) => Err(ForwardFailure::PerTryTimeout(each.set_by)),
                            Err(failure) => Err(failure),
                        }
                    }
                }
            };
            context.timer.set_awaits_cost(None);
            let answered = match answered {
                // A failed request body also breaks the connection to the upstream, but the client caused it.
                Ok(Err(_)) if context.upload_has_failed() => Err(ForwardFailure::BrokenRequest),
                Ok(Err(SendError { error, body: Some(untouched) })) if is_endpoint_error(&error) => {
                    attempt = attempt.try_other_endpoint(error, upstream, plan, tried, context)?;
                    body = untouched;
                    continue;
                }
                Ok(Err(SendError { error, .. })) => Err(ForwardFailure::Upstream(error)),
                Ok(Ok(response)) if !is_expected_protocol(&response, context) => {
                    Err(ForwardFailure::UnexpectedProtocol)
                }
                Ok(Ok(response)) => Ok(response),
                Err(failure) => Err(failure),
            };
            if plan.retries_sent_requests() {
                tried.push(Arc::clone(attempt.endpoint.host()));
            }
            attempt.finish(&answered, context);
            return answered;
        }
    }
}

/// Records whether the response to the attempt that begins states the cost.
fn set_awaits_cost(context: &RequestContext) {
    let awaits_cost = context.settlement.as_ref().is_some_and(|settlement| settlement.awaits_stated_cost());
    let awaited = &context.connection.worker.awaited;
    context.timer.set_awaits_cost(awaits_cost.then(|| awaited.client(context.client)));
}

/// Waits until the upstream's addresses are known, and returns an endpoint.
pub(super) async fn pick_when_resolved(upstream: &Upstream) -> Result<Rc<Endpoint>, ForwardFailure> {
    let endpoint = Box::pin(upstream.pick_when_resolved()).await;
    endpoint
        .ok_or_else(|| upstream.no_address().map_or(ForwardFailure::NoEndpoint, ForwardFailure::NoAddress))
}

/// Checks that the endpoint supports upgrades; over HTTP/2 this needs SETTINGS_ENABLE_CONNECT_PROTOCOL. If it does not,
/// the request fails if the client requires the upgrade, and is otherwise sent without it.
async fn ensure_extended_connect(
    context: &RequestContext,
    head: &mut request::Parts,
    line: &PooledConnection,
) -> Result<(), ForwardFailure> {
    if with_request_timeout(&context.timer, pin!(line.allows_upgrade())).await? {
        return Ok(());
    }
    if context.requires_upgrade() {
        return Err(ForwardFailure::UpgradeUnavailable);
    }
    head.headers.remove(UPGRADE);
    head.headers.remove(CONNECTION);
    Ok(())
}

/// Whether the response means to the client what it means to Weir. A 101 ends HTTP on the connection, so the client
/// must have requested that protocol. A client that requires an upgrade would take any other success for its
/// acceptance.
fn is_expected_protocol(
    response: &Response<UpstreamResponseBody<RequestBody>>,
    context: &RequestContext,
) -> bool {
    match response.status {
        StatusCode::SWITCHING_PROTOCOLS => {
            let wanted = context.upgrade.protocol.as_ref().zip(response.headers.get(&UPGRADE));
            let is_only = |wanted: &HeaderValue, got| {
                let mut protocols = list_elements(got);
                let is_wanted =
                    protocols.next().is_some_and(|protocol| wanted.as_bytes().eq_ignore_ascii_case(protocol));
                is_wanted && protocols.next().is_none()
            };
            wanted.is_some_and(|(wanted, got)| is_only(wanted, got))
        }
        status => !(context.requires_upgrade() && status.is_success()),
    }
}

/// Opens a new connection to the endpoint of `attempt`, or to another endpoint if that fails.
async fn connect(
    upstream: &Upstream,
    context: &mut RequestContext,
    plan: &RetryPlan<'_>,
    tried: &mut TriedHosts,
    mut attempt: UpstreamAttempt,
) -> Result<(UpstreamAttempt, PooledConnection), ForwardFailure> {
    loop {
        let connecting = {
            let connecting = pin!(attempt.endpoint.connect(context.client, context.is_grpc));
            with_request_timeout(&context.timer, connecting).await
        };
        match connecting {
            Ok(Ok(line)) => return Ok((attempt, line)),
            Ok(Err(error)) if is_endpoint_error(&error) => {
                attempt = attempt.try_other_endpoint(error, upstream, plan, tried, context)?;
            }
            Ok(Err(error)) => return Err(attempt.fail(ForwardFailure::Upstream(error), context)),
            Err(failure) => return Err(attempt.fail(failure, context)),
        }
    }
}

/// Whether the error concerns only this endpoint, so that another one may work. That includes a name that this endpoint
/// does not serve: a fault of its TLS looks the same.
pub(super) const fn is_endpoint_error(error: &UpstreamError) -> bool {
    matches!(
        error,
        UpstreamError::Connect(_)
            | UpstreamError::ConnectTimeout
            | UpstreamError::Reset(_)
            | UpstreamError::ServerName(_)
    )
}

/// Awaits `future`, unless a timeout of the request expires before.
pub(in crate::proxy) async fn with_request_timeout<F: Future + Unpin>(
    timer: &RequestTimer,
    mut future: F,
) -> Result<F::Output, ForwardFailure> {
    poll_fn(|cx| {
        if let Poll::Ready(output) = Pin::new(&mut future).poll(cx) {
            return Poll::Ready(Ok(output));
        }
        if let Poll::Ready(set_by) = timer.poll_response_timeout(cx) {
            return Poll::Ready(Err(ForwardFailure::ResponseTimeout(set_by)));
        }
        // A timeout that expires wakes the task of this connection.
        match timer.expired() {
            Some(TimeoutKind::Response(set_by)) => Poll::Ready(Err(ForwardFailure::ResponseTimeout(set_by))),
            Some(TimeoutKind::StreamIdle) => Poll::Ready(Err(ForwardFailure::RequestStalled)),
            _ => Poll::Pending,
        }
    })
    .await
}

/// Counts one attempt. If it is dropped before its end, the client has abandoned it.
pub(super) struct UpstreamAttempt {
    pub(super) endpoint: Rc<Endpoint>,
    started_at: Timestamp,
    ended: bool,
    /// Whether an endpoint that was tried before has responded or could not be reached: it may serve the request's name.
    name_may_be_served: bool,
}

impl UpstreamAttempt {
    pub(super) fn start(endpoint: Rc<Endpoint>, context: &mut RequestContext) -> Self {
        if let Some(log) = &mut context.log {
            log.upstream = Some(Rc::clone(&endpoint));
        }
        endpoint.metrics().request_started();
        // The first attempt starts when the request is ready, so that the clock is not read again.
        let started_at = match context.retries {
            0 => context.forwarded_at,
            _ => context.connection.worker.shared.clock.now(),
        };
        Self { endpoint, started_at, ended: false, name_may_be_served: false }
    }

    /// Moves to another endpoint after this one could not be reached or has not begun with the request. Fails if there
    /// is none, or the plan does not allow it.
    pub(super) fn try_other_endpoint(
        self,
        error: UpstreamError,
        upstream: &Upstream,
        plan: &RetryPlan<'_>,
        tried: &mut TriedHosts,
        context: &mut RequestContext,
    ) -> Result<Self, ForwardFailure> {
        tried.push(Arc::clone(self.endpoint.host()));
        let name_may_be_served = self.name_may_be_served || !matches!(error, UpstreamError::ServerName(_));
        let failure = match self.fail(ForwardFailure::Upstream(error), context) {
            ForwardFailure::Upstream(UpstreamError::ServerName(error)) if name_may_be_served => {
                ForwardFailure::Upstream(UpstreamError::Connect(error))
            }
            failure => failure,
        };
        let may_move =
            plan.retry_on.connect_failure && plan.allows_another(tried.len()) && upstream.has_other(tried);
        let Some(endpoint) = may_move.then(|| upstream.pick(tried)).flatten() else { return Err(failure) };
        context.retries = context.retries.saturating_add(1);
        endpoint.metrics().request_retried();
        let mut next = Self::start(endpoint, context);
        next.name_may_be_served = name_may_be_served;
        Ok(next)
    }

    pub(super) fn fail(self, failure: ForwardFailure, context: &mut RequestContext) -> ForwardFailure {
        let failed = Err(failure);
        self.finish(&failed, context);
        failed.err().unwrap_or(ForwardFailure::NoEndpoint)
    }

    pub(super) fn finish(mut self, result: &AttemptResult, context: &mut RequestContext) {
        self.ended = true;
        let metrics = self.endpoint.metrics();
        let outcome = outcome(result);
        metrics.request_ended(outcome);
        if let Ok(response) = result {
            let now = context.connection.worker.shared.clock.now();
            let took = now.since(self.started_at);
            context.upstream_time = took;
            if let Some(log) = &mut context.log {
                log.upstream_time = Some(took);
            }
            // The 200 of a tunnel is Weir's own: it does not show what the destination will respond, nor when.
            if !context.upgrade.is_connect {
                metrics.record_response_time(took);
                if context.followed.is_some() {
                    record_signals(response, context, now);
                }
            }
        }
        if let Some(settlement) = &context.settlement {
            settlement.record_signal(|| adaptive::signal_of_attempt(context, result));
        }
        if let Some(is_good) = endpoint_success(outcome) {
            self.endpoint.record_outcome(is_good);
        }
    }
}

/// Applies what a response signals to the limits that follow the provider.
// Out of line, because few requests have such limits.
#[inline(never)]
fn record_signals(
    response: &Response<UpstreamResponseBody<RequestBody>>,
    context: &RequestContext,
    now: Timestamp,
) {
    let Some(followed) = &context.followed else { return };
    let (status, headers) = (response.status, &response.headers);
    let call = grpc::call_status(context.is_grpc, &RequestEnd::Responded { status, headers });
    let wall_clock = context.connection.worker.shared.clock.civil_time_at(now);
    followed.responded(status, call, ProviderSignals::from_headers(headers, wall_clock), now);
}

fn outcome(result: &AttemptResult) -> UpstreamOutcome {
    match result {
        Ok(response) => UpstreamOutcome::Responded(response.status),
        Err(failure) => failure.outcome(),
    }
}

/// Whether an attempt counts as a success or as a failure of its endpoint; `None` if the endpoint did not cause the
/// outcome.
fn endpoint_success(outcome: UpstreamOutcome) -> Option<bool> {
    match outcome {
        UpstreamOutcome::Responded(status) => Some(!status.is_server_error()),
        UpstreamOutcome::ConnectFailed
        | UpstreamOutcome::Malformed
        | UpstreamOutcome::TimedOut
        | UpstreamOutcome::Reset => Some(false),
        // A client must not cause endpoints to be ejected by the names that it requests.
        UpstreamOutcome::WrongName | UpstreamOutcome::Overflowed | UpstreamOutcome::Abandoned => None,
    }
}

impl Drop for UpstreamAttempt {
    fn drop(&mut self) {
        if !self.ended {
            self.endpoint.metrics().request_ended(UpstreamOutcome::Abandoned);
        }
    }
}
