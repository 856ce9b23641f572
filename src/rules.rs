//! Which limits apply to a request.
//!
//! Every rule that matches applies. A matching `allow` exempts from all others, else a matching `deny`
//! refuses, else the limits of all matching rules become the checks that the request must pass. Pure; a rule
//! set is compiled once per configuration and never changes.

pub mod key;
pub mod matcher;
pub mod pattern;
pub mod rule;
pub mod schedule;
pub mod selection;
pub mod tariff;

mod index;

use std::num::NonZeroU32;

use smallvec::SmallVec;

use self::index::Index;
use self::rule::{Action, Limiting, OnMissing, Rule, Throttle};
use self::selection::{Selected, Selection};
use crate::identify::Attributes;
use crate::limiter::decision::Enforcement;
use crate::limiter::elastic::Headroom;
use crate::limiter::key::KeyHasher;
use crate::limiter::{Check, Lineage, Meter, MeterSpec};

/// A rule's position in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleIndex(pub usize);

/// All rules of one configuration, bound to the meters that count for them.
#[derive(Debug)]
pub struct RuleSet {
    rules: Box<[Rule]>,
    index: Index,
    /// What each rule does, beside `rules`: looked at before the rule is.
    kinds: Box<[Kind]>,
    /// The meters of each rule's limits, beside `rules`.
    meters: Box<[Box<[Meter]>]>,
    elastic: bool,
    hasher: KeyHasher,
}

/// An [`Action`] in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Allow,
    Deny,
    Limit,
}

/// The meters that `rules` need, rule by rule and limit by limit, in the order [`RuleSet::bind`] expects.
pub fn meter_specs(rules: &[Rule]) -> Vec<MeterSpec> {
    let mut specs = Vec::new();
    for rule in rules {
        let Action::Limit(limiting) = &rule.action else { continue };
        for limit in &limiting.limits {
            let key = limit.own_key().unwrap_or(&limiting.key);
            let lineage = Lineage { rule: rule.name.clone(), key: key.to_string().into() };
            specs.push(MeterSpec { lineage, quota: limit.quota, on_change: limiting.on_change });
        }
    }
    specs
}

impl RuleSet {
    /// `rules` in file order, counted by `meters` as the limiter answered for [`meter_specs`].
    pub fn bind(rules: Vec<Rule>, meters: &[Meter], hasher: KeyHasher) -> Self {
        let kind = |rule: &Rule| match rule.action {
            Action::Allow => Kind::Allow,
            Action::Deny => Kind::Deny,
            Action::Limit(_) => Kind::Limit,
        };
        let mut meters = meters.iter().copied();
        Self {
            index: Index::new(&rules),
            kinds: rules.iter().map(kind).collect(),
            meters: rules.iter().map(|rule| meters.by_ref().take(rule.limits().len()).collect()).collect(),
            elastic: rules.iter().any(Rule::is_elastic),
            rules: rules.into(),
            hasher,
        }
    }

    /// All rules, in file order.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The rule at `index`.
    pub fn get(&self, index: RuleIndex) -> Option<&Rule> {
        self.rules.get(index.0)
    }

    /// The meters of the limits of the rule at `index`.
    pub fn meters(&self, index: RuleIndex) -> &[Meter] {
        self.meters.get(index.0).map_or(&[], |meters| meters)
    }

    /// Whether any limit is elastic, so that headroom is of interest.
    pub fn is_elastic(&self) -> bool {
        self.elastic
    }

    /// What the rules say about a request, with this much headroom for elastic limits.
    pub fn select(&self, request: &Attributes<'_>, headroom: Headroom) -> Selection {
        self.select_among(&self.index.candidates(request), request, headroom)
    }

    /// What the rules at `candidates` say, which are ascending.
    fn select_among(&self, candidates: &[u32], request: &Attributes<'_>, headroom: Headroom) -> Selection {
        let of_kind = |wanted| {
            let indices = candidates.iter().map(|candidate| *candidate as usize);
            indices.filter(move |index| self.kinds[*index] == wanted)
        };
        let first_of =
            |wanted| of_kind(wanted).find(|index| self.rules[*index].applies_to(request).is_some());
        if let Some(index) = first_of(Kind::Allow) {
            return Selection::Exempt(RuleIndex(index));
        }
        if let Some(index) = first_of(Kind::Deny) {
            return Selection::Denied(RuleIndex(index));
        }
        let mut selected = SmallVec::new();
        for index in of_kind(Kind::Limit) {
            if let Some(denied) = self.select_limits(index, request, headroom, &mut selected) {
                return denied;
            }
        }
        Selection::Limited(selected)
    }

    /// Adds the checks of one rule, if it applies; answers a refusal where its key is missing and must not be.
    fn select_limits(
        &self,
        index: usize,
        request: &Attributes<'_>,
        headroom: Headroom,
        selected: &mut SmallVec<[Selected; 2]>,
    ) -> Option<Selection> {
        let rule = &self.rules[index];
        let Action::Limit(limiting) = &rule.action else { return None };
        let route = rule.applies_to(request)?;
        let (key, is_whole) = match limiting.key.hash(request, route, self.hasher) {
            Ok(key) => (key, true),
            Err(missing) => match limiting.on_missing {
                OnMissing::Skip => return None,
                OnMissing::Shared => (missing.shared(self.hasher), false),
                // Shadow never refuses.
                OnMissing::Deny if limiting.throttle == Throttle::Shadow => return None,
                OnMissing::Deny => return Some(Selection::Denied(RuleIndex(index))),
            },
        };
        let enforcement = match limiting.throttle {
            Throttle::Shadow => Enforcement::Shadow,
            _ => Enforcement::Enforced,
        };
        let Limiting { tariff, limits, .. } = limiting;
        let units = tariff.on_arrival(request.headers);
        for (ordinal, (meter, limit)) in self.meters[index].iter().zip(limits).enumerate() {
            let key = match &limit.nested {
                Some(nested) if nested.is_wider() && request.client.ip.is_ipv4() => continue,
                Some(nested) if is_whole => {
                    let own = nested.key.as_ref().and_then(|own| own.hash(request, route, self.hasher).ok());
                    own.unwrap_or(key)
                }
                _ => key,
            };
            let price = limit.prices.map_or(NonZeroU32::MIN, |prices| prices.at(headroom));
            let cost = units.saturating_mul(price.get());
            let check = Check { meter: *meter, key, cost, enforcement, charging: tariff.charging() };
            let settles = tariff.settles();
            selected.push(Selected { rule: RuleIndex(index), limit: ordinal, price, check, settles });
        }
        None
    }
}

#[cfg(test)]
mod tests;
