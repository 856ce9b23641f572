//! Adaptive concurrency limits: what each attempt of a request shows about the upstream, and the task that computes the limits.
//!
//! Only requests of rules with `in_flight: auto` touch this, and those to upstreams whose concurrency is limited.

use std::time::Duration;

use http::StatusCode;
use tokio::time::MissedTickBehavior;

use super::ProxyState;
use super::failure::ForwardFailure;
use super::forward::UpstreamResponse;
use super::request_context::RequestContext;
use weir_http::headers::Headers;
use weir_limiter::adaptive::limits::UpstreamSignal;
use weir_limiter::control::TICK;
use weir_policy::rules::grpc::{GRPC_STATUS, GrpcStatus};
use weir_telemetry::metrics::UpstreamOutcome;

/// Interval at which a reload is checked for adaptive limits while there are none.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);

/// Computes the limits for as long as the future is polled, ten times a second while a rule has one.
pub async fn run_adaptive_limits(shared: &ProxyState) {
    let mut idle = tokio::time::interval(IDLE_INTERVAL);
    idle.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        let generation = shared.generation.load();
        let mut is_idle = true;
        for (_, limits, range) in generation.policy.rules.adaptive_rules() {
            limits.adapt(range, shared.clock.now());
            is_idle = false;
        }
        for gate in generation.upstreams.iter().filter_map(|upstream| upstream.gate()) {
            gate.adapt(shared.clock.now());
            is_idle = false;
        }
        drop(generation);
        if is_idle {
            idle.tick().await;
        } else {
            tokio::time::sleep(TICK).await;
        }
    }
}

/// Returns what an attempt that has ended shows about the upstream, also one that a retry follows. `None` if it shows
/// nothing: the client left, the response is an error, which takes less time than the requested work, or a tunnel was
/// opened, which takes only the time of a connection.
pub(super) fn signal_of_attempt(
    context: &RequestContext,
    result: Result<&UpstreamResponse, &ForwardFailure>,
) -> Option<UpstreamSignal> {
    let response = match result {
        Ok(_) if context.upgrade.is_connect => return None,
        Ok(response) => response,
        Err(failure) => {
            return match failure.outcome() {
                UpstreamOutcome::ConnectFailed
                | UpstreamOutcome::TimedOut
                | UpstreamOutcome::Reset
                | UpstreamOutcome::Overflowed => Some(UpstreamSignal::Overload),
                UpstreamOutcome::Responded(_)
                | UpstreamOutcome::Malformed
                | UpstreamOutcome::WrongName
                | UpstreamOutcome::Abandoned => None,
            };
        }
    };
    signal_of_response(response.status, &response.headers, context.upstream_time)
}

/// Returns whether the upstream has accepted a request, and not rejected it for lack of capacity or quota; `None` if the
/// attempt does not show that.
pub(super) fn is_accepted(result: Result<&UpstreamResponse, &ForwardFailure>) -> Option<bool> {
    match result {
        Ok(response) => Some(is_accepting(response.status, &response.headers)),
        Err(failure) => match failure.outcome() {
            UpstreamOutcome::ConnectFailed | UpstreamOutcome::TimedOut | UpstreamOutcome::Reset => {
                Some(false)
            }
            UpstreamOutcome::Responded(_)
            | UpstreamOutcome::Malformed
            | UpstreamOutcome::WrongName
            | UpstreamOutcome::Overflowed
            | UpstreamOutcome::Abandoned => None,
        },
    }
}

fn is_accepting(status: StatusCode, headers: &Headers) -> bool {
    let call = GrpcStatus::from_field_value(headers.get(&GRPC_STATUS));
    let is_rejected = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
    !is_rejected && !matches!(call, Some(GrpcStatus::UNAVAILABLE | GrpcStatus::RESOURCE_EXHAUSTED))
}

fn signal_of_response(status: StatusCode, headers: &Headers, took: Duration) -> Option<UpstreamSignal> {
    let is_overload = matches!(
        status,
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT
    );
    if is_overload {
        return Some(UpstreamSignal::Overload);
    }
    match GrpcStatus::from_field_value(headers.get(&GRPC_STATUS)) {
        Some(GrpcStatus::UNAVAILABLE | GrpcStatus::RESOURCE_EXHAUSTED | GrpcStatus::DEADLINE_EXCEEDED) => {
            Some(UpstreamSignal::Overload)
        }
        Some(status) if !status.is_ok() => None,
        Some(_) | None if status.is_client_error() || status.is_server_error() => None,
        Some(_) | None => Some(UpstreamSignal::Latency(took)),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn signal(status: u16, grpc: Option<&'static str>) -> Option<UpstreamSignal> {
        let mut headers = Headers::default();
        if let Some(grpc) = grpc {
            headers.set(&GRPC_STATUS, &HeaderValue::from_static(grpc));
        }
        signal_of_response(StatusCode::from_u16(status).unwrap(), &headers, Duration::from_millis(7))
    }

    #[test]
    fn only_responses_that_are_no_errors_show_a_latency() {
        let latency = Some(UpstreamSignal::Latency(Duration::from_millis(7)));
        assert_eq!(
            [signal(200, None), signal(101, None), signal(304, None), signal(200, Some("0"))],
            [latency; 4]
        );
        assert_eq!(
            [signal(404, None), signal(500, None), signal(429, None), signal(200, Some("5"))],
            [None; 4]
        );
    }

    #[test]
    fn only_rejections_for_lack_of_capacity_are_not_accepted() {
        let accepts = |status, grpc: Option<&'static str>| {
            let mut headers = Headers::default();
            if let Some(grpc) = grpc {
                headers.set(&GRPC_STATUS, &HeaderValue::from_static(grpc));
            }
            is_accepting(StatusCode::from_u16(status).unwrap(), &headers)
        };
        assert_eq!(
            [accepts(200, None), accepts(404, None), accepts(500, None), accepts(200, Some("5"))],
            [true; 4]
        );
        let rejected =
            [accepts(429, None), accepts(503, None), accepts(200, Some("8")), accepts(200, Some("14"))];
        assert_eq!(rejected, [false; 4]);
    }

    #[test]
    fn gateway_errors_and_exhausted_grpc_calls_show_overload() {
        let overload = Some(UpstreamSignal::Overload);
        assert_eq!([signal(502, None), signal(503, None), signal(504, None)], [overload; 3]);
        assert_eq!([signal(200, Some("14")), signal(200, Some("8")), signal(200, Some("4"))], [overload; 3]);
    }
}
