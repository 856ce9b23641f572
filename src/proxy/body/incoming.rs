//! A request's body as its client sends it, by whichever protocol.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

use crate::proxy::connection::http1::IncomingBody;

/// A request's body as it comes.
#[derive(Debug)]
pub(in crate::proxy) enum Incoming {
    /// There is none.
    None,
    /// Over HTTP/1.1.
    Http1(IncomingBody),
    /// Over HTTP/2.
    Http2(hyper::body::Incoming),
}

/// Why a request's body did not come to its end.
#[derive(Debug, thiserror::Error)]
pub(in crate::proxy) enum Interrupted {
    /// Over HTTP/1.1.
    #[error(transparent)]
    Http1(#[from] io::Error),
    /// Over HTTP/2.
    #[error(transparent)]
    Http2(#[from] hyper::Error),
}

impl Body for Incoming {
    type Data = Bytes;
    type Error = Interrupted;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Interrupted>>> {
        match &mut *self {
            Self::None => Poll::Ready(None),
            Self::Http1(body) => body.poll_frame(cx).map_err(Interrupted::Http1),
            Self::Http2(body) => Pin::new(body).poll_frame(cx).map_err(Interrupted::Http2),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::None => true,
            Self::Http1(body) => body.is_over(),
            Self::Http2(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::None => SizeHint::with_exact(0),
            Self::Http1(body) => body.size_hint(),
            Self::Http2(body) => body.size_hint(),
        }
    }
}
