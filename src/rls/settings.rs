//! How the service behaves as a whole: what the reference takes from its environment, and what is ours.

use std::collections::HashMap;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

/// Settings of the service. The default is the reference's.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// `SHADOW_MODE`: nothing is over on the whole.
    pub shadow_mode: bool,
    /// `QUOTA_MODE`: every limit is one of several quotas.
    pub quota_mode: bool,
    /// `NEAR_LIMIT_RATIO`: from which share of a limit hits are near it.
    pub near_limit_ratio: f32,
    /// `LIMIT_RESPONSE_HEADERS_ENABLED`, with the names.
    pub headers: Option<HeaderNames>,
    /// `RESPONSE_DYNAMIC_METADATA`.
    pub dynamic_metadata: bool,
    /// `HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED`: nobody should come before there are rules.
    pub needs_rules: bool,
    /// What a request that is over counts.
    pub counting: Counting,
    /// What is different for single domains.
    pub domains: HashMap<Box<str>, DomainSettings>,
}

/// What is different for one domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DomainSettings {
    /// What a request that is over counts.
    pub counting: Option<Counting>,
    /// How time gives back.
    pub smoothing: Smoothing,
}

/// How time gives back what was used of a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Smoothing {
    /// All at once, when a window ends.
    #[default]
    #[serde(rename = "fixed_window")]
    Windows,
    /// Evenly.
    Gcra,
}

/// What a request that is over counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Counting {
    /// All its descriptors, also those that are over.
    #[default]
    Everything,
    /// Only the descriptors that are over.
    OnlyOver,
    /// Nothing.
    AllOrNothing,
}

/// `LIMIT_LIMIT_HEADER` and its like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderNames {
    /// For the limit.
    pub limit: Arc<str>,
    /// For what is left.
    pub remaining: Arc<str>,
    /// For the seconds until the window ends.
    pub reset: Arc<str>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            shadow_mode: false,
            quota_mode: false,
            near_limit_ratio: 0.8,
            headers: None,
            dynamic_metadata: false,
            needs_rules: false,
            counting: Counting::default(),
            domains: HashMap::new(),
        }
    }
}

impl Default for HeaderNames {
    fn default() -> Self {
        Self {
            limit: "RateLimit-Limit".into(),
            remaining: "RateLimit-Remaining".into(),
            reset: "RateLimit-Reset".into(),
        }
    }
}

impl Settings {
    pub(super) fn counting_of(&self, domain: &str) -> Counting {
        self.domains.get(domain).and_then(|own| own.counting).unwrap_or(self.counting)
    }

    pub(super) fn smoothing_of(&self, domain: &str) -> Smoothing {
        self.domains.get(domain).map_or(Smoothing::Windows, |own| own.smoothing)
    }
}
