//! Upload of a request body over HTTP/2, limited by the peer's flow control.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;

use weir_http::http2::{Reason, SendStream};
use weir_http::message_body::MessageBody;

/// A request body and its stream.
#[derive(Debug)]
pub(super) struct Http2Upload<B> {
    body: B,
    stream: Option<SendStream>,
    /// Data read from the body but not sent yet.
    pending: Bytes,
    touched: bool,
    is_complete: bool,
}

impl<B> Http2Upload<B>
where
    B: MessageBody,
{
    /// Creates an upload of an unread body.
    pub(super) fn new(body: B) -> Self {
        let over = body.is_end_stream();
        Self { body, stream: None, pending: Bytes::new(), touched: false, is_complete: over }
    }

    /// Whether there is no body.
    pub(super) fn is_empty(&self) -> bool {
        self.is_complete && !self.touched
    }

    /// Whether nothing has been read, so that the body may be sent on another stream.
    pub(super) fn is_untouched(&self) -> bool {
        !self.touched
    }

    /// Returns the body, which must be unread.
    pub(super) fn into_body(self) -> B {
        self.body
    }

    /// Whether everything has been sent.
    pub(super) fn is_complete(&self) -> bool {
        self.is_complete
    }

    pub(super) fn set_stream(&mut self, stream: SendStream) {
        self.stream = Some(stream);
    }

    /// Sends as much as possible; ready when nothing more will be sent. Returns errors of the body only: those of the
    /// connection are reported with the response.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.is_complete {
            let Some(stream) = &mut self.stream else { return Poll::Pending };
            // A peer that does not want the rest of the request resets the stream.
            if stream.poll_reset(cx).is_ready() {
                self.is_complete = true;
                break;
            }
            if !self.pending.is_empty() {
                let is_last = self.body.is_end_stream();
                let sent = ready!(stream.poll_send(&mut self.pending, is_last, cx));
                self.is_complete = sent.is_err() || is_last;
                continue;
            }
            self.touched = true;
            let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(cx)) else {
                let _ = stream.send_end();
                self.is_complete = true;
                break;
            };
            match frame.map(hyper::body::Frame::into_data) {
                Ok(Ok(data)) if data.is_empty() => {}
                Ok(Ok(data)) => self.pending = data,
                Ok(Err(frame)) => {
                    let trailers = frame.into_trailers().unwrap_or_default();
                    let _ = stream.send_trailers(&trailers);
                    self.is_complete = true;
                }
                Err(error) => {
                    stream.send_reset(Reason::CANCEL);
                    self.is_complete = true;
                    return Poll::Ready(Err(io::Error::other(error)));
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}
