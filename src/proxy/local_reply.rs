//! Local replies: responses that the proxy generates itself, and the handling of request bodies that were not read.
//!
//! A rejected request may still be sending its body. A small body is read and discarded, so that the connection can be
//! reused. If the body is large or waits for `100 Continue`, the connection is closed after the response. In both
//! cases, no byte of the body can be taken for another request.

mod stored;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CONNECTION, CONTENT_TYPE};
use http::{HeaderName, HeaderValue, Method, StatusCode, request};
use http_body_util::BodyExt as _;
use hyper::body::Body as _;

pub(super) use self::stored::{AcceptedCall, StoreRejection, accepted, not_stored};
use super::body::{DownstreamBody, ResponseBody};
use super::failure::ForwardFailure;
use super::fallback::CachedFallbacks;
use super::finish;
use super::forward_proxy::{self, FailureReply, PROXY_STATUS};
use super::headers::{Expectation, InvalidRequest};
use super::request_context::{RequestContext, ResponseFlag};
use super::stream::MAX_DISCARDED_BODY;
use super::timeouts::UploadTimer;
use weir_http::headers::{Headers, Response};
use weir_limits::{self as limits, AppliedLimits, LimitRejection, RejectionReason};
use weir_net::overload::LoadShed;
use weir_policy::engine::Policy;
use weir_policy::response::dynamic_reply::{ConfiguredParts, ReplyDraft};
use weir_policy::response::fallback::CachedResponse;
use weir_policy::response::grpc_reply;
use weir_policy::response::rejection::{RejectionReply, RejectionResponse};
use weir_policy::rules::RuleIndex;
use weir_policy::rules::cost::RequestEnd;
use weir_policy::rules::selection::{Denial, NOT_DEFERRABLE};
use weir_upstream::error::UpstreamError;
use weir_upstream::forward_proxy::access::Refusal;

/// Methods that a proxy for a service forwards, among others.
const FORWARDED_METHODS: HeaderValue =
    HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
const PLAIN_TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const X_ENVOY_OVERLOADED: HeaderName = HeaderName::from_static("x-envoy-overloaded");
/// Maximum time for which the body of a rejected request is read.
const DISCARD_TIME: Duration = Duration::from_secs(1);

/// A response on its way to the client.
pub(super) type DownstreamResponse = Response<ResponseBody>;

/// Body of a rejected request, as far as it is unread.
#[derive(Debug)]
pub(super) struct PendingBody {
    body: DownstreamBody,
    expectation: Expectation,
}

/// A local reply, before it is converted for the protocol of the request.
struct LocalReply<'a> {
    status: StatusCode,
    flag: ResponseFlag,
    headers: Headers,
    body: &'a Bytes,
    /// The reply of the rule that rejects the request, if one does, and which parts are that reply.
    rule: Option<(&'a RejectionResponse, ConfiguredParts)>,
}

impl PendingBody {
    pub(super) fn new(expectation: Expectation, body: DownstreamBody) -> Self {
        Self { body, expectation }
    }
}

/// Responds to a request that may not be forwarded. The connection is closed, because the request may have been
/// misread.
pub(super) fn malformed(
    mut context: Box<RequestContext>,
    unacceptable: InvalidRequest,
) -> DownstreamResponse {
    let (status, text) = match unacceptable {
        InvalidRequest::Malformed => (StatusCode::BAD_REQUEST, "bad request\n"),
        InvalidRequest::Method => (StatusCode::METHOD_NOT_ALLOWED, "method not allowed\n"),
        InvalidRequest::UnknownMethod => (StatusCode::NOT_IMPLEMENTED, "method not implemented\n"),
        InvalidRequest::TransferEncoding => {
            (StatusCode::NOT_IMPLEMENTED, "transfer coding not implemented\n")
        }
        InvalidRequest::TooManyFields => {
            (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "too many header fields\n")
        }
    };
    context.timer.must_linger();
    context.respond_with(status, ResponseFlag::DownstreamProtocol);
    context.timer.response_started();
    let close = context.owns_connection();
    let mut reply = plain(context, status, text);
    if unacceptable == InvalidRequest::Method {
        // Required with 405 (RFC 9110 section 15.5.6).
        reply.headers.set(&ALLOW, &FORWARDED_METHODS);
    }
    announce_close(close, &mut reply.headers);
    reply
}

