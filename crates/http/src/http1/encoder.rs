//! Message encoder: sends a head that is already written, and the body as it is produced.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;

use super::framing::{self, BodyFraming, LAST_CHUNK};
use super::splice::{MIN_SPLICED, SpliceTarget};
use super::write_buf::WriteBuf;
use crate::message_body::MessageBody;

/// A message, as far as it is still to be sent.
#[derive(Debug)]
pub struct Encoder<B> {
    write_buf: WriteBuf,
    /// `None` once all of it is in the write buffer. An empty body is kept.
    body: Option<B>,
    /// Whether the body has not ended yet.
    is_open: bool,
    /// Whether none of the body has been read.
    is_unread: bool,
    framing: BodyFraming,
}

/// Reason why a message cannot be sent completely.
#[derive(Debug)]
pub enum EncodeError {
    /// The connection failed.
    Connection(io::Error),
    /// The body failed, or did not have the declared length.
    Body(io::Error),
}

impl<B> Encoder<B>
where
    B: MessageBody,
{
    /// Creates an encoder of which nothing has been sent. `write_buf` holds the head, which declares the framing
    /// `coding`.
    pub fn new(write_buf: WriteBuf, coding: BodyFraming, body: B) -> Self {
        let is_open = !body.is_end_stream();
        Self { write_buf, body: Some(body), is_open, is_unread: true, framing: coding }
    }

    /// Sends as much as the connection takes; ready when everything has been sent.
    pub fn poll(
        &mut self,
        stream: &mut impl SpliceTarget,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), EncodeError>> {
        self.poll_announcing_end(stream, || (), cx)
    }

    /// As [`Encoder::poll`]. Calls `before_end` before it writes to the stream if the body has ended, so that nothing follows
    /// what is in the write buffer.
    pub fn poll_announcing_end(
        &mut self,
        stream: &mut impl SpliceTarget,
        before_end: impl Fn(),
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), EncodeError>> {
        loop {
            let filled = match self.poll_splice(stream, cx).map_err(EncodeError::Body)? {
                Some(spliced) => spliced,
                None => self.poll_fill(cx).map_err(EncodeError::Body)?,
            };
            if !self.is_open {
                before_end();
            }
            ready!(self.write_buf.poll_write(stream, cx)).map_err(EncodeError::Connection)?;
            match filled {
                Poll::Ready(()) if !self.is_open => return Poll::Ready(Ok(())),
                Poll::Ready(()) => {}
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Moves the next part of the body into a pipe; `None` if it has to be copied.
    fn poll_splice(
        &mut self,
        stream: &impl SpliceTarget,
        cx: &mut Context<'_>,
    ) -> io::Result<Option<Poll<()>>> {
        let BodyFraming::Length(left @ MIN_SPLICED..) = &mut self.framing else { return Ok(None) };
        let Some(body) = self.body.as_mut().filter(|_| self.is_open && self.write_buf.has_room()) else {
            return Ok(None);
        };
        if !stream.takes_pipes() {
            return Ok(None);
        }
        let max = usize::try_from(*left).unwrap_or(usize::MAX);
        let pipe = match body.poll_splice(max, cx) {
            None => return Ok(None),
            Some(Poll::Pending) => return Ok(Some(Poll::Pending)),
            Some(Poll::Ready(spliced)) => spliced.map_err(io::Error::other)?,
        };
        *left = left.checked_sub(pipe.held() as u64).ok_or(io::ErrorKind::InvalidData)?;
        let ended = body.is_end_stream();
        self.is_unread = false;
        if pipe.held() == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.write_buf.push_pipe(pipe);
        if ended {
            self.end(None)?;
        }
        Ok(Some(Poll::Ready(())))
    }

    /// Moves the body into the write buffer until that is full or the body has ended.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(body) = self.body.as_mut().filter(|_| self.is_open && self.write_buf.has_room()) {
            self.is_unread = false;
            let ended = match ready!(Pin::new(&mut *body).poll_frame(cx)) {
                None => true,
                Some(Err(error)) => return Poll::Ready(Err(io::Error::other(error))),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => {
                        let ended = body.is_end_stream();
                        self.push(data)?;
                        ended
                    }
                    Err(frame) => {
                        self.end(frame.trailers_ref())?;
                        return Poll::Ready(Ok(()));
                    }
                },
            };
            if ended {
                self.end(None)?;
            }
        }
        Poll::Ready(Ok(()))
    }

    fn push(&mut self, data: Bytes) -> io::Result<()> {
        match &mut self.framing {
            _ if data.is_empty() => {}
            BodyFraming::Length(left) => {
                *left = left.checked_sub(data.len() as u64).ok_or(io::ErrorKind::InvalidData)?;
                self.write_buf.push(data);
            }
            BodyFraming::Chunked(_) => {
                framing::write_chunk_size(&data, self.write_buf.buffer_mut());
                self.write_buf.push(data);
                self.write_buf.buffer_mut().extend_from_slice(b"\r\n");
            }
            BodyFraming::Close => self.write_buf.push(data),
        }
        Ok(())
    }
}

impl<B> Encoder<B> {
    /// Ends the body: writes the last chunk or the trailers, and checks the length.
    fn end(&mut self, trailers: Option<&HeaderMap>) -> io::Result<()> {
        if matches!(self.framing, BodyFraming::Length(1..)) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        (self.body, self.is_open) = (None, false);
        // Its last byte may have been flushed long before the end was known. Another flush lets the stream record the
        // end.
        self.write_buf.request_flush();
        match (&self.framing, trailers) {
            (BodyFraming::Length(_) | BodyFraming::Close, _) => {}
            (BodyFraming::Chunked(announced), Some(fields)) => {
                framing::write_last_chunk(fields, announced, self.write_buf.buffer_mut());
            }
            (BodyFraming::Chunked(_), None) => self.write_buf.buffer_mut().extend_from_slice(LAST_CHUNK),
        }
        Ok(())
    }

    /// Whether everything has been sent.
    pub fn is_complete(&self) -> bool {
        !self.is_open && self.write_buf.is_flushed()
    }

    /// Returns the number of bytes that wait to be sent, without those in a pipe, which the system holds.
    pub fn unsent_bytes(&self) -> usize {
        self.write_buf.unsent_bytes()
    }

    /// Returns the number of bytes sent, including the head.
    pub fn bytes_written(&self) -> u64 {
        self.write_buf.bytes_written()
    }

    /// Drops the rest of the body.
    pub fn discard_body(&mut self) {
        (self.body, self.is_open) = (None, false);
    }

    /// Drops everything that is still to be sent.
    pub fn abandon(&mut self) {
        self.discard_body();
        self.write_buf = WriteBuf::default();
    }

    /// Starts again from the first byte. Only for messages without a body.
    pub fn rewind(&mut self) {
        self.write_buf.rewind();
    }

    /// Returns the body if none of it has been read.
    pub fn into_body(self) -> Option<B> {
        self.body.filter(|_| self.is_unread)
    }

    /// Takes the body of a message of which nothing has been sent, so that another message can take its place.
    pub fn take_unsent(&mut self) -> Option<B> {
        self.body.take_if(|_| self.write_buf.bytes_written() == 0)
    }
}

#[cfg(test)]
mod tests;
