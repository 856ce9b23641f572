//! Retries of failed attempts.
//!
//! A request is sent again only if the upstream cannot distinguish that from a single request. Its method must be
//! idempotent, its body still available, and none of its response sent to the client. If no connection could be made,
//! nothing was sent, and another endpoint is tried without these conditions (see [`forward`](super::forward)). A retry
//! budget limits retries to a share of all requests, so that they do not overload a failing upstream.

use std::pin::pin;

use http::{HeaderValue, Method};
use smallvec::SmallVec;

use super::attempt::{AttemptResult, TriedHosts, attempt, with_request_timeout};
use super::plan::RetryPlan;
use crate::jitter::{backoff, full_jitter};
use crate::proxy::body::{ReplayBuffer, RequestBody};
use crate::proxy::failure::ForwardFailure;
use crate::proxy::headers::overrides::X_ENVOY_ATTEMPT_COUNT;
use crate::proxy::request_context::RequestContext;
use crate::upstream::Upstream;
use crate::upstream::error::UpstreamError;
use crate::upstream::outgoing::OutgoingRequest;

/// Sends a request until an attempt succeeds or ends in a way for which there is no retry.
pub(super) async fn with_retries(
    upstream: &Upstream,
    context: &mut RequestContext,
    request: &OutgoingRequest,
    body: RequestBody,
    plan: &RetryPlan<'_>,
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
        if !is_retriable(plan, &request.head.method, &result, upstream.has_other(&tried)) {
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
        let Some(permit) = upstream.acquire_retry() else {
            return result;
        };
        _permit = Some(permit);
        retries += 1;
        context.retries = context.retries.saturating_add(1);
        drop(result);
        let (base, max) = settings.backoff;
        let pause = full_jitter(backoff(base, max, retries));
        with_request_timeout(&context.timer, pin!(tokio::time::sleep(pause))).await?;
    }
}

/// Whether another attempt is to be made after `result`. `other` tells whether there is an endpoint that has not been
/// tried.
fn is_retriable(plan: &RetryPlan<'_>, method: &Method, result: &AttemptResult, other: bool) -> bool {
    let is_wanted = match result {
        // The pooled connection was closed, and the endpoint cannot be reached.
        Err(ForwardFailure::Upstream(UpstreamError::Connect(_) | UpstreamError::ConnectTimeout)) => {
            plan.retry_on.connect_failure && plan.retries_sent_requests() && other
        }
        Ok(response) => plan.retry_on.matches_status(response.status.as_u16()),
        Err(ForwardFailure::Upstream(UpstreamError::Reset(_))) => plan.retry_on.reset,
        Err(ForwardFailure::PerTryTimeout(_)) => plan.retry_on.timeout,
        Err(_) => false,
    };
    method.is_idempotent() && is_wanted
}
