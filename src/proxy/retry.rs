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

use super::body::{Replay, RequestBody};
use super::exchange::Exchange;
use super::forward::{Failure, Tried, once, or_timeout};
use super::headers::envoy::{ATTEMPT_COUNT, Controls};
use super::timeouts::Timeout;
use crate::headers::Response;
use crate::upstream::Upstream;
use crate::upstream::answer::Answer;
use crate::upstream::error::Error as UpstreamError;
use crate::upstream::outgoing::Outgoing;
use crate::upstream::settings::{RetryOn, Settings};

/// Doublings of the back-off that change anything.
const MOST_DOUBLINGS: u32 = 16;

/// How one request may be tried.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan<'a> {
    /// Attempts after the first.
    pub(super) retries: u32,
    /// What is worth one.
    pub(super) on: &'a RetryOn,
    /// For each attempt.
    pub(super) per_try_timeout: Option<Timeout>,
    /// The upstream is told which attempt it is.
    counts: bool,
}

impl<'a> Plan<'a> {
    /// What the configuration says, unless `controls` say something else.
    pub(super) fn of(settings: &'a Settings, controls: Option<&'a Controls>) -> Self {
        let own = &settings.retries;
        let plan = Self {
            retries: own.attempts,
            on: &own.on,
            per_try_timeout: own.per_try_timeout.map(Timeout::configured),
            counts: own.attempt_count,
        };
        let Some(controls) = controls else { return plan };
        Self {
            retries: controls.retries.unwrap_or(own.attempts),
            on: controls.retry_on.as_ref().unwrap_or(&own.on),
            per_try_timeout: controls.per_try_timeout.map(Timeout::by_client).or(plan.per_try_timeout),
            ..plan
        }
    }

    /// Whether a request that was sent may be sent again (RFC 9110 section 9.2.2), or says which attempt it is.
    pub(super) fn repeats(&self, method: &Method) -> bool {
        self.outlasts_answers() && method.is_idempotent() || self.counts
    }

    /// Whether something else than a refused connection is worth another attempt.
    pub(super) const fn outlasts_answers(&self) -> bool {
        self.retries > 0 && self.on.is_more_than_connecting()
    }

    /// Whether there may be another attempt after those at `tried`.
    pub(super) fn allows_after(&self, tried: &Tried) -> bool {
        u32::try_from(tried.len()).is_ok_and(|tried| tried <= self.retries)
    }

    /// Whether the outcome of an attempt is worth another one, at an`other` endpoint or at the same.
    fn wants(
        &self,
        method: &Method,
        answered: &Result<Response<Answer<RequestBody>>, Failure>,
        other: bool,
    ) -> bool {
        let is_wanted = match answered {
            // The connection it was sent on was gone, and so is the endpoint.
            Err(Failure::Upstream(UpstreamError::Connect(_) | UpstreamError::ConnectTimeout)) => {
                self.on.connect_failure && self.outlasts_answers() && other
            }
            Ok(response) => self.on.names(response.status.as_u16()),
            Err(Failure::Upstream(UpstreamError::Reset(_))) => self.on.reset,
            Err(Failure::TryLate(_)) => self.on.timeout,
            Err(_) => false,
        };
        method.is_idempotent() && is_wanted
    }
}

/// Sends a request until an attempt ends in a way that another one would not help.
pub(super) async fn forward(
    upstream: &Upstream,
    exchange: &mut Exchange,
    (request, body): (&Outgoing, RequestBody),
    plan: &Plan<'_>,
) -> Result<Response<Answer<RequestBody>>, Failure> {
    let settings = &upstream.settings().retries;
    let replay = Replay::new(body);
    let mut tried: Tried = SmallVec::new();
    // A retry has its place until it has ended.
    let mut _place = None;
    let mut retries = 0;
    loop {
        let mut again = request.clone();
        if settings.attempt_count {
            again.head.headers.insert(ATTEMPT_COUNT, HeaderValue::from(retries + 1));
        }
        let attempt = (&mut again, RequestBody::replayed(&replay));
        let answered = once(upstream, exchange, attempt, plan, &mut tried).await;
        if !plan.wants(&request.head.method, &answered, upstream.has_other(&tried)) {
            return answered;
        }
        // Where no connection could be made that was an attempt too.
        if !plan.allows_after(&tried) {
            exchange.note_exhausted();
            return answered;
        }
        if exchange.request_is_broken() || !replay.borrow().is_whole() {
            return answered;
        }
        let Some(place) = upstream.retry() else {
            return answered;
        };
        _place = Some(place);
        retries += 1;
        exchange.note_retry();
        drop(answered);
        let pause = back_off(settings.backoff, retries, fastrand::f64());
        or_timeout(exchange.timer(), pin!(tokio::time::sleep(pause))).await?;
    }
}

/// A time drawn evenly from nothing to twice as long as the last time ("full jitter"): whoever failed together does not
/// come back together.
fn back_off((base, most): (Duration, Duration), retry: u32, drawn: f64) -> Duration {
    let doublings = retry.saturating_sub(1).min(MOST_DOUBLINGS);
    base.saturating_mul(1 << doublings).min(most).mul_f64(drawn)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_doubles_up_to_the_longest_and_any_part_of_it_may_be_drawn() {
        let range = (Duration::from_millis(25), Duration::from_millis(250));
        let longest: Vec<_> = (1..7).map(|retry| back_off(range, retry, 1.0).as_millis()).collect();
        assert_eq!(longest, [25, 50, 100, 200, 250, 250]);
        assert_eq!(back_off(range, 3, 0.0), Duration::ZERO);
        assert_eq!(back_off(range, u32::MAX, 0.5), Duration::from_millis(125));
    }
}