/// Responds to an OPTIONS request that the limits admit and that may not be forwarded (RFC 9110 section 7.6.2).
pub(super) fn last_hop(
    mut context: Box<RequestContext>,
    limits: &mut AppliedLimits,
    view: &limits::LimitsView,
    pending: PendingBody,
) -> DownstreamResponse {
    let (status, flag, mut headers) = (StatusCode::OK, ResponseFlag::None, Headers::default());
    finish::settle(&mut context, &RequestEnd::Responded { status, headers: &headers }, limits);
    headers.set(&ALLOW, &FORWARDED_METHODS);
    limits.write_all(&mut headers, view);
    build_reply(context, LocalReply { status, flag, headers, body: &Bytes::new(), rule: None }, pending)
}

/// Responds to a request that is shed. If memory is short, its connection is closed too.
pub(super) fn overloaded(
    context: Box<RequestContext>,
    reason: LoadShed,
    pending: PendingBody,
) -> DownstreamResponse {
    let close = reason == LoadShed::Memory && context.owns_connection();
    let body = &Bytes::from_static(b"overloaded\n");
    let (status, flag) = (StatusCode::SERVICE_UNAVAILABLE, ResponseFlag::Overloaded);
    let reply = LocalReply { status, flag, headers: plain_text(), body, rule: None };
    let mut reply = build_reply(context, reply, pending);
    reply.headers.set(&X_ENVOY_OVERLOADED, &HeaderValue::from_static("true"));
    announce_close(close, &mut reply.headers);
    reply
}

/// Responds to a request that `rule` rejects before any limit.
pub(super) fn denied(
    context: Box<RequestContext>,
    policy: &Policy,
    rule: RuleIndex,
    denial: Denial,
    pending: PendingBody,
) -> DownstreamResponse {
    let flag = ResponseFlag::Denied;
    // Only its CORS headers apply to a request that is rejected for another reason than its configuration.
    let other = policy.rejection(rule).map(|reply| (reply, ConfiguredParts::None));
    match denial {
        Denial::Forbidden => {
            let reply = policy.denial(rule);
            let RejectionResponse { status, ref body, ref headers, .. } = *reply;
            let (headers, rule) = (headers.clone().into(), Some((reply, ConfiguredParts::All)));
            build_reply(context, LocalReply { status, flag, headers, body, rule }, pending)
        }
        Denial::NotDeferrable => {
            let (status, flag) = (StatusCode::NOT_IMPLEMENTED, ResponseFlag::NotStored);
            let body = &Bytes::from_static(NOT_DEFERRABLE.as_bytes());
            let reply = LocalReply { status, flag, headers: plain_text(), body, rule: other };
            build_reply(context, reply, pending)
        }
        Denial::Ambiguous(ambiguity) => {
            let (status, body) =
                (StatusCode::BAD_REQUEST, &Bytes::from_static(ambiguity.reply_text().as_bytes()));
            let reply = LocalReply { status, flag, headers: plain_text(), body, rule: other };
            build_reply(context, reply, pending)
        }
    }
}

/// Responds to a request that the forward proxy does not serve.
pub(super) fn refused(
    context: Box<RequestContext>,
    refusal: Refusal,
    pending: PendingBody,
) -> DownstreamResponse {
    let FailureReply { status, flag, text, proxy_status } = forward_proxy::refusal_reply(refusal);
    let (mut headers, body) = (plain_text(), &Bytes::from_static(text.as_bytes()));
    headers.set(&PROXY_STATUS, &proxy_status);
    build_reply(context, LocalReply { status, flag, headers, body, rule: None }, pending)
}

