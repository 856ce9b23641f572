//! Which connections a door has, and which of them makes room for another one.
//!
//! A connection without a request costs its client nothing, so a few hundred of them must not keep a probe out. When all
//! seats are taken, the one with the least claim gives its own up: first the oldest that has no request, then the oldest
//! whose client does not read its answer, then the oldest whose request has not come to its end. The newest connections keep
//! their seats in any case.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::AbortHandle;

/// One in so many connections, the newest, makes no room.
const NEWEST: usize = 4;

/// What a connection is doing, in the order in which connections make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Stage {
    /// It has no request, or only the beginning of one's head.
    Idle,
    /// Its answer is being written.
    Answering,
    /// Its request is being read and decided.
    Asking,
}

/// What one connection is doing, for whoever may have to end it.
#[derive(Clone, Debug, Default)]
pub(super) struct Claim(Arc<AtomicU8>);

/// The connections of a door, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Seats(Vec<(AbortHandle, Claim)>);

/// A connection that notes when its answer has been written.
#[derive(Debug)]
pub(super) struct Watched<S> {
    stream: S,
    claim: Claim,
}

impl Claim {
    /// The connection goes on to `stage`.
    pub(super) fn is(&self, stage: Stage) {
        self.0.store(stage as u8, Ordering::Relaxed);
    }

    fn stage(&self) -> Stage {
        match self.0.load(Ordering::Relaxed) {
            0 => Stage::Idle,
            1 => Stage::Answering,
            _ => Stage::Asking,
        }
    }
}

impl Seats {
    /// Another connection has a seat.
    pub(super) fn seat(&mut self, connection: AbortHandle, claim: Claim) {
        self.0.push((connection, claim));
    }

    /// Ends the connection with the least claim if there are `most`; whether it had to.
    pub(super) fn make_room(&mut self, most: usize) -> bool {
        if self.0.len() < most {
            return false;
        }
        self.0.retain(|(connection, _)| !connection.is_finished());
        if self.0.len() < most {
            return false;
        }
        // The newest have not had the time to send a request: where the older ones all have one, a client that goes on
        // connecting must not cost a probe its seat before it has spoken.
        let older = self.0.len() - self.0.len() / NEWEST;
        // Of several that are equal it is the first, which is the oldest.
        let least = (0..older).min_by_key(|place| self.0[*place].1.stage());
        least.inspect(|place| self.0.remove(*place).0.abort()).is_some()
    }
}

impl<S> Watched<S> {
    pub(super) const fn new(stream: S, claim: Claim) -> Self {
        Self { stream, claim }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// hyper flushes when it has written all that it had.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        if self.claim.stage() == Stage::Answering {
            self.claim.is(Stage::Idle);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::task::{JoinSet, yield_now};

    use super::*;

    /// Seats a connection at each of `stages`, makes room once, and says which are left.
    async fn left(stages: &[Stage]) -> Vec<usize> {
        let (mut seats, mut tasks) = (Seats::default(), JoinSet::new());
        let mut handles = Vec::new();
        for stage in stages {
            let claim = Claim::default();
            claim.is(*stage);
            handles.push(tasks.spawn(pending::<()>()));
            seats.seat(handles.last().unwrap().clone(), claim);
        }
        assert!(seats.make_room(stages.len()));
        yield_now().await;
        (0..stages.len()).filter(|place| !handles[*place].is_finished()).collect()
    }

    #[tokio::test]
    async fn the_oldest_connection_without_a_request_makes_room() {
        assert_eq!(left(&[Stage::Asking, Stage::Idle, Stage::Idle]).await, [0, 2]);
        assert_eq!(left(&[Stage::Asking, Stage::Answering, Stage::Idle]).await, [0, 1]);
        assert_eq!(left(&[Stage::Asking, Stage::Answering]).await, [0]);
        assert_eq!(left(&[Stage::Asking, Stage::Asking]).await, [1]);
    }

    #[tokio::test]
    async fn a_new_connection_has_time_to_send_its_request() {
        assert_eq!(left(&[Stage::Answering, Stage::Asking, Stage::Asking, Stage::Idle]).await, [1, 2, 3]);
        assert_eq!(left(&[Stage::Asking, Stage::Asking, Stage::Asking, Stage::Idle]).await, [1, 2, 3]);
    }

    #[tokio::test]
    async fn a_connection_that_has_ended_leaves_its_seat_to_the_next() {
        let (mut seats, mut tasks) = (Seats::default(), JoinSet::new());
        seats.seat(tasks.spawn(async {}), Claim::default());
        while tasks.join_next().await.is_some() {}
        assert!(!seats.make_room(1));
    }
}
