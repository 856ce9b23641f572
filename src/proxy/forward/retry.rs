//! Retries of failed attempts.
//!
//! A request is sent again only if the upstream cannot distinguish that from a single request. Its method must be
//! idempotent or it must have an `idempotency-key`, its body must still be available, and none of its response sent to
//! the client. If no connection could be made, nothing was sent, and another endpoint is tried without these conditions
//! (see [`forward`](super::forward)).
//!
//! A retry budget limits retries to a share of all requests, so that they do not overload a failing upstream. A retry is
//! not made before the time that the upstream has stated, and is charged to the limits that follow the upstream.

use std::pin::pin;
use std::time::Duration;

use http::HeaderValue;
use smallvec::SmallVec;

use super::attempt::{AttemptResult, TriedHosts, attempt, with_request_timeout};
use super::plan::RetryPlan;
use crate::proxy::body::{ReplayBuffer, RequestBody};
use crate::proxy::failure::ForwardFailure;
use crate::proxy::grpc;
use crate::proxy::headers::overrides::X_ENVOY_ATTEMPT_COUNT;
use crate::proxy::request_context::RequestContext;
use weir_limits::ProviderSignals;
use weir_net::jitter::{backoff, full_jitter};
use weir_policy::rules::cost::RequestEnd;
use weir_policy::rules::grpc::CallStatus;
use weir_upstream::Upstream;
use weir_upstream::error::UpstreamError;
use weir_upstream::outgoing::OutgoingRequest;

/// Sends a request until an attempt succeeds or ends in a way for which there is no retry. `timeout` is the time for all
/// attempts.
pub(super) async fn with_retries(
    upstream: &Upstream,
    context: &mut RequestContext,
    request: &OutgoingRequest,
    body: RequestBody,
    plan: &RetryPlan<'_>,
    timeout: Duration,
) -> AttemptResult {
    let settings = &upstream.settings().retries;
    let replay = ReplayBuffer::new(body);
    let mut tried: TriedHosts = SmallVec::new();
    // A retry holds its permit until it ends.
    let mut _permit = None;
    let mut retries = 0;
    loop {
        let mut again = request.clone();
        if settings.attempt_count {
            again.head.headers.insert(X_ENVOY_ATTEMPT_COUNT, HeaderValue::from(retries + 1));
        }
        let body = RequestBody::replayed(&replay);
        let result = attempt(upstream, context, &mut again, body, plan, &mut tried).await;
        if !is_retriable(plan, request, context, &result, upstream.has_other(&tried)) {
            return result;
        }
        // Attempts that only failed to connect count as well.
        if !plan.allows_another(tried.len()) {
            context.retries_exhausted = true;
            return result;
        }
        if context.upload_has_failed() || !replay.borrow().can_replay() {
            return result;
        }
        let Some(wait) = wait_for_upstream(plan, request, context, &result, timeout) else {
            return result;
        };
        // After a response the endpoint has done its work, and owes nothing.
        context.timer.attempt_ended(result.is_ok());
        retries += 1;
        let (base, max) = settings.backoff;
        let pause = wait.saturating_add(full_jitter(backoff(base, max, retries)));
        if wait.is_zero() && context.followed.is_none() {
            let Some(permit) = upstream.acquire_retry() else { return result };
            _permit = Some(permit);
            drop(result);
            with_request_timeout(&context.timer, pin!(tokio::time::sleep(pause))).await?;
        } else {
            // The wait may be long, and would occupy a permit that another request could use. The result is kept, in
            // case that there is no retry after all.
            _permit = None;
            if !Box::pin(wait_out_pauses(plan, request, context, pause, timeout)).await? {
                return result;
            }
            let Some(permit) = upstream.acquire_retry() else { return result };
            _permit = Some(permit);
            drop(result);
        }
        context.retries = context.retries.saturating_add(1);
        let now = context.connection.worker.shared.clock.now();
        if let Some(followed) = &mut context.followed {
            followed.charge_retry(now);
        }
    }
}

