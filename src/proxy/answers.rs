//! Every answer a client can get, ours and the upstream's, and what becomes of a request that was not read.
//!
//! A refused request may still have a body on its way. A small one is read and thrown away, so the connection
//! can go on; before a large one, or one that waits for `100 Continue`, the connection is closed after the
//! answer. Either way not one byte of it can be taken for another request.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE};
use http::{HeaderName, HeaderValue, Method, StatusCode, request};
use http_body_util::BodyExt as _;
use hyper::body::Body as _;

use super::View;
use super::body::{Incoming, RequestBody, ResponseBody};
use super::decide::CachedFallbacks;
use super::ending;
use super::exchange::{Exchange, Flag};
use super::forward::Failure;
use super::grpc;
use super::headers::envoy::SERVICE_TIME;
use super::headers::{self, Expectation, Unacceptable};
use super::stream::MOST_DISCARDED;
use super::timeouts::UploadTimer;
use crate::headers::{Headers, Response};
use crate::identify::lookup::Ambiguity;
use crate::limiter::timestamp::saturating_millis;
use crate::limits::{Limits, Reason, Rejected};
use crate::overload::LoadShed;
use crate::response::fallback::Kept;
use crate::rules::selection::Denial;
use crate::rules::tariff::Ending;
use crate::upstream::Upstream;
use crate::upstream::answer::Answer;
use crate::upstream::error::Error as UpstreamError;

const PLAIN_TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const X_ENVOY_OVERLOADED: HeaderName = HeaderName::from_static("x-envoy-overloaded");
/// How long the rest of a refused request is read.
const DISCARD_TIME: Duration = Duration::from_secs(1);

/// A response on its way to the client.
pub(super) type Reply = Response<ResponseBody>;

/// A request as far as a refusal has not read it.
#[derive(Debug)]
pub(super) struct Unread {
    body: Incoming,
    expectation: Expectation,
}

impl Unread {
    pub(super) fn new(expectation: Expectation, body: Incoming) -> Self {
        Self { expectation, body }
    }
}

/// A request that we could not pass on without risk; the connection is closed, for we may have misread it.
pub(super) fn malformed(mut exchange: Box<Exchange>, unacceptable: Unacceptable) -> Reply {
    let (status, text) = match unacceptable {
        Unacceptable::Malformed => (StatusCode::BAD_REQUEST, "bad request\n"),
        Unacceptable::Method => (StatusCode::METHOD_NOT_ALLOWED, "method not allowed\n"),
        Unacceptable::Coding => (StatusCode::NOT_IMPLEMENTED, "transfer coding not implemented\n"),
        Unacceptable::Fields => (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "too many header fields\n"),
    };
    exchange.timer().must_linger();
    exchange.answers(status, Flag::DownstreamProtocol);
    let close = exchange.is_alone();
    closing_if(close, ours(exchange, status, text))
}

/// A request that is shed. Where memory is short its connection is closed, too.
pub(super) fn overloaded(mut exchange: Box<Exchange>, by: LoadShed, unread: Unread) -> Reply {
    exchange.record_shed(by);
    let (status, body) = (StatusCode::SERVICE_UNAVAILABLE, Bytes::from_static(b"overloaded\n"));
    exchange.answers(status, Flag::Overloaded);
    let close = by == LoadShed::Memory && exchange.is_alone();
    let mut reply = refused(exchange, (status, &body), plain_text(), unread);
    reply.headers.set(X_ENVOY_OVERLOADED, &HeaderValue::from_static("true"));
    closing_if(close, reply)
}

/// A request that a rule refuses without asking limits.
pub(super) fn denied(mut exchange: Box<Exchange>, view: &View, denial: Denial, unread: Unread) -> Reply {
    match denial {
        Denial::Forbidden => {
            let refusal = &view.policy.denied;
            exchange.answers(refusal.status, Flag::Denied);
            refused(exchange, (refusal.status, &refusal.body), refusal.headers.clone().into(), unread)
        }
        Denial::Ambiguous(ambiguity) => ambiguous(exchange, ambiguity, unread),
    }
}

