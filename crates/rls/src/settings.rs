//! Settings of the service: those of the reference's environment variables, and Weir's own.

use std::collections::HashMap;
use std::sync::Arc;

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::Deserialize;

/// Settings of the service. The defaults are the reference's.
#[derive(Clone, Debug, PartialEq)]
pub struct RlsSettings {
    /// `SHADOW_MODE`: the overall code is always OK.
    pub shadow_mode: bool,
    /// `QUOTA_MODE`: all limits are quotas, which reject only together.
    pub quota_mode: bool,
    /// `NEAR_LIMIT_RATIO`: share of a limit from which hits count as near it.
    pub near_limit_ratio: f32,
    /// `LIMIT_RESPONSE_HEADERS_ENABLED`, with the names of the headers.
    pub header_names: Option<HeaderNames>,
    /// `RESPONSE_DYNAMIC_METADATA`.
    pub dynamic_metadata: bool,
    /// Unhealthy until rules have been loaded.
    pub needs_rules: bool,
    /// `HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED`: unhealthy while the rules have no domain.
    pub needs_domains: bool,
    /// What a request counts if it exceeds a limit.
    pub counting: Counting,
    /// Settings of single domains.
    pub domains: HashMap<Box<str>, DomainSettings>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DomainSettings {
    /// What a request counts if it exceeds a limit; the service's setting if `None`.
    pub counting: Option<Counting>,
    /// How used units become available again.
    pub smoothing: Smoothing,
}

/// How used units of a limit become available again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Smoothing {
    /// All at once, at the end of a window.
    #[default]
    #[serde(rename = "fixed_window")]
    FixedWindow,
    /// Evenly over time (GCRA).
    Gcra,
}

/// What a request counts if it exceeds a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Counting {
    /// All its descriptors, including those that are over their limit.
    #[default]
    Everything,
    /// Only the descriptors that are over their limit.
    OnlyOver,
    /// Nothing.
    AllOrNothing,
}

/// Header names: `LIMIT_LIMIT_HEADER` and similar variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderNames {
    /// Header with the limit.
    pub limit: Arc<str>,
    /// Header with the remaining hits.
    pub remaining: Arc<str>,
    /// Header with the seconds until the window ends.
    pub reset: Arc<str>,
}

impl Default for RlsSettings {
    fn default() -> Self {
        Self {
            shadow_mode: false,
            quota_mode: false,
            near_limit_ratio: 0.8,
            header_names: None,
            dynamic_metadata: false,
            needs_rules: false,
            needs_domains: false,
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

impl RlsSettings {
    pub(super) fn counting_of(&self, domain: &str) -> Counting {
        self.domains.get(domain).and_then(|own| own.counting).unwrap_or(self.counting)
    }

    pub(super) fn smoothing_of(&self, domain: &str) -> Smoothing {
        self.domains.get(domain).map_or(Smoothing::FixedWindow, |own| own.smoothing)
    }
}
