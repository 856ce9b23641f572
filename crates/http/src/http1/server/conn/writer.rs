//! Writes to a client's connection.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::AsyncWrite;

use super::ServerConn;
use crate::http1::splice::{SplicePipe, SpliceTarget};

/// Writer for a response. The request body may be read at the same time, so the connection is borrowed only during each
/// call.
#[derive(Debug)]
pub struct ConnWriter<'a, S>(pub &'a RefCell<ServerConn<S>>);

impl<S: Unpin> ConnWriter<'_, S> {
    /// Calls `act` with the stream, or fails if the connection has ended.
    fn with<T>(&self, act: impl FnOnce(Pin<&mut S>) -> Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match &mut self.0.borrow_mut().stream {
            Some(stream) => act(Pin::new(stream)),
            None => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ConnWriter<'_, S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.with(|stream| stream.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.with(|stream| stream.poll_write_vectored(cx, parts))
    }

    fn is_write_vectored(&self) -> bool {
        self.0.borrow().stream.as_ref().is_some_and(AsyncWrite::is_write_vectored)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.with(|stream| stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.with(|stream| stream.poll_shutdown(cx))
    }
}

impl<S: SpliceTarget> SpliceTarget for ConnWriter<'_, S> {
    fn takes_pipes(&self) -> bool {
        self.0.borrow().stream.as_ref().is_some_and(SpliceTarget::takes_pipes)
    }

    fn poll_drain(&mut self, pipe: &mut SplicePipe, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.with(|stream| stream.get_mut().poll_drain(pipe, cx))
    }
}