/// A request that a limit rejects. Its response is what is `kept` of an earlier one, the rule's degraded
/// response or its rejection. The memory of its `head` is used again.
pub(super) fn limited(
    exchange: Box<Exchange>,
    view: &View,
    rejected: &Rejected<'_>,
    (kept, head): (Option<Arc<Kept>>, request::Parts),
    unread: Unread,
) -> Reply {
    let refusal = view.limits.rejection(rejected.rule);
    if kept.is_some() || refusal.degraded.is_some() {
        return stand_in_for(exchange, view, rejected, (kept, &head.method), unread);
    }
    if exchange.is_alone()
        && let Some(raw) = rejected.raw_headers(&view.limits)
    {
        let headers = Headers::raw_with_spare(raw, head.headers);
        return limited_with(exchange, (refusal.status, &refusal.body), headers, unread);
    }
    let headers = rejected.headers(&view.limits);
    limited_with(exchange, (refusal.status, &refusal.body), headers, unread)
}

/// A request that `rule` rejects, which has a degraded response for some requests.
fn stand_in_for(
    exchange: Box<Exchange>,
    view: &View,
    rejected: &Rejected<'_>,
    (kept, method): (Option<Arc<Kept>>, &Method),
    unread: Unread,
) -> Reply {
    let refusal = view.limits.rejection(rejected.rule);
    if let Some(kept) = kept {
        let mut headers = rejected.headers_with(&view.limits, &refusal.headers);
        kept.extend(headers.map_mut(), rejected.limits.at());
        return limited_with(exchange, (StatusCode::OK, kept.body()), headers, unread);
    }
    let (status, body, headers) = match refusal.degraded(method) {
        Some(degraded) => (degraded.status, &degraded.body, &degraded.headers),
        None => (refusal.status, &refusal.body, &refusal.headers),
    };
    let headers = rejected.headers_with(&view.limits, headers);
    limited_with(exchange, (status, body), headers, unread)
}

/// A request that does not go on for what another rate limit service says, or for want of a response.
pub(super) fn rejected_remotely(
    exchange: Box<Exchange>,
    view: &View,
    rejected: &Rejected<'_>,
    (fallbacks, method): (CachedFallbacks, &Method),
    unread: Unread,
) -> Reply {
    let body = match &rejected.reason {
        Reason::Limit => None,
        Reason::Remote(body) => Some(body).filter(|body| !body.is_empty()),
        Reason::Unanswered => return undecided(exchange, unread),
    };
    let kept = fallbacks.take(rejected.rule);
    let refusal = view.limits.rejection(rejected.rule);
    match body.filter(|_| kept.is_none() && refusal.degraded(method).is_none()) {
        None => stand_in_for(exchange, view, rejected, (kept, method), unread),
        Some(body) => {
            let mut headers = rejected.headers_with(&view.limits, &refusal.headers);
            rejected.write_content_type(&mut headers);
            limited_with(exchange, (refusal.status, body), headers, unread)
        }
    }
}

fn limited_with(
    mut exchange: Box<Exchange>,
    (status, body): (StatusCode, &Bytes),
    headers: Headers,
    unread: Unread,
) -> Reply {
    exchange.answers(status, Flag::RateLimited);
    refused(exchange, (status, body), headers, unread)
}

/// A request of which nobody knows whether it may pass, and whose rule then refuses it.
fn undecided(mut exchange: Box<Exchange>, unread: Unread) -> Reply {
    let (status, body) = (StatusCode::SERVICE_UNAVAILABLE, Bytes::from_static(b"service unavailable\n"));
    exchange.answers(status, Flag::RateLimitServiceError);
    refused(exchange, (status, &body), plain_text(), unread)
}

