//! Requests that the limits counted here admit: they are forwarded, and the upstream's response is settled and returned.

use std::rc::Rc;
use std::time::Duration;

use http::header::VIA;
use http::{HeaderValue, StatusCode, Version, request};

use super::body::{DownstreamBody, RequestBody, ResponseBody};
use super::delay;
use super::failure::ForwardFailure;
use super::fallback::CachedFallbacks;
use super::finish;
use super::forward::{AttemptResult, forward, response_timeout};
use super::grpc;
use super::headers::overrides::{RequestOverrides, X_ENVOY_UPSTREAM_SERVICE_TIME};
use super::headers::{self, Expectation};
use super::held;
use super::local_reply::{self, DownstreamResponse, PendingBody, announce_close, closes_for_drain};
use super::request_context::{RequestContext, ResponseFlag};
use super::tunnel;
use super::view::GenerationView;
use weir_http::headers::Response;
use weir_http::http1::head::ReceivedHead;
use weir_limiter::timestamp::saturating_millis;
use weir_limits::{AppliedLimits, PendingLimits};
use weir_net::overload::LoadShed;
use weir_policy::engine::Policy;
use weir_policy::rules::cost::RequestEnd;
use weir_upstream::Upstream;
use weir_upstream::error::UpstreamError;
use weir_upstream::outgoing::OutgoingRequest;
use weir_upstream::response_body::UpstreamResponseBody;

/// A request that the limits counted here admit.
pub(super) struct AdmittedRequest {
    pub(super) view: Rc<GenerationView>,
    pub(super) context: Box<RequestContext>,
    pub(super) pending: PendingLimits,
    pub(super) request: OutgoingRequest,
    pub(super) body: DownstreamBody,
    pub(super) upstream: Option<Rc<Upstream>>,
    pub(super) overrides: Option<Box<RequestOverrides>>,
    pub(super) cached: CachedFallbacks,
    pub(super) expectation: Expectation,
}

impl AdmittedRequest {
    /// Returns the future that forwards the request after `delay`, and returns the response.
    // Inline: all of it would be moved once more.
    #[inline(always)]
    #[expect(clippy::manual_async_fn, reason = "an async function has room for its parameters twice")]
    pub(super) fn forward(
        mut self,
        delay: Option<Duration>,
    ) -> impl Future<Output = DownstreamResponse> + use<> {
        async move {
            let (view, context, request) = (&self.view, &mut self.context, &mut self.request);
            let request::Parts { method, headers, .. } = &mut request.head;
            let pending = &mut self.pending;
            if delay.is_some() && !delay::take_delayed_memory(context, pending, headers) {
                let unread = PendingBody::new(self.expectation, self.body);
                return local_reply::overloaded(self.context, LoadShed::Waiting, unread);
            }
            let resolved = held::resolve_admitted(&view.limits, context, pending, delay, headers).await;
            let limits = match resolved {
                Ok(limits) => limits,
                Err(rejected) => {
                    let unread = PendingBody::new(self.expectation, self.body);
                    let (context, view) = (self.context, &self.view.limits);
                    return local_reply::rejected_remotely(
                        context,
                        view,
                        &rejected,
                        self.cached,
                        method,
                        unread,
                    );
                }
            };
            if context.is_last_hop {
                let unread = PendingBody::new(self.expectation, self.body);
                return local_reply::last_hop(self.context, limits, &self.view.limits, unread);
            }
            grpc::apply_client_deadline(context, headers);
            let (upstream, overrides) = (self.upstream.as_deref(), self.overrides.as_deref());
            let body = RequestBody::new(self.body, context, response_timeout(upstream, overrides));
            let result = forward(upstream, context, request, body, overrides).await;
            // It is in the memory of the next request's bytes.
            context.received = ReceivedHead::default();
            respond(self.context, &self.view, upstream, limits, result)
        }
    }
}

/// Records the response time and load report of the upstream, on which elastic limits depend.
fn record_load(context: &RequestContext, policy: &Policy, result: &AttemptResult) {
    if let Ok(response) = result
        && policy.rules.is_elastic()
        && !context.upgrade.is_connect
    {
        let load = &context.connection.worker.load;
        load.record_response(context.upstream_time, response.status, &response.headers);
    }
}

