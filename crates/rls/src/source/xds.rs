//! Documents from a management server, by the state-of-the-world variant of the aggregated discovery service (ADS):
//! each response is the whole set. It is acknowledged when it is in force, or rejected with the reason, and then the
//! previous set stays in force. Envoy Gateway configures its rate limit service only in this way.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use envoy_types::pb::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Any, Struct, Value as WireValue};
use envoy_types::pb::google::rpc;
use envoy_types::pb::ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy,
};
use prost::Message as _;
use serde_json::{Map, Value};
use tokio::sync::{mpsc, watch};
use tonic::Status;
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue};
use tonic::transport::Channel;

use crate::document::{DescriptorDocument, DomainDocument, LimitDocument};
use crate::handler::RlsHandler;
use crate::rules::DescriptorRules;
use weir_net::jitter::{backoff, equal_jitter};
use weir_net::tls::client::{self, TlsClient};
use weir_store::remote::channel::{self, ServerAddress};

const RESOURCE_TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// `INVALID_ARGUMENT` of `google.rpc.Code`.
const INVALID_ARGUMENT: i32 = 3;

/// Maximum nesting of converted documents; the rules' maximum is lower.
const MAX_DEPTH: usize = 200;

/// A management server and how to query it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdsSettings {
    pub server: ServerAddress,
    /// TLS settings; plain text if `None`.
    pub tls: Option<client::TlsClientSettings>,
    /// Node identifier of this client.
    pub node: Box<str>,
    /// Node metadata of this client.
    pub metadata: BTreeMap<String, String>,
    /// Request headers of the stream.
    pub headers: Vec<(AsciiMetadataKey, AsciiMetadataValue)>,
    /// First and maximum pause before reconnecting.
    pub backoff: (Duration, Duration),
    /// Maximum size of a response in bytes.
    pub max_response_bytes: usize,
    /// Whether a domain may be in several documents.
    pub merge_domains: bool,
}

/// The last applied response.
#[derive(Debug, Default)]
struct AcceptedVersion {
    version: String,
}

/// Applies the server's rules to `handler` while it is polled. Follows changes of `settings`.
pub async fn follow(mut settings: watch::Receiver<Arc<XdsSettings>>, handler: Arc<RlsHandler>) {
    let mut accepted = AcceptedVersion::default();
    loop {
        let current = Arc::clone(&settings.borrow_and_update());
        tokio::select! {
            () = stay_connected(&current, &handler, &mut accepted) => {}
            changed = settings.changed() => if changed.is_err() {
                return std::future::pending().await;
            },
        }
    }
}

/// Connects to the server, again after each failure.
async fn stay_connected(settings: &XdsSettings, handler: &RlsHandler, accepted: &mut AcceptedVersion) {
    let client = settings.tls.clone().map(|tls| TlsClient::new(tls).map(Arc::new)).transpose();
    let server = &settings.server;
    let channel = match client.map(|client| channel::connect_lazy(server, client)) {
        Ok(Ok(channel)) => channel,
        Ok(Err(error)) => return wait_after_setup_error(&error).await,
        Err(error) => return wait_after_setup_error(&error).await,
    };
    let (base_backoff, max_backoff) = settings.backoff;
    let mut failures = 0_u32;
    loop {
        let mut has_responded = false;
        let result = run_stream(settings, &channel, handler, accepted, &mut has_responded).await;
        failures = if has_responded { 1 } else { failures.saturating_add(1) };
        let pause = equal_jitter(backoff(base_backoff, max_backoff, failures));
        match result {
            Ok(()) => tracing::info!(?server, "the management server has ended the stream"),
            Err(status) => {
                let (code, message) = (status.code(), status.message());
                tracing::warn!(
                    ?server,
                    ?code,
                    message,
                    ?pause,
                    "cannot get rules from the management server"
                );
            }
        }
        tokio::time::sleep(pause).await;
    }
}

/// Waits for a change of the settings.
async fn wait_after_setup_error(error: &dyn std::error::Error) {
    tracing::error!(%error, "cannot connect to the management server");
    std::future::pending().await
}

