//! The snapshots of `/events`, as far as `weir top` shows them. Absent fields have defaults, so that an instance of
//! another version can be shown.

use serde::Deserialize;

use weir_policy::rules::cost_unit::CostUnit;

/// State of an instance at one moment. Counts are cumulative.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ReceivedSnapshot {
    pub(super) time: String,
    pub(super) uptime_seconds: f64,
    pub(super) version: String,
    pub(super) generation: u64,
    pub(super) draining: bool,
    pub(super) requests: ReceivedRequests,
    pub(super) in_flight: u64,
    pub(super) notices: Vec<String>,
    pub(super) rules: Vec<ReceivedRule>,
    pub(super) upstreams: Vec<ReceivedUpstream>,
    pub(super) config: ReceivedConfig,
    pub(super) top: Vec<ReceivedTop>,
    /// Heaviest keys of limits in the documents of a rate limit service.
    pub(super) documents: Vec<ReceivedTop>,
}

/// Completed requests.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ReceivedRequests {
    pub(super) total: u64,
    pub(super) by_class: ReceivedClasses,
    /// Ended requests by their final outcome; `None` from an instance that does not count them.
    pub(super) by_outcome: Option<ReceivedOutcomes>,
}

/// Ended requests by their final outcome, each once.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ReceivedOutcomes {
    #[serde(flatten)]
    pub(super) decided: ReceivedDecisions,
    pub(super) shed: u64,
    pub(super) not_stored: u64,
}

/// Completed requests by the class of their status code.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ReceivedClasses {
    #[serde(rename = "5xx")]
    pub(super) server_errors: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ReceivedRule {
    pub(super) name: String,
    pub(super) action: String,
    pub(super) limits: Vec<String>,
    /// Limits inside streams.
    pub(super) streams: Option<Vec<ReceivedStream>>,
    /// What the numbers of the limits count.
    pub(super) unit: Option<String>,
    /// Units that responses were charged; `None` if they do not state the cost.
    pub(super) charged_units: Option<u64>,
    pub(super) throttle: Option<String>,
    pub(super) decisions: ReceivedDecisions,
    pub(super) keys: Option<u64>,
    pub(super) factor: Option<f64>,
    pub(super) concurrency: Option<ReceivedConcurrency>,
    pub(super) in_flight: Option<u32>,
    /// Whether it is the sum of rules that are not the same, as during a rollout.
    #[serde(skip)]
    pub(super) differs: bool,
}

/// A limit inside streams.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct ReceivedStream {
    /// With its unit.
    pub(super) limit: String,
}

impl ReceivedRule {
    /// Returns the tokens that responses were charged, if they are what the rule counts.
    pub(super) fn charged_tokens(&self) -> Option<u64> {
        self.charged_units.filter(|_| self.unit.as_deref() == Some(CostUnit::Tokens.as_str()))
    }
}

/// An adaptive concurrency limit.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ReceivedConcurrency {
    pub(super) limit: u32,
}

/// Decisions of a rule by outcome.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ReceivedDecisions {
    pub(super) allowed: u64,
    pub(super) soft: u64,
    pub(super) delayed: u64,
    pub(super) limited: u64,
    pub(super) banned: u64,
    pub(super) denied: u64,
    pub(super) exempt: u64,
    pub(super) shadow: u64,
    pub(super) diverted: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ReceivedUpstream {
    pub(super) name: String,
    pub(super) requests: u64,
    pub(super) p50_ms: Option<f64>,
    pub(super) p99_ms: Option<f64>,
    pub(super) healthy: u64,
    pub(super) endpoints: u64,
}

/// State of the configuration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ReceivedConfig {
    pub(super) problems: Vec<String>,
}

/// Heaviest keys of a rule, or of a limit of documents.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ReceivedTop {
    #[serde(alias = "name")]
    pub(super) rule: String,
    pub(super) keys: Vec<ReceivedKey>,
}

/// A key with its recent decisions.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ReceivedKey {
    pub(super) key: String,
    pub(super) admitted: u64,
    pub(super) rejected: u64,
    pub(super) shadow: u64,
    pub(super) delayed: u64,
    pub(super) banned: bool,
    pub(super) boosted: bool,
}

impl ReceivedKey {
    /// Returns the limited requests of this key in the order of their weight, for sorting.
    pub(super) const fn limited(&self) -> [u64; 3] {
        [self.rejected, self.shadow, self.delayed]
    }

    pub(super) const fn decisions(&self) -> u64 {
        self.admitted.saturating_add(self.rejected).saturating_add(self.shadow)
    }
}
