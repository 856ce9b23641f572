//! A stream of bytes in memory.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream whose other end is the fuzz target. It wakes nothing: the target polls.
#[derive(Clone, Debug, Default)]
pub(super) struct Wire {
    state: Rc<RefCell<WireState>>,
}

#[derive(Debug, Default)]
struct WireState {
    input: VecDeque<u8>,
    has_ended: bool,
    output: Vec<u8>,
    /// Bytes that can still be written; `None` without a limit.
    budget: Option<usize>,
}

impl Wire {
    /// Appends bytes that can be read.
    pub(super) fn receive(&self, bytes: &[u8]) {
        self.state.borrow_mut().input.extend(bytes);
    }

    /// Ends the input.
    pub(super) fn end(&self) {
        self.state.borrow_mut().has_ended = true;
    }

    /// Sets how many bytes can still be written.
    pub(super) fn limit_output(&self, budget: Option<usize>) {
        self.state.borrow_mut().budget = budget;
    }

    /// Returns what was written since the last call.
    pub(super) fn take_output(&self) -> Vec<u8> {
        std::mem::take(&mut self.state.borrow_mut().output)
    }

    /// Whether everything was read.
    pub(super) fn is_idle(&self) -> bool {
        self.state.borrow().input.is_empty()
    }
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut state = self.state.borrow_mut();
        if state.input.is_empty() && !state.has_ended {
            return Poll::Pending;
        }
        let length = state.input.len().min(buf.remaining());
        let bytes: Vec<u8> = state.input.drain(..length).collect();
        buf.put_slice(&bytes);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut state = self.state.borrow_mut();
        let written = state.budget.map_or(bytes.len(), |budget| budget.min(bytes.len()));
        if written == 0 && !bytes.is_empty() {
            return Poll::Pending;
        }
        state.budget = state.budget.map(|budget| budget - written);
        state.output.extend_from_slice(&bytes[..written]);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
