//! Limits on a body.

use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::Frame;

use super::Gate;

/// Holds the frames of a body until the limits have room for them.
#[derive(Debug)]
pub(in crate::proxy) struct BodyGate {
    gate: Gate,
    /// What has been read and may not pass on yet.
    held: Bytes,
}

impl BodyGate {
    pub(super) fn new(gate: Gate) -> Self {
        Self { gate, held: Bytes::new() }
    }

    /// Returns the next frame for which the limits have room, of a body that `poll_next` polls.
    pub(in crate::proxy) fn poll_frame<E>(
        &mut self,
        cx: &mut Context<'_>,
        mut poll_next: impl FnMut(&mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, E>>>,
    ) -> Poll<Option<Result<Frame<Bytes>, E>>> {
        while self.held.is_empty() {
            let frame = match ready!(poll_next(cx)) {
                Some(Ok(frame)) => frame,
                ended => return Poll::Ready(ended),
            };
            match frame.into_data() {
                Ok(data) => self.held = data,
                Err(other) => return Poll::Ready(Some(Ok(other))),
            }
        }
        let count = ready!(self.gate.poll_room(cx, &self.held));
        self.gate.passed(count);
        Poll::Ready(Some(Ok(Frame::data(self.held.split_to(count)))))
    }

    /// Whether the limits hold a frame that has arrived.
    pub(in crate::proxy) const fn holds(&self) -> bool {
        self.gate.holds()
    }

    /// Returns the number of bytes that have arrived and not passed on.
    pub(in crate::proxy) fn held(&self) -> u64 {
        self.held.len() as u64
    }
}