/// Whether another attempt is to be made after `result`. `other`: whether there is an endpoint that has not been
/// tried.
fn is_retriable(
    plan: &RetryPlan<'_>,
    request: &OutgoingRequest,
    context: &RequestContext,
    result: &AttemptResult,
    other: bool,
) -> bool {
    let is_wanted = match result {
        // The pooled connection was closed, and the endpoint cannot be reached.
        Err(ForwardFailure::Upstream(UpstreamError::Connect(_) | UpstreamError::ConnectTimeout)) => {
            plan.retry_on.connect_failure && plan.retries_sent_requests() && other
        }
        Ok(response) => {
            let end = RequestEnd::Responded { status: response.status, headers: &response.headers };
            // The configuration states that a call with this status was not processed (gRFC A6), so it may be repeated.
            if let CallStatus::Known(call) = grpc::call_status(context.is_grpc, &end)
                && plan.retry_on.grpc_codes.contains(&call.code())
            {
                return true;
            }
            plan.retry_on.matches_status(response.status.as_u16())
        }
        Err(ForwardFailure::Upstream(UpstreamError::Reset(_))) => plan.retry_on.reset,
        Err(ForwardFailure::PerTryTimeout(_)) => plan.retry_on.timeout,
        Err(_) => false,
    };
    plan.may_repeat(&request.head) && is_wanted
}

/// Returns the time that a retry has to wait before its backoff: until the upstream accepts it, and until no limit that
/// follows the upstream is paused. `None` if there must not be a retry, or if that takes too long.
fn wait_for_upstream(
    plan: &RetryPlan<'_>,
    request: &OutgoingRequest,
    context: &RequestContext,
    result: &AttemptResult,
    timeout: Duration,
) -> Option<Duration> {
    let clock = &context.connection.worker.shared.clock;
    let now = clock.now();
    let signals = match result {
        Ok(response) => ProviderSignals::from_headers(&response.headers, clock.civil_time_at(now)),
        Err(_) => ProviderSignals::default(),
    };
    let paused = context.followed.as_ref().map_or(Duration::ZERO, |followed| followed.paused_for(now));
    let wait = signals.retry_after.unwrap_or_default().max(paused);
    let left = time_left(request, context, timeout);
    if signals.forbids_retry || wait > plan.max_wait || !wait.is_zero() && wait >= left {
        return None;
    }
    if let Some(followed) = context.followed.as_ref().filter(|_| !wait.is_zero()) {
        followed.record_delayed_retry();
    }
    Some(wait)
}

/// Waits for `pause`, and until no limit that follows the upstream is paused: other responses may signal a pause
/// meanwhile. Returns whether the retry may be made, that is, whether it need not wait for longer than allowed.
async fn wait_out_pauses(
    plan: &RetryPlan<'_>,
    request: &OutgoingRequest,
    context: &RequestContext,
    mut pause: Duration,
    timeout: Duration,
) -> Result<bool, ForwardFailure> {
    let clock = &context.connection.worker.shared.clock;
    let since = clock.now();
    loop {
        with_request_timeout(&context.timer, pin!(tokio::time::sleep(pause))).await?;
        let now = clock.now();
        let paused = context.followed.as_ref().map_or(Duration::ZERO, |followed| followed.paused_for(now));
        if paused.is_zero() {
            return Ok(true);
        }
        let waited = now.since(since);
        if waited.saturating_add(paused) > plan.max_wait || paused >= time_left(request, context, timeout) {
            return Ok(false);
        }
        pause = paused.saturating_add(full_jitter(paused / 10));
    }
}

/// Returns the time left for all attempts, of which `timeout` is the total.
fn time_left(request: &OutgoingRequest, context: &RequestContext, timeout: Duration) -> Duration {
    let of_call = grpc::call_timeout(&request.head.headers).filter(|_| context.is_grpc);
    let elapsed = context.connection.worker.shared.clock.now().since(context.forwarded_at);
    timeout.min(of_call.unwrap_or(Duration::MAX)).saturating_sub(elapsed)
}
