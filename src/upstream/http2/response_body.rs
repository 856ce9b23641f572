//! Streamed body of an HTTP/2 response.

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
use super::upload::Http2Upload;

/// A body that is not read completely. Dropping it before its end resets the stream.
#[derive(Debug)]
pub(in crate::upstream) struct Http2ResponseBody {
    stream: RecvStream,
    /// Remaining bytes, if the response has a `content-length`.
    left: Option<u64>,
    data_ended: bool,
    /// Task that sends the rest of the request. Dropping the body aborts it.
    upload: Option<AbortHandle>,
    _permit: StreamPermit,
}

impl Http2ResponseBody {
    /// Creates the body after `head`, and sends the rest of the request.
    pub(super) fn new<B>(
        head: &response::Parts,
        stream: RecvStream,
        mut upload: Http2Upload<B>,
        permit: StreamPermit,
    ) -> Self
    where
        B: Body<Data = Bytes> + Unpin + 'static,
        B::Error: std::error::Error + Send + Sync + 'static,
    {
        let left = head.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        let upload = (!upload.is_complete()).then(|| {
            let sending = async move { drop(poll_fn(|cx| upload.poll(cx)).await) };
            tokio::task::spawn_local(sending).abort_handle()
        });
        Self { stream, left, data_ended: false, upload, _permit: permit }
    }

    /// Returns the remaining bytes, if known.
    pub(in crate::upstream) fn left(&self) -> Option<u64> {
        self.left
    }

    /// Whether everything has been read, including trailers.
    pub(in crate::upstream) fn is_complete(&self) -> bool {
        self.stream.is_end_stream()
    }

    /// Whether the request is still being sent.
    pub(in crate::upstream) fn is_uploading(&self) -> bool {
        self.upload.as_ref().is_some_and(|upload| !upload.is_finished())
    }

    /// Returns the next frame.
    pub(in crate::upstream) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        if !self.data_ended {
            match ready!(self.stream.poll_data(cx)) {
                Some(Ok(data)) => {
                    // The data was passed on, so the peer may send the same amount again.
                    let _ = self.stream.flow_control().release_capacity(data.len());
                    self.left = self.left.map(|left| left.saturating_sub(data.len() as u64));
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(into_io(error)))),
                None => self.data_ended = true,
            }
        }
        match ready!(self.stream.poll_trailers(cx)) {
            Ok(Some(trailers)) => Poll::Ready(Some(Ok(Frame::trailers(trailers)))),
            Ok(None) => Poll::Ready(None),
            Err(error) => Poll::Ready(Some(Err(into_io(error)))),
        }
    }
}

impl Drop for Http2ResponseBody {
    fn drop(&mut self) {
        if let Some(upload) = &self.upload {
            upload.abort();
        }
    }
}
