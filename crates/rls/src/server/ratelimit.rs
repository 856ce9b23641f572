//! `envoy.service.ratelimit.v3.RateLimitService`.

use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tonic::Status;

use super::wire;
use crate::handler::RlsHandler;
use crate::response::RlsError;
use weir_telemetry::observe::top_keys::WorkerId;

/// Decides a request.
pub(super) async fn decide(
    handler: &RlsHandler,
    worker: WorkerId,
    request: RateLimitRequest,
) -> Result<RateLimitResponse, Status> {
    let decided = handler.decide(&wire::request_from_proto(request), worker).await;
    decided.map(wire::response_to_proto).map_err(|error| status_from_error(&error))
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
