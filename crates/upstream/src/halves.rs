//! A connection split into two halves, each used by its own task.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use weir_http::http1::read_buf::ReadSource;
use weir_http::http1::splice::{SplicePipe, SpliceTarget, Spliced};
use weir_net::transport::Transport;

/// One of two halves of a [`Transport`], which is borrowed only during a poll.
#[derive(Debug)]
pub(super) struct TransportHalf(Rc<RefCell<Transport>>);

impl TransportHalf {
    /// Splits a transport into two halves, for use on one thread.
    pub(super) fn split(transport: Transport) -> (Self, Self) {
        let shared = Rc::new(RefCell::new(transport));
        (Self(Rc::clone(&shared)), Self(shared))
    }

    /// Reunites two halves; `None` if they belong to different transports.
    pub(super) fn reunite(self, other: Self) -> Option<Transport> {
        drop(other);
        Rc::into_inner(self.0).map(RefCell::into_inner)
    }
}

impl ReadSource for TransportHalf {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.borrow_mut().poll_readable(cx)
    }

    fn poll_splice(&mut self, max: usize, cx: &mut Context<'_>) -> Spliced<io::Error> {
        self.0.borrow_mut().poll_splice(max, cx)
    }
}

impl SpliceTarget for TransportHalf {
    fn takes_pipes(&self) -> bool {
        self.0.borrow().takes_pipes()
    }

    fn poll_drain(&mut self, pipe: &mut SplicePipe, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.0.borrow_mut().poll_drain(pipe, cx)
    }
}

impl AsyncRead for TransportHalf {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_read(cx, buffer)
    }
}

impl AsyncWrite for TransportHalf {
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
