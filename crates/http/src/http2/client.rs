//! Client side: requests to a server, and its responses.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use http::{Method, Request, Response};
use tokio::io::{AsyncRead, AsyncWrite};

use super::connection::Connection;
use super::error::{Http2Error, Reason};
use super::handle::StreamHandle;
use super::head::{FieldWriter, PseudoHeaders, encode_request};
use super::hpack::HpackEncoder;
use super::malformation::MalformedStreams;
use super::receive::ReceiveStream;
use super::send::SendStream;
use super::settings::{Http2Settings, MAX_WINDOW};
use super::shared::Http2State;
use super::stream::{ResponseLength, StreamState};
use super::stream_queue::QueuedSender;

/// Connection to a server. Drives the connection until its end; nothing is sent or received otherwise.
#[derive(Debug)]
pub struct ClientConnection<T> {
    connection: Connection<T>,
}

/// Opens streams on a connection. The connection ends when all senders are dropped and no stream is open.
#[derive(Debug)]
pub struct RequestSender {
    connection: Rc<RefCell<Http2State>>,
    /// Place in the queue for a stream.
    queued: Option<Rc<QueuedSender>>,
}

/// Response to a request.
#[derive(Debug)]
pub struct PendingResponse {
    /// `None` once the response was returned.
    handle: Option<StreamHandle>,
}

impl<T: AsyncRead + AsyncWrite + Unpin> ClientConnection<T> {
    /// Creates a connection over a stream of bytes.
    pub fn new(stream: T, settings: Http2Settings) -> (RequestSender, Self) {
        let connection = Connection::new(stream, false, settings);
        (RequestSender::new(connection.shared()), Self { connection })
    }

    /// Returns the streams that were reset as malformed since the last call, if there are any.
    pub fn take_malformed(&self) -> Option<MalformedStreams> {
        self.connection.state().malformed.take()
    }

    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn state(&self) -> std::cell::RefMut<'_, Http2State> {
        self.connection.state()
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> Future for ClientConnection<T> {
    type Output = Result<(), Http2Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Http2Error>> {
        // A server opens no streams.
        self.connection.poll(cx, &mut |_, _, _| {})
    }
}

impl RequestSender {
    fn new(connection: &Rc<RefCell<Http2State>>) -> Self {
        connection.borrow_mut().queue.senders += 1;
        Self { connection: Rc::clone(connection), queued: None }
    }

    /// Returns how many streams the server allows.
    pub fn max_streams(&self) -> usize {
        self.connection.borrow().peer.max_streams as usize
    }

