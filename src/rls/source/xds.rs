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

use crate::jitter::{backoff, equal_jitter};
use crate::remote::channel::{self, Place};
use crate::rls::desk::Desk;
use crate::rls::document::{DescriptorDocument, Document, LimitDocument};
use crate::rls::rules::Rules;
use crate::tls::client::{self, TlsClient};

const TYPE: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// `INVALID_ARGUMENT` of `google.rpc.Code`.
const INVALID: i32 = 3;

/// Maximum nesting of converted documents; the rules' maximum is lower.
const DEEPEST: usize = 200;

/// A management server and how to query it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Address of the server.
    pub place: Place,
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
    pub largest: usize,
    /// Whether a domain may be in several documents.
    pub merge_domains: bool,
}

/// The last applied response.
#[derive(Debug, Default)]
struct Accepted {
    version: String,
}

/// Applies the server's rules to a desk while it is polled. Follows changes of `settings`.
pub async fn follow(mut settings: watch::Receiver<Arc<Settings>>, desk: Arc<Desk>) {
    let mut accepted = Accepted::default();
    loop {
        let now = Arc::clone(&settings.borrow_and_update());
        tokio::select! {
            () = stay(&now, &desk, &mut accepted) => {}
            changed = settings.changed() => if changed.is_err() {
                return std::future::pending().await;
            },
        }
    }
}

/// Connects to the server, again after each failure.
async fn stay(settings: &Settings, desk: &Desk, accepted: &mut Accepted) {
    let client = settings.tls.clone().map(|tls| TlsClient::new(tls).map(Arc::new)).transpose();
    let server = &settings.place;
    let channel = match client.map(|client| channel::open(server, client)) {
        Ok(Ok(channel)) => channel,
        Ok(Err(error)) => return give_up(&error).await,
        Err(error) => return give_up(&error).await,
    };
    let (first, longest) = settings.backoff;
    let mut failures = 0_u32;
    loop {
        let mut has_answered = false;
        let ended = session(settings, &channel, desk, accepted, &mut has_answered).await;
        failures = if has_answered { 1 } else { failures.saturating_add(1) };
        let pause = equal_jitter(backoff(first, longest, failures));
        match ended {
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
async fn give_up(error: &dyn std::error::Error) {
    tracing::error!(%error, "cannot connect to the management server");
    std::future::pending().await
}

/// Runs one stream until it ends.
async fn session(
    settings: &Settings,
    channel: &Channel,
    desk: &Desk,
    accepted: &mut Accepted,
    has_answered: &mut bool,
) -> Result<(), Status> {
    let mut client =
        AggregatedDiscoveryServiceClient::new(channel.clone()).max_decoding_message_size(settings.largest);
    let (sender, receiver) = mpsc::channel(2);
    let node = Node {
        id: settings.node.to_string(),
        metadata: Some(metadata(&settings.metadata)),
        ..Node::default()
    };
    let first = DiscoveryRequest {
        node: Some(node.clone()),
        version_info: accepted.version.clone(),
        type_url: TYPE.to_owned(),
        ..DiscoveryRequest::default()
    };
    let gone = |_| Status::unavailable("the stream has ended");
    sender.send(first).await.map_err(gone)?;
    let mut request = tonic::Request::new(ReceiverStream::new(receiver));
    for (name, value) in &settings.headers {
        request.metadata_mut().append(name.clone(), value.clone());
    }
    let mut answers = client.stream_aggregated_resources(request).await?.into_inner();
    while let Some(answer) = answers.message().await? {
        *has_answered = true;
        let taken = take(&answer, settings.merge_domains);
        desk.stats().loaded(taken.is_ok());
        let error_detail = match taken {
            Ok(rules) => {
                desk.set_rules(Arc::new(rules));
                tracing::info!(version = answer.version_info, "rate limit rules loaded");
                accepted.version = answer.version_info;
                None
            }
            Err(message) => {
                tracing::error!(version = answer.version_info, error = message, "rate limit rules rejected");
                Some(rpc::Status { code: INVALID, message, details: Vec::new() })
            }
        };
        let reply = DiscoveryRequest {
            node: Some(node.clone()),
            version_info: accepted.version.clone(),
            type_url: TYPE.to_owned(),
            response_nonce: answer.nonce,
            error_detail,
            ..DiscoveryRequest::default()
        };
        sender.send(reply).await.map_err(gone)?;
    }
    Ok(())
}

/// Compiles the rules of a response.
fn take(answer: &DiscoveryResponse, merge_domains: bool) -> Result<Rules, String> {
    let read = |resource: &Any| {
        if resource.type_url != TYPE {
            return Err(format!("unexpected resource type: {}", resource.type_url));
        }
        RateLimitConfig::decode(&*resource.value).map_err(|error| error.to_string())
    };
    let configs = answer.resources.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let mut named: Vec<_> =
        configs.into_iter().map(|config| (config.name.clone(), document(config))).collect();
    // Sorted like files, so that the result does not depend on the order of arrival.
    named.sort_by(|(one, _), (other, _)| one.cmp(other));
    let documents = named.iter().map(|(name, document)| (name.as_str(), document.clone()));
    Rules::load(documents, merge_domains).map_err(|error| error.to_string())
}

fn document(config: RateLimitConfig) -> Document {
    let descriptors = config.descriptors.into_iter();
    Document { domain: config.domain, descriptors: descriptors.map(|wire| descriptor(wire, 1)).collect() }
}

fn descriptor(wire: RateLimitDescriptor, depth: usize) -> DescriptorDocument {
    // Deeper levels exceed the maximum of the rules, which reject the document.
    let below = if depth < DEEPEST { wire.descriptors } else { Vec::new() };
    DescriptorDocument {
        key: wire.key,
        value: wire.value,
        rate_limit: wire.rate_limit.map(limit),
        shadow_mode: wire.shadow_mode,
        quota_mode: wire.quota_mode,
        detailed_metric: wire.detailed_metric,
        metadata: wire.metadata.map(json),
        descriptors: below.into_iter().map(|wire| descriptor(wire, depth + 1)).collect(),
        // The protocol lacks the other fields.
        ..DescriptorDocument::default()
    }
}

fn limit(wire: RateLimitPolicy) -> LimitDocument {
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

fn metadata(pairs: &BTreeMap<String, String>) -> Struct {
    let text = |text: &String| WireValue { kind: Some(Kind::StringValue(text.clone())) };
    Struct { fields: pairs.iter().map(|(name, value)| (name.clone(), text(value))).collect() }
}

fn json(wire: Struct) -> Map<String, Value> {
    // Sorted by name, because a `Struct` has no order.
    let fields: BTreeMap<_, _> = wire.fields.into_iter().collect();
    fields.into_iter().map(|(name, value)| (name, json_value(value))).collect()
}

fn json_value(wire: WireValue) -> Value {
    match wire.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::BoolValue(value)) => value.into(),
        Some(Kind::NumberValue(number)) => number.into(),
        Some(Kind::StringValue(text)) => text.into(),
        Some(Kind::ListValue(list)) => list.values.into_iter().map(json_value).collect(),
        Some(Kind::StructValue(map)) => Value::Object(json(map)),
    }
}
