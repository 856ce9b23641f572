//! `envoy.service.ratelimit.v3.RateLimitService`.

use std::sync::Arc;

use bytes::{BufMut as _, Bytes, BytesMut};

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitService;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use prost::Message as _;
use tonic::{Request, Response, Status};

use super::message_reader::MESSAGE_PREFIX_LEN;
use super::wire;
use crate::handler::RlsHandler;
use crate::response::RlsError;
use weir_telemetry::observe::top_keys::WorkerId;

/// Path of the only method.
pub(super) const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The rate limit service.
#[derive(Clone, Debug)]
pub(super) struct GrpcRateLimit {
    pub(super) handler: Arc<RlsHandler>,
    pub(super) worker: WorkerId,
}

impl GrpcRateLimit {
    /// Decides a request given as a message with its prefix, and returns the response in the same form. `None` if it is not
    /// one uncompressed and well-formed message.
    pub(super) async fn call(&self, message: &Bytes) -> Option<Result<Bytes, Status>> {
        let (&[flag, ref length @ ..], message) = message.split_first_chunk::<MESSAGE_PREFIX_LEN>()?;
        if flag != 0 || u32::from_be_bytes(*length) as usize != message.len() {
            return None;
        }
        let request = RateLimitRequest::decode(message).ok()?;
        match self.decide(request).await {
            Ok(response) => Some(with_prefix(&response)),
            Err(status) => Some(Err(status)),
        }
    }

    async fn decide(&self, request: RateLimitRequest) -> Result<RateLimitResponse, Status> {
        let request = wire::request_from_proto(request);
        let decided = self.handler.decide(&request, self.worker).await;
        let response = decided.map_err(|error| status_from_error(&error))?;
        Ok(wire::response_to_proto(response))
    }
}

/// Encodes a message behind its prefix: no compression, and its length (gRPC over HTTP/2, "Length-Prefixed-Message").
fn with_prefix(response: &RateLimitResponse) -> Result<Bytes, Status> {
    let too_large = || Status::internal("response too large");
    let length = response.encoded_len();
    let mut message = BytesMut::with_capacity(MESSAGE_PREFIX_LEN + length);
    message.put_u8(0);
    message.put_u32(u32::try_from(length).map_err(|_| too_large())?);
    response.encode(&mut message).map_err(|_| too_large())?;
    Ok(message.freeze())
}

#[tonic::async_trait]
impl RateLimitService for GrpcRateLimit {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        self.decide(request.into_inner()).await.map(Response::new)
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
