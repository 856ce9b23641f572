//! Local replies: the responses that the proxy gives itself, and what becomes of a request that was not read.
//!
//! A rejected request may still have a body on its way. A small one is read and discarded, so that the connection can go
//! on; before a large one, or one that waits for `100 Continue`, the connection is closed after the response. Either way
//! not one byte of it can be taken for another request.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE};
use http::{HeaderName, HeaderValue, Method, StatusCode, request};
use http_body_util::BodyExt as _;
use hyper::body::Body as _;

use super::body::{Incoming, ResponseBody};
use super::decide::CachedFallbacks;
use super::failure::Failure;
use super::finish;
use super::grpc;
use super::headers::{Expectation, Unacceptable};
use super::request_context::{RequestContext, ResponseFlag};
use super::stream::MOST_DISCARDED;
use super::timeouts::UploadTimer;
use crate::headers::{Headers, Response};
use crate::identify::lookup::Ambiguity;
use crate::limits::{self, Limits, Reason, Rejected};
use crate::overload::LoadShed;
use crate::response::fallback::Kept;
use crate::response::refusal::Refusal;
use crate::rules::selection::Denial;
use crate::upstream::error::Error as UpstreamError;

const PLAIN_TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const X_ENVOY_OVERLOADED: HeaderName = HeaderName::from_static("x-envoy-overloaded");
/// How long the rest of a rejected request is read.
const DISCARD_TIME: Duration = Duration::from_secs(1);

/// A response on its way to the client.
pub(super) type Reply = Response<ResponseBody>;

/// The body of a request that is rejected, as far as it is unread.
#[derive(Debug)]
pub(super) struct PendingBody {
    body: Incoming,
    expectation: Expectation,
}

/// A local reply before it has a form for its protocol.
struct LocalReply<'a> {
    status: StatusCode,
    flag: ResponseFlag,
    headers: Headers,
    body: &'a Bytes,
}

impl PendingBody {
    pub(super) fn new(expectation: Expectation, body: Incoming) -> Self {
        Self { body, expectation }
    }
}

/// A request that cannot be passed on without risk; the connection is closed, for it may have been misread.
pub(super) fn malformed(mut context: Box<RequestContext>, unacceptable: Unacceptable) -> Reply {
    let (status, text) = match unacceptable {
        Unacceptable::Malformed => (StatusCode::BAD_REQUEST, "bad request\n"),
        Unacceptable::Method => (StatusCode::METHOD_NOT_ALLOWED, "method not allowed\n"),
        Unacceptable::Coding => (StatusCode::NOT_IMPLEMENTED, "transfer coding not implemented\n"),
        Unacceptable::Fields => (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "too many header fields\n"),
    };
    context.timer.must_linger();
    context.respond_with(status, ResponseFlag::DownstreamProtocol);
    let close = context.owns_connection();
    closing_if(close, plain(context, status, text))
}

/// A request that is shed. Where memory is short its connection is closed, too.
pub(super) fn overloaded(context: Box<RequestContext>, by: LoadShed, pending: PendingBody) -> Reply {
    let close = by == LoadShed::Memory && context.owns_connection();
    let body = &Bytes::from_static(b"overloaded\n");
    let (status, flag) = (StatusCode::SERVICE_UNAVAILABLE, ResponseFlag::Overloaded);
    let mut reply = send(context, LocalReply { status, flag, headers: plain_text(), body }, pending);
    reply.headers.set(&X_ENVOY_OVERLOADED, &HeaderValue::from_static("true"));
    closing_if(close, reply)
}

/// A request that a rule rejects before any limit: `denied` is the response to one that is forbidden.
pub(super) fn denied(
    context: Box<RequestContext>,
    denied: &Refusal,
    denial: Denial,
    pending: PendingBody,
) -> Reply {
    let flag = ResponseFlag::Denied;
    match denial {
        Denial::Forbidden => {
            let Refusal { status, ref body, ref headers, .. } = *denied;
            send(context, LocalReply { status, flag, headers: headers.clone().into(), body }, pending)
        }
        Denial::Ambiguous(ambiguity) => {
            let (status, body) =
                (StatusCode::BAD_REQUEST, &Bytes::from_static(ambiguous(ambiguity).as_bytes()));
            send(context, LocalReply { status, flag, headers: plain_text(), body }, pending)
        }
    }
}

/// What a client is told that says in more than one way who it is.
const fn ambiguous(ambiguity: Ambiguity) -> &'static str {
    match ambiguity {
        Ambiguity::Repeated => {
            "bad request: a header, cookie or query parameter that may be given once has several values\n"
        }
        Ambiguity::Spaced => "bad request: a cookie's value has a space and another cookie behind it\n",
        Ambiguity::Quoted => "bad request: a cookie opens a quote and does not close it\n",
        Ambiguity::Unreadable => "bad request: the token cannot be read\n",
    }
}

