//! A client connection: sends one request and reads the head of its response.

use std::io;
use std::task::{Context, Poll, ready};

use bytes::Bytes;

use super::response_head::{ResponseHead, ResponseHeadDecoder};
use super::upload::Http1Upload;
use crate::http1::decoder::{self, Piece};
use crate::http1::encoder::EncodeError;
use crate::http1::interim::InterimResponses;
use crate::http1::malformed::MalformedMessage;
use crate::http1::read_buf::{ReadBuf, ReadSource};
use crate::http1::splice::SpliceTarget;
use crate::message_body::MessageBody;

/// An open connection.
#[derive(Debug)]
pub struct ClientConn<S> {
    /// The byte stream below.
    pub stream: S,
    /// Bytes that have been read and not yet decoded.
    pub read_buf: ReadBuf,
}

/// Reason why no response was received.
#[derive(Debug)]
pub enum NoResponse {
    /// The connection failed or was closed, or the request's body failed.
    Reset(io::Error),
    /// The bytes received are not a valid response.
    Malformed(MalformedMessage),
}

/// State while waiting for the head of a response.
#[derive(Debug)]
pub struct ResponseHeadReader<'a> {
    decoder: ResponseHeadDecoder<'a>,
    /// Error that stopped the upload. The response may still be complete: an upstream may respond and close before it
    /// has read the whole request.
    send_error: Option<io::Error>,
}

impl<'a> ResponseHeadReader<'a> {
    /// Creates the state for the response to a request. `to_head`: the method is HEAD. Interim responses are stored in
    /// `interims`.
    pub fn new(to_head: bool, interims: &'a InterimResponses) -> Self {
        Self { decoder: ResponseHeadDecoder::new(to_head).with_interims(interims), send_error: None }
    }

    /// Resets the state for sending the same request on another connection.
    pub fn reset(&mut self) {
        self.send_error = None;
    }
}

impl<S: ReadSource + SpliceTarget> ClientConn<S> {
    /// Sends the request and reads the head of the response, both concurrently.
    pub fn poll_head<B>(
        &mut self,
        upload: &mut Http1Upload<B>,
        waiting: &mut ResponseHeadReader<'_>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<ResponseHead, NoResponse>>
    where
        B: MessageBody,
    {
        if waiting.send_error.is_none() && !upload.is_complete() {
            match upload.poll(&mut self.stream, cx) {
                Poll::Ready(Err(EncodeError::Body(error))) => {
                    return Poll::Ready(Err(NoResponse::Reset(error)));
                }
                Poll::Ready(Err(EncodeError::Connection(error))) => waiting.send_error = Some(error),
                Poll::Ready(Ok(())) | Poll::Pending => {}
            }
        }
        loop {
            let read = ready!(self.read_buf.poll_read(&mut self.stream, cx));
            let error = match read {
                Ok(1..) => match waiting.decoder.decode(&mut self.read_buf.bytes) {
                    Ok(None) => continue,
                    Ok(Some(head)) => return Poll::Ready(Ok(close_after_send_error(head, upload, waiting))),
                    Err(malformed) => NoResponse::Malformed(malformed),
                },
                Ok(0) if !self.read_buf.is_empty() => NoResponse::Malformed(MalformedMessage::Truncated),
                Ok(0) => NoResponse::Reset(
                    waiting.send_error.take().unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into()),
                ),
                Err(error) => NoResponse::Reset(error),
            };
            return Poll::Ready(Err(error));
        }
    }

    /// Whether the next `count` bytes of the response have been read already.
    pub fn has_buffered(&self, count: u64) -> bool {
        count <= self.read_buf.bytes.len() as u64
    }

    /// Takes the next `count` bytes of the response, or as many as have been read.
    pub fn take_buffered(&mut self, mut count: u64) -> Bytes {
        match decoder::take_data(&mut self.read_buf.bytes, &mut count) {
            Piece::Data(content) => content,
            Piece::Trailers(_) | Piece::End | Piece::NeedMore => Bytes::new(),
        }
    }

    /// Whether no unread bytes are left, neither of the last response nor after it.
    pub fn is_drained(&self) -> bool {
        self.read_buf.is_empty()
    }
}

/// Returns the head of the response. If the upload failed, drops the rest of the request and marks the connection as
/// not reusable.
fn close_after_send_error<B>(
    mut head: ResponseHead,
    upload: &mut Http1Upload<B>,
    waiting: &ResponseHeadReader<'_>,
) -> ResponseHead {
    if waiting.send_error.is_some() {
        upload.abandon();
        head.keep_alive = false;
    }
    head
}
