//! `envoy.service.ratelimit.v3.RateLimitService`.

use std::sync::Arc;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitService;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tonic::{Request, Response, Status};

use super::wire;
use crate::rls::answer::Undecided;
use crate::rls::desk::Desk;

/// The rate limit service.
#[derive(Clone, Debug)]
pub(super) struct RateLimit(pub(super) Arc<Desk>);

#[tonic::async_trait]
impl RateLimitService for RateLimit {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let request = wire::request(request.into_inner());
        let answer = self.0.decide(&request).await.map_err(|undecided| status(&undecided))?;
        Ok(Response::new(wire::response(answer)))
    }
}

/// Returns the status of an error. For invalid requests the reference returns UNKNOWN, Go's default. The absence of
/// rules is temporary, and a state of this service.
fn status(undecided: &Undecided) -> Status {
    let message = undecided.to_string();
    match undecided {
        Undecided::NoDomain | Undecided::NoDescriptors => Status::unknown(message),
        Undecided::NoUnit(_) | Undecided::TooManyDescriptors(_) | Undecided::TooManyEntries(..) => {
            Status::invalid_argument(message)
        }
        Undecided::NoRules => Status::unavailable(message),
    }
}
