//! Handles on streams: what sends and receives outside of the connection's task.

use std::cell::RefCell;
use std::rc::Rc;

use super::error::Reason;
use super::shared::Http2State;
use super::stream::{Stream, StreamState};

/// A handle on a stream. When the last one is dropped before the end of the stream, the stream is reset.
#[derive(Debug)]
pub(super) struct StreamHandle {
    pub(super) connection: Rc<RefCell<Http2State>>,
    pub(super) stream: Rc<Stream>,
}

impl StreamHandle {
    pub(super) fn new(connection: &Rc<RefCell<Http2State>>, stream: &Rc<Stream>) -> Self {
        stream.handles.set(stream.handles.get() + 1);
        Self { connection: Rc::clone(connection), stream: Rc::clone(stream) }
    }

    /// Calls `change` with the state of the connection and of the stream.
    pub(super) fn with<R>(&self, change: impl FnOnce(&mut Http2State, u32, &mut StreamState) -> R) -> R {
        change(&mut self.connection.borrow_mut(), self.stream.id, &mut self.stream.state.borrow_mut())
    }

    /// Resets the stream, unless it has ended.
    pub(super) fn reset(&self, reason: Reason) {
        self.with(|connection, id, stream| connection.cancel(id, stream, reason));
    }
}

impl Clone for StreamHandle {
    fn clone(&self) -> Self {
        Self::new(&self.connection, &self.stream)
    }
}

impl Drop for StreamHandle {
    fn drop(&mut self) {
        let left = self.stream.handles.get() - 1;
        self.stream.handles.set(left);
        if left == 0 {
            self.with(|connection, id, stream| connection.release_stream(id, stream));
        }
    }
}
