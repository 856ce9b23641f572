//! HTTP/2 as its client speaks it (RFC 9113): many requests side by side over few connections.
//!
//! A connection is a task of its worker; a request is a stream of it, written and read by the request's own
//! future, so that neither side of a body is read faster than the other side takes it.

pub(in crate::upstream) mod head;
pub(in crate::upstream) mod pool;
pub(in crate::upstream) mod stream;
pub(in crate::upstream) mod streaming;

mod check;
mod extended_connect;
mod peer_settings;
mod upload;

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::Poll;

use bytes::Bytes;
use h2::{Reason, RecvStream, SendStream};
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, StatusCode};
use hyper::body::Body;
use tokio::sync::OwnedSemaphorePermit;

pub(in crate::upstream) use self::check::check;
use self::extended_connect::ExtendedConnect;
use self::head::RequestHead;
use self::pool::{Pool, StreamPermit};
use self::stream::Stream;
use self::streaming::Streaming;
use self::upload::Upload;
use super::answer::Answer;
use super::error::{Error, Malformed, Unanswered};
use crate::headers::{Headers, Response};
use crate::http1;
use crate::http1::interim::Interims;
use crate::transport::Transport;

/// Why a stream came to nothing.
#[derive(Debug)]
enum Failure {
    /// The connection takes no more streams.
    Unsent(h2::Error),
    /// The connection or the stream ended.
    Ended(h2::Error),
    /// The request's body broke off.
    Body(io::Error),
    /// The head of the response says no length, or several.
    Length(http1::malformed::Malformed),
}

/// Sends a request, whose head `head` makes, over the stream of `permit`, one of `pool`, and answers with the head of the
/// answer, its body still to come. Interim responses are left in `interims`. Dropped before, it resets the stream and leaves the connection to others.
///
/// What a connection has not taken up, as it says when it goes, is sent once more over another, which `open` makes
/// if need be (RFC 9113 section 8.7).
///
/// # Errors
/// [`Unanswered`] if no connection could be made, or none of the answer came or it was not HTTP/2.
pub(in crate::upstream) async fn send<B>(
    permit: StreamPermit,
    pool: &Pool,
    open: impl AsyncFn() -> Result<(Transport, OwnedSemaphorePermit), Error>,
    head: impl Fn() -> RequestHead,
    interims: &Interims,
    body: B,
) -> Result<Response<Answer<B>>, Unanswered<B>>
where
    B: Body<Data = Bytes> + Unpin + 'static,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    let mut upload = Upload::new(body);
    match ask(&permit, head(), &mut upload, interims).await {
        Ok(asked) => return Ok(asked.answered(upload, permit)),
        Err(failure) if !(upload.is_untouched() && failure.is_not_taken_up()) => return Err(failure.into()),
        Err(_) => permit.retire(),
    }
    drop(permit);
    let permit = match pool.acquire(&open).await {
        Ok(permit) => permit,
        Err(error) => return Err(Unanswered::untouched(error, upload.into_body())),
    };
    let head = head();
    if head.extended.is_some() && !permit.allows_extended_connect().await {
        let error = Error::Reset(io::ErrorKind::Unsupported.into());
        return Err(Unanswered::untouched(error, upload.into_body()));
    }
    match ask(&permit, head, &mut upload, interims).await {
        Ok(asked) => Ok(asked.answered(upload, permit)),
        Err(failure) if upload.is_untouched() && failure.is_not_taken_up() => {
            permit.retire();
            Err(Unanswered::untouched(failure.into(), upload.into_body()))
        }
        Err(failure) => Err(failure.into()),
    }
}

/// A stream whose answer has begun.
struct Asked {
    response: http::Response<RecvStream>,
    /// What it was to become, and our way of it.
    extended: Option<(ExtendedConnect, SendStream<Bytes>)>,
}

