//! The checks of each rule, computed once per configuration.
//!
//! A rule with one limit has one check. A soft limit has two: the limit with its margin rejects, and the
//! limit as written marks. So exactly the requests above the written limit are marked. Permits and bans are
//! checks, too.

use foldhash::{HashMap, HashMapExt as _};
use http::HeaderMap;
use smallvec::SmallVec;

use super::RuleIndex;
use super::cost::Cost;
use super::rule::{Action, LimitAction, Rule, RuleLimit, Throttle};
use super::selection::{CheckRole, SelectedCheck};
use super::shared_limit::{Mode, OnStoreLoss};
use super::stream_limit::{StreamLimit, StreamMeasure};
use crate::identify::body::RequestFields;
use weir_limiter::check_options::{CheckOptions, CounterRole, DelayPolicy, OnDenied, WithoutRoom};
use weir_limiter::decision::Enforcement;
use weir_limiter::key::KeyHash;
use weir_limiter::leases::LeasePolicy;
use weir_limiter::quota::Quota;
use weir_limiter::reservation::ChargeTiming;
use weir_limiter::{Check, InstanceCounts, LimitHandle, LimitIdentity, LimitSpec};

/// One check of a rule, bound to its limit handle.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlannedCheck {
    /// The check of a request for which the rule is enforced, without its key.
    pub(super) template: SelectedCheck,
    /// Whether the checks of all requests differ in nothing else. If the rule is not enforced, they are in shadow mode.
    pub(super) is_constant: bool,
    /// What decides instead while the store is unreachable.
    pub(super) fallback: Option<StoreLossFallback>,
}

impl PlannedCheck {
    /// Returns its purpose within the rule.
    pub(super) const fn role(&self) -> CheckRole {
        self.template.role
    }

    pub(super) const fn handle(&self) -> LimitHandle {
        self.template.check.handle
    }

    /// Adds the check of a request with this key. It must be [constant](Self::is_constant).
    #[inline]
    pub(super) fn add_constant(
        &self,
        key: KeyHash,
        is_enforced: bool,
        selected: &mut SmallVec<[SelectedCheck; 2]>,
    ) {
        // Copied once, into its place.
        selected.push(self.template);
        if let Some(SelectedCheck { check, .. }) = selected.last_mut() {
            check.key = key;
            if !is_enforced {
                check.enforcement = Enforcement::Shadow;
            }
        }
    }

    /// Yields its limit, and the one that counts in this process while the store is unreachable.
    pub(super) fn handles(&self) -> impl Iterator<Item = LimitHandle> + use<> {
        let away = match self.fallback {
            Some(StoreLossFallback::Counted(handle) | StoreLossFallback::Marked(handle)) => Some(handle),
            Some(StoreLossFallback::Denied) | None => None,
        };
        std::iter::once(self.handle()).chain(away)
    }
}

/// What decides a shared limit while the store is unreachable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreLossFallback {
    /// A limit of this process.
    Counted(LimitHandle),
    /// A limit of this process, which marks and admits requests above it.
    Marked(LimitHandle),
    /// Every request is rejected.
    Denied,
}

/// Returns the limits that `rules` need in an instance that is not part of a fleet. Rules with one counter share its
/// limits.
pub fn limit_specs(rules: &[Rule]) -> Vec<LimitSpec> {
    RequiredLimits::from_rules(rules, &InstanceCounts::single()).specs
}

/// Returns the check with the role `part` of a request for which the rule is enforced. It has no key, and the cost of a
/// request without headers.
fn template(
    rule: RuleIndex,
    limiting: &LimitAction,
    part: CheckRole,
    handle: LimitHandle,
    options: Option<CheckOptions>,
) -> SelectedCheck {
    let cost_model = &limiting.cost_model;
    let enforcement = match part {
        CheckRole::Mark(_) => Enforcement::Marking,
        CheckRole::Ban
        | CheckRole::Permit
        | CheckRole::Limit(_)
        | CheckRole::Margin(_)
        | CheckRole::Seen
        | CheckRole::Stream(_) => Enforcement::Enforced,
    };
    let is_limit = !matches!(part, CheckRole::Ban | CheckRole::Permit | CheckRole::Stream(_));
    let (cost, charge_timing) = match part {
        CheckRole::Ban => (1, ChargeTiming::OnArrival),
        CheckRole::Permit => (1, ChargeTiming::WhileInFlight),
        CheckRole::Stream(_) => (message_units(limiting, part), ChargeTiming::OnArrival),
        CheckRole::Limit(_) | CheckRole::Margin(_) | CheckRole::Mark(_) | CheckRole::Seen => (
            cost_model.units_to_reserve(&HeaderMap::new(), RequestFields::Absent, None),
            cost_model.charge_timing(),
        ),
    };
    let check = Check { handle, key: KeyHash::default(), cost, enforcement, charge_timing, options };
    SelectedCheck {
        needs_settlement: is_limit && cost_model.needs_settlement(),
        ..SelectedCheck::with_fixed_cost(rule, part, check)
    }
}

