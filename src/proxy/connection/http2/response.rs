//! Head of a response over HTTP/2.

use std::task::Context;

use http::header::{CONTENT_LENGTH, DATE};
use http::{HeaderMap, HeaderValue};
use hyper::body::Body as _;

use crate::headers::Response;
use crate::http2::{Http2Error, Responder, SendStream};
use crate::proxy::Worker;
use crate::proxy::body::ResponseBody;
use crate::proxy::local_reply::{self, DownstreamResponse};
use crate::transport::SentBody;

/// What remains of a response after its head.
#[derive(Debug)]
pub(super) enum StartedResponse {
    /// Nothing.
    Complete,
    /// Its body.
    Body(SentBody<ResponseBody>),
    /// The bytes of a tunnel, in both directions.
    Tunnel(SendStream),
}

/// Sends the head of a response, or of 502 if the response has already failed. Once its head is sent, the only
/// remaining option would be to reset the stream. `is_tunnel`: the stream stays open after the head.
///
/// # Errors
/// If the stream has ended.
pub(super) fn start(
    worker: &Worker,
    responder: &mut Responder,
    mut reply: DownstreamResponse,
    is_head_request: bool,
    is_tunnel: bool,
    cx: &mut Context<'_>,
) -> Result<StartedResponse, Http2Error> {
    if let Some(context) = reply.body.prefetch(cx) {
        reply = local_reply::response_broken_off(context);
    }
    let Response { status, headers, mut body } = reply;
    let mut headers = headers.into_map();
    if is_head_request {
        withhold_content(&mut headers, &mut body);
    }
    let has_body = !body.is_end_stream();
    if has_body && let Some(length) = body.size_hint().exact() {
        headers.entry(CONTENT_LENGTH).or_insert_with(|| HeaderValue::from(length));
    }
    // See `unindexed`.
    headers.entry(DATE).or_insert_with(|| worker.date.value()).set_sensitive(true);
    let mut head = http::Response::new(());
    *head.status_mut() = status;
    *head.headers_mut() = headers;
    let stream = responder.send_response(&head, !has_body && !is_tunnel)?;
    Ok(match (is_tunnel, has_body) {
        (true, _) => StartedResponse::Tunnel(stream),
        (false, true) => StartedResponse::Body(SentBody::new(stream, body)),
        (false, false) => StartedResponse::Complete,
    })
}

/// Removes the content of a response to HEAD (RFC 9110 section 9.3.2).
fn withhold_content(headers: &mut HeaderMap, body: &mut ResponseBody) {
    if let Some(length) = body.withhold() {
        headers.entry(CONTENT_LENGTH).or_insert_with(|| HeaderValue::from(length));
    }
}
