//! Forwarding of a request to the upstream, up to the head of the response.

mod attempt;
mod plan;
mod retry;
mod tunnel;

use std::time::Duration;

use smallvec::SmallVec;

use self::attempt::attempt;
pub(super) use self::attempt::{AttemptResult, with_request_timeout};
use self::plan::RetryPlan;
use super::body::RequestBody;
use super::failure::ForwardFailure;
use super::headers::overrides::{RequestOverrides, X_ENVOY_EXPECTED_RQ_TIMEOUT_MS};
use super::request_context::RequestContext;
use super::timeouts::Timeout;
use weir_limiter::timestamp::saturating_millis;
use weir_upstream::Upstream;
use weir_upstream::outgoing::OutgoingRequest;

/// Sends a request, with retries if configured, and waits for the head of the response.
pub(super) async fn forward(
    upstream: Option<&Upstream>,
    context: &mut RequestContext,
    request: &mut OutgoingRequest,
    body: RequestBody,
    overrides: Option<&RequestOverrides>,
) -> AttemptResult {
    context.connection.admit_stored();
    let upstream = upstream.ok_or(ForwardFailure::NoRoute)?;
    if context.upgrade.is_connect {
        return Box::pin(tunnel::open(upstream, context)).await;
    }
    if context.requires_upgrade() && context.upgrade.protocol.is_none() {
        return Err(ForwardFailure::UpgradeUnavailable);
    }
    let plan = RetryPlan::new(upstream.settings(), overrides);
    let timeout = response_timeout(Some(upstream), overrides);
    if !context.hides_client {
        let expected = saturating_millis(timeout.time);
        request.added_headers.push_number(&X_ENVOY_EXPECTED_RQ_TIMEOUT_MS, expected);
    }
    let result = if plan.needs_retry_loop(&request.head, context.is_grpc) {
        Box::pin(retry::with_retries(upstream, context, request, body, &plan, timeout.time)).await
    } else {
        attempt(upstream, context, request, body, &plan, &mut SmallVec::new()).await
    };
    context.timer.response_started();
    result
}

/// Returns the response timeout: the one that an internal client has set for the request, or the configured one.
pub(super) fn response_timeout(upstream: Option<&Upstream>, overrides: Option<&RequestOverrides>) -> Timeout {
    match overrides.and_then(|overrides| overrides.timeout) {
        Some(time) => Timeout::by_client(time),
        None => Timeout::configured(upstream.map_or(Duration::MAX, |upstream| upstream.settings().timeout)),
    }
}
