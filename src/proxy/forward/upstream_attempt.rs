//! One attempt at one endpoint: its counts, and what its end shows about the endpoint and the upstream.

use std::rc::Rc;

use crate::proxy::adaptive;
use crate::proxy::body::RequestBody;
use crate::proxy::failure::ForwardFailure;
use crate::proxy::grpc;
use crate::proxy::request_context::RequestContext;
use weir_http::headers::Response;
use weir_limiter::timestamp::Timestamp;
use weir_limits::ProviderSignals;
use weir_policy::rules::cost::RequestEnd;
use weir_telemetry::metrics::UpstreamOutcome;
use weir_upstream::endpoint::Endpoint;
use weir_upstream::response_body::UpstreamResponseBody;

/// Response of an upstream, whose body is still to be read.
pub(in crate::proxy) type UpstreamResponse = Response<UpstreamResponseBody<RequestBody>>;

/// Response of the upstream, or the reason why there is none.
pub(in crate::proxy) type AttemptResult = Result<UpstreamResponse, ForwardFailure>;

/// Counts one attempt. If it is dropped before its end, the client has abandoned it.
pub(super) struct UpstreamAttempt {
    pub(super) endpoint: Rc<Endpoint>,
    started_at: Timestamp,
    ended: bool,
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
        Self { endpoint, started_at, ended: false }
    }

    pub(super) fn finish(
        mut self,
        result: Result<&UpstreamResponse, &ForwardFailure>,
        context: &mut RequestContext,
    ) {
        self.ended = true;
        let metrics = self.endpoint.metrics();
        let outcome = match result {
            Ok(response) => UpstreamOutcome::Responded(response.status),
            Err(failure) => failure.outcome(),
        };
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
        if let Some(throttle) = self.endpoint.throttle()
            && let Some(is_accepted) = adaptive::is_accepted(result)
        {
            throttle.record(is_accepted, context.connection.worker.shared.clock.now());
        }
        if let Some(slot) = &context.slot
            && let Some(signal) = adaptive::signal_of_attempt(context, result)
        {
            slot.record(signal);
        }
        if let Some(is_good) = endpoint_success(outcome) {
            self.endpoint.record_outcome(is_good);
        }
    }
}

/// Applies what a response signals to the limits that follow the provider.
// Out of line, because few requests have such limits.
#[inline(never)]
fn record_signals(response: &UpstreamResponse, context: &RequestContext, now: Timestamp) {
    let Some(followed) = &context.followed else { return };
    let (status, headers) = (response.status, &response.headers);
    let call = grpc::call_status(context.is_grpc, &RequestEnd::Responded { status, headers });
    let wall_clock = context.connection.worker.shared.clock.civil_time_at(now);
    followed.responded(status, call, ProviderSignals::from_headers(headers, wall_clock), now);
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
