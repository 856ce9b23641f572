//! A message on its way out: its head is written already, its body comes as it comes.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use hyper::body::Body;
use tokio::io::AsyncWrite;

use super::framing::{self, BodyFraming, LAST_CHUNK};
use super::write_buf::WriteBuf;

/// A message as far as it is still to be sent.
#[derive(Debug)]
pub struct Encoder<B> {
    write_buf: WriteBuf,
    /// `None` once it is all in the write_buf; one that is empty stays.
    body: Option<B>,
    /// There is more of it.
    is_open: bool,
    /// Nothing of it has been read.
    untouched: bool,
    coding: BodyFraming,
}

/// Why a message cannot be sent to its end.
#[derive(Debug)]
pub enum Failure {
    /// The other side takes no more of it.
    Connection(io::Error),
    /// The body broke off, or was not of the length that was promised.
    Body(io::Error),
}

impl<B> Encoder<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    /// A message of which nothing is out yet. Its head is in `write_buf`, and says that its body is coded like this.
    pub fn new(write_buf: WriteBuf, coding: BodyFraming, body: B) -> Self {
        let is_open = !body.is_end_stream();
        Self { write_buf, body: Some(body), is_open, untouched: true, coding }
    }

    /// Sends as much as can be sent now; ready when all of it is.
    pub fn poll(
        &mut self,
        stream: &mut (impl AsyncWrite + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Failure>> {
        loop {
            let filled = self.poll_fill(cx).map_err(Failure::Body)?;
            ready!(self.write_buf.poll_write(stream, cx)).map_err(Failure::Connection)?;
            match filled {
                Poll::Ready(()) if !self.is_open => return Poll::Ready(Ok(())),
                Poll::Ready(()) => {}
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Moves the body into the write_buf until that is full or the body has ended.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(body) = self.body.as_mut().filter(|_| self.is_open && self.write_buf.has_room()) {
            self.untouched = false;
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
        match &mut self.coding {
            _ if data.is_empty() => {}
            BodyFraming::Length(left) => {
                *left = left.checked_sub(data.len() as u64).ok_or(io::ErrorKind::InvalidData)?;
                self.write_buf.push(data);
            }
            BodyFraming::Chunked(_) => {
                framing::chunk_size(&data, self.write_buf.end());
                self.write_buf.push(data);
                self.write_buf.end().extend_from_slice(b"\r\n");
            }
            BodyFraming::Close => self.write_buf.push(data),
        }
        Ok(())
    }
}

impl<B> Encoder<B> {
    /// The body has ended: what ends it goes out.
    fn end(&mut self, trailers: Option<&HeaderMap>) -> io::Result<()> {
        if matches!(self.coding, BodyFraming::Length(1..)) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        (self.body, self.is_open) = (None, false);
        // Its last byte may have been written long ago.
        self.write_buf.flush();
        match (&self.coding, trailers) {
            (BodyFraming::Length(_) | BodyFraming::Close, _) => {}
            (BodyFraming::Chunked(announced), Some(fields)) => {
                framing::trailers(fields, announced, self.write_buf.end());
            }
            (BodyFraming::Chunked(_), None) => self.write_buf.end().extend_from_slice(LAST_CHUNK),
        }
        Ok(())
    }

    /// Whether all of it is out.
    pub fn is_over(&self) -> bool {
        !self.is_open && self.write_buf.is_out()
    }

    /// How many bytes of it are out, head and all.
    pub fn out(&self) -> u64 {
        self.write_buf.out()
    }

    /// The rest of the body goes nowhere, and is let go.
    pub fn without_body(&mut self) {
        (self.body, self.is_open) = (None, false);
    }

    /// Nobody takes it any more.
    pub fn abandon(&mut self) {
        self.without_body();
        self.write_buf = WriteBuf::default();
    }

    /// All is to be sent once more. Only for what has no body.
    pub fn rewind(&mut self) {
        self.write_buf.rewind();
    }

    /// The body, where nothing of it has been read.
    pub fn into_body(self) -> Option<B> {
        self.body.filter(|_| self.untouched)
    }

    /// The body and the memory of a message of which nothing is out, so that another may be sent in its place.
    pub fn into_unsent(self) -> Option<(B, Vec<u8>)> {
        let body = self.body.filter(|_| self.write_buf.out() == 0)?;
        Some((body, self.write_buf.into_buffer()))
    }

    /// The memory it was sent from.
    pub fn into_buffer(self) -> Vec<u8> {
        self.write_buf.into_buffer()
    }
}

#[cfg(test)]
mod tests;