/// Responds to a request that a local limit rejects: with the `cached` response, the rule's degraded response or its
/// rejection. The memory of `head` is reused.
pub(super) fn rate_limited(
    context: Box<RequestContext>,
    limits: &limits::LimitsView,
    rejected: &LimitRejection<'_>,
    cached: Option<Arc<CachedResponse>>,
    head: &mut request::Parts,
    pending: PendingBody,
) -> DownstreamResponse {
    context.connection.reject_stored(rejected.retry_after);
    let rejection = limits.rejection(rejected.rule);
    if cached.is_some() || rejection.degraded.is_some() {
        return fallback_reply(context, limits, rejected, cached, &head.method, pending);
    }
    let headers = match rejected.raw_headers(limits) {
        Some(raw) => Headers::from_raw(raw, std::mem::take(&mut head.headers)),
        None => rejected.headers(limits),
    };
    rejected_with(context, rejection, rejection.status, headers, &rejection.body, pending)
}

/// Responds to a request that a rate limit service rejects, or that is rejected because the service did not respond.
pub(super) fn rejected_remotely(
    context: Box<RequestContext>,
    limits: &limits::LimitsView,
    rejected: &LimitRejection<'_>,
    cached: CachedFallbacks,
    method: &Method,
    pending: PendingBody,
) -> DownstreamResponse {
    context.connection.reject_stored(rejected.retry_after);
    let cached = cached.take_for_rule(rejected.rule);
    let rejection = limits.rejection(rejected.rule);
    let body = match &rejected.reason {
        RejectionReason::NoResponse => return decision_unavailable(context, rejection, pending),
        RejectionReason::Remote(body) if !body.is_empty() => body,
        RejectionReason::Remote(_) | RejectionReason::Limit => {
            return fallback_reply(context, limits, rejected, cached, method, pending);
        }
    };
    if cached.is_some() || rejection.degraded(method).is_some() {
        return fallback_reply(context, limits, rejected, cached, method, pending);
    }
    let mut headers = rejected.headers_with(limits, &rejection.headers);
    rejected.write_content_type(&mut headers);
    rejected_with(context, rejection, rejection.status, headers, body, pending)
}

/// Responds to a rejected request whose rule has a cached or degraded response for some requests.
fn fallback_reply(
    context: Box<RequestContext>,
    limits: &limits::LimitsView,
    rejected: &LimitRejection<'_>,
    cached: Option<Arc<CachedResponse>>,
    method: &Method,
    pending: PendingBody,
) -> DownstreamResponse {
    let rejection = limits.rejection(rejected.rule);
    if let Some(cached) = cached {
        let mut headers = rejected.headers_with(limits, &rejection.headers);
        cached.extend(headers.map_mut(), rejected.limits.decided_at());
        return rejected_with(context, rejection, StatusCode::OK, headers, cached.body(), pending);
    }
    let RejectionReply { status, body, headers } = rejection.reply_to(Some(method));
    rejected_with(context, rejection, status, rejected.headers_with(limits, headers), body, pending)
}

fn rejected_with(
    context: Box<RequestContext>,
    rejection: &RejectionResponse,
    status: StatusCode,
    headers: Headers,
    body: &Bytes,
    pending: PendingBody,
) -> DownstreamResponse {
    let is_own_body = std::ptr::eq(body, &rejection.body);
    let parts = if is_own_body { ConfiguredParts::All } else { ConfiguredParts::Headers };
    let (flag, rule) = (ResponseFlag::RateLimited, Some((rejection, parts)));
    build_reply(context, LocalReply { status, flag, headers, body, rule }, pending)
}

/// Responds to a request that is rejected because it is unknown whether it exceeds a limit (fail closed).
fn decision_unavailable(
    context: Box<RequestContext>,
    rejection: &RejectionResponse,
    pending: PendingBody,
) -> DownstreamResponse {
    let (status, flag) = (StatusCode::SERVICE_UNAVAILABLE, ResponseFlag::RateLimitServiceError);
    let body = &Bytes::from_static(b"service unavailable\n");
    let rule = Some((rejection, ConfiguredParts::None));
    build_reply(context, LocalReply { status, flag, headers: plain_text(), body, rule }, pending)
}

