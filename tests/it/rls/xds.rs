//! Rules from an xDS management server, in the form that Envoy Gateway sends.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
use envoy_types::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use envoy_types::pb::google::protobuf::Any;
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit,
};
use prost::Message as _;
use tokio::sync::mpsc;
use tonic::codegen::tokio_stream::Stream;
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::{Code, RlsClient};
use crate::support::grpc::GrpcServer;
use crate::support::pki::Authority;
use crate::support::tls_front::TlsFront;
use crate::support::{Weir, get, wait};

const TYPE: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

type Outgoing = Result<DiscoveryResponse, Status>;

/// Requests that the server received, and the stream on which it sends.
#[derive(Debug, Default)]
struct AdsState {
    requests: Vec<DiscoveryRequest>,
    /// Values of the header `x-token` in the calls that opened a stream.
    headers: Vec<String>,
    stream: Option<mpsc::Sender<Outgoing>>,
}

/// A management server; it ends when dropped.
struct ManagementServer {
    address: SocketAddr,
    state: Arc<Mutex<AdsState>>,
    _server: GrpcServer,
}

#[derive(Clone)]
struct AdsHandler(Arc<Mutex<AdsState>>);

type ResponseStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl AggregatedDiscoveryService for AdsHandler {
    type StreamAggregatedResourcesStream = ResponseStream<DiscoveryResponse>;
    type DeltaAggregatedResourcesStream = ResponseStream<DeltaDiscoveryResponse>;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        let (sender, receiver) = mpsc::channel(8);
        {
            let mut state = self.0.lock().unwrap();
            let token = request.metadata().get("x-token").and_then(|token| token.to_str().ok());
            state.headers.extend(token.map(ToOwned::to_owned));
            state.stream = Some(sender);
        }
        let state = Arc::clone(&self.0);
        let mut asked = request.into_inner();
        tokio::spawn(async move {
            while let Ok(Some(request)) = asked.message().await {
                state.lock().unwrap().requests.push(request);
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn delta_aggregated_resources(
        &self,
        _: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        Err(Status::unimplemented("only the state of the world"))
    }
}

impl ManagementServer {
    fn start() -> Self {
        let state = Arc::<Mutex<AdsState>>::default();
        let server = GrpcServer::start(AggregatedDiscoveryServiceServer::new(AdsHandler(Arc::clone(&state))));
        Self { address: server.address, state, _server: server }
    }

    /// Sends these configurations as the complete set, and returns the client's ACK or NACK.
    fn push_configs(&self, version: &str, configs: &[RateLimitConfig]) -> DiscoveryRequest {
        let resource =
            |config: &RateLimitConfig| Any { type_url: TYPE.to_owned(), value: config.encode_to_vec() };
        let answer = DiscoveryResponse {
            version_info: version.to_owned(),
            nonce: format!("nonce of {version}"),
            type_url: TYPE.to_owned(),
            resources: configs.iter().map(resource).collect(),
            ..DiscoveryResponse::default()
        };
        let stream = wait::until("a stream", || self.state.lock().unwrap().stream.clone());
        stream.blocking_send(Ok(answer)).unwrap();
        wait::until("a reply", || {
            let state = self.state.lock().unwrap();
            state
                .requests
                .iter()
                .find(|request| request.response_nonce == format!("nonce of {version}"))
                .cloned()
        })
    }
}

fn rate_limit_config(name: &str, domain: &str, descriptors: Vec<RateLimitDescriptor>) -> RateLimitConfig {
    RateLimitConfig { name: name.to_owned(), domain: domain.to_owned(), descriptors }
}

fn limit_descriptor(key: &str, count: u32) -> RateLimitDescriptor {
    let unit = RateLimitUnit::Year.into();
    RateLimitDescriptor {
        key: key.to_owned(),
        rate_limit: Some(RateLimitPolicy { unit, requests_per_unit: count, ..RateLimitPolicy::default() }),
        ..RateLimitDescriptor::default()
    }
}

#[test]
fn configurations_are_acked_or_nacked_and_replaced() {
    let manager = ManagementServer::start();
    let server = manager.address.to_string();
    let weir = Weir::start_rls(&[
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_URL", &server),
        ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"),
        ("CONFIG_GRPC_XDS_NODE_METADATA", "zone=a,team=b"),
        ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "x-token:secret"),
        ("GRPC_HOST", "127.0.0.1"),
        ("GRPC_PORT", "0"),
        ("PORT", "0"),
        ("DEBUG_PORT", "0"),
        ("USE_STATSD", "false"),
        ("WEIR_ADMIN_ADDRESS", "127.0.0.1:0"),
    ]);
    let client = RlsClient::connect(weir.rls_address("grpc"));
    let question = envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest {
        domain: "d".to_owned(),
        descriptors: vec![super::descriptor("k=v")],
        hits_addend: 0,
    };
    let error = client.try_check(question).unwrap_err();
    assert_eq!(
        (error.code(), error.message()),
        (tonic::Code::Unavailable, "no rate limit configuration loaded")
    );
    assert_eq!(get(weir.rls_address("http"), "/healthcheck").status, 500, "unhealthy until there are rules");

    let first = manager.push_configs("1", &[rate_limit_config("one", "d", vec![limit_descriptor("k", 1)])]);
    assert_eq!((first.version_info.as_str(), first.error_detail), ("1", None));
    let node = first.node.unwrap();
    assert_eq!(node.id, "envoy-ratelimit");
    let zone = node.metadata.unwrap().fields.remove("zone").unwrap().kind;
    assert_eq!(zone, Some(Kind::StringValue("a".to_owned())));
    assert_eq!(manager.state.lock().unwrap().headers, ["secret"]);
    assert_eq!(get(weir.rls_address("http"), "/healthcheck").status, 200);
    assert_eq!(client.check("d", "k=v").overall_code(), Code::Ok);
    assert_eq!(client.check("d", "k=v").overall_code(), Code::OverLimit);

    let twice = [
        rate_limit_config("one", "d", vec![limit_descriptor("k", 5)]),
        rate_limit_config("two", "d", vec![]),
    ];
    let rejected = manager.push_configs("2", &twice);
    assert_eq!(rejected.version_info, "1", "the version in force");
    assert!(rejected.error_detail.unwrap().message.contains("duplicate domain 'd' in config file"));
    assert_eq!(client.check("d", "k=v").overall_code(), Code::OverLimit, "the previous rules stay in force");

    let deep = RateLimitDescriptor {
        key: "outer".to_owned(),
        value: "o".to_owned(),
        descriptors: vec![limit_descriptor("inner", 9)],
        ..RateLimitDescriptor::default()
    };
    let third = manager.push_configs(
        "3",
        &[
            rate_limit_config("one", "d", vec![limit_descriptor("k", 5)]),
            rate_limit_config("two", "e", vec![deep]),
        ],
    );
    assert_eq!((third.version_info.as_str(), third.error_detail), ("3", None));
    assert_eq!(client.check("d", "k=v").statuses[0].limit_remaining, 1, "the counter is kept");
    assert_eq!(client.check("e", "outer=o,inner=x").statuses[0].limit_remaining, 8);
}

#[test]
fn tls_verifies_the_management_server() {
    let directory = tempfile::tempdir().unwrap();
    let (authority, manager) = (Authority::new("authority"), ManagementServer::start());
    let ca = authority.write(&directory.path().join("ca.crt"));
    let front = TlsFront::start(authority.server("manager.example", &["h2"], false), manager.address);
    let text = |name: &str| {
        let (port, ca) = (front.port(), ca.display());
        format!(
            "admin: {{ address: 127.0.0.1:0 }}\nrls:\n  address: 127.0.0.1:0\n  config:\n    \
             xds: {{ address: 'https://127.0.0.1:{port}', backoff: 20ms..50ms, tls: {{ ca: '{ca}', server_name: {name} }} }}\n"
        )
    };
    let weir = Weir::start(&text("another.example"));
    wait::until_true("a failed attempt", || weir.log().iter().any(|line| line.contains("cannot get rules")));
    assert!(manager.state.lock().unwrap().requests.is_empty());
    weir.reload(&text("manager.example"));
    let reply = manager.push_configs("1", &[rate_limit_config("one", "d", vec![limit_descriptor("k", 1)])]);
    assert_eq!((reply.version_info.as_str(), reply.error_detail), ("1", None));
    assert_eq!(front.handshakes()[0].protocol.as_deref(), Some("h2"));
}

#[test]
fn management_server_is_found_after_failed_attempts() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let text = format!(
        "admin: {{ address: 127.0.0.1:0 }}\nrls:\n  address: 127.0.0.1:0\n  debug: 127.0.0.1:0\n  config:\n    \
         xds: {{ address: \"{address}\", backoff: 20ms..50ms }}\n"
    );
    let weir = Weir::start(&text);
    wait::until_true("a failed attempt", || weir.log().iter().any(|line| line.contains("cannot get rules")));
    let manager = ManagementServer::start();
    weir.reload(&text.replace(&address.to_string(), &manager.address.to_string()));
    manager.push_configs("1", &[rate_limit_config("one", "d", vec![limit_descriptor("k", 1)])]);
    let client = RlsClient::connect(weir.rls_address("grpc"));
    assert_eq!(client.check("d", "k=v").statuses[0].current_limit.as_ref().unwrap().requests_per_unit, 1);
}
