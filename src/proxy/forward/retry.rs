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

use super::attempt::Forwarding;
use super::upstream_attempt::AttemptResult;
use crate::proxy::body::{ReplayBuffer, RequestBody};
use crate::proxy::failure::ForwardFailure;
use crate::proxy::grpc;
use crate::proxy::headers::overrides::X_ENVOY_ATTEMPT_COUNT;
use crate::proxy::timeouts::TimeoutKind;
use weir_limits::ProviderSignals;
use weir_net::jitter::{backoff, full_jitter};
use weir_policy::rules::cost::RequestEnd;
use weir_policy::rules::grpc::CallStatus;
use weir_upstream::RetryPermit;
use weir_upstream::error::UpstreamError;
use weir_upstream::outgoing::OutgoingRequest;

impl Forwarding<'_> {
    /// Sends a request until an attempt succeeds or ends in a way for which there is no retry.
    pub(super) async fn attempt_repeatedly(
        &mut self,
        request: &OutgoingRequest,
        body: RequestBody,
    ) -> AttemptResult {
        let replay = ReplayBuffer::new(body);
        // A retry holds its permit until it ends.
        let (mut permit, mut retries) = (None, 0);
        loop {
            let mut copy = request.clone();
            if self.upstream.settings().retries.attempt_count {
                copy.head.headers.insert(X_ENVOY_ATTEMPT_COUNT, HeaderValue::from(retries + 1));
            }
            let result = self.attempt(&mut copy, RequestBody::replayed(&replay)).await;
            if !self.is_retriable(request, &result) {
                return result;
            }
            // Attempts that only failed to connect count as well.
            if !self.plan.allows_another(self.tried.len()) {
                self.context.retries_exhausted = true;
                return result;
            }
            if self.context.upload_has_failed() || !replay.borrow().can_replay() {
                return result;
            }
            let Some(wait) = self.wait_for_upstream(request, &result) else { return result };
            // After a response the endpoint has done its work, and owes nothing.
            self.context.timer.attempt_ended(result.is_ok());
            retries += 1;
            if let Err(result) = self.pause(request, result, wait, retries, &mut permit).await {
                return result;
            }
            self.context.retries = self.context.retries.saturating_add(1);
            let now = self.context.connection.worker.shared.clock.now();
            if let Some(followed) = &mut self.context.followed {
                followed.charge_retry(now);
            }
        }
    }

    /// Whether another attempt is to be made after `result`.
    fn is_retriable(&self, request: &OutgoingRequest, result: &AttemptResult) -> bool {
        let plan = &self.plan;
        let is_wanted = match result {
            // The pooled connection was closed, and the endpoint cannot be reached.
            Err(ForwardFailure::Upstream(UpstreamError::Connect(_) | UpstreamError::ConnectTimeout)) => {
                let has_other = || self.upstream.has_other(&self.tried);
                plan.retry_on.connect_failure && plan.retries_sent_requests() && has_other()
            }
            Ok(response) => {
                let end = RequestEnd::Responded { status: response.status, headers: &response.headers };
                // The configuration states that a call with this status was not processed (gRFC A6), so it may be repeated.
                if let CallStatus::Known(call) = grpc::call_status(self.context.is_grpc, &end)
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

    /// Returns the time that a retry has to wait before its backoff: until the upstream accepts it, and until no limit
    /// that follows the upstream is paused. `None` if there must not be a retry, or if that takes too long.
    fn wait_for_upstream(&self, request: &OutgoingRequest, result: &AttemptResult) -> Option<Duration> {
        let clock = &self.context.connection.worker.shared.clock;
        let now = clock.now();
        let signals = match result {
            Ok(response) => ProviderSignals::from_headers(&response.headers, clock.civil_time_at(now)),
            Err(_) => ProviderSignals::default(),
        };
        let followed = self.context.followed.as_ref();
        let paused = followed.map_or(Duration::ZERO, |followed| followed.paused_for(now));
        let wait = signals.retry_after.unwrap_or_default().max(paused);
        let is_late = !wait.is_zero() && wait >= self.time_left(request);
        if signals.forbids_retry || wait > self.plan.max_wait || is_late {
            return None;
        }
        if let Some(followed) = followed.filter(|_| !wait.is_zero()) {
            followed.record_delayed_retry();
        }
        Some(wait)
    }

    /// Waits for the upstream and for the backoff of a retry, which then has a permit.
    ///
    /// # Errors
    /// The result of the request, if there is no retry after all.
    async fn pause(
        &self,
        request: &OutgoingRequest,
        result: AttemptResult,
        wait: Duration,
        retries: u32,
        permit: &mut Option<RetryPermit>,
    ) -> Result<(), AttemptResult> {
        let (base, max) = self.upstream.settings().retries.backoff;
        let pause = wait.saturating_add(full_jitter(backoff(base, max, retries)));
        if wait.is_zero() && self.context.followed.is_none() {
            let Some(acquired) = self.upstream.acquire_retry() else { return Err(result) };
            *permit = Some(acquired);
            drop(result);
            let slept = self.context.timer.limit(pin!(tokio::time::sleep(pause))).await;
            return slept.map_err(|expired| Err(expired.into()));
        }
        // The wait may be long, and would occupy a permit that another request could use. The result is kept, in
        // case that there is no retry after all.
        *permit = None;
        match Box::pin(self.wait_out_pauses(request, pause)).await {
            Ok(true) => *permit = self.upstream.acquire_retry(),
            Ok(false) => {}
            Err(expired) => return Err(Err(expired.into())),
        }
        if permit.is_some() { Ok(()) } else { Err(result) }
    }

    /// Waits for `pause`, and until no limit that follows the upstream is paused: other responses may signal a pause
    /// meanwhile. Returns whether the retry may be made, that is, whether it need not wait for longer than allowed.
    async fn wait_out_pauses(
        &self,
        request: &OutgoingRequest,
        mut pause: Duration,
    ) -> Result<bool, TimeoutKind> {
        let clock = &self.context.connection.worker.shared.clock;
        let since = clock.now();
        loop {
            self.context.timer.limit(pin!(tokio::time::sleep(pause))).await?;
            let now = clock.now();
            let followed = self.context.followed.as_ref();
            let paused = followed.map_or(Duration::ZERO, |followed| followed.paused_for(now));
            if paused.is_zero() {
                return Ok(true);
            }
            let waited = now.since(since);
            if waited.saturating_add(paused) > self.plan.max_wait || paused >= self.time_left(request) {
                return Ok(false);
            }
            pause = paused.saturating_add(full_jitter(paused / 10));
        }
    }

    /// Returns the time left for all attempts.
    fn time_left(&self, request: &OutgoingRequest) -> Duration {
        let of_call = grpc::call_timeout(&request.head.headers).filter(|_| self.context.is_grpc);
        let elapsed = self.context.connection.worker.shared.clock.now().since(self.context.forwarded_at);
        self.timeout.min(of_call.unwrap_or(Duration::MAX)).saturating_sub(elapsed)
    }
}
