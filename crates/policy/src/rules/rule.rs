//! A compiled rule: the requests it applies to, and what it does with them.

use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::Deserialize;

use http::HeaderName;
use weir_bodies::fields::FieldMask;

use super::attribute::Attribute;
use super::cost::CostModel;
use super::deferral::Deferral;
use super::enforced_share::EnforcedShare;
use super::feedback::Feedback;
use super::group_place::GroupPlace;
use super::key::{self, KeyTemplate};
use super::matcher::{Match, Matcher};
use super::pattern::Route;
use super::remote_limit::RemoteLimit;
use super::shared_limit::SharedLimit;
use super::stated_limit::StatedLimit;
use super::stream_limit::{STREAM_KEY, StreamLimits};
use super::wait::WaitPolicy;
use crate::identify::Attributes;
use crate::response::rejection::RejectionResponse;
use weir_limiter::adaptive::AdaptiveRange;
use weir_limiter::algorithm::conversion::OnChange;
use weir_limiter::check_options::{DelayPolicy, OnDenied};
use weir_limiter::elastic::{ElasticCosts, ElasticRange};
use weir_limiter::percent::Percent;
use weir_limiter::quota::{Ban, Quota};

/// One rule of the configuration.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Unique name; also identifies the rule's counters across reloads.
    pub name: Box<str>,
    /// Conditions that must all hold.
    pub matcher: Matcher,
    /// Exceptions: if all conditions of any of them hold, the rule does not apply.
    pub except: Box<[Matcher]>,
    /// What the rule does.
    pub action: Action,
    /// The local reply of its rejections.
    pub rejection: RejectionResponse,
    /// Envoy domain whose descriptors the rule applies to, in addition to proxied requests.
    pub domain: Option<Box<str>>,
}

impl Default for Rule {
    /// A rule without a name that applies to every request and has no limits.
    fn default() -> Self {
        Self {
            name: Box::default(),
            matcher: Matcher::default(),
            except: Box::default(),
            action: Action::Limit(LimitAction::default()),
            rejection: RejectionResponse::default(),
            domain: None,
        }
    }
}

/// What a rule does to the requests it applies to.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "almost every rule is the large one, and there are few")]
pub enum Action {
    /// Exempts from every other rule.
    Allow,
    /// Rejects with 403.
    Deny,
    /// Counts, and rejects requests that exceed a limit.
    Limit(LimitAction),
}

impl Action {
    /// Returns the name in configuration.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Limit(_) => "limit",
        }
    }

    /// Returns the settings of a rule that limits.
    pub const fn limiting(&self) -> Option<&LimitAction> {
        match self {
            Self::Limit(limiting) => Some(limiting),
            Self::Allow | Self::Deny => None,
        }
    }
}

/// Settings of a rule that limits.
#[derive(Clone, Debug)]
pub struct LimitAction {
    /// Name of the counter that the limits and `in_flight` charge, if configured. Rules with the same name share it.
    pub counter: Option<Box<str>>,
    /// Parts of the key; each distinct key is counted separately.
    pub key: KeyTemplate,
    /// The key and the value of which different ones are counted; `None` if requests are.
    pub distinct: Option<KeyTemplate>,
    /// What happens to requests that lack a part of the key, or the value.
    pub on_missing: OnMissing,
    /// Limits, all of which a request must pass.
    pub limits: Box<[RuleLimit]>,
    /// Limits inside streams, of what requests and responses transfer.
    pub streams: Option<Box<StreamLimits>>,
    /// Cost of each request.
    pub cost_model: CostModel,
    /// What happens to requests that exceed a limit.
    pub throttle: Throttle,
    /// How requests wait in a queue for room, with [`Throttle::Wait`].
    pub wait: Option<Box<WaitPolicy>>,
    /// Share of the keys for which the rule is enforced; it is in shadow mode for the others.
    pub enforced_share: EnforcedShare,
    /// Maximum number of requests per key in flight.
    pub in_flight: Option<NonZeroU32>,
    /// Bounds within which that number adapts to the latency of the upstream; its maximum is `in_flight`.
    pub adaptive: Option<AdaptiveRange>,
    /// Ban of a key after a rejection.
    pub ban: Option<Ban>,
    /// Name of the upstream that receives requests over the limit; `None` if they are rejected.
    pub divert_to: Option<Box<str>>,
    /// Place of the rule in a group of which a request needs one, if it is in one.
    pub group_place: Option<GroupPlace>,
    /// Cost of a rejected request.
    pub on_denied: OnDenied,
    /// How a reload converts the counters of a limit that it changes.
    pub on_change: OnChange,
    /// How the limits follow the provider, if they do.
    pub feedback: Option<Feedback>,
    /// Where the limits are counted.
    pub source: LimitSource,
    /// How requests are accepted now and sent later; `None` if they are forwarded at once.
    pub deferral: Option<Box<Deferral>>,
}

