//! The response to a forwarded request: that of the upstream, or a local reply in its place. The request is settled now,
//! and [finished](super::finish) after the last byte of the response.

use http::header::VIA;
use http::{HeaderValue, StatusCode, Version};

use super::body::ResponseBody;
use super::failure::ForwardFailure;
use super::finish;
use super::forward::{AttemptResult, UpstreamResponse};
use super::headers;
use super::headers::overrides::X_ENVOY_UPSTREAM_SERVICE_TIME;
use super::local_reply::{DownstreamResponse, LocalReply, UnreadBody, announce_close, closes_for_drain};
use super::request_context::{RequestContext, ResponseFlag};
use super::tunnel;
use super::view::GenerationView;
use weir_http::headers::Response;
use weir_limiter::timestamp::saturating_millis;
use weir_limits::AppliedLimits;
use weir_policy::rules::cost::RequestEnd;
use weir_upstream::Upstream;
use weir_upstream::error::UpstreamError;

/// Returns the response to a request for which `upstream` was chosen.
pub(super) fn respond(
    mut context: Box<RequestContext>,
    view: &GenerationView,
    upstream: Option<&Upstream>,
    limits: &mut AppliedLimits,
    result: AttemptResult,
) -> DownstreamResponse {
    let response = match result {
        Ok(response) => response,
        Err(failure) => {
            if let Some(upstream) = upstream {
                record_failure(upstream, &failure);
            }
            let mut reply = LocalReply::failed(&mut context, &failure, limits);
            limits.write_all(reply.headers_mut(), &view.limits);
            return reply.send(context, UnreadBody::Rest);
        }
    };
    let took = context.upstream_time;
    let Response { status, headers, .. } = &response;
    if view.policy.rules.is_elastic() && !context.upgrade.is_connect {
        // The response time and load report of the upstream, on which elastic limits depend.
        context.connection.worker.load.record_response(took, *status, headers);
    }
    finish::settle(&mut context, &RequestEnd::Responded { status: *status, headers }, limits);
    let mut reply = if *status == StatusCode::SWITCHING_PROTOCOLS || context.upgrade.is_connect {
        start_tunnel(context, response)
    } else {
        upstream.inspect(|upstream| upstream.record_success());
        let via = proxy_via(&context, view, upstream);
        let mut reply = forward_response(context, response);
        via.inspect(|via| reply.headers.append(VIA, via));
        reply
    };
    reply.headers.set_number(&X_ENVOY_UPSTREAM_SERVICE_TIME, saturating_millis(took));
    limits.write_all(&mut reply.headers, &view.limits);
    reply
}

/// Records a failure that the upstream has caused.
fn record_failure(upstream: &Upstream, failure: &ForwardFailure) {
    match failure {
        ForwardFailure::Upstream(UpstreamError::Overflow | UpstreamError::ServerName(_)) => {}
        ForwardFailure::Upstream(error) => upstream.record_failure(error),
        _ => {}
    }
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
    Response { status, mut headers, body }: UpstreamResponse,
) -> DownstreamResponse {
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
    if let Some(reader) = context.stated_cost.as_mut().filter(|_| body.ends_with_connection()) {
        reader.end_with_connection();
    }
    if let Some(streams) = &mut context.streams {
        streams.limit_response(&headers);
    }
    context.respond_with(status, ResponseFlag::None);
    announce_close(closes_for_drain(&context), &mut headers);
    Response { status, headers, body: ResponseBody::upstream(body, context) }
}

/// Returns the response to an upgrade that the upstream has accepted, or to a CONNECT whose destination is connected.
fn start_tunnel(
    mut context: Box<RequestContext>,
    Response { mut status, mut headers, body }: UpstreamResponse,
) -> DownstreamResponse {
    if context.requires_upgrade() {
        status = StatusCode::OK;
        headers::extended_connect::convert_response(&mut headers);
    } else if status == StatusCode::SWITCHING_PROTOCOLS {
        headers::prepare_upgrade_response(&mut headers);
    }
    context.respond_with(status, ResponseFlag::None);
    // What a tunnel takes of the upstream's capacity is unknown, and it may be open for days.
    context.slot = None;
    if let Some(upstream) = body.into_tunnel() {
        tunnel::start(context, upstream);
    }
    Response { status, headers, body: ResponseBody::empty() }
}
