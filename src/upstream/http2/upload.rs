//! The body of a request on its way: as fast as the other side's windows open, and no faster.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{Reason, SendStream};
use hyper::body::Body;

/// A request's body and the stream it goes by.
#[derive(Debug)]
pub(super) struct Upload<B> {
    body: B,
    stream: Option<SendStream<Bytes>>,
    /// Read and not sent yet.
    pending: Bytes,
    touched: bool,
    over: bool,
}

impl<B> Upload<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    /// A body of which nothing has been read.
    pub(super) fn new(body: B) -> Self {
        let over = body.is_end_stream();
        Self { body, stream: None, pending: Bytes::new(), touched: false, over }
    }

    /// Whether there is no body.
    pub(super) fn is_empty(&self) -> bool {
        self.over && !self.touched
    }

    /// Whether nothing has been read, so that all of it may be sent another way.
    pub(super) fn is_untouched(&self) -> bool {
        !self.touched
    }

    /// The body, where nothing of it has been read.
    pub(super) fn into_body(self) -> B {
        self.body
    }

    /// Whether all has been sent.
    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    /// The stream it goes by.
    pub(super) fn begin(&mut self, stream: SendStream<Bytes>) {
        self.stream = Some(stream);
    }

    /// Sends what can be sent; ready when nothing more will be. An error is the body's: what the connection has to
    /// say comes with the answer.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.over {
            let Some(stream) = &mut self.stream else { return Poll::Pending };
            // Who has answered and does not want the rest says so by a reset.
            if stream.poll_reset(cx).is_ready() {
                self.over = true;
                break;
            }
            if !self.pending.is_empty() {
                stream.reserve_capacity(self.pending.len());
                let Some(Ok(room)) = ready!(stream.poll_capacity(cx)) else {
                    self.over = true;
                    break;
                };
                let part = self.pending.split_to(room.min(self.pending.len()));
                let is_last = self.pending.is_empty() && self.body.is_end_stream();
                self.over = stream.send_data(part, is_last).is_err() || is_last;
                continue;
            }
            self.touched = true;
            let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(cx)) else {
                let _ = stream.send_data(Bytes::new(), true);
                self.over = true;
                break;
            };
            match frame.map(hyper::body::Frame::into_data) {
                Ok(Ok(data)) if data.is_empty() => {}
                Ok(Ok(data)) => self.pending = data,
                Ok(Err(frame)) => {
                    let trailers = frame.into_trailers().unwrap_or_default();
                    let _ = stream.send_trailers(trailers);
                    self.over = true;
                }
                Err(error) => {
                    stream.send_reset(Reason::CANCEL);
                    self.over = true;
                    return Poll::Ready(Err(io::Error::other(error)));
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}