/// Responds to a request that got no response from the upstream. The text discloses no internal details.
pub(super) fn upstream_failed(
    mut context: Box<RequestContext>,
    limits: &mut AppliedLimits,
    failure: &ForwardFailure,
) -> DownstreamResponse {
    let to_destination = context.connection.is_forward_proxy().then(|| forward_proxy::failure_reply(failure));
    let to_destination = to_destination.flatten();
    let (status, flag, text) = match &to_destination {
        Some(reply) => (reply.status, reply.flag, reply.text),
        None => failure_reply(failure),
    };
    let was_sent = context.timer.was_sent();
    finish::settle(&mut context, &failure.request_end(status, was_sent), limits);
    context.respond_with(status, flag);
    context.timer.response_started();
    let is_read = context.upload_is_complete();
    if !is_read {
        context.timer.must_linger();
    }
    let close = closes_for_drain(&context) || (context.owns_connection() && !is_read);
    let mut reply = plain(context, status, text);
    if let Some(to_destination) = &to_destination {
        reply.headers.set(&PROXY_STATUS, &to_destination.proxy_status);
    }
    if flag == ResponseFlag::UpstreamOverflow {
        reply.headers.set(&X_ENVOY_OVERLOADED, &HeaderValue::from_static("true"));
    }
    announce_close(close, &mut reply.headers);
    reply
}

/// Returns the status code, flag and text of the reply, depending on which side caused the failure.
const fn failure_reply(failure: &ForwardFailure) -> (StatusCode, ResponseFlag, &'static str) {
    match failure {
        ForwardFailure::NoRoute => (StatusCode::NOT_FOUND, ResponseFlag::NoRoute, "not found\n"),
        ForwardFailure::UpgradeUnavailable => {
            (StatusCode::NOT_IMPLEMENTED, ResponseFlag::DownstreamProtocol, "protocol not implemented\n")
        }
        ForwardFailure::NoEndpoint | ForwardFailure::NoAddress(_) => {
            (StatusCode::SERVICE_UNAVAILABLE, ResponseFlag::NoHealthyUpstream, "upstream unavailable\n")
        }
        ForwardFailure::Upstream(UpstreamError::Overflow) => {
            (StatusCode::SERVICE_UNAVAILABLE, ResponseFlag::UpstreamOverflow, "upstream overloaded\n")
        }
        ForwardFailure::Upstream(UpstreamError::ServerName(_)) => {
            (StatusCode::MISDIRECTED_REQUEST, ResponseFlag::UpstreamFailure, "misdirected request\n")
        }
        ForwardFailure::Upstream(UpstreamError::Connect(_) | UpstreamError::ConnectTimeout) => {
            (StatusCode::SERVICE_UNAVAILABLE, ResponseFlag::UpstreamFailure, "upstream unavailable\n")
        }
        ForwardFailure::Upstream(UpstreamError::Reset(_)) => {
            (StatusCode::SERVICE_UNAVAILABLE, ResponseFlag::UpstreamClosed, "upstream unavailable\n")
        }
        ForwardFailure::Upstream(UpstreamError::Malformed(_)) | ForwardFailure::UnexpectedProtocol => {
            (StatusCode::BAD_GATEWAY, ResponseFlag::UpstreamProtocol, "bad gateway\n")
        }
        ForwardFailure::BrokenResponse => {
            (StatusCode::BAD_GATEWAY, ResponseFlag::UpstreamClosed, "bad gateway\n")
        }
        ForwardFailure::ResponseTimeout(_) | ForwardFailure::PerTryTimeout(_) => {
            (StatusCode::GATEWAY_TIMEOUT, ResponseFlag::UpstreamTimeout, "upstream timed out\n")
        }
        ForwardFailure::RequestStalled => {
            (StatusCode::REQUEST_TIMEOUT, ResponseFlag::IdleTimeout, "request timed out\n")
        }
        ForwardFailure::BrokenRequest => {
            (StatusCode::BAD_REQUEST, ResponseFlag::DownstreamProtocol, "bad request\n")
        }
    }
}

/// Responds to a request whose upstream response failed before any of it was sent.
pub(super) fn response_broken_off(mut context: Box<RequestContext>) -> DownstreamResponse {
    let failure = match context.upload_has_failed() {
        true => ForwardFailure::BrokenRequest,
        false => ForwardFailure::BrokenResponse,
    };
    // The failed response had been recorded already; the reply takes its place.
    (context.is_complete, context.bytes_sent) = (false, 0);
    let mut limits = AppliedLimits::none(context.started_at);
    upstream_failed(context, &mut limits, &failure)
}