/// The upstream's answer, or ours in its place.
pub(super) fn upstream(
    mut exchange: Box<Exchange>,
    upstream: Option<&Upstream>,
    limits: &mut Limits,
    answered: Result<Response<Answer<RequestBody>>, Failure>,
) -> Reply {
    let took = exchange.upstream_took();
    let mut reply = match answered {
        Ok(response) if response.status == StatusCode::SWITCHING_PROTOCOLS => {
            switching(exchange, limits, response)
        }
        Ok(Response { status, mut headers, body }) => {
            exchange.settle(&Ending::Answered { status, headers: &headers }, limits);
            headers::prepare_response(&mut headers);
            exchange.note_answer(status, &mut headers);
            upstream.inspect(|upstream| upstream.note_success());
            if !exchange.request_is_whole() {
                // An early answer: if the rest of the request is never read, the answer must not be lost.
                exchange.timer().must_linger();
            }
            exchange.answers(status, Flag::None);
            let close = exchange.is_last();
            closing_if(close, Response { status, headers, body: ResponseBody::upstream(body, exchange) })
        }
        Err(failure) => return failed(exchange, upstream, limits, &failure),
    };
    reply.headers.set_number(SERVICE_TIME, saturating_millis(took));
    reply
}

/// The upstream speaks from now on what the client would rather speak.
fn switching(
    mut exchange: Box<Exchange>,
    limits: &mut Limits,
    Response { mut status, mut headers, body }: Response<Answer<RequestBody>>,
) -> Reply {
    exchange.settle(&Ending::Answered { status, headers: &headers }, limits);
    if exchange.insists() {
        status = StatusCode::OK;
        headers::connect::prepare_answer(&mut headers);
    } else {
        headers::prepare_switch(&mut headers);
    }
    exchange.answers(status, Flag::None);
    if let Some(tunnel) = body.into_tunnel() {
        exchange.switch(tunnel);
    }
    Response { status, headers, body: ResponseBody::none() }
}

/// Whose fault it was decides what the client is told; nothing of our insides is.
fn failed(
    mut exchange: Box<Exchange>,
    upstream: Option<&Upstream>,
    limits: &mut Limits,
    failure: &Failure,
) -> Reply {
    let (status, flag, text) = match failure {
        Failure::NoRoute => (StatusCode::NOT_FOUND, Flag::NoRoute, "not found\n"),
        Failure::NoProtocol => {
            (StatusCode::NOT_IMPLEMENTED, Flag::DownstreamProtocol, "protocol not implemented\n")
        }
        Failure::NoEndpoint => {
            (StatusCode::SERVICE_UNAVAILABLE, Flag::NoHealthyUpstream, "upstream unavailable\n")
        }
        Failure::Upstream(UpstreamError::Overflow) => {
            (StatusCode::SERVICE_UNAVAILABLE, Flag::UpstreamOverflow, "upstream overloaded\n")
        }
        Failure::Upstream(error) => {
            upstream.inspect(|upstream| upstream.note_failure(error));
            match error {
                UpstreamError::Connect(_) | UpstreamError::ConnectTimeout | UpstreamError::Overflow => {
                    (StatusCode::SERVICE_UNAVAILABLE, Flag::UpstreamFailure, "upstream unavailable\n")
                }
                UpstreamError::Reset(_) => {
                    (StatusCode::SERVICE_UNAVAILABLE, Flag::UpstreamClosed, "upstream unavailable\n")
                }
                UpstreamError::Malformed(_) => {
                    (StatusCode::BAD_GATEWAY, Flag::UpstreamProtocol, "bad gateway\n")
                }
            }
        }
        Failure::BrokenOff => (StatusCode::BAD_GATEWAY, Flag::UpstreamClosed, "bad gateway\n"),
        Failure::Unreadable => (StatusCode::BAD_GATEWAY, Flag::UpstreamProtocol, "bad gateway\n"),
        Failure::Late(_) | Failure::TryLate(_) => {
            (StatusCode::GATEWAY_TIMEOUT, Flag::UpstreamTimeout, "upstream timed out\n")
        }
        Failure::Stalled => (StatusCode::REQUEST_TIMEOUT, Flag::IdleTimeout, "request timed out\n"),
        Failure::BrokenRequest => (StatusCode::BAD_REQUEST, Flag::DownstreamProtocol, "bad request\n"),
    };
    exchange.settle(&ending::of_failure(failure, status), limits);
    exchange.answers(status, flag);
    exchange.timer().response_started();
    let whole = exchange.request_is_whole();
    if !whole {
        exchange.timer().must_linger();
    }
    let close = exchange.is_last() || (exchange.is_alone() && !whole);
    let mut reply = ours(exchange, status, text);
    if flag == Flag::UpstreamOverflow {
        reply.headers.set(X_ENVOY_OVERLOADED, &HeaderValue::from_static("true"));
    }
    closing_if(close, reply)
}

