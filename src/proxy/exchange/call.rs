//! The deadline that a client sets, and the status of a gRPC call, which comes with the end of the response: both may decide
//! what the request is charged.

use std::time::Duration;

use http::{HeaderMap, HeaderValue};

use super::Exchange;
use crate::proxy::timeouts::Timeout;
use crate::rules::grpc::{GRPC_STATUS, GrpcStatus};

impl Exchange {
    /// The client waits so long for the head of the response, and no longer.
    pub(in crate::proxy) fn await_no_longer(&self, time: Duration) {
        self.timer.await_response(Timeout::by_client(time));
    }

    /// Whether something is to be settled when the end is known.
    pub(in crate::proxy) const fn has_settlement(&self) -> bool {
        self.settlement.is_some()
    }

    /// The upstream may give up after so long, since the client says so.
    pub(in crate::proxy) fn note_deadline(&mut self, time: Duration) {
        self.deadline = Some(self.forwarded.saturating_add(time));
    }

    /// The response has ended with these trailers.
    pub(in crate::proxy) fn note_trailers(&mut self, trailers: &HeaderMap) {
        if let Some(status) = GrpcStatus::of_field(trailers.get(GRPC_STATUS).map(HeaderValue::as_bytes)) {
            self.settle_call(status);
        }
    }

    /// The status of the call is known, which may decide what it is charged.
    pub(super) fn settle_call(&mut self, status: GrpcStatus) {
        if let Some(settlement) = self.settlement.as_mut().filter(|settlement| settlement.awaits_call()) {
            let shared = &self.connection.worker.shared;
            let now = shared.clock.now();
            // A call that fails once the client's deadline has passed is one that the client has left.
            let gave_up = !status.is_ok() && self.deadline.is_some_and(|deadline| deadline <= now);
            settlement.settle_call((!gave_up).then_some(status), (&shared.limiter, now));
        }
    }
}
