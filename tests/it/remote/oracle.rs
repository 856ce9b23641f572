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

use crate::support::grpc::Server;

/// Returns the response to a request; `None` if there is never one.
type Saying = dyn Fn(&RateLimitRequest) -> Option<Result<RateLimitResponse, Status>> + Send + Sync;

/// The service; it ends when dropped.
pub(super) struct Oracle {
    pub(super) address: SocketAddr,
    state: Arc<State>,
    server: Server,
}

struct State {
    asked: Mutex<Vec<RateLimitRequest>>,
    saying: Box<Saying>,
}

#[derive(Clone)]
struct Answering(Arc<State>);

#[tonic::async_trait]
impl RateLimitService for Answering {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let request = request.into_inner();
        self.0.asked.lock().unwrap().push(request.clone());
        match (self.0.saying)(&request) {
            Some(said) => said.map(Response::new),
            None => std::future::pending().await,
        }
    }
}

impl Oracle {
    pub(super) fn start(
        saying: impl Fn(&RateLimitRequest) -> Option<Result<RateLimitResponse, Status>> + Send + Sync + 'static,
    ) -> Self {
        let state = Arc::new(State { asked: Mutex::default(), saying: Box::new(saying) });
        let server = Server::start(RateLimitServiceServer::new(Answering(Arc::clone(&state))));
        Self { address: server.address, state, server }
    }

    /// Returns the number of connections so far.
    pub(super) fn connections(&self) -> usize {
        self.server.connections()
    }

    /// Returns the requests so far.
    pub(super) fn asked(&self) -> Vec<RateLimitRequest> {
        self.state.asked.lock().unwrap().clone()
    }
}

/// Returns a response with the same status for each descriptor.
pub(super) fn answer(request: &RateLimitRequest, code: Code) -> RateLimitResponse {
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
