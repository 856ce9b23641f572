//! Where a rule's limit is kept, as people write it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use super::{Duration, OneOrMany, UpstreamAddress, UpstreamTls};
use crate::config::defaults;
use crate::config::parse::duration_text as shown;
use crate::rules::remote_limit::OnError;

/// Where a rule's limit is kept.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Scope {
    /// In a word.
    Word(ScopeWord),
    /// By another rate limit service.
    Remote(Box<RemoteScope>),
}

/// Where a rule's limit is kept.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ScopeWord {
    /// In this process.
    Local,
}

/// A limit that another rate limit service keeps, by Envoy's protocol.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RemoteScope {
    /// Where it is: `host:port`, `https://host:port` or `unix:/path`.
    #[schemars(required)]
    pub rls: Option<UpstreamAddress>,
    /// The domain under which it is asked.
    #[schemars(required)]
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