impl LimitAction {
    /// Whether the rule is enforced, not in shadow mode, for the key of a request that matched a route. `None` stands
    /// for requests with an incomplete key, which count as one key.
    pub(super) fn is_enforced(&self, keyed: Option<(&Attributes<'_>, Route<'_>)>) -> bool {
        if let Some(is_enforced) = self.constant_enforcement() {
            return is_enforced;
        }
        match keyed.and_then(|(request, route)| self.key.encoded(request, route).ok()) {
            Some(encoded) => self.enforced_share.includes(&encoded),
            None => self.enforced_share.includes(key::INCOMPLETE_KEY),
        }
    }

    /// Whether the rule is enforced, not in shadow mode, for all keys; `None` if it is for some.
    pub(super) fn constant_enforcement(&self) -> Option<bool> {
        let is_shadow = self.throttle == Throttle::Shadow;
        (is_shadow || self.enforced_share.is_for_all()).then_some(!is_shadow)
    }

    /// Returns what the counters of a request depend on: the key, and the value of which different ones are counted.
    pub fn counted_parts(&self) -> &[Attribute] {
        &self.counted_key().0
    }

    /// Returns the value of which different ones are counted, which contains the key; the key itself if requests are.
    pub(super) fn counted_key(&self) -> &KeyTemplate {
        self.distinct.as_ref().unwrap_or(&self.key)
    }

    /// Returns the key as operators see it.
    pub fn key_text(&self) -> String {
        match self.streams.as_deref() {
            Some(StreamLimits { is_per_stream: true, .. }) => STREAM_KEY.to_owned(),
            _ => self.key.to_string(),
        }
    }

    /// Returns how the limits are shared with other instances; `None` if they are not.
    pub const fn shared(&self) -> Option<&SharedLimit> {
        match &self.source {
            LimitSource::Shared(shared) => Some(shared),
            LimitSource::Local | LimitSource::Remote(_) => None,
        }
    }
}

/// Where a limit is counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LimitSource {
    /// In this process.
    #[default]
    Local,
    /// In another rate limit service. The rule's own limits apply while that is unreachable.
    Remote(Box<RemoteLimit>),
    /// In all instances together.
    Shared(SharedLimit),
}

impl Default for LimitAction {
    /// No limits, one counter for all requests, one unit per request.
    fn default() -> Self {
        Self {
            counter: None,
            key: KeyTemplate::default(),
            distinct: None,
            on_missing: OnMissing::default(),
            limits: Box::default(),
            streams: None,
            cost_model: CostModel::fixed(1),
            throttle: Throttle::default(),
            wait: None,
            enforced_share: EnforcedShare::default(),
            in_flight: None,
            adaptive: None,
            ban: None,
            divert_to: None,
            group_place: None,
            on_denied: OnDenied::default(),
            on_change: OnChange::default(),
            feedback: None,
            source: LimitSource::Local,
            deferral: None,
        }
    }
}

