//! A request's body that may have to be sent again: what has gone out is kept, up to a bound.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body as _, Frame, SizeHint};

use super::{Interrupted, RequestBody};

/// So many octets are kept for another attempt; a request with a longer body has one.
const MOST_KEPT: usize = 64 * 1024;

/// A body as it comes from the client, with what has come so far.
#[derive(Debug)]
pub(in crate::proxy) struct Replay {
    body: RequestBody,
    kept: Vec<Bytes>,
    octets: usize,
    /// More has come than is kept, or what cannot be sent twice.
    spent: bool,
}

/// One reading of a [`Replay`].
#[derive(Debug)]
pub(in crate::proxy) struct Replayed {
    pub(super) replay: Rc<RefCell<Replay>>,
    /// The next piece of those that are kept.
    pub(super) next: usize,
}

impl Replay {
    /// Of which nothing has been read.
    pub(in crate::proxy) fn new(body: RequestBody) -> Rc<RefCell<Self>> {
        Rc::new(RefCell::new(Self { body, kept: Vec::new(), octets: 0, spent: false }))
    }

    /// Whether all that has been read is still here.
    pub(in crate::proxy) const fn is_whole(&self) -> bool {
        !self.spent
    }

    fn keep(&mut self, data: &Bytes) {
        self.octets = self.octets.saturating_add(data.len());
        if self.octets > MOST_KEPT {
            self.spend();
        } else if !self.spent {
            self.kept.push(data.clone());
        }
    }

    fn spend(&mut self) {
        self.spent = true;
        self.kept = Vec::new();
    }
}

impl Replayed {
    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Interrupted>>> {
        let replay = &mut *self.replay.borrow_mut();
        if let Some(data) = replay.kept.get(self.next) {
            self.next += 1;
            return Poll::Ready(Some(Ok(Frame::data(data.clone()))));
        }
        let polled = ready!(Pin::new(&mut replay.body).poll_frame(cx));
        if let Some(Ok(frame)) = &polled {
            match frame.data_ref() {
                Some(data) => replay.keep(data),
                None => replay.spend(),
            }
            self.next = replay.kept.len();
        }
        Poll::Ready(polled)
    }

    pub(super) fn is_end_stream(&self) -> bool {
        let replay = self.replay.borrow();
        self.next >= replay.kept.len() && replay.body.is_end_stream()
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        let replay = self.replay.borrow();
        let kept = replay.kept.iter().skip(self.next).map(|data| data.len() as u64).sum::<u64>();
        let rest = replay.body.size_hint().exact();
        rest.map_or_else(SizeHint::default, |rest| SizeHint::with_exact(rest.saturating_add(kept)))
    }
}
