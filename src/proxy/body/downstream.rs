//! Body of a request as received from the client, over either protocol.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

use crate::proxy::body_fields::HeldBody;
use crate::proxy::connection::http1::Http1Body;
use weir_http::http1::splice::Spliced;
use weir_http::http2::Http2Error;
use weir_http::message_body::MessageBody;
use weir_net::transport::Http2Body;

/// Body of a request as received from the client.
#[derive(Debug)]
pub(in crate::proxy) enum DownstreamBody {
    /// No body.
    None,
    /// Over HTTP/1.1.
    Http1(Http1Body),
    /// Over HTTP/2.
    Http2(Http2Body),
    /// Of a stored call; `None` once it has been read.
    Stored(Option<Bytes>),
    /// Of which the beginning has been read.
    Held(Box<HeldBody>),
}

/// Error that ended a request body early.
#[derive(Debug, thiserror::Error)]
pub(in crate::proxy) enum DownstreamBodyError {
    /// Over HTTP/1.1.
    #[error(transparent)]
    Http1(#[from] io::Error),
    /// Over HTTP/2.
    #[error(transparent)]
    Http2(#[from] Http2Error),
}

impl MessageBody for DownstreamBody {
    fn poll_splice(&mut self, max: usize, cx: &mut Context<'_>) -> Spliced<DownstreamBodyError> {
        match self {
            Self::Http1(body) => Some(body.poll_splice(max, cx)?.map_err(DownstreamBodyError::Http1)),
            Self::None | Self::Http2(_) | Self::Stored(_) | Self::Held(_) => None,
        }
    }
}

impl Body for DownstreamBody {
    type Data = Bytes;
    type Error = DownstreamBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, DownstreamBodyError>>> {
        match &mut *self {
            Self::None => Poll::Ready(None),
            Self::Http1(body) => body.poll_frame(cx).map_err(DownstreamBodyError::Http1),
            Self::Http2(body) => Pin::new(body).poll_frame(cx).map_err(DownstreamBodyError::Http2),
            Self::Stored(body) => Poll::Ready(body.take().map(|body| Ok(Frame::data(body)))),
            Self::Held(body) => body.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::None => true,
            Self::Http1(body) => body.is_complete(),
            Self::Http2(body) => body.is_end_stream(),
            Self::Stored(body) => body.is_none(),
            Self::Held(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::None => SizeHint::with_exact(0),
            Self::Http1(body) => body.size_hint(),
            Self::Http2(body) => body.size_hint(),
            Self::Stored(body) => SizeHint::with_exact(body.as_ref().map_or(0, |body| body.len() as u64)),
            Self::Held(body) => body.size_hint(),
        }
    }
}