/// The upstream's answer broke off, and the client has seen nothing of it.
pub(super) fn broken_off(mut exchange: Box<Exchange>) -> Reply {
    let failure = match exchange.request_is_broken() {
        true => Failure::BrokenRequest,
        false => Failure::BrokenOff,
    };
    let mut limits = Limits::none(exchange.answer_again());
    failed(exchange, None, &mut limits, &failure)
}

/// A request that says in more than one way who the client is.
fn ambiguous(mut exchange: Box<Exchange>, ambiguity: Ambiguity, unread: Unread) -> Reply {
    let text = match ambiguity {
        Ambiguity::Repeated => {
            "bad request: a header, cookie or query parameter that may be given once has several values\n"
        }
        Ambiguity::Spaced => "bad request: a cookie's value has a space and another cookie behind it\n",
        Ambiguity::Quoted => "bad request: a cookie opens a quote and does not close it\n",
        Ambiguity::Unreadable => "bad request: the token cannot be read\n",
    };
    let (status, body) = (StatusCode::BAD_REQUEST, Bytes::from_static(text.as_bytes()));
    exchange.answers(status, Flag::Denied);
    refused(exchange, (status, &body), plain_text(), unread)
}

fn refused(
    exchange: Box<Exchange>,
    (status, body): (StatusCode, &Bytes),
    headers: Headers,
    unread: Unread,
) -> Reply {
    exchange.timer().response_started();
    let close = exchange.is_last() | dispose(unread, &exchange);
    if exchange.is_grpc() {
        return grpc::refused(exchange, status, body, headers);
    }
    closing_if(close, Response { status, headers, body: ResponseBody::ours(body.clone(), exchange) })
}

/// Sees to a body that nobody wants; whether the connection has to be closed after the answer.
fn dispose(unread: Unread, exchange: &Exchange) -> bool {
    let Unread { body, expectation } = unread;
    if body.is_end_stream() || !exchange.is_alone() {
        // A stream's rest is not asked for: the stream is reset after the answer (RFC 9113 section 8.1).
        return false;
    }
    exchange.timer().must_linger();
    let fits = body.size_hint().upper().is_none_or(|most| most <= MOST_DISCARDED as u64);
    // Reading a body that waits for permission would give it; RFC 9110 section 10.1.1 lets us close instead.
    if !fits || expectation == Expectation::Continue {
        return true;
    }
    let upload = UploadTimer::start(exchange.timer());
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

fn ours(exchange: Box<Exchange>, status: StatusCode, text: &'static str) -> Reply {
    if exchange.is_grpc() {
        return grpc::refused(exchange, status, &Bytes::from_static(text.as_bytes()), Headers::default());
    }
    let body = ResponseBody::ours(Bytes::from_static(text.as_bytes()), exchange);
    Response { status, headers: plain_text(), body }
}

fn plain_text() -> Headers {
    let mut headers = Headers::default();
    headers.set(CONTENT_TYPE, &PLAIN_TEXT);
    headers
}

fn closing_if(close: bool, mut reply: Reply) -> Reply {
    if close {
        reply.headers.set(CONNECTION, &HeaderValue::from_static("close"));
    }
    reply
}
