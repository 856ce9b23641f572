//! A request on its way to the upstream, up to the head of the response.

mod attempt;
mod plan;
mod retry;

use std::time::Duration;

use smallvec::SmallVec;

pub(super) use self::attempt::AttemptResult;
use self::attempt::attempt;
use self::plan::RetryPlan;
use super::body::RequestBody;
use super::failure::Failure;
use super::headers::overrides::{EXPECTED_TIMEOUT, RequestOverrides};
use super::request_context::RequestContext;
use super::timeouts::Timeout;
use crate::limiter::timestamp::saturating_millis;
use crate::upstream::Upstream;
use crate::upstream::outgoing::Outgoing;

/// Sends a request, with retries where these are configured, and waits for the head of the response.
pub(super) async fn forward(
    upstream: Option<&Upstream>,
    context: &mut RequestContext,
    request: &mut Outgoing,
    body: RequestBody,
    overrides: Option<&RequestOverrides>,
) -> AttemptResult {
    let upstream = upstream.ok_or(Failure::NoRoute)?;
    if context.requires_upgrade() && context.upgrade.protocol.is_none() {
        return Err(Failure::NoProtocol);
    }
    let plan = RetryPlan::new(upstream.settings(), overrides);
    let timeout = response_timeout(Some(upstream), overrides);
    request.ours.push_number(&EXPECTED_TIMEOUT, saturating_millis(timeout.time));
    let result = if plan.repeats(&request.head.method) {
        Box::pin(retry::with_retries(upstream, context, request, body, &plan)).await
    } else {
        attempt(upstream, context, request, body, &plan, &mut SmallVec::new()).await
    };
    context.timer.response_started();
    result
}

/// How long the upstream has for its response: what an internal client asks for, else what the configuration says.
pub(super) fn response_timeout(upstream: Option<&Upstream>, overrides: Option<&RequestOverrides>) -> Timeout {
    match overrides.and_then(|overrides| overrides.timeout) {
        Some(time) => Timeout::by_client(time),
        None => Timeout::configured(upstream.map_or(Duration::MAX, |upstream| upstream.settings().timeout)),
    }
}
