//! HTTP/2 client (RFC 9113): many requests multiplexed over few connections.
//!
//! A connection is driven by a task of its worker. A request is a stream that the request's own future writes and
//! reads, so that flow control applies backpressure to both bodies.

pub(crate) mod head;
pub(crate) mod pool;
pub(crate) mod response_body;
pub(crate) mod tunnel;

mod check;
mod extended_connect;
mod upload;

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::Poll;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, StatusCode};
use tokio::sync::OwnedSemaphorePermit;

pub(crate) use self::check::check;
use self::extended_connect::ExtendedConnect;
use self::head::{Http2Request, SentRequest};
use self::pool::{Http2Pool, StreamPermit};
use self::response_body::Http2ResponseBody;
use self::tunnel::Http2Tunnel;
use self::upload::Http2Upload;
use super::error::{MalformedResponse, SendError, UpstreamError};
use super::response_body::UpstreamResponseBody;
use weir_http::headers::{Headers, Response};
use weir_http::http1;
use weir_http::http1::interim::InterimResponses;
use weir_http::http2::{Http2Error, Reason, ReceiveStream, SendStream};
use weir_http::message_body::MessageBody;
use weir_net::transport::Transport;

/// Why a stream failed.
#[derive(Debug)]
enum StreamError {
    /// The connection accepts no more streams.
    Unsent(Http2Error),
    /// The connection or the stream ended.
    Ended(Http2Error),
    /// The request body failed.
    Body(io::Error),
    /// The response has an invalid or contradictory `content-length`.
    Length(http1::malformed::MalformedMessage),
}

/// Sends a request, with a header section created by `head`, over the stream of `permit`, which belongs to `pool`.
/// Waits for the response's header section; the body is streamed. Interim responses are appended to `interims`.
/// Dropping the future resets the stream and leaves the connection to other requests.
///
/// A request that the peer reports as unprocessed is sent once more over another connection, which `open` establishes
/// if necessary (RFC 9113 section 8.7).
///
/// # Errors
/// [`SendError`] if no connection could be established, no response arrived, or it was malformed.
pub(crate) async fn send<B>(
    permit: StreamPermit,
    pool: &Http2Pool,
    open: impl AsyncFn() -> Result<(Transport, OwnedSemaphorePermit), UpstreamError>,
    request: Http2Request<'_>,
    interims: &InterimResponses,
    body: B,
    was_sent: &Cell<bool>,
) -> Result<Response<UpstreamResponseBody<B>>, SendError<B>>
where
    B: MessageBody + 'static,
{
    let mut upload = Http2Upload::new(body);
    match send_request(&permit, request, &mut upload, interims, was_sent).await {
        Ok(asked) => return Ok(asked.into_response(upload, permit)),
        Err(failure) if !(upload.is_untouched() && failure.is_unprocessed()) => return Err(failure.into()),
        Err(_) => permit.retire(),
    }
    was_sent.set(false);
    drop(permit);
    // Boxed because few requests are sent twice, and its future is large.
    let permit = match Box::pin(pool.acquire(&open)).await {
        Ok(permit) => permit,
        Err(error) => return Err(SendError::retryable(error, upload.into_body())),
    };
    if request.is_upgrade() && !permit.allows_extended_connect().await {
        let error = UpstreamError::Reset(io::ErrorKind::Unsupported.into());
        return Err(SendError::retryable(error, upload.into_body()));
    }
    match send_request(&permit, request, &mut upload, interims, was_sent).await {
        Ok(asked) => Ok(asked.into_response(upload, permit)),
        Err(failure) if upload.is_untouched() && failure.is_unprocessed() => {
            permit.retire();
            was_sent.set(false);
            Err(SendError::retryable(failure.into(), upload.into_body()))
        }
        Err(failure) => Err(failure.into()),
    }
}

/// A stream whose response has begun.
struct StreamResponse {
    response: http::Response<ReceiveStream>,
    /// For an extended CONNECT: the requested protocol, and the sending side of the stream.
    extended: Option<(ExtendedConnect, SendStream)>,
}

