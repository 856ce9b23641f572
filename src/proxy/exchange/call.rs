//! The status of a gRPC call, which comes with the end of the response and may decide what the request is charged.

use http::{HeaderMap, HeaderValue};

use super::Exchange;
use crate::rules::grpc::{GRPC_STATUS, GrpcStatus};

impl Exchange {
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
            settlement.settle_call(Some(status), (&shared.limiter, shared.clock.now()));
        }
    }
}
