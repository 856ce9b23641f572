//! `envoy.service.ratelimit.v3.RateLimitService`.

use std::sync::Arc;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitService;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tonic::{Request, Response, Status};

use super::wire;
use crate::rls::answer::Undecided;
use crate::rls::desk::Desk;

/// The service.
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

/// Of mistakes in a request the reference says UNKNOWN, which is what Go makes of an error. That there are no rules
/// yet is our own state, and passes.
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