/// Returns the upstream's response, or a local reply in its place. The request is settled now, and [finished](finish)
/// after the last byte of the response.
fn respond(
    context: Box<RequestContext>,
    view: &GenerationView,
    upstream: Option<&Upstream>,
    limits: &mut AppliedLimits,
    result: AttemptResult,
) -> DownstreamResponse {
    record_load(&context, &view.policy, &result);
    let took = context.upstream_time;
    let mut reply = match result {
        Ok(response) if response.status == StatusCode::SWITCHING_PROTOCOLS => {
            switch_protocols(context, limits, response)
        }
        Ok(response) if context.upgrade.is_connect => open_tunnel(context, limits, response),
        Ok(response) => {
            upstream.inspect(|upstream| upstream.record_success());
            let via = proxy_via(&context, view, upstream);
            let mut reply = forward_response(context, limits, response);
            via.inspect(|via| reply.headers.append(VIA, via));
            reply
        }
        Err(failure) => {
            match (&failure, upstream) {
                (ForwardFailure::Upstream(UpstreamError::Overflow | UpstreamError::ServerName(_)), _) => {}
                (ForwardFailure::Upstream(error), Some(upstream)) => upstream.record_failure(error),
                _ => {}
            }
            let mut reply = local_reply::upstream_failed(context, limits, &failure);
            limits.write_all(&mut reply.headers, &view.limits);
            return reply;
        }
    };
    reply.headers.set_number(&X_ENVOY_UPSTREAM_SERVICE_TIME, saturating_millis(took));
    limits.write_all(&mut reply.headers, &view.limits);
    reply
}

/// Returns the value of `Via` for a response to a client that has chosen this proxy (RFC 9110 section 7.6.3); `None` for the
/// gateway of a service.
fn proxy_via(
    context: &RequestContext,
    view: &GenerationView,
    upstream: Option<&Upstream>,
) -> Option<HeaderValue> {
    if !context.is_proxied {
        return None;
    }
    let is_http2 = context.is_grpc || upstream.is_some_and(|upstream| upstream.settings().http2);
    let version = if is_http2 { Version::HTTP_2 } else { Version::HTTP_11 };
    let proxy = view.forward_proxy(context.connection.listener)?.proxy();
    Some(proxy.identity().via(version).clone())
}

fn forward_response(
    mut context: Box<RequestContext>,
    limits: &mut AppliedLimits,
    Response { status, mut headers, body }: Response<UpstreamResponseBody<RequestBody>>,
) -> DownstreamResponse {
    finish::settle(&mut context, &RequestEnd::Responded { status, headers: &headers }, limits);
    match status {
        StatusCode::UPGRADE_REQUIRED => {
            headers::prepare_upgrade_required(&mut headers, !context.owns_connection());
        }
        _ => headers::prepare_response(&mut headers),
    }
    context.recorder.take_if(|recorder| !recorder.record_head(status, headers.map_mut()));
    if !context.upload_is_complete() {
        // An early response. The rest of the request may never be read, and closing the connection then must not lose
        // the response.
        context.timer.must_linger();
    }
    context.respond_with(status, ResponseFlag::None);
    announce_close(closes_for_drain(&context), &mut headers);
    Response { status, headers, body: ResponseBody::upstream(body, context) }
}

/// Returns the response to an upgrade that the upstream has accepted.
fn switch_protocols(
    mut context: Box<RequestContext>,
    limits: &mut AppliedLimits,
    Response { mut status, mut headers, body }: Response<UpstreamResponseBody<RequestBody>>,
) -> DownstreamResponse {
    finish::settle(&mut context, &RequestEnd::Responded { status, headers: &headers }, limits);
    if context.requires_upgrade() {
        status = StatusCode::OK;
        headers::extended_connect::convert_response(&mut headers);
    } else {
        headers::prepare_upgrade_response(&mut headers);
    }
    context.respond_with(status, ResponseFlag::None);
    if let Some(upstream) = body.into_tunnel() {
        tunnel::start(context, upstream);
    }
    Response { status, headers, body: ResponseBody::empty() }
}

/// Returns the response to a CONNECT whose destination is connected.
fn open_tunnel(
    mut context: Box<RequestContext>,
    limits: &mut AppliedLimits,
    Response { status, headers, body }: Response<UpstreamResponseBody<RequestBody>>,
) -> DownstreamResponse {
    finish::settle(&mut context, &RequestEnd::Responded { status, headers: &headers }, limits);
    context.respond_with(status, ResponseFlag::None);
    if let Some(upstream) = body.into_tunnel() {
        tunnel::start(context, upstream);
    }
    Response { status, headers, body: ResponseBody::empty() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the size of the future that a function returns.
    fn future_size<A, B, T>(_: impl FnOnce(A, B) -> T) -> usize {
        size_of::<T>()
    }

    #[test]
    fn future_of_a_forwarded_request_is_small() {
        let size = future_size(AdmittedRequest::forward);
        // A size class of jemalloc; the next is 2560 bytes.
        assert!(size <= 2048, "{size} bytes");
    }
}
