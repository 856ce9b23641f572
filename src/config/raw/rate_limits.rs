//! Envoy's rate limit service as people write it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    Address, Backoff, Connections, Duration, OneOrMany, Percentage, ScopeWord, Secret, Size, Tls,
    UpstreamAddress, UpstreamTls,
};
use crate::config::defaults;
use crate::config::parse::duration_text as shown;
use crate::rls::settings::{Counting, Smoothing};
use crate::rules::shared_limit::{Fairness, Mode, OnStoreLoss};

/// Envoy's rate limit service, as envoyproxy/ratelimit answers it.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rls {
    /// Where it answers gRPC.
    #[schemars(required)]
    pub address: Option<Address>,
    /// Where it answers `POST /json` and `GET /healthcheck`.
    pub http: Option<Address>,
    /// Where it shows its rules and statistics, at `/rlconfig` and `/stats`.
    pub debug: Option<Address>,
    /// Where Prometheus finds its statistics; on the admin port they are always.
    pub prometheus: Option<RlsPrometheus>,
    /// Where its statistics are sent every now and then.
    pub statsd: Option<Statsd>,
    /// TLS of the gRPC port; plain unless given.
    pub tls: Option<Box<Tls>>,
    /// Names of which a client's certificate must have one; needs `tls.client_ca`.
    pub client_names: Option<OneOrMany<String>>,
    /// Where its rules are.
    pub config: Option<RlsConfig>,
    /// Where the limits of its documents are kept: by itself, or in all instances together, which is the default with a `store`.
    pub scope: Option<RlsScope>,
    /// What a request that is over counts.
    #[schemars(extend("default" = "everything"))]
    pub counting: Option<Counting>,
    /// What is different for single domains.
    pub domains: Option<BTreeMap<String, RlsDomain>>,
    /// Whether nothing is ever over on the whole.
    #[schemars(extend("default" = false))]
    pub shadow_mode: Option<bool>,
    /// Whether every limit is one of several quotas, which refuse only together.
    #[schemars(extend("default" = false))]
    pub quota_mode: Option<bool>,
    /// From which share of a limit on hits count as near it.
    #[schemars(extend("default" = defaults::NEAR_LIMIT))]
    pub near_limit: Option<Percentage>,
    /// Whether it has Envoy add headers of its own to answers, and under which names.
    #[schemars(extend("default" = false))]
    pub response_headers: Option<ResponseHeaders>,
    /// Whether answers come with dynamic metadata.
    #[schemars(extend("default" = false))]
    pub dynamic_metadata: Option<bool>,
    /// Whether health is good while there are no rules yet.
    #[schemars(extend("default" = false))]
    pub healthy_without_rules: Option<bool>,
    /// How connections are treated.
    pub connections: Option<RlsConnections>,
}

/// Where statistics are sent by UDP, as statsd takes them.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Statsd {
    /// `host:port`.
    #[schemars(required)]
    pub address: Option<String>,
    /// How often.
    #[schemars(extend("default" = shown(defaults::STATSD_INTERVAL)))]
    pub interval: Option<Duration>,
    /// Added to every name, as `.__NAME=VALUE`.
    pub tags: Option<BTreeMap<String, String>>,
}

/// Where Prometheus finds statistics.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RlsPrometheus {
    /// The port.
    #[schemars(required)]
    pub address: Option<Address>,
    /// The path.
    #[schemars(extend("default" = defaults::METRICS_PATH))]
    pub path: Option<String>,
}

/// Where rules are, in the language of envoyproxy/ratelimit.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RlsConfig {
    /// A directory: every file in it and below is read, and again when it changes. Relative to the file that names it.
    pub directory: Option<String>,
    /// A management server that sends them, instead.
    pub xds: Option<RlsXds>,
    /// Only files are read whose paths below the directory, with `.` for `/`, begin with this.
    pub prefix: Option<String>,
    /// Whether files are read whose names begin with a full stop.
    #[schemars(extend("default" = false))]
    pub dotfiles: Option<bool>,
    /// Whether a domain may be in several files.
    #[schemars(extend("default" = false))]
    pub merge_domains: Option<bool>,
    /// Whether there must be valid rules at the start.
    #[schemars(extend("default" = true))]
    pub required: Option<bool>,
}

/// A management server, asked by the aggregated discovery service.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RlsXds {
    /// Where it is.
    #[schemars(required)]
    pub address: Option<UpstreamAddress>,
    /// TLS, where its address begins with `https://`.
    pub tls: Option<Box<UpstreamTls>>,
    /// Who asks.
    #[schemars(extend("default" = defaults::XDS_NODE))]
    pub node: Option<String>,
    /// What else is said of who asks.
    pub metadata: Option<BTreeMap<String, String>>,
    /// Headers sent along when the stream is opened.
    pub headers: Option<BTreeMap<String, Secret<String>>>,
    /// The first pause before it is asked again, and the longest.
    #[schemars(extend("default" = "10s..60s"))]
    pub backoff: Option<Backoff>,
    /// The largest answer.
    #[schemars(extend("default" = "16MiB"))]
    pub largest: Option<Size>,
}

/// Where the limits of documents are kept.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum RlsScope {
    /// In a word.
    Word(ScopeWord),
    /// In all instances together.
    Map(RlsScopeMap),
}

/// How instances share the limits of documents.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RlsScopeMap {
    /// How units of a limit reach an instance: claimed by demand, or counted by the store for each call.
    #[schemars(extend("default" = "lease"))]
    pub shared: Option<Mode>,
    /// How long a call may wait for the store; `0s` for never.
    #[schemars(extend("default" = shown(defaults::SHARED_WAIT)))]
    pub wait: Option<Duration>,
    /// What an instance allows while it has no connection to the store: its part, nothing, everything, or the whole limit.
    #[schemars(extend("default" = "split"))]
    pub on_store_loss: Option<OnStoreLoss>,
    /// How units are shared out when instances demand more than there are: in proportion, or small demands first.
    #[schemars(extend("default" = "proportional"))]
    pub fairness: Option<Fairness>,
}

/// What is different for one domain.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RlsDomain {
    /// What a request that is over counts.
    pub counting: Option<Counting>,
    /// How time gives back what was used of a limit.
    pub algorithm: Option<Smoothing>,
}

/// Headers that the service has Envoy add.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ResponseHeaders {
    /// Whether there are any.
    Switch(bool),
    /// Their names.
    Names(ResponseHeaderNames),
}

/// Names of headers.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResponseHeaderNames {
    /// For the limit.
    #[schemars(extend("default" = defaults::LIMIT_HEADER))]
    pub limit: Option<String>,
    /// For what is left of it.
    #[schemars(extend("default" = defaults::REMAINING_HEADER))]
    pub remaining: Option<String>,
    /// For the seconds until all of it is there again.
    #[schemars(extend("default" = defaults::RESET_HEADER))]
    pub reset: Option<String>,
}

/// How connections of gRPC are treated.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RlsConnections {
    /// After this, a tenth more or less, a client is told to connect anew.
    #[schemars(extend("default" = shown(defaults::RLS_MAX_AGE)))]
    pub max_age: Option<Duration>,
    /// How long it then has for what is under way.
    #[schemars(extend("default" = shown(defaults::RLS_GRACE)))]
    pub grace: Option<Duration>,
    /// Connections at once; one more takes the place of the one that has been silent for the longest time.
    #[schemars(extend("default" = "auto"))]
    pub max: Option<Connections>,
}
