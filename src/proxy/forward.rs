//! Forwarding of a request to the upstream, up to the head of the response.

mod attempt;
mod plan;
mod retry;
mod upstream_attempt;

use std::time::Duration;

use self::attempt::Forwarding;
use self::plan::RetryPlan;
pub(super) use self::upstream_attempt::{AttemptResult, UpstreamResponse};
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
    if context.requires_upgrade() && context.upgrade.protocol.is_none() {
        return Err(ForwardFailure::UpgradeUnavailable);
    }
    let timeout = response_timeout(Some(upstream), overrides).time;
    if !context.hides_client {
        let expected = saturating_millis(timeout);
        request.added_headers.push_number(&X_ENVOY_EXPECTED_RQ_TIMEOUT_MS, expected);
    }
    // Nothing of a CONNECT is sent, so it has no plan of its own and no attempt that could be repeated.
    let is_connect = context.upgrade.is_connect;
    let plan = RetryPlan::new(upstream.settings(), overrides.filter(|_| !is_connect));
    let needs_loop = !is_connect && plan.needs_retry_loop(&request.head, context.is_grpc);
    let mut forwarding = Forwarding::new(upstream, context, plan, timeout);
    let result = match needs_loop {
        true => Box::pin(forwarding.attempt_repeatedly(request, body)).await,
        false => forwarding.attempt(request, body).await,
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
