//! Server side: requests of clients, and their responses.

use std::task::{Context, Poll};

use http::{Request, Response};
use tokio::io::{AsyncRead, AsyncWrite};

use super::connection::Connection;
use super::error::{Http2Error, Reason};
use super::head::encode_response;
use super::receive::ReceiveStream;
use super::send::{SendStream, poll_reset};
use super::settings::Http2Settings;
use super::stream::StreamHandle;

/// Connection of a client.
#[derive(Debug)]
pub struct ServerConnection<T> {
    connection: Connection<T>,
}

/// Sends the response to a request. If it is dropped without a response, and the request's body too, the stream is reset.
#[derive(Debug)]
pub struct Responder {
    pub(super) handle: StreamHandle,
}

impl<T: AsyncRead + AsyncWrite + Unpin> ServerConnection<T> {
    /// Creates a connection over a stream of bytes.
    pub fn new(stream: T, settings: Http2Settings) -> Self {
        Self { connection: Connection::new(stream, true, settings) }
    }

    /// Waits for the client's preface.
    ///
    /// # Errors
    /// If the client has sent something else, or has closed the connection.
    pub fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Http2Error>> {
        self.connection.poll_preface(cx)
    }

    /// Calls `start` with each request that has arrived, and then writes what there is to be sent: responses that are
    /// available at once leave together. Ready when the connection has ended.
    ///
    /// # Errors
    /// The error that has ended the connection.
    pub fn poll_requests(
        &mut self,
        cx: &mut Context<'_>,
        mut start: impl FnMut(Request<ReceiveStream>, Responder, &mut Context<'_>),
    ) -> Poll<Result<(), Http2Error>> {
        self.connection.poll(cx, &mut start)
    }

    /// State of the connection.
    #[cfg(any(test, fuzzing))]
    pub(super) fn state(&self) -> std::cell::RefMut<'_, super::shared::ConnectionState> {
        self.connection.state()
    }

    /// Begins the graceful shutdown: the connection ends after the streams that the client has opened (RFC 9113 section
    /// 6.8).
    pub fn graceful_shutdown(&mut self) {
        self.connection.state().begin_shutdown();
    }
}

impl Responder {
    /// Sends the head of the response. `is_end`: there is no body.
    ///
    /// # Errors
    /// Why the stream has ended.
    pub fn send_response(&mut self, head: &Response<()>, is_end: bool) -> Result<SendStream, Http2Error> {
        self.handle.with(|connection, id, stream| {
            stream.check_open_for_sending()?;
            stream.has_response = true;
            connection.put_head(id, is_end, |encoder, out| encode_response(head, encoder, out));
            if is_end {
                connection.end_sending(id, stream);
            }
            Ok(())
        })?;
        Ok(SendStream { handle: self.handle.clone() })
    }

    /// Resets the stream, unless it has ended.
    pub fn send_reset(&mut self, reason: Reason) {
        self.handle.reset(reason);
    }

    /// Ready when the stream has ended early: reset by the client, or with its connection.
    pub fn poll_reset(&mut self, cx: &mut Context<'_>) -> Poll<Http2Error> {
        poll_reset(&self.handle, cx)
    }
}
