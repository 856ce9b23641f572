//! How the service behaves as a whole: what the reference takes from its environment, and what is ours.

use std::collections::HashMap;
use std::sync::Arc;

/// Settings of the service. The default is the reference's.
#[derive(Clone, Debug)]
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
    /// The same for single domains.
    pub counting_of: HashMap<Box<str>, Counting>,
}

/// What a request that is over counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Counting {
    /// All its descriptors, those that are over as well.
    #[default]
    Everything,
    /// `STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT`: only the descriptors that are over.
    OnlyOver,
    /// Nothing: refused clients do not use up their other limits, nor the one that refuses them.
    AllOrNothing,
}

/// `LIMIT_LIMIT_HEADER` and its like.
#[derive(Clone, Debug)]
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
            counting_of: HashMap::new(),
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
        self.counting_of.get(domain).copied().unwrap_or(self.counting)
    }
}