/// A request that a limit counted here rejects. Its response is the `cached` one, the rule's degraded response or its
/// rejection. The memory of its `head` is used again.
pub(super) fn rate_limited(
    context: Box<RequestContext>,
    limits: &limits::View,
    rejected: &Rejected<'_>,
    cached: Option<Arc<Kept>>,
    head: request::Parts,
    pending: PendingBody,
) -> Reply {
    let rejection = limits.rejection(rejected.rule);
    if cached.is_some() || rejection.degraded.is_some() {
        return stand_in(context, limits, rejected, cached, &head.method, pending);
    }
    let headers = match rejected.raw_headers(limits).filter(|_| context.owns_connection()) {
        Some(raw) => Headers::raw_with_spare(raw, head.headers),
        None => rejected.headers(limits),
    };
    rejected_with(context, rejection.status, headers, &rejection.body, pending)
}

/// A request that another rate limit service rejects, or for want of its response.
pub(super) fn rejected_remotely(
    context: Box<RequestContext>,
    limits: &limits::View,
    rejected: &Rejected<'_>,
    cached: CachedFallbacks,
    method: &Method,
    pending: PendingBody,
) -> Reply {
    let cached = cached.take(rejected.rule);
    let rejection = limits.rejection(rejected.rule);
    let body = match &rejected.reason {
        Reason::Unanswered => return undecided(context, pending),
        Reason::Remote(body) if !body.is_empty() => body,
        Reason::Remote(_) | Reason::Limit => {
            return stand_in(context, limits, rejected, cached, method, pending);
        }
    };
    if cached.is_some() || rejection.degraded(method).is_some() {
        return stand_in(context, limits, rejected, cached, method, pending);
    }
    let mut headers = rejected.headers_with(limits, &rejection.headers);
    rejected.write_content_type(&mut headers);
    rejected_with(context, rejection.status, headers, body, pending)
}

/// The response to a rejected request whose rule has others for some requests: a cached or a degraded one.
fn stand_in(
    context: Box<RequestContext>,
    limits: &limits::View,
    rejected: &Rejected<'_>,
    cached: Option<Arc<Kept>>,
    method: &Method,
    pending: PendingBody,
) -> Reply {
    let rejection = limits.rejection(rejected.rule);
    if let Some(cached) = cached {
        let mut headers = rejected.headers_with(limits, &rejection.headers);
        cached.extend(headers.map_mut(), rejected.limits.at());
        return rejected_with(context, StatusCode::OK, headers, cached.body(), pending);
    }
    let (status, body, headers) = match rejection.degraded(method) {
        Some(degraded) => (degraded.status, &degraded.body, &degraded.headers),
        None => (rejection.status, &rejection.body, &rejection.headers),
    };
    rejected_with(context, status, rejected.headers_with(limits, headers), body, pending)
}

fn rejected_with(
    context: Box<RequestContext>,
    status: StatusCode,
    headers: Headers,
    body: &Bytes,
    pending: PendingBody,
) -> Reply {
    send(context, LocalReply { status, flag: ResponseFlag::RateLimited, headers, body }, pending)
}

/// A request of which it is not known whether it may pass, and whose rule then rejects it.
fn undecided(context: Box<RequestContext>, pending: PendingBody) -> Reply {
    let (status, flag) = (StatusCode::SERVICE_UNAVAILABLE, ResponseFlag::RateLimitServiceError);
    let body = &Bytes::from_static(b"service unavailable\n");
    send(context, LocalReply { status, flag, headers: plain_text(), body }, pending)
}

/// A request that got no response from the upstream. Nothing of our insides is told.
pub(super) fn upstream_failed(
    mut context: Box<RequestContext>,
    limits: &mut Limits,
    failure: &Failure,
) -> Reply {
    let (status, flag, text) = reply_to(failure);
    finish::settle(&mut context, &failure.ending(status), limits);
    context.respond_with(status, flag);
    context.timer.response_started();
    let is_read = context.upload_is_complete();
    if !is_read {
        context.timer.must_linger();
    }
    let close = is_last(&context) || (context.owns_connection() && !is_read);
    let mut reply = plain(context, status, text);
    if flag == ResponseFlag::UpstreamOverflow {
        reply.headers.set(&X_ENVOY_OVERLOADED, &HeaderValue::from_static("true"));
    }
    closing_if(close, reply)
}

