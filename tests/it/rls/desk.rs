//! A client of the service, by the library that most Rust programs speak gRPC with.

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

/// What is answered.
pub(super) type Answer = RateLimitResponse;

/// A connection to the service.
#[derive(Debug)]
pub(crate) struct Client {
    pub(super) runtime: Handle,
    pub(super) channel: Channel,
    /// Ends the thread that serves the connection, which has to go on while nothing is asked.
    _end: oneshot::Sender<()>,
}

impl Client {
    /// A client that connects when it first asks.
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

    /// Asks.
    pub(crate) fn try_ask(&self, request: RateLimitRequest) -> Result<Answer, Status> {
        let mut client = RateLimitServiceClient::new(self.channel.clone());
        self.runtime.block_on(client.should_rate_limit(request)).map(tonic::Response::into_inner)
    }

    /// Asks for descriptors of a domain, which must be answered.
    pub(crate) fn ask_all(&self, domain: &str, descriptors: Vec<RateLimitDescriptor>) -> Answer {
        let request = RateLimitRequest { domain: domain.to_owned(), descriptors, hits_addend: 0 };
        self.try_ask(request).unwrap()
    }

    /// Asks for one descriptor, written as [`descriptor`] has it.
    pub(crate) fn ask(&self, domain: &str, entries: &str) -> Answer {
        self.ask_all(domain, vec![descriptor(entries)])
    }

    /// Watches the health of a service.
    pub(crate) fn watch(&self, service: &str) -> Watched<'_> {
        let mut client = HealthClient::new(self.channel.clone());
        let request = HealthCheckRequest { service: service.to_owned() };
        let stream = self.runtime.block_on(client.watch(request)).unwrap().into_inner();
        Watched { runtime: &self.runtime, stream }
    }

    /// What is said of the health of a service, as a number of the protocol's; or why nothing is.
    pub(crate) fn health(&self, service: &str) -> Result<i32, Status> {
        let mut client = HealthClient::new(self.channel.clone());
        let request = HealthCheckRequest { service: service.to_owned() };
        self.runtime.block_on(client.check(request)).map(|answer| answer.into_inner().status)
    }
}

/// What is told about health, one after the other.
#[derive(Debug)]
pub(crate) struct Watched<'a> {
    runtime: &'a Handle,
    stream: tonic::Streaming<tonic_health::pb::HealthCheckResponse>,
}

impl Watched<'_> {
    /// The next status.
    pub(crate) fn next(&mut self) -> i32 {
        self.runtime.block_on(self.stream.message()).unwrap().unwrap().status
    }
}

/// `key=value,key=value`.
pub(crate) fn descriptor(entries: &str) -> RateLimitDescriptor {
    let entry = |text: &str| {
        let (key, value) = text.split_once('=').unwrap_or((text, ""));
        Entry { key: key.to_owned(), value: value.to_owned() }
    };
    let entries = entries.split(',').filter(|text| !text.is_empty()).map(entry).collect();
    RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }
}
