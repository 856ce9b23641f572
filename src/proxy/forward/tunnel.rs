//! Establishes the connection of a tunnel, for CONNECT (RFC 9110 section 9.3.6).

use std::pin::pin;

use http::StatusCode;
use smallvec::SmallVec;

use super::attempt::{
    AttemptResult, TriedHosts, UpstreamAttempt, is_endpoint_error, pick_when_resolved, with_request_timeout,
};
use super::plan::RetryPlan;
use crate::proxy::failure::ForwardFailure;
use crate::proxy::request_context::RequestContext;
use weir_http::headers::{Headers, Response};
use weir_upstream::Upstream;

/// Connects to the destination, at one of its addresses after the other, and returns the response of 200 with the
/// connection as its body.
pub(super) async fn open(upstream: &Upstream, context: &mut RequestContext) -> AttemptResult {
    let plan = RetryPlan::new(upstream.settings(), None);
    let mut tried: TriedHosts = SmallVec::new();
    let endpoint = match upstream.pick(&tried) {
        Some(endpoint) => endpoint,
        None => {
            let resolving = pin!(pick_when_resolved(upstream));
            with_request_timeout(&context.timer, resolving).await??
        }
    };
    let mut attempt = UpstreamAttempt::start(endpoint, context);
    let opened = loop {
        let opening = {
            let opening = pin!(attempt.endpoint.open_tunnel(context.client));
            with_request_timeout(&context.timer, opening).await
        };
        match opening {
            Ok(Ok(body)) => break Ok(Response { status: StatusCode::OK, headers: Headers::default(), body }),
            Ok(Err(error)) if is_endpoint_error(&error) => {
                attempt = attempt.try_other_endpoint(error, upstream, &plan, &mut tried, context)?;
            }
            Ok(Err(error)) => break Err(ForwardFailure::Upstream(error)),
            Err(failure) => break Err(failure),
        }
    };
    attempt.finish(&opened, context);
    context.timer.response_started();
    opened
}
