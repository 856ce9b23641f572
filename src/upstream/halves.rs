//! A connection to an endpoint in two halves, of which each is used by a task of its own.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::http1::read_buf::Source;
use crate::transport::Transport;

impl Source for Transport {
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        Self::poll_readable(self, cx)
    }
}

/// One of two halves of a [`Transport`]. Each is borrowed only while it is polled.
#[derive(Debug)]
pub(super) struct Half(Rc<RefCell<Transport>>);

impl Half {
    /// Two halves that are used independently, on one thread.
    pub(super) fn split(whole: Transport) -> (Self, Self) {
        let shared = Rc::new(RefCell::new(whole));
        (Self(Rc::clone(&shared)), Self(shared))
    }

    /// The whole again, if `other` is the other half.
    pub(super) fn reunite(self, other: Self) -> Option<Transport> {
        drop(other);
        Rc::into_inner(self.0).map(RefCell::into_inner)
    }
}

impl Source for Half {
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.borrow().poll_readable(cx)
    }
}

impl AsyncRead for Half {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Half {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_write_vectored(cx, parts)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_shutdown(cx)
    }
}
