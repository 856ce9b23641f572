//! Response over HTTP/2: its head, and the body as far as the client's flow control permits.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, SendStream};
use http::header::{CONTENT_LENGTH, DATE};
use http::{HeaderMap, HeaderValue};
use hyper::body::Body as _;

use crate::headers::Response;
use crate::proxy::Worker;
use crate::proxy::body::ResponseBody;
use crate::proxy::local_reply::{self, DownstreamResponse};

/// A response whose head has been sent.
#[derive(Debug)]
pub(super) struct ResponseInProgress {
    pub(super) stream: SendStream<Bytes>,
    body: ResponseBody,
}

/// What remains of a response after its head.
#[derive(Debug)]
pub(super) enum StartedResponse {
    /// Nothing.
    Complete,
    /// Its body.
    Body(ResponseInProgress),
    /// The bytes of a tunnel, in both directions.
    Tunnel(SendStream<Bytes>),
}

/// Sends the head of a response, or of 502 if the response has already failed. Once its head is sent, the only
/// remaining option would be to reset the stream. `is_tunnel`: the stream stays open after the head.
///
/// # Errors
/// If the stream has ended.
pub(super) fn start(
    worker: &Worker,
    responder: &mut SendResponse<Bytes>,
    mut reply: DownstreamResponse,
    is_head_request: bool,
    is_tunnel: bool,
    cx: &mut Context<'_>,
) -> Result<StartedResponse, h2::Error> {
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
    let stream = responder.send_response(head, !has_body && !is_tunnel)?;
    Ok(match (is_tunnel, has_body) {
        (true, _) => StartedResponse::Tunnel(stream),
        (false, true) => StartedResponse::Body(ResponseInProgress { stream, body }),
        (false, false) => StartedResponse::Complete,
    })
}

/// Removes the content of a response to HEAD (RFC 9110 section 9.3.2).
fn withhold_content(headers: &mut HeaderMap, body: &mut ResponseBody) {
    if let Some(length) = body.withhold() {
        headers.entry(CONTENT_LENGTH).or_insert_with(|| HeaderValue::from(length));
    }
}

impl ResponseInProgress {
    /// Sends as much as the client's windows permit. The body is polled only if they have room, so that a client that
    /// does not read holds the upstream back. Ready at the end of the response or of the stream.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), h2::Error>> {
        let Self { stream, body } = self;
        loop {
            stream.reserve_capacity(1);
            if stream.capacity() > 0 {
                if let Poll::Ready(reset) = stream.poll_reset(cx) {
                    return Poll::Ready(reset.and_then(|reason| Err(reason.into())));
                }
            } else {
                match ready!(stream.poll_capacity(cx)) {
                    Some(Ok(_)) => continue,
                    Some(Err(error)) => return Poll::Ready(Err(error)),
                    None => return Poll::Ready(Err(Reason::CANCEL.into())),
                }
            }
            match ready!(Pin::new(&mut *body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => {
                        let is_last = body.is_end_stream();
                        stream.send_data(data, is_last)?;
                        if is_last {
                            return Poll::Ready(Ok(()));
                        }
                    }
                    Err(frame) => {
                        // Gives back the reserved byte.
                        stream.reserve_capacity(0);
                        let trailers = frame.into_trailers().unwrap_or_default();
                        return Poll::Ready(stream.send_trailers(trailers));
                    }
                },
                Some(Err(_)) => {
                    // The response must not look complete.
                    stream.send_reset(Reason::INTERNAL_ERROR);
                    return Poll::Ready(Ok(()));
                }
                None => return Poll::Ready(stream.send_data(Bytes::new(), true)),
            }
        }
    }
}
