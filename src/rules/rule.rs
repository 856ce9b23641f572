//! A rule as compiled: whom it is for, and what it does to them.

use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use super::attribute::Attribute;
use super::enforce::Enforce;
use super::key::{self, KeyTemplate};
use super::matcher::{Match, Matcher};
use super::pattern::Route;
use super::remote_limit::RemoteLimit;
use super::shared_limit::SharedLimit;
use super::tariff::Tariff;
use crate::identify::Attributes;
use crate::limiter::algorithm::conversion::OnChange;
use crate::limiter::elastic::{Prices, Stretch};
use crate::limiter::percent::Percent;
use crate::limiter::quota::{Ban, Quota};
use crate::limiter::terms::{OnDenied, Slack};

/// One rule of the configuration.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Unique; also the identity of its counters across reloads.
    pub name: Box<str>,
    /// All of it must hold.
    pub matcher: Matcher,
    /// Where all of any of these holds too, the rule does not apply.
    pub except: Box<[Matcher]>,
    /// What it does.
    pub action: Action,
    /// It is also for what Envoy asks about under this domain.
    pub domain: Option<Box<str>>,
}

/// What a rule does to the requests it applies to.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "almost every rule is the large one, and there are few")]
pub enum Action {
    /// Exempts from every other rule.
    Allow,
    /// Refuses with 403.
    Deny,
    /// Counts, and refuses what is over.
    Limit(Limiting),
}

/// A limiting rule's particulars.
#[derive(Clone, Debug)]
pub struct Limiting {
    /// The counter that its limits and `in_flight` charge, where that is not its own: rules that name the same counter
    /// charge the same one.
    pub counter: Option<Box<str>>,
    /// What is counted apart.
    pub key: KeyTemplate,
    /// What to do where a part of the key is absent.
    pub on_missing: OnMissing,
    /// All of them must have room.
    pub limits: Box<[RuleLimit]>,
    /// What each request costs.
    pub tariff: Tariff,
    /// What becomes of requests that are over.
    pub throttle: Throttle,
    /// The keys for which it is in force; for the others it only looks on.
    pub enforce: Enforce,
    /// So many requests of a key may be under way at once.
    pub in_flight: Option<NonZeroU32>,
    /// How long a key is refused everything once it has been refused.
    pub ban: Option<Ban>,
    /// What a refused request costs.
    pub on_denied: OnDenied,
    /// What a reload does to its counters when it changes a limit.
    pub on_change: OnChange,
    /// Where its limit is counted.
    pub source: LimitSource,
}

impl Limiting {
    /// Whether it is in force for the key of a request that matched by a route, and does not only look on. Requests
    /// without a whole key are one key.
    pub(super) fn is_enforced(&self, keyed: Option<(&Attributes<'_>, Route<'_>)>) -> bool {
        if self.throttle == Throttle::Shadow || self.enforce.is_for_all() {
            return self.throttle != Throttle::Shadow;
        }
        match keyed.and_then(|(request, route)| self.key.encoded(request, route).ok()) {
            Some(encoded) => self.enforce.includes(&encoded),
            None => self.enforce.includes(key::SHARED),
        }
    }
}

/// Where a limit is counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LimitSource {
    /// In this process.
    #[default]
    Local,
    /// In another rate limit service. The rule's own limits are for when that does not respond.
    Remote(Box<RemoteLimit>),
    /// In all instances together.
    Shared(SharedLimit),
}

impl Default for Limiting {
    /// No limits, one counter for all, a unit per request.
    fn default() -> Self {
        Self {
            counter: None,
            key: KeyTemplate::default(),
            on_missing: OnMissing::default(),
            limits: Box::default(),
            tariff: Tariff::fixed(1),
            throttle: Throttle::default(),
            enforce: Enforce::default(),
            in_flight: None,
            ban: None,
            on_denied: OnDenied::default(),
            on_change: OnChange::default(),
            source: LimitSource::Local,
        }
    }
}

/// One of a rule's limits.
#[derive(Clone, Debug)]
pub struct RuleLimit {
    /// What it allows, as written.
    pub quota: Quota,
    /// What it allows before it refuses, where that is more: `soft`.
    pub raised: Option<Quota>,
    /// What a request costs of it, if that varies: an elastic limit.
    pub prices: Option<Prices>,
    /// One of several networks around a client, if they are counted at once.
    pub nested: Option<Box<Nested>>,
}

