//! Calls in flight: counted per worker, and tracked until the client has received the response.
//!
//! A response waits if the client provides no flow-control window. Such calls must not accumulate: a connection is
//! closed if one of its responses waits for too long, and the calls and streams of a worker are bounded.

use std::cell::Cell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::sleep;
use tonic::Status;

/// Maximum unary calls of a worker whose responses have not been sent. Calls are decided at once, so these are
/// responses that the network or the client receives slowly.
const MAX_CALLS: usize = 16_384;
/// Maximum streams of a worker: quotas and watches of the health. Each takes about 25 kB.
const MAX_STREAMS: usize = 4_096;
/// Time after which a waiting response closes its connection; it may take up to twice as long.
const TURN: Duration = Duration::from_secs(10);

/// Calls and streams in flight on a worker.
#[derive(Debug, Default)]
pub(super) struct Load {
    calls: Cell<usize>,
    streams: Cell<usize>,
}

/// The calls of one connection.
#[derive(Debug)]
pub(super) struct Calls {
    worker: Rc<Load>,
    /// Number of calls in flight that began in this turn and in the one before, alternating.
    begun: [Cell<usize>; 2],
    turn: Cell<usize>,
}

/// A unary call, until its response has been sent.
#[derive(Debug)]
pub(super) struct Call {
    calls: Rc<Calls>,
    turn: usize,
}

/// A call with a stream of responses, until the stream ends.
#[derive(Debug)]
pub(super) struct Stream(Rc<Load>);

/// A call of either kind; empty for a rejected call.
#[derive(Debug, Default)]
pub(super) struct Held {
    _call: Option<Call>,
    _stream: Option<Stream>,
}

impl From<Call> for Held {
    fn from(call: Call) -> Self {
        Self { _call: Some(call), _stream: None }
    }
}

impl From<Stream> for Held {
    fn from(stream: Stream) -> Self {
        Self { _call: None, _stream: Some(stream) }
    }
}

impl Calls {
    /// Creates the calls of a connection of `worker`.
    pub(super) fn new(worker: Rc<Load>) -> Rc<Self> {
        Rc::new(Self { worker, begun: Default::default(), turn: Cell::new(0) })
    }

    /// Begins a unary call.
    pub(super) fn begin(self: &Rc<Self>) -> Result<Call, Status> {
        add(&self.worker.calls, MAX_CALLS, "calls")?;
        let turn = self.turn.get();
        self.begun[turn].set(self.begun[turn].get() + 1);
        Ok(Call { calls: Rc::clone(self), turn })
    }

    /// Begins a stream.
    pub(super) fn open(&self) -> Result<Stream, Status> {
        add(&self.worker.streams, MAX_STREAMS, "streams")?;
        Ok(Stream(Rc::clone(&self.worker)))
    }

    /// Completes when a response has waited for too long.
    pub(super) async fn stuck(&self) {
        loop {
            sleep(TURN).await;
            if self.is_stuck() {
                return;
            }
        }
    }

    /// Starts the next turn; returns true instead if a call of the previous turn is still in flight.
    fn is_stuck(&self) -> bool {
        let before = 1 - self.turn.get();
        if self.begun[before].get() > 0 {
            return true;
        }
        self.turn.set(before);
        false
    }
}

fn add(count: &Cell<usize>, max: usize, what: &str) -> Result<(), Status> {
    if count.get() >= max {
        return Err(Status::resource_exhausted(format!("too many {what} in flight")));
    }
    count.set(count.get() + 1);
    Ok(())
}

impl Drop for Call {
    fn drop(&mut self) {
        let Self { calls, turn } = self;
        calls.begun[*turn].set(calls.begun[*turn].get().saturating_sub(1));
        calls.worker.calls.set(calls.worker.calls.get().saturating_sub(1));
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.streams.set(self.0.streams.get().saturating_sub(1));
    }
}

/// Body of a response, which holds its call.
#[derive(Debug)]
pub(super) struct Tracked {
    pub(super) body: tonic::body::Body,
    pub(super) _held: Held,
}

impl Body for Tracked {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(&mut self.body).poll_frame(cx)
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
    use super::*;

    #[test]
    fn a_call_is_stuck_once_a_whole_turn_has_passed_over_it() {
        let load = Rc::<Load>::default();
        let calls = Calls::new(Rc::clone(&load));
        let call = calls.begin().unwrap();
        assert!(!calls.is_stuck(), "the call may have begun in this turn");
        let next = calls.begin().unwrap();
        assert!(calls.is_stuck());
        drop(call);
        assert!(!calls.is_stuck(), "the next call has begun in this turn");
        assert!(calls.is_stuck());
        drop(next);
        assert_eq!(load.calls.get(), 0);
    }

    #[test]
    fn calls_and_streams_of_a_worker_are_bounded_over_all_its_connections() {
        let load = Rc::<Load>::default();
        let (one, other) = (Calls::new(Rc::clone(&load)), Calls::new(Rc::clone(&load)));
        let calls: Vec<_> = (0..MAX_CALLS).map(|_| one.begin().unwrap()).collect();
        assert_eq!(other.begin().unwrap_err().code(), tonic::Code::ResourceExhausted);
        let streams: Vec<_> = (0..MAX_STREAMS).map(|_| one.open().unwrap()).collect();
        assert_eq!(other.open().unwrap_err().code(), tonic::Code::ResourceExhausted);
        drop((calls, streams));
        assert!(other.begin().is_ok() && other.open().is_ok());
    }
}
