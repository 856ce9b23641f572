//! The messages of a stream that a client sends: none may stay incomplete for long, and those that are incomplete
//! take only so much memory together.
//!
//! Between two messages a stream may rest for as long as it likes. The messages themselves are read by whoever reads the
//! body; here is only counted where one ends and the next begins.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Sleep, sleep};
use tonic::Status;

use super::budget::Activity;
use super::receiving::{PREFIX, TIMEOUT};

/// Bytes of one message of a stream: reports on ten thousand buckets.
pub(super) const MAX_MESSAGE: usize = 1 << 20;

/// Bytes of incomplete messages of all streams of the process.
const MAX_BYTES: usize = 64 << 20;

/// A body of which is known whether a message is incomplete.
#[derive(Debug)]
pub(super) struct Framed<B> {
    body: B,
    position: Position,
    /// Runs while a message is incomplete.
    limit: Option<Pin<Box<Sleep>>>,
    /// Of its incomplete message, and of all streams together.
    held: usize,
    held_by_all: Arc<AtomicUsize>,
    activity: Activity,
}

/// How far the client is in a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Position {
    /// Of the prefix: its bytes so far, and how many they are.
    prefix: [u8; PREFIX],
    length: usize,
    /// Bytes of the message that are yet to come, once the prefix is complete.
    left: usize,
    /// Bytes of it that came.
    came: usize,
}

impl Position {
    /// Goes on by `data`; answers whether a message has been completed by it.
    fn advance(&mut self, mut data: &[u8]) -> bool {
        let mut has_completed = false;
        while !data.is_empty() {
            if self.length < PREFIX {
                self.prefix[self.length] = data[0];
                self.length += 1;
                data = &data[1..];
                if self.length == PREFIX {
                    let [_, length @ ..] = self.prefix;
                    self.left = u32::from_be_bytes(length) as usize;
                }
            } else {
                let part = self.left.min(data.len());
                (self.left, self.came, data) = (self.left - part, self.came + part, &data[part..]);
            }
            if self.length == PREFIX && self.left == 0 {
                *self = Self::default();
                has_completed = true;
            }
        }
        has_completed
    }
}

impl<B> Framed<B> {
    /// The messages of `body`. The first is expected from now on.
    pub(super) fn new(body: B, held_by_all: Arc<AtomicUsize>, activity: Activity) -> Self {
        let limit = Some(Box::pin(sleep(TIMEOUT)));
        Self { body, position: Position::default(), limit, held: 0, held_by_all, activity }
    }

    fn came(&mut self, data: &[u8]) -> Result<(), Status> {
        if self.position.advance(data) {
            self.limit = None;
            self.activity.called();
        }
        if self.position != Position::default() && self.limit.is_none() {
            self.limit = Some(Box::pin(sleep(TIMEOUT)));
        }
        let (before, now) = (self.held, self.position.came);
        self.held = now;
        if now <= before {
            self.held_by_all.fetch_sub(before - now, Ordering::Relaxed);
        } else if self.held_by_all.fetch_add(now - before, Ordering::Relaxed) + (now - before) > MAX_BYTES {
            return Err(Status::resource_exhausted("too many bytes of incomplete messages"));
        }
        Ok(())
    }
}

impl<B> Drop for Framed<B> {
    fn drop(&mut self) {
        self.held_by_all.fetch_sub(self.held, Ordering::Relaxed);
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Framed<B> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            return Poll::Ready(frame.map(|frame| match frame {
                Ok(frame) => frame.data_ref().map_or(Ok(()), |data| self.came(data)).map(|()| frame),
                Err(_) => Err(Status::cancelled("the call was cancelled")),
            }));
        }
        match self.limit.as_mut().map(|limit| limit.as_mut().poll(cx)) {
            Some(Poll::Ready(())) => {
                let seconds = TIMEOUT.as_secs();
                let message = format!("message incomplete after {seconds} seconds");
                Poll::Ready(Some(Err(Status::deadline_exceeded(message))))
            }
            Some(Poll::Pending) | None => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_message_is_incomplete_until_its_last_byte_however_it_is_cut(
            lengths in prop::collection::vec(0_usize..20, 0..6),
            cut in 1_usize..12,
        ) {
            let mut sent = Vec::new();
            let mut ends = vec![0];
            for length in lengths {
                sent.push(0);
                sent.extend_from_slice(&u32::try_from(length).unwrap().to_be_bytes());
                sent.extend(std::iter::repeat_n(9, length));
                ends.push(sent.len());
            }
            let (mut position, mut at) = (Position::default(), 0);
            for part in sent.chunks(cut) {
                let completed = position.advance(part);
                prop_assert_eq!(completed, ends.iter().any(|end| (at + 1..=at + part.len()).contains(end)));
                at += part.len();
                prop_assert_eq!(position == Position::default(), ends.contains(&at));
            }
        }
    }
}