/// Whether the checks of the role `part` do not depend on the request, except for the key and whether the rule is
/// enforced.
fn is_constant(limiting: &LimitAction, part: CheckRole) -> bool {
    match part {
        // In shadow mode there is none.
        CheckRole::Ban | CheckRole::Seen | CheckRole::Stream(_) => false,
        CheckRole::Permit => limiting.adaptive.is_none(),
        CheckRole::Limit(_) | CheckRole::Margin(_) | CheckRole::Mark(_) => {
            let is_fixed = |limit: &RuleLimit| {
                limit.nested.is_none() && limit.elastic_costs.is_none() && limit.stated.is_none()
            };
            !matches!(
                limiting.cost_model.cost,
                Cost::Header(_) | Cost::RequestField(_) | Cost::RequestBytes(_) | Cost::ResponseFields(_)
            ) && limiting.feedback.is_none()
                && limiting.distinct.is_none()
                && limit(limiting, part).is_some_and(is_fixed)
        }
    }
}

/// The limits that rules need.
#[derive(Debug, Default)]
pub struct RequiredLimits {
    specs: Vec<LimitSpec>,
    /// Indexed as `specs`: whether some rule only reserves units of the limit until the response decides.
    is_held: Vec<bool>,
    /// The checks of each rule, each with its index in `specs`, and the index of the limit that applies while
    /// the store is unreachable.
    of_rules: Vec<Vec<(CheckRole, usize, Option<usize>)>>,
}

impl RequiredLimits {
    /// Creates the limits of `rules` for an instance of a fleet, which divides some of them by `divisors`. Rules with
    /// one counter share its limits.
    pub fn from_rules(rules: &[Rule], divisors: &InstanceCounts) -> Self {
        let (mut needs, mut places) = (Self::default(), HashMap::new());
        for rule in rules {
            let (mut checks, mut fallbacks) = (Vec::new(), Vec::new());
            if let Action::Limit(limiting) = &rule.action {
                for part in check_roles(limiting) {
                    let Some(quota) = limiting.quota(part) else { continue };
                    let lineage = limit_identity(rule, limiting, part);
                    let (quota, lease_policy) = match count_location(limiting, quota, divisors) {
                        CountLocation::Local(quota) => (quota, None),
                        CountLocation::Store(claimed, sharing, away) => {
                            let name = format!("{}{FALLBACK_SUFFIX}", lineage.rule).into();
                            let here = LimitIdentity { rule: name, key: lineage.key.clone() };
                            fallbacks.extend(away.map(|quota| (checks.len(), part, here, quota)));
                            (claimed, Some(sharing))
                        }
                    };
                    let spec = needs.require(&mut places, limiting, part, lineage, quota, lease_policy);
                    checks.push((part, spec, None));
                }
                // After the others, because the limiter tells limits of one identity apart by their order in a row.
                for (check, part, lineage, quota) in fallbacks {
                    let spec = needs.require(&mut places, limiting, part, lineage, quota, None);
                    checks[check].2 = Some(spec);
                }
            }
            needs.of_rules.push(checks);
        }
        needs
    }

    /// Returns the index of a limit of a rule, which is added unless another rule needs it already.
    fn require(
        &mut self,
        places: &mut HashMap<(LimitIdentity, CheckRole), usize>,
        limiting: &LimitAction,
        part: CheckRole,
        identity: LimitIdentity,
        quota: Quota,
        lease_policy: Option<LeasePolicy>,
    ) -> usize {
        let place = *places.entry((identity.clone(), part)).or_insert(self.specs.len());
        if place == self.specs.len() {
            let on_change = limiting.on_change;
            self.specs.push(LimitSpec { identity, quota, on_change, lease_policy });
            self.is_held.push(false);
        }
        if let (Some(kept), Some(policy)) = (&mut self.specs[place].lease_policy, lease_policy) {
            // A rule with stored calls may wait longer than the others.
            kept.max_wait = kept.max_wait.max(policy.max_wait);
        }
        self.is_held[place] |= limiting.cost_model.charge_timing() == ChargeTiming::OnResponse;
        place
    }

    /// Adds limits that do not belong to rules, after all others.
    pub fn add_permanent(&mut self, permanent: &[LimitSpec]) {
        self.specs.extend_from_slice(permanent);
    }

    /// Returns all limits, each once.
    pub fn specs(&self) -> &[LimitSpec] {
        &self.specs
    }

