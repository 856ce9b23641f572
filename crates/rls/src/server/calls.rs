//! Calls in flight: counted per worker, and tracked until the client has received the response.
//!
//! A response waits if the client provides no flow-control window. Such calls must not accumulate: a connection is
//! closed if one of its responses waits for too long, and the calls and streams of a worker are bounded.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::sleep;
use tonic::Status;

/// Maximum unary calls of a worker whose responses have not been sent. Calls are decided at once, so these are
/// responses that the network or the client receives slowly.
const MAX_UNARY_CALLS: usize = 16_384;
/// Maximum streams of a worker: quotas and watches of the health. Each takes about 4 kB.
const MAX_STREAMS: usize = 4_096;
/// Time after which a waiting response closes its connection; it may take up to twice as long.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// Calls and streams in flight on a worker.
#[derive(Debug, Default)]
pub(super) struct WorkerCalls {
    unary: Cell<usize>,
    streams: Cell<usize>,
}

/// The calls of one connection.
#[derive(Debug)]
pub(super) struct ConnectionCalls {
    worker: Rc<WorkerCalls>,
    /// Number of calls in flight that began in this epoch and in the one before, alternating.
    in_flight_by_epoch: [Cell<usize>; 2],
    epoch: Cell<usize>,
}

/// A unary call, until its response has been sent.
#[derive(Debug)]
pub(super) struct UnaryCall {
    calls: Rc<ConnectionCalls>,
    epoch: usize,
}

/// A call with a stream of responses, until the stream ends.
#[derive(Debug)]
pub(super) struct StreamingCall(Rc<WorkerCalls>);

impl ConnectionCalls {
    /// Creates the calls of a connection of `worker`.
    pub(super) fn new(worker: Rc<WorkerCalls>) -> Rc<Self> {
        Rc::new(Self { worker, in_flight_by_epoch: Default::default(), epoch: Cell::new(0) })
    }

    /// Starts a unary call.
    pub(super) fn start_call(self: &Rc<Self>) -> Result<UnaryCall, Status> {
        try_increment(&self.worker.unary, MAX_UNARY_CALLS, "calls")?;
        let epoch = self.epoch.get();
        self.in_flight_by_epoch[epoch].set(self.in_flight_by_epoch[epoch].get() + 1);
        Ok(UnaryCall { calls: Rc::clone(self), epoch })
    }

    /// Starts a stream.
    pub(super) fn start_stream(&self) -> Result<StreamingCall, Status> {
        try_increment(&self.worker.streams, MAX_STREAMS, "streams")?;
        Ok(StreamingCall(Rc::clone(&self.worker)))
    }

    /// Completes when a response has waited for too long.
    pub(super) async fn stuck(&self) {
        loop {
            sleep(SEND_TIMEOUT).await;
            if self.check_stuck() {
                return;
            }
        }
    }

    /// Starts the next epoch; returns true instead if a call of the previous epoch is still in flight.
    fn check_stuck(&self) -> bool {
        let before = 1 - self.epoch.get();
        if self.in_flight_by_epoch[before].get() > 0 {
            return true;
        }
        self.epoch.set(before);
        false
    }
}

fn try_increment(count: &Cell<usize>, max: usize, what: &str) -> Result<(), Status> {
    if count.get() >= max {
        return Err(Status::resource_exhausted(format!("too many {what} in flight")));
    }
    count.set(count.get() + 1);
    Ok(())
}

impl Drop for UnaryCall {
    fn drop(&mut self) {
        let Self { calls, epoch } = self;
        calls.in_flight_by_epoch[*epoch].set(calls.in_flight_by_epoch[*epoch].get().saturating_sub(1));
        calls.worker.unary.set(calls.worker.unary.get().saturating_sub(1));
    }
}

impl Drop for StreamingCall {
    fn drop(&mut self) {
        self.0.streams.set(self.0.streams.get().saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_is_stuck_once_a_response_is_unsent_for_a_whole_epoch() {
        let worker = Rc::<WorkerCalls>::default();
        let calls = ConnectionCalls::new(Rc::clone(&worker));
        let call = calls.start_call().unwrap();
        assert!(!calls.check_stuck(), "the call may have begun in this turn");
        let next = calls.start_call().unwrap();
        assert!(calls.check_stuck());
        drop(call);
        assert!(!calls.check_stuck(), "the next call has begun in this turn");
        assert!(calls.check_stuck());
        drop(next);
        assert_eq!(worker.unary.get(), 0);
    }

    #[test]
    fn worker_limits_calls_and_streams_across_its_connections() {
        let worker = Rc::<WorkerCalls>::default();
        let (one, other) =
            (ConnectionCalls::new(Rc::clone(&worker)), ConnectionCalls::new(Rc::clone(&worker)));
        let calls: Vec<_> = (0..MAX_UNARY_CALLS).map(|_| one.start_call().unwrap()).collect();
        assert_eq!(other.start_call().unwrap_err().code(), tonic::Code::ResourceExhausted);
        let streams: Vec<_> = (0..MAX_STREAMS).map(|_| one.start_stream().unwrap()).collect();
        assert_eq!(other.start_stream().unwrap_err().code(), tonic::Code::ResourceExhausted);
        drop((calls, streams));
        assert!(other.start_call().is_ok() && other.start_stream().is_ok());
    }
}