/// One of a rule's limits.
#[derive(Clone, Debug)]
pub struct RuleLimit {
    /// The limit as configured.
    pub quota: Quota,
    /// For a soft limit, the higher quota above which requests are rejected.
    pub quota_with_margin: Option<Quota>,
    /// For an elastic limit, the cost of a request depending on headroom.
    pub elastic_costs: Option<ElasticCosts>,
    /// Network of the client that this limit counts, if the rule limits several nested networks.
    pub nested: Option<Box<NestedNetwork>>,
    /// How the limit of a request is read, in place of this one.
    pub stated: Option<Box<StatedLimit>>,
}

/// One of several nested networks of an IPv6 client, each with its own limit. IPv4 clients are counted under the first
/// one only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NestedNetwork {
    /// Prefix length of the network, in bits.
    pub prefix: u8,
    /// The rule's key with this network in it; `None` for the first network, which uses the rule's key.
    pub key: Option<KeyTemplate>,
}

impl NestedNetwork {
    /// Whether only IPv6 clients are counted under it.
    pub const fn is_wider(&self) -> bool {
        self.key.is_some()
    }
}

impl RuleLimit {
    /// Returns the key of the limit, if it differs from the rule's.
    pub fn own_key(&self) -> Option<&KeyTemplate> {
        self.nested.as_ref()?.key.as_ref()
    }

    /// Returns the most that the limit can admit at once; `None` if only what requests state bounds it.
    pub fn max_burst(&self) -> Option<NonZeroU32> {
        let configured = self.quota_with_margin.unwrap_or(self.quota).burst();
        match &self.stated {
            None => Some(configured),
            Some(stated) => stated.max_burst().map(|most| most.max(configured)),
        }
    }
}

impl From<Quota> for RuleLimit {
    /// A limit that rejects everything that exceeds it.
    fn from(quota: Quota) -> Self {
        Self { quota, quota_with_margin: None, elastic_costs: None, nested: None, stated: None }
    }
}

/// What happens to requests that exceed a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Throttle {
    /// They are rejected.
    #[default]
    Hard,
    /// They are counted and reported, but pass (shadow mode).
    Shadow,
    /// They pass with a mark up to a margin, and are rejected beyond it.
    Soft {
        /// By how much limit and burst are raised.
        margin: Percent,
        /// How long a request in the margin is delayed.
        delay: Option<Duration>,
    },
    /// They are delayed until the limit has room.
    Delay(DelayPolicy),
    /// They wait in a queue until the limit has room.
    Wait,
    /// The limit grows up to a multiple of itself while the upstream has headroom.
    Elastic(ElasticRange),
}

impl fmt::Display for Throttle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hard => f.write_str("hard"),
            Self::Shadow => f.write_str("shadow"),
            Self::Soft { margin, delay: None } => write!(f, "soft {margin}"),
            Self::Soft { margin, delay: Some(delay) } => write!(f, "soft {margin}, delay {delay:?}"),
            Self::Delay(policy) => write!(f, "delay {policy}"),
            Self::Wait => f.write_str("wait"),
            Self::Elastic(stretch) => write!(f, "elastic {stretch}"),
        }
    }
}

/// What happens to requests that lack a part of the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum OnMissing {
    /// The rule does not apply.
    #[default]
    Skip,
    /// All such requests share one counter.
    Shared,
    /// They are rejected with 403.
    Deny,
}

impl Rule {
    /// Returns how the limits are shared with other instances; `None` if they are not, or if the rule has none.
    pub const fn shared(&self) -> Option<&SharedLimit> {
        match &self.action {
            Action::Limit(limiting) => limiting.shared(),
            Action::Allow | Action::Deny => None,
        }
    }

    /// Returns the name of the upstream that receives requests over the limit; `None` if they are rejected.
    pub fn divert_to(&self) -> Option<&str> {
        self.action.limiting()?.divert_to.as_deref()
    }

