//! A connection to the upstream, and one request with the head of its answer over it.

use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::Body;
use tokio::sync::OwnedSemaphorePermit;

use super::head::{Head, Reader};
use super::upload::Upload;
use crate::http1::inbox::Inbox;
use crate::http1::interim::Interims;
use crate::http1::length::{self, Piece};
use crate::http1::malformed::Malformed;
use crate::http1::sending::Failure;
use crate::telemetry::metrics::EndpointMetrics;
use crate::transport::Transport;
use crate::upstream::error::Error;

/// An open connection. Dropped, it is closed. It is handed on with every request, so it lives in a box.
#[derive(Debug)]
pub(in crate::upstream) struct Connection {
    pub(in crate::upstream) stream: Transport,
    pub(super) inbox: Inbox,
    /// Memory for the next request.
    pub(in crate::upstream) buffer: Vec<u8>,
    pub(super) open: Open,
}

/// Counts a connection as long as it is open.
#[derive(Debug)]
pub(super) struct Open(Rc<EndpointMetrics>, #[expect(dead_code, reason = "held")] OwnedSemaphorePermit);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.connection_closed();
    }
}

/// The wait for the head of an answer.
#[derive(Debug)]
pub(in crate::upstream) struct Waiting<'a> {
    reader: Reader<'a>,
    /// Why no more of the request can be sent. An upstream that has answered may close before it has read all.
    unsent: Option<io::Error>,
}

impl<'a> Waiting<'a> {
    /// For the answer to HEAD or to another method, whose header fields are parsed into a map or stay raw. Interim
    /// responses are left in `interims`.
    pub(in crate::upstream) fn new(to_head: bool, wants_map: bool, interims: &'a Interims) -> Self {
        Self { reader: Reader::new(to_head, wants_map).leaving(interims), unsent: None }
    }

    /// For the answer to the same request on another connection.
    pub(in crate::upstream) fn begin_again(&mut self) {
        self.unsent = None;
    }
}

impl Connection {
    /// A fresh connection, counted by `metrics` from now on; it holds `permit` as long as it is open.
    pub(in crate::upstream) fn new(
        stream: Transport,
        metrics: &Rc<EndpointMetrics>,
        permit: OwnedSemaphorePermit,
    ) -> Box<Self> {
        metrics.connection_opened();
        let open = Open(Rc::clone(metrics), permit);
        Box::new(Self { stream, inbox: Inbox::default(), buffer: Vec::new(), open })
    }

    /// Sends a request and reads the head of its answer, both at once.
    pub(in crate::upstream) fn poll_head<B>(
        &mut self,
        upload: &mut Upload<B>,
        waiting: &mut Waiting<'_>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Head, Error>>
    where
        B: Body<Data = Bytes> + Unpin,
        B::Error: std::error::Error + Send + Sync + 'static,
    {
        if waiting.unsent.is_none() && !upload.is_over() {
            match upload.poll(&mut self.stream, cx) {
                Poll::Ready(Err(Failure::Body(error))) => return Poll::Ready(Err(Error::Reset(error))),
                Poll::Ready(Err(Failure::Connection(error))) => waiting.unsent = Some(error),
                Poll::Ready(Ok(())) | Poll::Pending => {}
            }
        }
        loop {
            let read = ready!(self.inbox.poll_read(&mut self.stream, cx));
            let error = match read {
                Ok(1..) => match waiting.reader.decode(&mut self.inbox.bytes) {
                    Ok(None) => continue,
                    Ok(Some(head)) => return Poll::Ready(Ok(answered(head, upload, waiting))),
                    Err(malformed) => Error::Malformed(malformed.into()),
                },
                Ok(0) if !self.inbox.is_empty() => Error::Malformed(Malformed::CutOff.into()),
                Ok(0) => {
                    Error::Reset(waiting.unsent.take().unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into()))
                }
                Err(error) => Error::Reset(error),
            };
            return Poll::Ready(Err(error));
        }
    }

    /// Whether the next `octets` of the answer are here already.
    pub(in crate::upstream) fn has_read(&self, octets: u64) -> bool {
        octets <= self.inbox.bytes.len() as u64
    }

    /// Takes the next `octets` of the answer, or as many as are here.
    pub(in crate::upstream) fn take(&mut self, mut octets: u64) -> Bytes {
        match length::take(&mut self.inbox.bytes, &mut octets) {
            Piece::Data(content) => content,
            Piece::Trailers(_) | Piece::End | Piece::More => Bytes::new(),
        }
    }

    /// Whether nothing has come since the last answer, not even the end, as far as we have been told.
    pub(in crate::upstream) fn is_quiet(&mut self) -> bool {
        self.stream.is_quiet()
    }

    /// The same as far as the system knows: a system call.
    pub(in crate::upstream) fn is_quiet_by_now(&self) -> bool {
        self.stream.is_quiet_by_now()
    }

    /// Whether no byte is left, of its last answer or behind it.
    pub(in crate::upstream) fn is_settled(&self) -> bool {
        self.inbox.is_empty()
    }

    /// Its answer has ended: what was needed only for a large one is given back.
    pub(in crate::upstream) fn settle(&mut self) {
        self.inbox.settle();
    }

    /// It will not be used for a while: its buffers are given back.
    pub(in crate::upstream) fn rest(&mut self) {
        self.inbox = Inbox::default();
        self.buffer = Vec::new();
    }
}

/// An upstream that has closed for reading has answered all the same, but that is the last it does.
fn answered<B>(mut head: Head, upload: &mut Upload<B>, waiting: &Waiting<'_>) -> Head {
    if waiting.unsent.is_some() {
        upload.abandon();
        head.keeps = false;
    }
    head
}
