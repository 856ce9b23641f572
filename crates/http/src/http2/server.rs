//! Server side: requests of clients, and their responses.

use std::task::{Context, Poll};

use http::Request;
use tokio::io::{AsyncRead, AsyncWrite};

use super::connection::Connection;
use super::error::Http2Error;
use super::malformation::MalformedStreams;
use super::receive::ReceiveStream;
use super::responder::Responder;
use super::settings::Http2Settings;
use super::shared::Shutdown;

/// Connection of a client.
#[derive(Debug)]
pub struct ServerConnection<T> {
    connection: Connection<T>,
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

    /// Returns a number of what the client has begun to send and not completed: its preface and first SETTINGS, a header
    /// section, or another frame than DATA. The number stays the same until that is complete. A caller can limit the time
    /// for it.
    pub fn incomplete(&self) -> Option<u64> {
        self.connection.incomplete()
    }

    /// Ends the connection, because something was incomplete for too long. Writes GOAWAY if the client reads.
    pub fn close_incomplete(&mut self, cx: &mut Context<'_>) {
        self.connection.close_incomplete(cx);
    }

    /// Returns the streams that were reset as malformed since the last call, if there are any.
    pub fn take_malformed(&self) -> Option<MalformedStreams> {
        self.connection.state().malformed.take()
    }

    /// Returns the number of requests beyond the maximum of streams since the last call.
    pub fn take_refused(&self) -> u32 {
        std::mem::take(&mut self.connection.state().refused)
    }

    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn state(&self) -> std::cell::RefMut<'_, super::shared::Http2State> {
        self.connection.state()
    }

    /// Begins the graceful shutdown: the connection ends after the streams that the client has opened (RFC 9113 section
    /// 6.8).
    pub fn graceful_shutdown(&mut self) {
        self.connection.state().begin_shutdown();
    }

    /// Whether the client has been told which stream is the last.
    pub fn has_last_stream(&self) -> bool {
        self.connection.state().shutdown == Shutdown::Final
    }

    /// Serves no further stream: the connection ends after those that are open, whatever the client has sent meanwhile.
    pub fn refuse_streams(&mut self) {
        let mut state = self.connection.state();
        state.announce_end();
        state.wake();
    }
}
