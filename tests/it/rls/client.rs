//! A client of the service, with the gRPC library that most Rust programs use.

use std::net::SocketAddr;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
pub(crate) use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

/// Response of the service.
pub(super) type CheckResponse = RateLimitResponse;

/// A connection to the service.
#[derive(Debug)]
pub(crate) struct RlsClient {
    pub(super) runtime: Handle,
    pub(super) channel: Channel,
    /// Ends the thread that drives the connection. It must run even while there is no call.
    _end: oneshot::Sender<()>,
}

impl RlsClient {
    /// Returns a client that connects on its first call.
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let driver = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let runtime = driver.handle().clone();
        let (end, ended) = oneshot::channel::<()>();
        std::thread::spawn(move || driver.block_on(ended));
        let channel = {
            let _guard = runtime.enter();
            Endpoint::from_shared(format!("http://{address}")).unwrap().connect_lazy()
        };
        Self { runtime, channel, _end: end }
    }

    /// Makes a call.
    pub(crate) fn try_check(&self, request: RateLimitRequest) -> Result<CheckResponse, Status> {
        let mut client = RateLimitServiceClient::new(self.channel.clone());
        self.runtime.block_on(client.should_rate_limit(request)).map(tonic::Response::into_inner)
    }

    /// Makes a call with these descriptors in a domain.
    ///
    /// # Panics
    ///
    /// If the service returns an error.
    pub(crate) fn check_all(&self, domain: &str, descriptors: Vec<RateLimitDescriptor>) -> CheckResponse {
        let request = RateLimitRequest { domain: domain.to_owned(), descriptors, hits_addend: 0 };
        self.try_check(request).unwrap()
    }

    /// Makes a call with one descriptor, written as for [`descriptor`].
    pub(crate) fn check(&self, domain: &str, entries: &str) -> CheckResponse {
        self.check_all(domain, vec![descriptor(entries)])
    }

    /// Watches the health of a service.
    pub(crate) fn watch(&self, service: &str) -> HealthStream<'_> {
        let mut client = HealthClient::new(self.channel.clone());
        let request = HealthCheckRequest { service: service.to_owned() };
        let stream = self.runtime.block_on(client.watch(request)).unwrap().into_inner();
        HealthStream { runtime: &self.runtime, stream }
    }

    /// Returns the health status of a service, as a number of the protocol.
    pub(crate) fn health(&self, service: &str) -> Result<i32, Status> {
        let mut client = HealthClient::new(self.channel.clone());
        let request = HealthCheckRequest { service: service.to_owned() };
        self.runtime.block_on(client.check(request)).map(|answer| answer.into_inner().status)
    }
}

/// Stream of health status changes.
#[derive(Debug)]
pub(crate) struct HealthStream<'a> {
    runtime: &'a Handle,
    stream: tonic::Streaming<tonic_health::pb::HealthCheckResponse>,
}

impl HealthStream<'_> {
    /// Waits for the next status.
    pub(crate) fn next(&mut self) -> i32 {
        self.runtime.block_on(self.stream.message()).unwrap().unwrap().status
    }
}

/// Parses a descriptor written as `key=value,key=value`.
pub(crate) fn descriptor(entries: &str) -> RateLimitDescriptor {
    let entry = |text: &str| {
        let (key, value) = text.split_once('=').unwrap_or((text, ""));
        Entry { key: key.to_owned(), value: value.to_owned() }
    };
    let entries = entries.split(',').filter(|text| !text.is_empty()).map(entry).collect();
    RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }
}
