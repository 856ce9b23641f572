//! The body of an answer, read as it is asked for.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::RecvStream;
use http::header::CONTENT_LENGTH;
use http::response;
use hyper::body::{Body, Frame};
use tokio::task::AbortHandle;

use super::into_io;
use super::pool::StreamPermit;
use super::upload::Upload;

/// A body that is still to be read. Dropped before its end, the stream is reset.
#[derive(Debug)]
pub(in crate::upstream) struct Streaming {
    stream: RecvStream,
    /// Octets to come, where the head has said how many.
    left: Option<u64>,
    data_is_over: bool,
    /// Sends the rest of the request, no longer than the answer is wanted.
    upload: Option<AbortHandle>,
    _permit: StreamPermit,
}

impl Streaming {
    /// The body behind `head`, with what has not been sent yet of the request.
    pub(super) fn new<B>(
        head: &response::Parts,
        stream: RecvStream,
        mut upload: Upload<B>,
        permit: StreamPermit,
    ) -> Self
    where
        B: Body<Data = Bytes> + Unpin + 'static,
        B::Error: std::error::Error + Send + Sync + 'static,
    {
        let left = head.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        let upload = (!upload.is_over()).then(|| {
            let sending = async move { drop(poll_fn(|cx| upload.poll(cx)).await) };
            tokio::task::spawn_local(sending).abort_handle()
        });
        Self { stream, left, data_is_over: false, upload, _permit: permit }
    }

    /// Octets to come, if that is known.
    pub(in crate::upstream) fn left(&self) -> Option<u64> {
        self.left
    }

    /// Whether all has been read, trailers included.
    pub(in crate::upstream) fn is_over(&self) -> bool {
        self.stream.is_end_stream()
    }

    /// Whether the request is still being sent.
    pub(in crate::upstream) fn is_uploading(&self) -> bool {
        self.upload.as_ref().is_some_and(|upload| !upload.is_finished())
    }

    /// The next piece.
    pub(in crate::upstream) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if !self.data_is_over {
            match ready!(self.stream.poll_data(cx)) {
                Some(Ok(data)) => {
                    // Passed on: there is room for as much again.
                    let _ = self.stream.flow_control().release_capacity(data.len());
                    self.left = self.left.map(|left| left.saturating_sub(data.len() as u64));
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(into_io(error)))),
                None => self.data_is_over = true,
            }
        }
        match ready!(self.stream.poll_trailers(cx)) {
            Ok(Some(trailers)) => Poll::Ready(Some(Ok(Frame::trailers(trailers)))),
            Ok(None) => Poll::Ready(None),
            Err(error) => Poll::Ready(Some(Err(into_io(error)))),
        }
    }
}

impl Drop for Streaming {
    fn drop(&mut self) {
        if let Some(upload) = &self.upload {
            upload.abort();
        }
    }
}
