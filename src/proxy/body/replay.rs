//! Request body for retries: what has been sent is kept, up to a maximum.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body as _, Frame, SizeHint};

use super::{DownstreamBodyError, RequestBody};

/// Maximum bytes kept for another attempt; a request with a longer body gets no further attempt.
const MAX_REPLAY_SIZE: usize = 64 * 1024;

/// Maximum number of kept pieces. A client may send each byte as a piece, which takes more memory than the byte.
const MAX_REPLAY_PIECES: usize = 1024;

/// Body from a client, with what has been read of it so far.
#[derive(Debug)]
pub(in crate::proxy) struct ReplayBuffer {
    body: RequestBody,
    chunks: Vec<Bytes>,
    size: usize,
    /// The body is longer than what is kept, or has trailers, so it cannot be sent again.
    is_exhausted: bool,
}

/// One pass over a [`ReplayBuffer`].
#[derive(Debug)]
pub(in crate::proxy) struct ReplayBody {
    pub(super) replay: Rc<RefCell<ReplayBuffer>>,
    /// Index of the next kept piece.
    pub(super) next: usize,
}

impl ReplayBuffer {
    /// Creates a replay of a body of which nothing has been read.
    pub(in crate::proxy) fn new(body: RequestBody) -> Rc<RefCell<Self>> {
        Rc::new(RefCell::new(Self { body, chunks: Vec::new(), size: 0, is_exhausted: false }))
    }

    /// Whether everything that has been read is still kept.
    pub(in crate::proxy) const fn can_replay(&self) -> bool {
        !self.is_exhausted
    }

    fn push(&mut self, data: &Bytes) {
        self.size = self.size.saturating_add(data.len());
        if self.size > MAX_REPLAY_SIZE || self.chunks.len() == MAX_REPLAY_PIECES {
            self.discard();
        } else if !self.is_exhausted {
            self.chunks.push(data.clone());
        }
    }

    fn discard(&mut self) {
        self.is_exhausted = true;
        self.chunks = Vec::new();
    }
}

impl ReplayBody {
    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, DownstreamBodyError>>> {
        let replay = &mut *self.replay.borrow_mut();
        if let Some(data) = replay.chunks.get(self.next) {
            self.next += 1;
            return Poll::Ready(Some(Ok(Frame::data(data.clone()))));
        }
        let polled = ready!(Pin::new(&mut replay.body).poll_frame(cx));
        if let Some(Ok(frame)) = &polled {
            match frame.data_ref() {
                Some(data) => replay.push(data),
                None => replay.discard(),
            }
            self.next = replay.chunks.len();
        }
        Poll::Ready(polled)
    }

    pub(super) fn is_end_stream(&self) -> bool {
        let replay = self.replay.borrow();
        self.next >= replay.chunks.len() && replay.body.is_end_stream()
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        let replay = self.replay.borrow();
        let kept = replay.chunks.iter().skip(self.next).map(|data| data.len() as u64).sum::<u64>();
        let rest = replay.body.size_hint().exact();
        rest.map_or_else(SizeHint::default, |rest| SizeHint::with_exact(rest.saturating_add(kept)))
    }
}
