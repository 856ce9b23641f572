//! Where a rule's limit is kept, as people write it.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use schemars::JsonSchema;
use serde::Deserialize;

use super::{Auto, Duration, OneOrMany, UpstreamAddress, UpstreamTls};
use crate::config::defaults;
use crate::config::parse::duration_text as shown;
use crate::rules::remote_limit::OnError;
use crate::rules::shared_limit::{Fairness, MAX_PRIORITY, Mode, OnStoreLoss};

/// Where a rule's limit is kept.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Scope {
    /// In a word.
    Word(ScopeWord),
    /// By another rate limit service, or in all instances together.
    Map(Box<ScopeMap>),
}

/// Where a rule's limit is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ScopeWord {
    /// In this process.
    Local,
    /// In all instances together, through the store.
    Shared,
}

/// Another rate limit service, asked by Envoy's protocol (`rls`), or all instances together (`shared` or `instances`).
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScopeMap {
    /// Where another service is: `host:port`, `https://host:port` or `unix:/path`.
    pub rls: Option<UpstreamAddress>,
    /// The domain under which it is asked.
    pub domain: Option<String>,
    /// The entries of the descriptor: names for the parts of the key in their order, and fixed entries as `KEY: VALUE`.
    pub descriptor: Option<OneOrMany<Entry>>,
    /// How long its answer may take.
    #[schemars(extend("default" = shown(defaults::REMOTE_TIMEOUT)))]
    pub timeout: Option<Duration>,
    /// What becomes of a request without an answer: it passes, is refused, or the rule's own limits decide.
    #[schemars(extend("default" = "allow"))]
    pub on_error: Option<OnError>,
    /// TLS, where its address begins with `https://`.
    pub tls: Option<Box<UpstreamTls>>,
    /// How units of a shared limit reach an instance: claimed by demand, the limit divided by the number of instances, or
    /// counted by the store for each request.
    pub shared: Option<Mode>,
    /// How long a request may wait for the store; `0s` for never.
    #[schemars(extend("default" = shown(defaults::SHARED_WAIT)))]
    pub wait: Option<Duration>,
    /// What an instance allows while it has no connection to the store: its part, nothing, everything, or the whole limit.
    #[schemars(extend("default" = "split"))]
    pub on_store_loss: Option<OnStoreLoss>,
    /// How units are shared out when instances demand more than there are: in proportion, or small demands first.
    #[schemars(extend("default" = "proportional"))]
    pub fairness: Option<Fairness>,
    /// Who is served first when there is not enough; 0 is the first.
    #[schemars(range(min = 0, max = MAX_PRIORITY), extend("default" = defaults::SHARED_PRIORITY))]
    pub priority: Option<u8>,
    /// The number of instances that the limit is divided by: itself, the addresses of a name, or `auto` by the store.
    pub instances: Option<Instances>,
}

/// The number of instances.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Instances {
    /// This many.
    Count(#[schemars(range(min = 1, max = 1_000_000))] NonZeroU32),
    /// As many as are registered in the store.
    Auto(Auto),
    /// As many as a name has addresses.
    Dns(InstancesDns),
}

/// A name with an address for each instance, such as that of a headless service.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InstancesDns {
    /// The name.
    #[schemars(required)]
    pub dns: Option<String>,
}

/// An entry of a descriptor.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
pub enum Entry {
    /// The name of the next part of the key.
    Name(#[schemars(extend("title" = "name"))] String),
    /// A fixed one: its key and its value.
    Fixed(BTreeMap<String, String>),
}