/// Opens a stream and waits for the response's header section, sending the available part of the body meanwhile.
async fn send_request<B>(
    permit: &StreamPermit,
    request: Http2Request<'_>,
    upload: &mut Http2Upload<B>,
    interims: &InterimResponses,
    was_sent: &Cell<bool>,
) -> Result<StreamResponse, StreamError>
where
    B: MessageBody,
{
    let mut sender = permit.sender();
    let ready = poll_fn(|cx| match sender.poll_ready(cx) {
        // It may take long until the server allows streams again, and another connection may be better.
        Poll::Pending if sender.max_streams() == 0 => {
            Poll::Ready(Err(Http2Error::GoneAway(Reason::REFUSED_STREAM)))
        }
        polled => polled,
    });
    ready.await.map_err(StreamError::Unsent)?;
    let sent = request.send(&mut sender, upload.is_empty()).map_err(StreamError::Unsent)?;
    was_sent.set(true);
    let SentRequest { response: mut pending, stream, extended } = sent;
    let extended = match extended {
        Some(extended) => Some((extended, stream)),
        None => {
            upload.set_stream(stream);
            None
        }
    };
    let mut response = poll_fn(|cx| {
        if let Poll::Ready(Err(error)) = upload.poll(cx) {
            return Poll::Ready(Err(StreamError::Body(error)));
        }
        while let Some(interim) = pending.take_interim() {
            forward_interim(interim, interims);
        }
        Pin::new(&mut pending).poll(cx).map_err(StreamError::Ended)
    })
    .await?;
    permit.record_response();
    let status = response.status();
    normalise_length(status, response.headers_mut()).map_err(StreamError::Length)?;
    Ok(StreamResponse { response, extended })
}

/// Appends an interim response, to be forwarded to the client.
fn forward_interim(interim: http::Response<()>, interims: &InterimResponses) {
    let (head, ()) = interim.into_parts();
    let bytes = head.headers.iter().map(|(name, value)| name.as_str().len().saturating_add(value.len()));
    let bytes = bytes.fold(0, usize::saturating_add);
    let Ok(()) = interims.push(head.status, bytes, || {
        let mut headers = head.headers;
        headers.remove(CONTENT_LENGTH);
        Ok::<_, std::convert::Infallible>(headers)
    });
}

/// Normalises `content-length`, and removes it where it is forbidden (RFC 9110 section 8.6).
fn normalise_length(
    status: StatusCode,
    headers: &mut HeaderMap,
) -> Result<(), http1::malformed::MalformedMessage> {
    http1::content_length::normalise(headers)?;
    if status == StatusCode::NO_CONTENT {
        headers.remove(CONTENT_LENGTH);
    }
    Ok(())
}

impl StreamResponse {
    fn into_response<B>(
        self,
        upload: Http2Upload<B>,
        permit: StreamPermit,
    ) -> Response<UpstreamResponseBody<B>>
    where
        B: MessageBody + 'static,
    {
        let (mut head, stream) = self.response.into_parts();
        if let Some((extended, mut sending)) = self.extended {
            if extended.convert_response(&mut head) {
                let body = UpstreamResponseBody::upgraded(Http2Tunnel::new(stream, sending, permit).into());
                return response_from_parts(head, body);
            }
            let _ = sending.send_end();
        }
        let body = match stream.is_end_stream() {
            true => UpstreamResponseBody::full(Bytes::new()),
            false => UpstreamResponseBody::http2(Http2ResponseBody::new(&head, stream, upload, permit)),
        };
        response_from_parts(head, body)
    }
}

fn response_from_parts<B>(head: http::response::Parts, body: B) -> Response<B> {
    Response { status: head.status, headers: Headers::from(head.headers), body }
}

impl StreamError {
    /// Whether the peer has reported the request as unprocessed, so that it may be sent again.
    fn is_unprocessed(&self) -> bool {
        match self {
            Self::Unsent(_) => true,
            Self::Ended(error) => error.is_unprocessed(),
            Self::Body(_) | Self::Length(_) => false,
        }
    }
}

impl From<StreamError> for UpstreamError {
    fn from(failure: StreamError) -> Self {
        match failure {
            StreamError::Body(error) => Self::Reset(error),
            StreamError::Length(malformed) => Self::Malformed(malformed.into()),
            StreamError::Unsent(error) | StreamError::Ended(error) if error.is_violation() => {
                Self::Malformed(MalformedResponse::Http2(error.reason().unwrap_or(Reason::PROTOCOL_ERROR)))
            }
            StreamError::Unsent(error) | StreamError::Ended(error) => Self::Reset(error.into()),
        }
    }
}

impl<B> From<StreamError> for SendError<B> {
    fn from(failure: StreamError) -> Self {
        UpstreamError::from(failure).into()
    }
}
