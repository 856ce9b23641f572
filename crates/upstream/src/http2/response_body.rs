//! Streamed body of an HTTP/2 response.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::response;
use hyper::body::{Body, Frame};
use tokio::task::AbortHandle;

use super::pool::StreamPermit;
use super::upload::Http2Upload;
use weir_http::http2::ReceiveStream;
use weir_http::message_body::MessageBody;
use weir_net::transport::Http2Body;

/// A body that is not read completely. Dropping it before its end resets the stream.
#[derive(Debug)]
pub(crate) struct Http2ResponseBody {
    body: Http2Body,
    /// Task that sends the rest of the request. Dropping the body aborts it.
    upload: Option<AbortHandle>,
    _permit: StreamPermit,
}

impl Http2ResponseBody {
    /// Creates the body after `head`, and sends the rest of the request.
    pub(super) fn new<B>(
        head: &response::Parts,
        stream: ReceiveStream,
        mut upload: Http2Upload<B>,
        permit: StreamPermit,
    ) -> Self
    where
        B: MessageBody + 'static,
    {
        let upload = (!upload.is_complete()).then(|| {
            let sending = async move { drop(poll_fn(|cx| upload.poll(cx)).await) };
            tokio::task::spawn_local(sending).abort_handle()
        });
        Self { body: Http2Body::new(&head.headers, stream), upload, _permit: permit }
    }

    /// Returns the remaining bytes, if known.
    pub(crate) fn left(&self) -> Option<u64> {
        self.body.size_hint().exact()
    }

    /// Whether everything has been read, including trailers.
    pub(crate) fn is_complete(&self) -> bool {
        self.body.is_end_stream()
    }

    /// Whether the request is still being sent.
    pub(crate) fn is_uploading(&self) -> bool {
        self.upload.as_ref().is_some_and(|upload| !upload.is_finished())
    }

    /// Returns the next frame.
    pub(crate) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        Pin::new(&mut self.body).poll_frame(cx).map_err(io::Error::from)
    }
}

impl Drop for Http2ResponseBody {
    fn drop(&mut self) {
        if let Some(upload) = &self.upload {
            upload.abort();
        }
    }
}
