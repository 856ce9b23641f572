//! Documents from a management server, by the aggregated discovery service in its state-of-the-world form: each answer
//! is the whole set. It is acknowledged when it is in force, and rejected with the reason where it cannot be; the one
//! before stays then. Envoy Gateway feeds its rate limit service in this way alone.

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

use crate::remote::channel::{self, Place};
use crate::rls::desk::Desk;
use crate::rls::document::{DescriptorDocument, Document, LimitDocument};
use crate::rls::rules::Rules;
use crate::tls::client::{self, Client};

const TYPE: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// `INVALID_ARGUMENT` of `google.rpc.Code`.
const INVALID: i32 = 3;

/// Documents are nested no deeper than this; the rules refuse them long before.
const DEEPEST: usize = 200;

/// A management server, and how it is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where it is.
    pub place: Place,
    /// TLS; plain without.
    pub tls: Option<client::Settings>,
    /// Who asks.
    pub node: Box<str>,
    /// What else is said of who asks.
    pub metadata: BTreeMap<String, String>,
    /// Fields sent along when the stream is opened.
    pub headers: Vec<(AsciiMetadataKey, AsciiMetadataValue)>,
    /// The first pause before it is asked again, and the longest.
    pub backoff: (Duration, Duration),
    /// Bytes of one answer.
    pub largest: usize,
    /// Whether a domain may be in several documents.
    pub merge_domains: bool,
}

/// What was taken over last.
#[derive(Debug, Default)]
struct Accepted {
    version: String,
}

/// Keeps a desk's rules as the server has them, by whatever `settings` says now, for as long as it is polled.
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

/// Asks the server, again and again.
async fn stay(settings: &Settings, desk: &Desk, accepted: &mut Accepted) {
    let client = settings.tls.clone().map(|tls| Client::new(tls).map(Arc::new)).transpose();
    let server = &settings.place;
    let channel = match client.map(|client| channel::open(server, client)) {
        Ok(Ok(channel)) => channel,
        Ok(Err(error)) => return give_up(&error).await,
        Err(error) => return give_up(&error).await,
    };
    let (first, longest) = settings.backoff;
    let mut pause = first;
    loop {
        let mut has_answered = false;
        let ended = session(settings, &channel, desk, accepted, &mut has_answered).await;
        if has_answered {
            pause = first;
        }
        match ended {
            Ok(()) => tracing::info!(?server, "the management server has ended the stream"),
            Err(status) => {
                let (code, message) = (status.code(), status.message());
                tracing::warn!(?server, ?code, message, ?pause, "no rules from the management server");
            }
        }
        // Half of it by chance, so that all instances do not come back at once.
        tokio::time::sleep(pause.mul_f64(fastrand::f64().mul_add(0.5, 0.5))).await;
        pause = (pause * 2).min(longest);
    }
}

/// Nothing can be done until the settings change.
async fn give_up(error: &dyn std::error::Error) {
    tracing::error!(%error, "cannot ask the management server");
    std::future::pending().await
}

/// One stream, to its end.
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

/// The rules of an answer.
fn take(answer: &DiscoveryResponse, merge_domains: bool) -> Result<Rules, String> {
    let read = |resource: &Any| {
        if resource.type_url != TYPE {
            return Err(format!("unexpected type of resource: {}", resource.type_url));
        }
        RateLimitConfig::decode(&*resource.value).map_err(|error| error.to_string())
    };
    let configs = answer.resources.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let mut named: Vec<_> =
        configs.into_iter().map(|config| (config.name.clone(), document(config))).collect();
    // As files: what meets in a domain must not depend on the order in which it came.
    named.sort_by(|(one, _), (other, _)| one.cmp(other));
    let documents = named.iter().map(|(name, document)| (name.as_str(), document.clone()));
    Rules::load(documents, merge_domains).map_err(|error| error.to_string())
}

fn document(config: RateLimitConfig) -> Document {
    let descriptors = config.descriptors.into_iter();
    Document { domain: config.domain, descriptors: descriptors.map(|wire| descriptor(wire, 1)).collect() }
}

fn descriptor(wire: RateLimitDescriptor, depth: usize) -> DescriptorDocument {
    // What is below is too deep for the rules, which say so.
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
        // The protocol does not have the others.
        ..DescriptorDocument::default()
    }
}

fn limit(wire: RateLimitPolicy) -> LimitDocument {
    // The reference has an unknown unit under its name, and refuses it.
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
    // In the order of their names: a `Struct` has none.
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