    /// Returns the checks of each of `rules`, from which the limits were created, bound to `handles` as the limiter
    /// returned them for [`Self::specs`].
    pub(super) fn planned_checks(
        &self,
        rules: &[Rule],
        handles: &[LimitHandle],
    ) -> Box<[Box<[PlannedCheck]>]> {
        let planned = |(index, rule): (usize, &Rule)| {
            let Action::Limit(limiting) = &rule.action else { return Box::default() };
            let bind = |&(part, spec, away): &(CheckRole, usize, Option<usize>)| {
                let handle = *handles.get(spec)?;
                // Requests of another rule may hold reservations on the counter, which have not been charged yet.
                let is_beside_holds = self.is_held.get(spec).is_some_and(|is_held| *is_held)
                    && limiting.cost_model.charge_timing() == ChargeTiming::OnArrival
                    && part != CheckRole::Permit;
                let options = options_of_role(index, limiting, part)
                    .or_else(|| is_beside_holds.then(|| default_options(index)));
                Some(PlannedCheck {
                    template: template(RuleIndex(index), limiting, part, handle, options),
                    is_constant: is_constant(limiting, part),
                    fallback: store_loss_fallback(limiting, away.and_then(|away| handles.get(away))),
                })
            };
            self.of_rules.get(index).into_iter().flatten().filter_map(bind).collect()
        };
        rules.iter().enumerate().map(planned).collect()
    }
}

/// Suffix of a shared limit's rule name in the identity of the limit that applies while the store is
/// unreachable. No configured name ends like this.
const FALLBACK_SUFFIX: &str = "\0away";

/// Where a check is counted.
enum CountLocation {
    /// In this process.
    Local(Quota),
    /// In the store, and in this process by the other quota while the store is unreachable.
    Store(Quota, LeasePolicy, Option<Quota>),
}

fn count_location(limiting: &LimitAction, quota: Quota, divisors: &InstanceCounts) -> CountLocation {
    let Some(shared) = limiting.shared() else { return CountLocation::Local(quota) };
    if shared.mode == Mode::Split {
        return CountLocation::Local(quota.split_among(shared.instance_count(divisors)));
    }
    let Some(claimed) = quota.leased() else { return CountLocation::Local(quota) };
    let sharing = shared.lease_policy(limiting.deferral.is_some());
    let away = match shared.on_store_loss {
        OnStoreLoss::Split => Some(quota.split_among(divisors.members)),
        OnStoreLoss::Local | OnStoreLoss::Allow => Some(quota),
        // Parts are spent from the lease account.
        OnStoreLoss::StrictSplit | OnStoreLoss::Deny => None,
    };
    CountLocation::Store(claimed, sharing, away)
}

fn store_loss_fallback(limiting: &LimitAction, handle: Option<&LimitHandle>) -> Option<StoreLossFallback> {
    Some(match (limiting.shared()?.on_store_loss, handle) {
        (OnStoreLoss::Allow, Some(handle)) => StoreLossFallback::Marked(*handle),
        (_, Some(handle)) => StoreLossFallback::Counted(*handle),
        (_, None) => StoreLossFallback::Denied,
    })
}

/// Returns the identity of a check's limit. That of a ban names the rule and not its counter, because a ban
/// applies to the rule only.
fn limit_identity(rule: &Rule, limiting: &LimitAction, part: CheckRole) -> LimitIdentity {
    let of_role = match part {
        CheckRole::Seen => limiting.distinct.as_ref(),
        _ => limit(limiting, part).and_then(RuleLimit::own_key),
    };
    let mut key = of_role.map_or_else(|| limiting.key_text(), ToString::to_string);
    if let Some(limit) = limit_of_streams(limiting, part) {
        // No counter of requests becomes one of messages or bytes.
        key = format!("{} {key}", limit.measure.as_str());
    }
    let name = if part == CheckRole::Ban { &*rule.name } else { rule.counter() };
    LimitIdentity { rule: name.into(), key: key.into() }
}

/// Returns the roles of the checks. The limit that takes over the counters of another one comes first: the
/// rejecting limit precedes the marking one.
fn check_roles(limiting: &LimitAction) -> Vec<CheckRole> {
    let mut parts = Vec::new();
    parts.extend(limiting.ban.map(|_| CheckRole::Ban));
    parts.extend(limiting.in_flight.map(|_| CheckRole::Permit));
    for (position, limit) in (0..).zip(&limiting.limits) {
        match limit.quota_with_margin {
            None => parts.push(CheckRole::Limit(position)),
            Some(_) => parts.extend([CheckRole::Margin(position), CheckRole::Mark(position)]),
        }
    }
    parts.extend(limiting.distinct.as_ref().map(|_| CheckRole::Seen));
    let streams = limiting.streams.iter().flat_map(|streams| &streams.limits);
    parts.extend((0..).zip(streams).map(|(position, _)| CheckRole::Stream(position)));
    parts
}

