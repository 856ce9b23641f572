//! A connection, and one request with the head of its response over it.

use std::io;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::Body;
use tokio::io::AsyncWrite;

use super::response_head::{Head, Reader};
use super::upload::Upload;
use crate::http1::decoder::{self, Piece};
use crate::http1::encoder::Failure;
use crate::http1::interim::Interims;
use crate::http1::malformed::Malformed;
use crate::http1::read_buf::{ReadBuf, Source};

/// An open connection.
#[derive(Debug)]
pub struct Conn<S> {
    /// What it runs over.
    pub stream: S,
    /// What has been read and not yet decoded.
    pub read_buf: ReadBuf,
    /// Memory for the next request.
    pub buffer: Vec<u8>,
}

/// Why there is no response.
#[derive(Debug)]
pub enum NoResponse {
    /// The connection failed or ended, or the request's body broke off.
    Reset(io::Error),
    /// What came is no response.
    Malformed(Malformed),
}

/// The wait for the head of an answer.
#[derive(Debug)]
pub struct ResponseHeadReader<'a> {
    reader: Reader<'a>,
    /// Why no more of the request can be sent. An upstream that has answered may close before it has read all.
    unsent: Option<io::Error>,
}

impl<'a> ResponseHeadReader<'a> {
    /// For the answer to HEAD or to another method, whose header fields are parsed into a map or stay raw. Interim
    /// responses are left in `interims`.
    pub fn new(to_head: bool, wants_map: bool, interims: &'a Interims) -> Self {
        Self { reader: Reader::new(to_head, wants_map).leaving(interims), unsent: None }
    }

    /// For the answer to the same request on another connection.
    pub fn begin_again(&mut self) {
        self.unsent = None;
    }
}

impl<S: Source + AsyncWrite> Conn<S> {
    /// Sends a request and reads the head of its answer, both at once.
    pub fn poll_head<B>(
        &mut self,
        upload: &mut Upload<B>,
        waiting: &mut ResponseHeadReader<'_>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Head, NoResponse>>
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: std::error::Error + Send + Sync + 'static,
    {
        if waiting.unsent.is_none() && !upload.is_over() {
            match upload.poll(&mut self.stream, cx) {
                Poll::Ready(Err(Failure::Body(error))) => return Poll::Ready(Err(NoResponse::Reset(error))),
                Poll::Ready(Err(Failure::Connection(error))) => waiting.unsent = Some(error),
                Poll::Ready(Ok(())) | Poll::Pending => {}
            }
        }
        loop {
            let read = ready!(self.read_buf.poll_read(&mut self.stream, cx));
            let error = match read {
                Ok(1..) => match waiting.reader.decode(&mut self.read_buf.bytes) {
                    Ok(None) => continue,
                    Ok(Some(head)) => return Poll::Ready(Ok(answered(head, upload, waiting))),
                    Err(malformed) => NoResponse::Malformed(malformed),
                },
                Ok(0) if !self.read_buf.is_empty() => NoResponse::Malformed(Malformed::CutOff),
                Ok(0) => NoResponse::Reset(
                    waiting.unsent.take().unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into()),
                ),
                Err(error) => NoResponse::Reset(error),
            };
            return Poll::Ready(Err(error));
        }
    }

    /// Whether the next `octets` of the answer are here already.
    pub fn has_read(&self, octets: u64) -> bool {
        octets <= self.read_buf.bytes.len() as u64
    }

    /// Takes the next `octets` of the answer, or as many as are here.
    pub fn take(&mut self, mut octets: u64) -> Bytes {
        match decoder::take(&mut self.read_buf.bytes, &mut octets) {
            Piece::Data(content) => content,
            Piece::Trailers(_) | Piece::End | Piece::More => Bytes::new(),
        }
    }

    /// Whether no byte is left, of its last answer or behind it.
    pub fn is_settled(&self) -> bool {
        self.read_buf.is_empty()
    }

    /// Its answer has ended: what was needed only for a large one is given back.
    pub fn settle(&mut self) {
        self.read_buf.settle();
    }

    /// It will not be used for a while: its buffers are given back.
    pub fn rest(&mut self) {
        self.read_buf = ReadBuf::default();
        self.buffer = Vec::new();
    }
}

/// An upstream that has closed for reading has answered all the same, but that is the last it does.
fn answered<B>(mut head: Head, upload: &mut Upload<B>, waiting: &ResponseHeadReader<'_>) -> Head {
    if waiting.unsent.is_some() {
        upload.abandon();
        head.keeps = false;
    }
    head
}