/// Opens a stream and waits for the head of the answer, sending what there is of the body meanwhile.
async fn ask<B>(
    permit: &StreamPermit,
    RequestHead { request, extended }: RequestHead,
    upload: &mut Upload<B>,
    interims: &Interims,
) -> Result<Asked, Failure>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    let mut sender = permit.sender();
    poll_fn(|cx| sender.poll_ready(cx)).await.map_err(Failure::Unsent)?;
    // A stream that may leave HTTP has no body, and does not end with its head.
    let ends = upload.is_empty() && extended.is_none();
    let (mut answer, stream) = sender.send_request(request, ends).map_err(Failure::Unsent)?;
    let extended = match extended {
        Some(extended) => Some((extended, stream)),
        None => {
            upload.begin(stream);
            None
        }
    };
    let mut response = poll_fn(|cx| {
        if let Poll::Ready(Err(error)) = upload.poll(cx) {
            return Poll::Ready(Err(Failure::Body(error)));
        }
        while let Poll::Ready(Some(Ok(interim))) = answer.poll_informational(cx) {
            leave(interim, interims);
        }
        Pin::new(&mut answer).poll(cx).map_err(Failure::Ended)
    })
    .await?;
    permit.answered();
    let status = response.status();
    settle_length(status, response.headers_mut()).map_err(Failure::Length)?;
    Ok(Asked { response, extended })
}

/// Leaves an interim response to whoever writes to the client.
fn leave(interim: http::Response<()>, interims: &Interims) {
    let (head, ()) = interim.into_parts();
    let octets = head.headers.iter().map(|(name, value)| name.as_str().len().saturating_add(value.len()));
    let octets = octets.fold(0, usize::saturating_add);
    let Ok(()) = interims.push(head.status, octets, || {
        let mut headers = head.headers;
        headers.remove(CONTENT_LENGTH);
        Ok::<_, std::convert::Infallible>(headers)
    });
}

/// Leaves a response one length in our own digits, and none where there must be none (RFC 9110 section 8.6).
fn settle_length(status: StatusCode, headers: &mut HeaderMap) -> Result<(), http1::malformed::Malformed> {
    http1::content_length::normalise(headers)?;
    if status == StatusCode::NO_CONTENT {
        headers.remove(CONTENT_LENGTH);
    }
    Ok(())
}

impl Asked {
    fn answered<B>(self, upload: Upload<B>, permit: StreamPermit) -> Response<Answer<B>>
    where
        B: Body<Data = Bytes> + Unpin + 'static,
        B::Error: std::error::Error + Send + Sync + 'static,
    {
        let (mut head, stream) = self.response.into_parts();
        if let Some((extended, mut sending)) = self.extended {
            if extended.answered(&mut head) {
                let answer = Answer::switched(Stream::new(stream, sending, permit).into());
                return of_parts(head, answer);
            }
            let _ = sending.send_data(Bytes::new(), true);
        }
        let answer = match stream.is_end_stream() {
            true => Answer::whole(Bytes::new()),
            false => Answer::http2(Streaming::new(&head, stream, upload, permit)),
        };
        of_parts(head, answer)
    }
}

fn of_parts<B>(head: http::response::Parts, body: B) -> Response<B> {
    Response { status: head.status, headers: Headers::from(head.headers), body }
}

impl Failure {
    /// Whether the other side has not begun with the request, as far as it says, so that it may be sent again.
    fn is_not_taken_up(&self) -> bool {
        match self {
            Self::Unsent(_) => true,
            Self::Ended(error) => {
                error.is_remote() && (error.is_go_away() || error.reason() == Some(Reason::REFUSED_STREAM))
            }
            Self::Body(_) | Self::Length(_) => false,
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Body(error) => Self::Reset(error),
            Failure::Length(malformed) => Self::Malformed(malformed.into()),
            Failure::Unsent(error) | Failure::Ended(error) if error.is_library() => {
                Self::Malformed(Malformed::Http2(error.reason().unwrap_or(Reason::PROTOCOL_ERROR)))
            }
            Failure::Unsent(error) | Failure::Ended(error) => Self::Reset(into_io(error)),
        }
    }
}

impl<B> From<Failure> for Unanswered<B> {
    fn from(failure: Failure) -> Self {
        Error::from(failure).into()
    }
}

/// A failure of HTTP/2 as one of the connection.
fn into_io(error: h2::Error) -> io::Error {
    match error.is_io() {
        true => error.into_io().unwrap_or_else(|| io::ErrorKind::ConnectionReset.into()),
        false => io::Error::other(error),
    }
}
