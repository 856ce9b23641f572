//! `envoy.service.ratelimit.v3.RateLimitService`.

use std::sync::Arc;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitService;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tonic::{Request, Response, Status};

use super::wire;
use crate::rls::handler::RlsHandler;
use crate::rls::response::RlsError;

/// The rate limit service.
#[derive(Clone, Debug)]
pub(super) struct GrpcRateLimit(pub(super) Arc<RlsHandler>);

#[tonic::async_trait]
impl RateLimitService for GrpcRateLimit {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let request = wire::request_from_proto(request.into_inner());
        let response = self.0.decide(&request).await.map_err(|error| status_from_error(&error))?;
        Ok(Response::new(wire::response_to_proto(response)))
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
