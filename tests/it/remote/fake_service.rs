//! A rate limit service whose responses a test defines, and which records all requests.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tonic::{Request, Response, Status};

use crate::support::grpc::GrpcServer;

/// Returns the response to a request; `None` if there is never one.
type ResponseFn = dyn Fn(&RateLimitRequest) -> Option<Result<RateLimitResponse, Status>> + Send + Sync;

/// The service; it ends when dropped.
pub(super) struct FakeRateLimitService {
    pub(super) address: SocketAddr,
    state: Arc<FakeServiceState>,
    server: GrpcServer,
}

struct FakeServiceState {
    requests: Mutex<Vec<RateLimitRequest>>,
    respond: Box<ResponseFn>,
}

#[derive(Clone)]
struct FakeServiceHandler(Arc<FakeServiceState>);

#[tonic::async_trait]
impl RateLimitService for FakeServiceHandler {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let request = request.into_inner();
        self.0.requests.lock().unwrap().push(request.clone());
        match (self.0.respond)(&request) {
            Some(said) => said.map(Response::new),
            None => std::future::pending().await,
        }
    }
}

impl FakeRateLimitService {
    pub(super) fn start(
        respond: impl Fn(&RateLimitRequest) -> Option<Result<RateLimitResponse, Status>> + Send + Sync + 'static,
    ) -> Self {
        let state = Arc::new(FakeServiceState { requests: Mutex::default(), respond: Box::new(respond) });
        let server = GrpcServer::start(RateLimitServiceServer::new(FakeServiceHandler(Arc::clone(&state))));
        Self { address: server.address, state, server }
    }

    /// Returns the number of connections so far.
    pub(super) fn connections(&self) -> usize {
        self.server.connections()
    }

    /// Returns the requests so far.
    pub(super) fn requests(&self) -> Vec<RateLimitRequest> {
        self.state.requests.lock().unwrap().clone()
    }
}

/// Returns a response with the same status for each descriptor.
pub(super) fn response_with_code(request: &RateLimitRequest, code: Code) -> RateLimitResponse {
    let status = DescriptorStatus { code: code.into(), ..DescriptorStatus::default() };
    RateLimitResponse {
        overall_code: code.into(),
        statuses: vec![status; request.descriptors.len()],
        ..RateLimitResponse::default()
    }
}

/// Returns a header to be added.
pub(super) fn header(key: &str, value: &str) -> HeaderValue {
    HeaderValue { key: key.to_owned(), value: value.to_owned(), ..HeaderValue::default() }
}
