//! Connections of an auxiliary port, and which of them is closed to make room for a new one.
//!
//! A connection without a request costs its client nothing, so a few hundred of them must not keep a probe out. At the
//! maximum, the connection with the lowest priority is closed, in this order: the oldest without a request; the oldest
//! whose client does not read its response; the oldest whose request is not complete. The newest connections are never
//! closed.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::AbortHandle;

/// The newest quarter of the connections is never closed to make room.
const PROTECTED_FRACTION: usize = 4;

/// What a connection is doing, in the order in which connections are closed to make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Stage {
    /// No request, or an incomplete header section.
    Idle,
    /// Its response is being written.
    SendingResponse,
    /// Its request is being read and handled.
    HandlingRequest,
    /// It receives a response without a known end.
    Streaming,
}

/// Shared record of what one connection is doing.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedStage(Arc<Progress>);

#[derive(Debug, Default)]
struct Progress {
    stage: AtomicU8,
    /// Number of writes that the connection has taken.
    writes: AtomicU64,
    /// Whether a write waits for the client.
    is_blocked: AtomicBool,
}

/// Connections of an auxiliary port, oldest first.
#[derive(Debug, Default)]
pub(super) struct ConnectionSlots(Vec<(AbortHandle, SharedStage)>);

/// Stream that records when a response has been written.
#[derive(Debug)]
pub(super) struct TrackedStream<S> {
    stream: S,
    stage: SharedStage,
}

impl SharedStage {
    /// Records the connection's stage.
    pub(super) fn set(&self, stage: Stage) {
        self.0.stage.store(stage as u8, Ordering::Relaxed);
    }

    /// Returns whether the connection receives a response without a known end.
    pub(super) fn is_streaming(&self) -> bool {
        self.get() == Stage::Streaming
    }

    /// Returns the number of writes that the connection has taken.
    pub(super) fn writes(&self) -> u64 {
        self.0.writes.load(Ordering::Relaxed)
    }

    /// Returns whether a write waits for the client, and none has been taken since there were `writes`.
    pub(super) fn is_stalled_since(&self, writes: u64) -> bool {
        self.0.is_blocked.load(Ordering::Relaxed) && self.writes() == writes
    }

    fn record_write<T>(&self, outcome: &Poll<T>) {
        self.0.is_blocked.store(outcome.is_pending(), Ordering::Relaxed);
        if outcome.is_ready() {
            self.0.writes.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn get(&self) -> Stage {
        match self.0.stage.load(Ordering::Relaxed) {
            0 => Stage::Idle,
            1 => Stage::SendingResponse,
            2 => Stage::HandlingRequest,
            _ => Stage::Streaming,
        }
    }
}

impl ConnectionSlots {
    pub(super) fn add(&mut self, connection: AbortHandle, stage: SharedStage) {
        self.0.push((connection, stage));
    }

    /// Aborts the connection with the lowest priority if there are `max`. Returns whether one was aborted.
    pub(super) fn evict_if_full(&mut self, max: usize) -> bool {
        if self.0.len() < max {
            return false;
        }
        self.0.retain(|(connection, _)| !connection.is_finished());
        if self.0.len() < max {
            return false;
        }
        // The newest connections have not had time to send a request. If all older ones have one, a client that keeps
        // connecting must not push out a probe before it has sent its own.
        let older = self.0.len() - self.0.len() / PROTECTED_FRACTION;
        // `min_by_key` returns the first of several equal ones, which is the oldest.
        let lowest = (0..older).min_by_key(|place| self.0[*place].1.get());
        lowest.inspect(|place| self.0.remove(*place).0.abort()).is_some()
    }
}

impl<S> TrackedStream<S> {
    pub(super) const fn new(stream: S, stage: SharedStage) -> Self {
        Self { stream, stage }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TrackedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TrackedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.stage.record_write(&outcome);
        outcome
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.stage.record_write(&outcome);
        outcome
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// hyper flushes after it has written everything.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        if self.stage.get() == Stage::SendingResponse {
            self.stage.set(Stage::Idle);
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

    /// Adds a connection at each of `stages`, makes room once, and returns which ones are left.
    async fn remaining_after_eviction(stages: &[Stage]) -> Vec<usize> {
        let (mut seats, mut tasks) = (ConnectionSlots::default(), JoinSet::new());
        let mut handles = Vec::new();
        for stage in stages {
            let claim = SharedStage::default();
            claim.set(*stage);
            handles.push(tasks.spawn(pending::<()>()));
            seats.add(handles.last().unwrap().clone(), claim);
        }
        assert!(seats.evict_if_full(stages.len()));
        yield_now().await;
        (0..stages.len()).filter(|place| !handles[*place].is_finished()).collect()
    }

    #[tokio::test]
    async fn oldest_idle_connection_is_evicted_first() {
        assert_eq!(
            remaining_after_eviction(&[Stage::HandlingRequest, Stage::Idle, Stage::Idle]).await,
            [0, 2]
        );
        assert_eq!(
            remaining_after_eviction(&[Stage::HandlingRequest, Stage::SendingResponse, Stage::Idle]).await,
            [0, 1]
        );
        assert_eq!(remaining_after_eviction(&[Stage::HandlingRequest, Stage::SendingResponse]).await, [0]);
        assert_eq!(remaining_after_eviction(&[Stage::HandlingRequest, Stage::HandlingRequest]).await, [1]);
    }

    #[tokio::test]
    async fn new_connections_are_protected_from_eviction() {
        assert_eq!(
            remaining_after_eviction(&[
                Stage::SendingResponse,
                Stage::HandlingRequest,
                Stage::HandlingRequest,
                Stage::Idle
            ])
            .await,
            [1, 2, 3]
        );
        assert_eq!(
            remaining_after_eviction(&[
                Stage::HandlingRequest,
                Stage::HandlingRequest,
                Stage::HandlingRequest,
                Stage::Idle
            ])
            .await,
            [1, 2, 3]
        );
    }

    #[tokio::test]
    async fn finished_connection_frees_its_slot() {
        let (mut seats, mut tasks) = (ConnectionSlots::default(), JoinSet::new());
        seats.add(tasks.spawn(async {}), SharedStage::default());
        while tasks.join_next().await.is_some() {}
        assert!(!seats.evict_if_full(1));
    }
}
