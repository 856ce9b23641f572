//! Sending of a response by a server.

use std::task::{Context, Poll};

use http::{HeaderMap, Response, StatusCode};

use super::error::{Http2Error, Reason};
use super::handle::StreamHandle;
use super::head::{FieldWriter, encode_headers, encode_response};
use super::hpack::HpackEncoder;
use super::send::{SendStream, poll_reset};

/// Sends the response to a request. If it is dropped without a response, and the request's body too, the stream is reset.
#[derive(Debug)]
pub struct Responder {
    pub(super) handle: StreamHandle,
}

impl Responder {
    /// Sends the head of the response. `is_end`: there is no body.
    ///
    /// # Errors
    /// Why the stream has ended.
    pub fn send_response(&mut self, head: &Response<()>, is_end: bool) -> Result<SendStream, Http2Error> {
        self.send_head(is_end, |encoder, out| encode_response(head, encoder, out))
    }

    /// As [`Self::send_response`], with fields that `write` appends.
    ///
    /// # Errors
    /// Why the stream has ended.
    pub fn send_fields(
        &mut self,
        status: StatusCode,
        is_end: bool,
        write: impl FnOnce(&mut FieldWriter<'_>),
    ) -> Result<SendStream, Http2Error> {
        self.send_head(is_end, |encoder, out| {
            encoder.status(status, out);
            write(&mut FieldWriter::new(encoder, out));
        })
    }

    /// Sends an interim response (RFC 9110 section 15.2). Its headers are valid in HTTP/2.
    ///
    /// # Errors
    /// Why the stream has ended.
    pub fn send_interim(&mut self, status: StatusCode, headers: &HeaderMap) -> Result<(), Http2Error> {
        self.handle.with(|connection, id, stream| {
            stream.check_open_for_sending()?;
            if !connection.accepts_head() {
                // The client does not read. It must not depend on interim responses.
                return Ok(());
            }
            connection.put_head(id, false, |encoder, out| {
                encoder.status(status, out);
                encode_headers(headers, encoder, out);
            });
            Ok(())
        })
    }

    fn send_head(
        &mut self,
        is_end: bool,
        encode: impl FnOnce(&mut HpackEncoder, &mut Vec<u8>),
    ) -> Result<SendStream, Http2Error> {
        self.handle.with(|connection, id, stream| {
            stream.check_open_for_sending()?;
            connection.check_unread(id, stream)?;
            stream.has_response = true;
            connection.put_head(id, is_end, encode);
            if is_end {
                connection.end_sending(id, stream);
            }
            Ok::<_, Http2Error>(())
        })?;
        Ok(SendStream { handle: self.handle.clone() })
    }

    /// Whether the stream has ended early.
    pub(super) fn has_ended(&self) -> bool {
        self.handle.with(|_, _, stream| stream.end.is_some())
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