    /// Returns how requests wait in a queue for room; `None` if they do not.
    pub fn wait(&self) -> Option<&WaitPolicy> {
        self.action.limiting()?.wait.as_deref()
    }

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

    /// Whether the rule reads attributes that only Envoy descriptors have. Such a rule never applies to proxied
    /// requests.
    pub fn reads_descriptors(&self) -> bool {
        self.key().iter().any(|part| part.source().descriptor().is_some())
            || self.matchers().any(Matcher::reads_descriptors)
    }

    fn matchers(&self) -> impl Iterator<Item = &Matcher> {
        std::iter::once(&self.matcher).chain(&self.except)
    }

    fn key(&self) -> &[Attribute] {
        match &self.action {
            Action::Limit(limiting) => limiting.counted_parts(),
            Action::Allow | Action::Deny => &[],
        }
    }

    /// Returns the attributes that identify clients: the parts of the key, and the attributes by which its plans are
    /// found.
    pub fn identifying(&self) -> impl Iterator<Item = &Attribute> {
        let conditions = self.matchers().flat_map(|matcher| &matcher.conditions);
        let attributes = self.key().iter().chain(conditions.map(|condition| &condition.attribute));
        let of_plans = attributes.filter_map(|attribute| Some(&attribute.source().plans()?.attribute));
        self.key().iter().chain(of_plans)
    }

    /// Returns the request headers that the rule reads.
    pub fn headers(&self) -> impl Iterator<Item = HeaderName> + '_ {
        let conditions = self.matchers().flat_map(|matcher| &matcher.conditions);
        let attributes = self.identifying().chain(conditions.map(|condition| &condition.attribute));
        let of_cost = match &self.action {
            Action::Limit(limiting) => limiting.cost_model.request_header(),
            Action::Allow | Action::Deny => None,
        };
        let of_wait = self.wait().into_iter().flat_map(|wait| [&wait.deadline, &wait.priority]).flatten();
        let headers = attributes.filter_map(|attribute| attribute.source().header());
        let of_limits =
            self.limits().iter().filter_map(|limit| limit.stated.as_ref()?.attribute().source().header());
        headers.chain(of_cost).chain(of_wait).chain(of_limits).cloned()
    }

    /// Returns the fields of bodies that the rule reads.
    pub fn body_fields(&self) -> FieldMask {
        let conditions = self.matchers().flat_map(|matcher| &matcher.conditions);
        let attributes = self.key().iter().chain(conditions.map(|condition| &condition.attribute));
        let of_attributes = attributes.filter_map(|attribute| attribute.source().body());
        let of_cost = self.action.limiting().map(|limiting| limiting.cost_model.request_fields());
        of_attributes.chain(of_cost).fold(FieldMask::default(), |all, of| all | of)
    }

    /// Returns the name of the counter that the rule charges: its own name unless it names another. Clients see it as
    /// the name of the quota policy.
    pub fn counter(&self) -> &str {
        match &self.action {
            Action::Limit(limiting) => limiting.counter.as_deref().unwrap_or(&self.name),
            Action::Allow | Action::Deny => &self.name,
        }
    }

    /// Returns the limits; empty unless the rule limits.
    pub fn limits(&self) -> &[RuleLimit] {
        match &self.action {
            Action::Limit(limiting) => &limiting.limits,
            Action::Allow | Action::Deny => &[],
        }
    }

    /// Returns how its limits follow the provider, if they do.
    pub const fn feedback(&self) -> Option<&Feedback> {
        match &self.action {
            Action::Limit(limiting) => limiting.feedback.as_ref(),
            Action::Allow | Action::Deny => None,
        }
    }

    /// Whether any of its limits is elastic.
    pub fn is_elastic(&self) -> bool {
        self.elastic_range().is_some()
    }

    /// Returns the bounds of its elastic limits, if it has any.
    pub fn elastic_range(&self) -> Option<ElasticRange> {
        self.limits().iter().find_map(|limit| Some(limit.elastic_costs?.range()))
    }
}