/// Whether the connection is to be closed after the response because the drain has begun.
pub(super) fn closes_for_drain(context: &RequestContext) -> bool {
    context.owns_connection() && context.connection.worker.coarse_clock.is_draining()
}

/// Adds the header that announces the end of the connection, if that is to be closed.
pub(super) fn announce_close(close: bool, headers: &mut Headers) {
    if close {
        headers.set(&CONNECTION, &HeaderValue::from_static("close"));
    }
}

/// Sends a reply to a request that is rejected before its body is read.
fn build_reply(
    mut context: Box<RequestContext>,
    reply: LocalReply<'_>,
    pending: PendingBody,
) -> DownstreamResponse {
    let LocalReply { status, flag, headers, body, rule } = reply;
    let draft = ReplyDraft { status, headers, body: body.clone() };
    let ReplyDraft { mut status, mut headers, body } = match (rule, context.details.take()) {
        (Some((rule, parts)), Some(request)) => rule.complete(&request, parts, draft),
        _ => draft,
    };
    if context.upgrade.is_connect && status.is_success() {
        // A configured success, such as a degraded response, would tell the client that the tunnel exists.
        status = StatusCode::SERVICE_UNAVAILABLE;
    }
    context.respond_with(status, flag);
    context.timer.response_started();
    let close = closes_for_drain(&context) | discard_body(pending, &context);
    if context.is_grpc {
        return trailers_only(context, status, headers, &body);
    }
    announce_close(close, &mut headers);
    Response { status, headers, body: ResponseBody::local(body, context) }
}

fn plain(context: Box<RequestContext>, status: StatusCode, text: &'static str) -> DownstreamResponse {
    let body = Bytes::from_static(text.as_bytes());
    if context.is_grpc {
        return trailers_only(context, status, Headers::default(), &body);
    }
    Response { status, headers: plain_text(), body: ResponseBody::local(body, context) }
}

/// Sends a reply to a gRPC call: headers express what `status` and `text` mean.
fn trailers_only(
    mut context: Box<RequestContext>,
    status: StatusCode,
    mut headers: Headers,
    text: &Bytes,
) -> DownstreamResponse {
    grpc_reply::write_trailers_only(status, text, headers.map_mut());
    context.status = Some(StatusCode::OK);
    Response { status: StatusCode::OK, headers, body: ResponseBody::local(Bytes::new(), context) }
}

fn plain_text() -> Headers {
    let mut headers = Headers::default();
    headers.set(&CONTENT_TYPE, &PLAIN_TEXT);
    headers
}

/// Discards a body that is not read. Returns whether the connection has to be closed after the response.
fn discard_body(pending: PendingBody, context: &RequestContext) -> bool {
    let PendingBody { body, expectation } = pending;
    if body.is_end_stream() || !context.owns_connection() {
        // The rest of the stream is not polled. The stream is reset after the response (RFC 9113 section 8.1).
        return false;
    }
    context.timer.must_linger();
    let is_small = body.size_hint().upper().is_none_or(|length| length <= MAX_DISCARDED_BODY as u64);
    // Reading the body would send `100 Continue`; RFC 9110 section 10.1.1 allows closing the connection instead.
    if !is_small || expectation == Expectation::Continue {
        return true;
    }
    let upload = UploadTimer::start(&context.timer);
    tokio::task::spawn_local(async move {
        if tokio::time::timeout(DISCARD_TIME, discard(body)).await == Ok(true) {
            upload.body_complete();
        }
    });
    false
}

/// Reads a body up to a maximum size. Returns whether it has ended. A body dropped before its end closes the
/// connection.
async fn discard(mut body: DownstreamBody) -> bool {
    let mut discarded = 0;
    while let Some(Ok(frame)) = body.frame().await {
        discarded += frame.data_ref().map_or(0, Bytes::len);
        if discarded > MAX_DISCARDED_BODY {
            return false;
        }
    }
    body.is_end_stream()
}
