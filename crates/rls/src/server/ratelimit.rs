//! `envoy.service.ratelimit.v3.RateLimitService`.

use std::sync::Arc;

use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tonic::Status;

use super::wire;
use crate::handler::RlsHandler;
use crate::response::RlsError;
use weir_telemetry::observe::top_keys::WorkerId;

/// The rate limit service.
#[derive(Debug)]
pub(super) struct GrpcRateLimit {
    pub(super) handler: Arc<RlsHandler>,
    pub(super) worker: WorkerId,
}

impl GrpcRateLimit {
    /// Decides a request.
    pub(super) async fn decide(&self, request: RateLimitRequest) -> Result<RateLimitResponse, Status> {
        let request = wire::request_from_proto(request);
        let decided = self.handler.decide(&request, self.worker).await;
        let response = decided.map_err(|error| status_from_error(&error))?;
        Ok(wire::response_to_proto(response))
    }
}

/// Returns the status of an error. For invalid requests the reference returns UNKNOWN, Go's default. The absence of
/// rules is temporary, and a state of this service.
fn status_from_error(error: &RlsError) -> Status {
    let message = error.to_string();
    match error {
        RlsError::NoDomain | RlsError::NoDescriptors => Status::unknown(message),
        RlsError::NoUnit(_) | RlsError::TooManyDescriptors(_) | RlsError::TooManyEntries(..) => {
            Status::invalid_argument(message)
        }
        RlsError::NoRules => Status::unavailable(message),
    }
}