/// Runs one stream until it ends.
async fn run_stream(
    settings: &XdsSettings,
    channel: &Channel,
    handler: &RlsHandler,
    accepted: &mut AcceptedVersion,
    has_responded: &mut bool,
) -> Result<(), Status> {
    let mut client = AggregatedDiscoveryServiceClient::new(channel.clone())
        .max_decoding_message_size(settings.max_response_bytes);
    let (sender, receiver) = mpsc::channel(2);
    let node = Node {
        id: settings.node.to_string(),
        metadata: Some(node_metadata(&settings.metadata)),
        ..Node::default()
    };
    let initial_request = DiscoveryRequest {
        node: Some(node.clone()),
        version_info: accepted.version.clone(),
        type_url: RESOURCE_TYPE_URL.to_owned(),
        ..DiscoveryRequest::default()
    };
    let stream_closed = |_| Status::unavailable("the stream has ended");
    sender.send(initial_request).await.map_err(stream_closed)?;
    let mut request = tonic::Request::new(ReceiverStream::new(receiver));
    for (name, value) in &settings.headers {
        request.metadata_mut().append(name.clone(), value.clone());
    }
    let mut responses = client.stream_aggregated_resources(request).await?.into_inner();
    while let Some(response) = responses.message().await? {
        *has_responded = true;
        let compiled = compile_rules(&response, settings.merge_domains);
        handler.stats().record_config_load(compiled.is_ok());
        let error_detail = match compiled {
            Ok(rules) => {
                handler.set_rules(Arc::new(rules));
                tracing::info!(version = response.version_info, "rate limit rules loaded");
                accepted.version = response.version_info;
                None
            }
            Err(message) => {
                tracing::error!(
                    version = response.version_info,
                    error = message,
                    "rate limit rules rejected"
                );
                Some(rpc::Status { code: INVALID_ARGUMENT, message, details: Vec::new() })
            }
        };
        let acknowledgement = DiscoveryRequest {
            node: Some(node.clone()),
            version_info: accepted.version.clone(),
            type_url: RESOURCE_TYPE_URL.to_owned(),
            response_nonce: response.nonce,
            error_detail,
            ..DiscoveryRequest::default()
        };
        sender.send(acknowledgement).await.map_err(stream_closed)?;
    }
    Ok(())
}

fn compile_rules(response: &DiscoveryResponse, merge_domains: bool) -> Result<DescriptorRules, String> {
    let read = |resource: &Any| {
        if resource.type_url != RESOURCE_TYPE_URL {
            return Err(format!("unexpected resource type: {}", resource.type_url));
        }
        RateLimitConfig::decode(&*resource.value).map_err(|error| error.to_string())
    };
    let configs = response.resources.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let mut named: Vec<_> =
        configs.into_iter().map(|config| (config.name.clone(), convert_document(config))).collect();
    // Sorted like files, so that the result does not depend on the order of arrival.
    named.sort_by(|(one, _), (other, _)| one.cmp(other));
    let documents = named.iter().map(|(name, document)| (name.as_str(), document.clone()));
    DescriptorRules::from_documents(documents, merge_domains).map_err(|error| error.to_string())
}

fn convert_document(config: RateLimitConfig) -> DomainDocument {
    let descriptors = config.descriptors.into_iter();
    DomainDocument {
        domain: config.domain,
        descriptors: descriptors.map(|wire| convert_descriptor(wire, 1)).collect(),
    }
}

fn convert_descriptor(wire: RateLimitDescriptor, depth: usize) -> DescriptorDocument {
    // Deeper levels exceed the maximum of the rules, which reject the document.
    let children = if depth < MAX_DEPTH { wire.descriptors } else { Vec::new() };
    DescriptorDocument {
        key: wire.key,
        value: wire.value,
        rate_limit: wire.rate_limit.map(convert_limit),
        shadow_mode: wire.shadow_mode,
        quota_mode: wire.quota_mode,
        detailed_metric: wire.detailed_metric,
        metadata: wire.metadata.map(struct_to_json),
        descriptors: children.into_iter().map(|wire| convert_descriptor(wire, depth + 1)).collect(),
        // The protocol lacks the other fields.
        ..DescriptorDocument::default()
    }
}

fn convert_limit(wire: RateLimitPolicy) -> LimitDocument {
    // The reference keeps the name of an unknown unit, and rejects it.
    let unit = if wire.unlimited { String::new() } else { wire.unit().as_str_name().to_lowercase() };
    LimitDocument {
        requests_per_unit: wire.requests_per_unit,
        unit,
        unlimited: wire.unlimited,
        name: wire.name,
        replaces: wire.replaces.into_iter().map(|other| other.name).collect(),
    }
}

fn node_metadata(pairs: &BTreeMap<String, String>) -> Struct {
    let text = |text: &String| WireValue { kind: Some(Kind::StringValue(text.clone())) };
    Struct { fields: pairs.iter().map(|(name, value)| (name.clone(), text(value))).collect() }
}

fn struct_to_json(wire: Struct) -> Map<String, Value> {
    // Sorted by name, because a `Struct` has no order.
    let fields: BTreeMap<_, _> = wire.fields.into_iter().collect();
    fields.into_iter().map(|(name, value)| (name, value_to_json(value))).collect()
}

fn value_to_json(wire: WireValue) -> Value {
    match wire.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::BoolValue(value)) => value.into(),
        Some(Kind::NumberValue(number)) => number.into(),
        Some(Kind::StringValue(text)) => text.into(),
        Some(Kind::ListValue(list)) => list.values.into_iter().map(value_to_json).collect(),
        Some(Kind::StructValue(map)) => Value::Object(struct_to_json(map)),
    }
}