impl LimitAction {
    /// Returns the quota of the check with the role `part`, for all instances together.
    pub fn quota(&self, part: CheckRole) -> Option<Quota> {
        match part {
            CheckRole::Ban => self.ban.map(Quota::ban),
            CheckRole::Permit => self.in_flight.map(Quota::in_flight),
            CheckRole::Margin(_) => limit(self, part)?.quota_with_margin,
            CheckRole::Limit(_) | CheckRole::Mark(_) => limit(self, part).map(|limit| limit.quota),
            CheckRole::Seen => self.limits.first()?.quota.for_one_unit(),
            CheckRole::Stream(_) => limit_of_streams(self, part).map(|limit| limit.quota),
        }
    }

    /// Whether its units are leased from the store.
    pub(super) fn is_leased(&self) -> bool {
        self.shared().is_some_and(|shared| shared.mode != Mode::Split)
    }

    /// Whether the counters of the role `part` have the same keys as the rule's bans.
    pub(super) fn has_ban_key(&self, part: CheckRole) -> bool {
        let has_other_key = match part {
            CheckRole::Ban | CheckRole::Seen => true,
            CheckRole::Stream(_) => self.streams.as_ref().is_some_and(|streams| streams.is_per_stream),
            _ => false,
        };
        !has_other_key && limit(self, part).is_none_or(|limit| limit.own_key().is_none())
    }
}

fn limit(limiting: &LimitAction, part: CheckRole) -> Option<&RuleLimit> {
    match part {
        CheckRole::Limit(position) | CheckRole::Margin(position) | CheckRole::Mark(position) => {
            limiting.limits.get(usize::from(position))
        }
        CheckRole::Ban | CheckRole::Permit | CheckRole::Seen | CheckRole::Stream(_) => None,
    }
}

/// Returns the units of one message; 0 for a limit on bytes, whose cost depends on what is transferred.
fn message_units(limiting: &LimitAction, part: CheckRole) -> u32 {
    match limit_of_streams(limiting, part).map(|limit| limit.measure) {
        Some(StreamMeasure::Messages(_, units)) => units.get(),
        Some(StreamMeasure::Bytes(_)) | None => 0,
    }
}

fn limit_of_streams(limiting: &LimitAction, part: CheckRole) -> Option<&StreamLimit> {
    let CheckRole::Stream(position) = part else { return None };
    limiting.streams.as_ref()?.limits.get(usize::from(position))
}

/// Returns the options of the check with the role `part`; `None` if it has no additional behaviour.
fn options_of_role(index: usize, limiting: &LimitAction, part: CheckRole) -> Option<CheckOptions> {
    if let Some(limit) = limit_of_streams(limiting, part) {
        // What becomes of requests is none of a stream's business.
        return Some(CheckOptions { role: limit.counter_role(), ..default_options(index) });
    }
    let role = match (part, limiting.throttle) {
        (CheckRole::Ban, _) => CounterRole::Ban,
        (CheckRole::Seen, _) => CounterRole::Seen,
        (CheckRole::Limit(_), Throttle::Delay(delay_policy)) => CounterRole::Delay(delay_policy),
        (CheckRole::Mark(_), Throttle::Soft { delay: Some(delay), .. }) => {
            CounterRole::Delay(DelayPolicy::new(delay, None))
        }
        (
            CheckRole::Permit
            | CheckRole::Limit(_)
            | CheckRole::Margin(_)
            | CheckRole::Mark(_)
            | CheckRole::Stream(_),
            _,
        ) => CounterRole::Limit,
    };
    let without_room = match (&limiting.divert_to, &limiting.distinct) {
        (Some(_), _) => WithoutRoom::Divert,
        // Its number depends on the request.
        (None, Some(_)) => WithoutRoom::Distinct(0),
        (None, None) => WithoutRoom::Reject,
    };
    let is_plain = role == CounterRole::Limit
        && limiting.ban.is_none()
        && limiting.on_denied == OnDenied::Free
        && without_room == WithoutRoom::Reject;
    let on_denied = limiting.on_denied;
    (!is_plain).then(|| CheckOptions { role, on_denied, without_room, ..default_options(index) })
}

/// Returns options without additional behaviour. With options, a check takes reserved units into account.
pub(super) fn default_options(index: usize) -> CheckOptions {
    let group = u32::try_from(index).unwrap_or(u32::MAX);
    CheckOptions::new(group, CounterRole::Limit)
}