    /// Whether the server allows extended CONNECT (RFC 8441). Pending until its settings have arrived.
    ///
    /// # Errors
    /// Why the connection has ended.
    pub fn poll_connect_protocol(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, Http2Error>> {
        let mut connection = self.connection.borrow_mut();
        if let Some(error) = &connection.end {
            return Poll::Ready(Err(error.clone()));
        }
        if connection.has_peer_settings {
            return Poll::Ready(Ok(connection.peer.connect_protocol));
        }
        connection.queue.enqueue(&mut self.queued, cx);
        Poll::Pending
    }

    /// Pending while the server allows no more streams.
    ///
    /// # Errors
    /// If the connection accepts no more requests. The request was not sent.
    pub fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Http2Error>> {
        let mut connection = self.connection.borrow_mut();
        check_open(&connection)?;
        if connection.streams.len() < connection.peer.max_streams as usize {
            self.queued = None;
            return Poll::Ready(Ok(()));
        }
        connection.queue.enqueue(&mut self.queued, cx);
        Poll::Pending
    }

    /// Opens a stream with a request; the connection must be ready. `is_end`: there is no body.
    ///
    /// # Errors
    /// If the connection accepts no more requests. The request was not sent.
    pub fn send_request(
        &mut self,
        head: &Request<()>,
        is_end: bool,
    ) -> Result<(PendingResponse, SendStream), Http2Error> {
        self.send_head(head.method(), is_end, |encoder, out| encode_request(head, encoder, out))
    }

    /// As [`Self::send_request`], with fields that `write` appends after those of `pseudo`.
    ///
    /// # Errors
    /// If the connection accepts no more requests. The request was not sent.
    pub fn send_fields(
        &mut self,
        pseudo: &PseudoHeaders<'_>,
        is_end: bool,
        write: impl FnOnce(&mut FieldWriter<'_>),
    ) -> Result<(PendingResponse, SendStream), Http2Error> {
        self.send_head(pseudo.method, is_end, |encoder, out| {
            let mut fields = FieldWriter::new(encoder, out);
            fields.push_pseudo_headers(pseudo);
            write(&mut fields);
        })
    }

    fn send_head(
        &mut self,
        method: &Method,
        is_end: bool,
        encode: impl FnOnce(&mut HpackEncoder, &mut Vec<u8>),
    ) -> Result<(PendingResponse, SendStream), Http2Error> {
        let mut state = self.connection.borrow_mut();
        check_open(&state)?;
        let id = state.next_stream;
        state.next_stream += 2;
        let mut stream = StreamState::new(state.first_stream_window(), state.peer.stream_window);
        stream.response_length = match *method {
            Method::HEAD => ResponseLength::OfGet,
            Method::CONNECT => ResponseLength::Ignored,
            _ => ResponseLength::OfContent,
        };
        stream.send_ended = is_end;
        let stream = state.add_stream(id, stream);
        state.put_head(id, is_end, encode);
        drop(state);
        let handle = StreamHandle::new(&self.connection, &stream);
        Ok((PendingResponse { handle: Some(handle.clone()) }, SendStream { handle }))
    }
}

/// # Errors
/// If the connection accepts no more requests.
fn check_open(connection: &Http2State) -> Result<(), Http2Error> {
    match &connection.end {
        Some(error) => Err(error.clone()),
        None if connection.peer_goes_away || connection.next_stream > MAX_WINDOW => {
            Err(Http2Error::GoneAway(Reason::NO_ERROR))
        }
        None => Ok(()),
    }
}

impl Clone for RequestSender {
    fn clone(&self) -> Self {
        Self::new(&self.connection)
    }
}

impl Drop for RequestSender {
    fn drop(&mut self) {
        let mut connection = self.connection.borrow_mut();
        connection.queue.senders -= 1;
        if let Some(queued) = self.queued.take() {
            connection.queue.remove(&queued);
        }
        if connection.queue.has_no_senders() {
            connection.wake();
        }
    }
}

impl PendingResponse {
    /// Returns the handle on the stream, until the response was returned.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) const fn handle(&self) -> Option<&StreamHandle> {
        self.handle.as_ref()
    }

    /// Returns the next interim response (RFC 9110 section 15.2), if one has arrived.
    pub fn take_interim(&mut self) -> Option<Response<()>> {
        self.handle.as_ref()?.with(|_, _, stream| stream.interims.pop_front())
    }
}

impl Future for PendingResponse {
    type Output = Result<Response<ReceiveStream>, Http2Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(handle) = &self.handle else { return Poll::Pending };
        let polled = handle.with(|_, _, stream| match (stream.response.take(), &stream.end) {
            (Some(head), _) => Poll::Ready(Ok(head)),
            (None, Some(error)) => Poll::Ready(Err(error.clone())),
            (None, None) => {
                stream.set_receive_waker(cx);
                Poll::Pending
            }
        });
        polled
            .map_ok(|head| {
                // The handle is there, and the future is not polled again.
                let body = self.handle.take().map(|handle| ReceiveStream { handle });
                head.map(|()| body)
            })
            .map(|response| response.and_then(complete))
    }
}

/// Returns a response with its body.
fn complete(response: Response<Option<ReceiveStream>>) -> Result<Response<ReceiveStream>, Http2Error> {
    let (head, body) = response.into_parts();
    body.map(|body| Response::from_parts(head, body)).ok_or(Http2Error::Cancelled(Reason::INTERNAL_ERROR))
}