/// One of several networks around an IPv6 client, each with a limit of its own. An IPv4 client is counted
/// under the first of them alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nested {
    /// Leading bits of the address that make the network.
    pub prefix: u8,
    /// The rule's key with this network in it; the first has the rule's own.
    pub key: Option<KeyTemplate>,
}

impl Nested {
    /// Whether only IPv6 clients are counted under it.
    pub const fn is_wider(&self) -> bool {
        self.key.is_some()
    }
}

impl RuleLimit {
    /// The key under which it counts, where that is not the rule's.
    pub fn own_key(&self) -> Option<&KeyTemplate> {
        self.nested.as_ref()?.key.as_ref()
    }
}

impl From<Quota> for RuleLimit {
    /// A limit that refuses what it does not allow.
    fn from(quota: Quota) -> Self {
        Self { quota, raised: None, prices: None, nested: None }
    }
}

/// What becomes of requests that are over a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Throttle {
    /// They are refused.
    #[default]
    Hard,
    /// They are counted and reported.
    Shadow,
    /// They pass with a mark, until they are over by more than this.
    Soft {
        /// By how much limit and burst are raised.
        margin: Percent,
        /// How long those over the limit are held back.
        delay: Option<Duration>,
    },
    /// They wait until there is room.
    Delay(Slack),
    /// They pass up to so many times the limit while the upstream has headroom.
    Elastic(Stretch),
}

impl fmt::Display for Throttle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hard => f.write_str("hard"),
            Self::Shadow => f.write_str("shadow"),
            Self::Soft { margin, delay: None } => write!(f, "soft {margin}"),
            Self::Soft { margin, delay: Some(delay) } => write!(f, "soft {margin}, delay {delay:?}"),
            Self::Delay(slack) => write!(f, "delay {slack}"),
            Self::Elastic(stretch) => write!(f, "elastic {stretch}"),
        }
    }
}

/// What to do where a part of the key is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnMissing {
    /// The rule does not apply.
    #[default]
    Skip,
    /// All such requests share one counter.
    Shared,
    /// Refuse with 403.
    Deny,
}

impl Rule {
    /// Whether the rule applies to a request, and by which route.
    pub fn applies_to<'a>(&'a self, request: &Attributes<'_>) -> Match<'a> {
        let mut found = self.matcher.matches(request);
        for except in &self.except {
            let (Match::Yes(route) | Match::Unclear(route, _)) = found else { return found };
            match except.matches(request) {
                Match::No => {}
                Match::Yes(_) => return Match::No,
                Match::Unclear(_, ambiguity) => found = Match::Unclear(route, ambiguity),
            }
        }
        found
    }

    /// Whether it looks at what only Envoy's descriptors have; then it is for no proxied request.
    pub fn reads_descriptors(&self) -> bool {
        self.key().iter().any(|part| part.source().descriptor().is_some())
            || self.matchers().any(Matcher::reads_descriptors)
    }

    fn matchers(&self) -> impl Iterator<Item = &Matcher> {
        std::iter::once(&self.matcher).chain(&self.except)
    }

    fn key(&self) -> &[Attribute] {
        match &self.action {
            Action::Limit(limiting) => &limiting.key.0,
            Action::Allow | Action::Deny => &[],
        }
    }

    /// What it tells clients apart by: the parts of its key, and what plans are found by that it asks about.
    pub fn identifying(&self) -> impl Iterator<Item = &Attribute> {
        let conditions = self.matchers().flat_map(|matcher| &matcher.conditions);
        let attributes = self.key().iter().chain(conditions.map(|condition| &condition.attribute));
        let of_plans = attributes.filter_map(|attribute| Some(&attribute.source().plans()?.of));
        self.key().iter().chain(of_plans)
    }

    /// The name of the counter that it charges: its own name, unless it names another. Clients see it as the name of
    /// the quota policy.
    pub fn counter(&self) -> &str {
        match &self.action {
            Action::Limit(limiting) => limiting.counter.as_deref().unwrap_or(&self.name),
            Action::Allow | Action::Deny => &self.name,
        }
    }

    /// Its limits; none unless it limits.
    pub fn limits(&self) -> &[RuleLimit] {
        match &self.action {
            Action::Limit(limiting) => &limiting.limits,
            Action::Allow | Action::Deny => &[],
        }
    }

    /// Whether any of its limits is elastic.
    pub fn is_elastic(&self) -> bool {
        self.stretch().is_some()
    }

    /// How far its limits stretch, if they do.
    pub fn stretch(&self) -> Option<Stretch> {
        self.limits().iter().find_map(|limit| Some(limit.prices?.stretch()))
    }
}
