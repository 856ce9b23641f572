//! Another attempt where the first was in vain.
//!
//! Only what the upstream could not tell from a single request is sent again: an idempotent method, whose body is
//! still here, of whose answer nothing has gone to the client. Where no connection could be made nothing was sent,
//! and another endpoint is tried without ado (see [`forward`](super::forward)). Retries are a bounded share of
//! requests, so that an upstream in trouble is not given more to do.

use std::pin::pin;
use std::time::Duration;

use http::{HeaderValue, Method};
use smallvec::SmallVec;

use super::attempt::{AttemptResult, Tried, attempt, or_timeout};
use super::plan::RetryPlan;
use crate::proxy::body::{Replay, RequestBody};
use crate::proxy::failure::Failure;
use crate::proxy::headers::overrides::ATTEMPT_COUNT;
use crate::proxy::request_context::RequestContext;
use crate::upstream::Upstream;
use crate::upstream::error::Error as UpstreamError;
use crate::upstream::outgoing::Outgoing;

/// Doublings of the back-off that change anything.
const MAX_DOUBLINGS: u32 = 16;

/// Sends a request until an attempt ends in a way that another one would not help.
pub(super) async fn with_retries(
    upstream: &Upstream,
    context: &mut RequestContext,
    request: &Outgoing,
    body: RequestBody,
    plan: &RetryPlan<'_>,
) -> AttemptResult {
    let settings = &upstream.settings().retries;
    let replay = Replay::new(body);
    let mut tried: Tried = SmallVec::new();
    // A retry holds its permit until it has ended.
    let mut _permit = None;
    let mut retries = 0;
    loop {
        let mut again = request.clone();
        if settings.attempt_count {
            again.head.headers.insert(ATTEMPT_COUNT, HeaderValue::from(retries + 1));
        }
        let body = RequestBody::replayed(&replay);
        let result = attempt(upstream, context, &mut again, body, plan, &mut tried).await;
        if !is_retriable(plan, &request.head.method, &result, upstream.has_other(&tried)) {
            return result;
        }
        // Where no connection could be made that was an attempt too.
        if !plan.allows_after(tried.len()) {
            context.retries_exhausted = true;
            return result;
        }
        if context.upload_has_failed() || !replay.borrow().is_whole() {
            return result;
        }
        let Some(permit) = upstream.retry() else {
            return result;
        };
        _permit = Some(permit);
        retries += 1;
        context.retries = context.retries.saturating_add(1);
        drop(result);
        let (base, max) = settings.backoff;
        let pause = back_off(base, max, retries, fastrand::f64());
        or_timeout(&context.timer, pin!(tokio::time::sleep(pause))).await?;
    }
}

/// Whether the outcome of an attempt is worth another one, at an`other` endpoint or at the same.
fn is_retriable(plan: &RetryPlan<'_>, method: &Method, result: &AttemptResult, other: bool) -> bool {
    let is_wanted = match result {
        // The connection it was sent on was gone, and so is the endpoint.
        Err(Failure::Upstream(UpstreamError::Connect(_) | UpstreamError::ConnectTimeout)) => {
            plan.on.connect_failure && plan.outlasts_answers() && other
        }
        Ok(response) => plan.on.names(response.status.as_u16()),
        Err(Failure::Upstream(UpstreamError::Reset(_))) => plan.on.reset,
        Err(Failure::TryLate(_)) => plan.on.timeout,
        Err(_) => false,
    };
    method.is_idempotent() && is_wanted
}

/// A time drawn evenly from nothing to twice as long as the last time ("full jitter"): requests that failed together are not
/// retried together.
fn back_off(base: Duration, max: Duration, retry: u32, drawn: f64) -> Duration {
    let doublings = retry.saturating_sub(1).min(MAX_DOUBLINGS);
    base.saturating_mul(1 << doublings).min(max).mul_f64(drawn)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_doubles_up_to_the_longest_and_any_part_of_it_may_be_drawn() {
        let (base, max) = (Duration::from_millis(25), Duration::from_millis(250));
        let longest: Vec<_> = (1..7).map(|retry| back_off(base, max, retry, 1.0).as_millis()).collect();
        assert_eq!(longest, [25, 50, 100, 200, 250, 250]);
        assert_eq!(back_off(base, max, 3, 0.0), Duration::ZERO);
        assert_eq!(back_off(base, max, u32::MAX, 0.5), Duration::from_millis(125));
    }
}