/// Status, flag and text of the reply: whose fault it was decides.
const fn reply_to(failure: &Failure) -> (StatusCode, ResponseFlag, &'static str) {
    match failure {
        Failure::NoRoute => (StatusCode::NOT_FOUND, ResponseFlag::NoRoute, "not found\n"),
        Failure::NoProtocol => {
            (StatusCode::NOT_IMPLEMENTED, ResponseFlag::DownstreamProtocol, "protocol not implemented\n")
        }
        Failure::NoEndpoint => {
            (StatusCode::SERVICE_UNAVAILABLE, ResponseFlag::NoHealthyUpstream, "upstream unavailable\n")
        }
        Failure::Upstream(UpstreamError::Overflow) => {
            (StatusCode::SERVICE_UNAVAILABLE, ResponseFlag::UpstreamOverflow, "upstream overloaded\n")
        }
        Failure::Upstream(UpstreamError::Connect(_) | UpstreamError::ConnectTimeout) => {
            (StatusCode::SERVICE_UNAVAILABLE, ResponseFlag::UpstreamFailure, "upstream unavailable\n")
        }
        Failure::Upstream(UpstreamError::Reset(_)) => {
            (StatusCode::SERVICE_UNAVAILABLE, ResponseFlag::UpstreamClosed, "upstream unavailable\n")
        }
        Failure::Upstream(UpstreamError::Malformed(_)) | Failure::Unreadable => {
            (StatusCode::BAD_GATEWAY, ResponseFlag::UpstreamProtocol, "bad gateway\n")
        }
        Failure::BrokenOff => (StatusCode::BAD_GATEWAY, ResponseFlag::UpstreamClosed, "bad gateway\n"),
        Failure::Late(_) | Failure::TryLate(_) => {
            (StatusCode::GATEWAY_TIMEOUT, ResponseFlag::UpstreamTimeout, "upstream timed out\n")
        }
        Failure::Stalled => (StatusCode::REQUEST_TIMEOUT, ResponseFlag::IdleTimeout, "request timed out\n"),
        Failure::BrokenRequest => {
            (StatusCode::BAD_REQUEST, ResponseFlag::DownstreamProtocol, "bad request\n")
        }
    }
}

/// The upstream's response broke off before any of it was sent.
pub(super) fn broken_off(mut context: Box<RequestContext>) -> Reply {
    let failure = match context.upload_has_failed() {
        true => Failure::BrokenRequest,
        false => Failure::BrokenOff,
    };
    // Another response takes its place.
    (context.is_complete, context.bytes_sent) = (false, 0);
    let mut limits = Limits::none(context.started);
    upstream_failed(context, &mut limits, &failure)
}

/// Whether the drain has begun, so that the connection is to be closed after the response.
pub(super) fn is_last(context: &RequestContext) -> bool {
    context.owns_connection() && context.connection.worker.slow_clock.is_draining()
}

pub(super) fn closing_if(close: bool, mut reply: Reply) -> Reply {
    if close {
        reply.headers.set(&CONNECTION, &HeaderValue::from_static("close"));
    }
    reply
}

/// The reply to a request that is rejected before its body is read.
fn send(mut context: Box<RequestContext>, reply: LocalReply<'_>, pending: PendingBody) -> Reply {
    let LocalReply { status, flag, headers, body } = reply;
    context.respond_with(status, flag);
    context.timer.response_started();
    let close = is_last(&context) | dispose(pending, &context);
    if context.is_grpc {
        return trailers_only(context, status, headers, body);
    }
    closing_if(close, Response { status, headers, body: ResponseBody::ours(body.clone(), context) })
}

fn plain(context: Box<RequestContext>, status: StatusCode, text: &'static str) -> Reply {
    let body = Bytes::from_static(text.as_bytes());
    if context.is_grpc {
        return trailers_only(context, status, Headers::default(), &body);
    }
    Response { status, headers: plain_text(), body: ResponseBody::ours(body, context) }
}

/// The reply to a gRPC call: what HTTP would say as `status` and `text` is in the fields of its head.
fn trailers_only(
    mut context: Box<RequestContext>,
    status: StatusCode,
    mut headers: Headers,
    text: &Bytes,
) -> Reply {
    grpc::write_trailers_only(status, text, headers.map_mut());
    context.status = Some(StatusCode::OK);
    Response { status: StatusCode::OK, headers, body: ResponseBody::ours(Bytes::new(), context) }
}

fn plain_text() -> Headers {
    let mut headers = Headers::default();
    headers.set(&CONTENT_TYPE, &PLAIN_TEXT);
    headers
}

/// Discards a body that is not read; whether the connection has to be closed after the response.
fn dispose(pending: PendingBody, context: &RequestContext) -> bool {
    let PendingBody { body, expectation } = pending;
    if body.is_end_stream() || !context.owns_connection() {
        // A stream's rest is not polled for: the stream is reset after the response (RFC 9113 section 8.1).
        return false;
    }
    context.timer.must_linger();
    let is_small = body.size_hint().upper().is_none_or(|length| length <= MOST_DISCARDED as u64);
    // Reading a body that waits for permission would give it; RFC 9110 section 10.1.1 lets us close instead.
    if !is_small || expectation == Expectation::Continue {
        return true;
    }
    let upload = UploadTimer::start(&context.timer);
    tokio::task::spawn_local(async move {
        if tokio::time::timeout(DISCARD_TIME, discard(body)).await == Ok(true) {
            upload.is_whole();
        }
    });
    false
}

/// Reads a body to its end, if that comes within bounds. Dropped before its end, the connection is closed.
async fn discard(mut body: Incoming) -> bool {
    let mut discarded = 0;
    while let Some(Ok(frame)) = body.frame().await {
        discarded += frame.data_ref().map_or(0, Bytes::len);
        if discarded > MOST_DISCARDED {
            return false;
        }
    }
    body.is_end_stream()
}
