//! Which limits apply to a request.
//!
//! Every rule that matches applies. A matching `allow` exempts from all others, else a matching `deny`
//! refuses, else the limits of all matching rules become the checks that the request must pass. A request that can
//! be read in two ways is refused where that would decide over a `deny` or a limit. Pure; a rule set is compiled
//! once per configuration and never changes.

pub mod attribute;
pub mod enforce;
pub mod error_bound;
pub mod grpc;
pub mod key;
pub mod listed;
pub mod matcher;
pub mod membership;
pub mod outcome;
pub mod pattern;
pub mod remote_limit;
pub mod routes;
pub mod rule;
pub mod schedule;
pub mod selection;
pub mod shared_limit;
pub mod tariff;

mod index;
mod plan;

use std::collections::{BTreeSet, HashMap};
use std::num::NonZeroU32;

use smallvec::SmallVec;

use self::attribute::Incomplete;
use self::index::Index;
use self::matcher::Match;
use self::pattern::Route;
use self::plan::Planned;
pub use self::plan::{Away, meter_specs, meter_specs_among};
use self::remote_limit::RemoteQuery;
use self::rule::{Action, LimitSource, Limiting, OnMissing, Rule};
use self::selection::{Denial, Part, Selected, Selection, SideEffects};
use self::shared_limit::Instances;
use crate::identify::Attributes;
use crate::limiter::decision::Enforcement;
use crate::limiter::elastic::Headroom;
use crate::limiter::key::{KeyHash, KeyHasher};
use crate::limiter::reservation::Charging;
use crate::limiter::{Check, Meter, MeterId};

/// A rule's position in the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleIndex(pub usize);

/// All rules of one configuration, bound to the meters that count for them.
#[derive(Debug)]
pub struct RuleSet {
    rules: Box<[Rule]>,
    /// Those for proxied requests.
    index: Index,
    /// Those of each domain of Envoy's.
    domains: HashMap<Box<str>, Index>,
    /// What each rule does, beside `rules`: looked at before the rule is.
    kinds: Box<[Kind]>,
    /// None of them allows or denies.
    all_limit: bool,
    /// The checks of each rule, beside `rules`.
    plans: Box<[Box<[Planned]>]>,
    elastic: bool,
    hasher: KeyHasher,
    /// For keys of shared limits.
    fleet: KeyHasher,
    /// What counts in place of a shared limit while the store is away.
    away: HashMap<MeterId, Away>,
}

/// A rule has an answer without asking its limits.
struct Stop {
    /// Else the rule only looks on.
    is_enforced: bool,
    denial: Denial,
}

/// The key of a request under one rule.
#[derive(Clone, Copy)]
struct Keyed {
    key: KeyHash,
    /// Else all requests that lack a part share it.
    is_whole: bool,
    /// Whether the rule is in force for it.
    is_enforced: bool,
    hasher: KeyHasher,
}

/// An [`Action`] in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Allow,
    Deny,
    Limit,
}

impl RuleSet {
    /// `rules` in file order, counted by `meters` as the limiter answered for [`meter_specs`].
    pub fn bind(rules: Vec<Rule>, meters: &[Meter], hasher: KeyHasher) -> Self {
        let kind = |rule: &Rule| match rule.action {
            Action::Allow => Kind::Allow,
            Action::Deny => Kind::Deny,
            Action::Limit(_) => Kind::Limit,
        };
        let plans = plan::plans(&rules, meters);
        let planned = plans.iter().flatten();
        Self {
            away: planned.filter_map(|planned| Some((planned.meter.id, planned.away?))).collect(),
            index: Index::new(&rules, |rule| !rule.reads_descriptors()),
            domains: domains(&rules),
            kinds: rules.iter().map(kind).collect(),
            all_limit: rules.iter().all(|rule| kind(rule) == Kind::Limit),
            plans,
            elastic: rules.iter().any(Rule::is_elastic),
            rules: rules.into(),
            hasher,
            fleet: hasher,
        }
    }

    /// The same with another hasher for keys of shared limits.
    pub fn in_fleet(self, fleet: KeyHasher) -> Self {
        Self { fleet, ..self }
    }

    /// All rules, in file order.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The rule at `index`.
    pub fn get(&self, index: RuleIndex) -> Option<&Rule> {
        self.rules.get(index.0)
    }

    /// The meters of the rule at `index`: of its limits, and of what else it counts or remembers.
    pub fn meters(&self, index: RuleIndex) -> impl Iterator<Item = Meter> + '_ {
        let planned = self.plans.get(index.0).into_iter().flatten();
        planned.flat_map(|planned| {
            let away = match planned.away {
                Some(Away::Counted(meter) | Away::Marked(meter)) => Some(meter),
                Some(Away::Denied) | None => None,
            };
            std::iter::once(planned.meter).chain(away)
        })
    }

    /// The checks of the rule at `index`, each with its meter.
    pub fn parts(&self, index: RuleIndex) -> impl Iterator<Item = (Part, Meter)> + '_ {
        self.plans.get(index.0).into_iter().flatten().map(|planned| (planned.part, planned.meter))
    }

    /// The bans of shared rules, each with a limit beside whose counters the store remembers them. Where several rules charge
    /// one counter each instance has bans of its own, for a ban is the rule's.
    pub fn shared_bans(&self) -> impl Iterator<Item = (Meter, Meter)> + '_ {
        self.rules.iter().zip(&self.plans).filter_map(|(rule, plan)| {
            let Action::Limit(limiting) = &rule.action else { return None };
            if !limiting.is_claimed() || limiting.counter.is_some() {
                return None;
            }
            let ban = plan.iter().find(|planned| planned.part == Part::Ban)?;
            let mut beside = plan.iter().filter(|planned| limiting.has_key_of_ban(planned.part));
            // The store is asked about a rate more often than about permits.
            let rate = beside.clone().find(|planned| planned.part != Part::Permit);
            Some((ban.meter, rate.or_else(|| beside.next())?.meter))
        })
    }

    /// The names whose addresses are the instances that some limit is divided by.
    pub fn names_of_instances(&self) -> BTreeSet<Box<str>> {
        let name = |rule: &Rule| {
            let Action::Limit(limiting) = &rule.action else { return None };
            let LimitSource::Shared(shared) = &limiting.source else { return None };
            let Some(Instances::Dns(name)) = &shared.instances else { return None };
            Some(name.clone())
        };
        self.rules.iter().filter_map(name).collect()
    }

    /// Whether any limit is shared with other instances through the store.
    pub fn is_shared(&self) -> bool {
        !self.away.is_empty()
    }

    /// What counts in place of a shared limit while the store is away.
    pub fn away(&self, meter: Meter) -> Option<Away> {
        self.away.get(&meter.id).copied()
    }

    /// Has `check` counted here as its rule says while the store is away; whether anything may pass then.
    pub fn go_without_store(&self, check: &mut Check) -> bool {
        match self.away(check.meter) {
            Some(Away::Counted(meter)) => check.meter = meter,
            Some(Away::Marked(meter)) => {
                check.meter = meter;
                check.enforcement = Enforcement::Marking;
            }
            Some(Away::Denied) | None => return false,
        }
        true
    }

    /// Whether any limit is elastic, so that headroom is of interest.
    pub fn is_elastic(&self) -> bool {
        self.elastic
    }

    /// What the rules say about a request, with this much headroom for elastic limits.
    pub fn select(&self, request: &Attributes<'_>, headroom: Headroom) -> Selection {
        self.select_among(&self.index.candidates(request), request, headroom)
    }

    /// Whether any rule is for this domain of Envoy's.
    pub fn has_domain(&self, domain: &str) -> bool {
        self.domains.contains_key(domain)
    }

    /// What the rules of `domain` say about what Envoy has told of a request.
    pub fn select_in(&self, domain: &str, request: &Attributes<'_>) -> Selection {
        let candidates = self.domains.get(domain).map(|index| index.candidates(request));
        self.select_among(&candidates.unwrap_or_default(), request, Headroom::NONE)
    }

    /// Those of `candidates` that are of this kind.
    fn of_kind(&self, candidates: &[u32], wanted: Kind) -> impl Iterator<Item = usize> {
        let indices = candidates.iter().map(|candidate| *candidate as usize);
        indices.filter(move |index| self.kinds[*index] == wanted)
    }

    /// What the rules at `candidates` say, which are ascending.
    fn select_among(&self, candidates: &[u32], request: &Attributes<'_>, headroom: Headroom) -> Selection {
        let deciding = if self.all_limit { &[] } else { candidates };
        for index in self.of_kind(deciding, Kind::Allow) {
            // Who may or may not be exempt is not.
            if let Match::Yes(_) = self.rules[index].applies_to(request) {
                return Selection::Exempt(RuleIndex(index));
            }
        }
        for index in self.of_kind(deciding, Kind::Deny) {
            match self.rules[index].applies_to(request) {
                Match::No => {}
                Match::Yes(_) => return Selection::Denied(RuleIndex(index), Denial::Forbidden),
                Match::Unclear(_, ambiguity) => {
                    return Selection::Denied(RuleIndex(index), Denial::Ambiguous(ambiguity));
                }
            }
        }
        let (mut selected, mut beside) = (SmallVec::new(), SideEffects::default());
        for index in self.of_kind(candidates, Kind::Limit) {
            match self.select_limits(index, request, headroom, (&mut selected, &mut beside.queries)) {
                None => {}
                Some(Stop { is_enforced: true, denial }) => {
                    return Selection::Denied(RuleIndex(index), denial);
                }
                Some(Stop { is_enforced: false, .. }) => beside.shadow_rules.push(RuleIndex(index)),
            }
        }
        Selection::Limited(selected, beside)
    }

    /// Adds the checks of one rule, or the query to the service that counts for it, if it applies; returns a rejection
    /// where neither can be.
    fn select_limits(
        &self,
        index: usize,
        request: &Attributes<'_>,
        headroom: Headroom,
        (selected, queries): (&mut SmallVec<[Selected; 2]>, &mut Vec<RemoteQuery>),
    ) -> Option<Stop> {
        let rule = &self.rules[index];
        let Action::Limit(limiting) = &rule.action else { return None };
        // Such requests are one key, in force or not like any other.
        let stop = |denial| Some(Stop { is_enforced: limiting.is_enforced(None), denial });
        let route = match rule.applies_to(request) {
            Match::No => return None,
            Match::Yes(route) => route,
            Match::Unclear(_, ambiguity) => return stop(Denial::Ambiguous(ambiguity)),
        };
        let hasher = match limiting.source {
            LimitSource::Local | LimitSource::Remote(_) => self.hasher,
            LimitSource::Shared(_) => self.fleet,
        };
        let (key, is_whole) = match (limiting.key.hash(request, route, hasher), limiting.on_missing) {
            (Ok(key), _) => (key, true),
            (Err(Incomplete::Ambiguous(ambiguity)), _) => {
                return stop(Denial::Ambiguous(ambiguity));
            }
            (Err(Incomplete::Missing), OnMissing::Skip) => return None,
            (Err(Incomplete::Missing), OnMissing::Shared) => (key::shared(hasher), false),
            (Err(Incomplete::Missing), OnMissing::Deny) => return stop(Denial::Forbidden),
        };
        let key = Keyed {
            key,
            is_whole,
            is_enforced: limiting.is_enforced(is_whole.then_some((request, route))),
            hasher,
        };
        let remote = match &limiting.source {
            LimitSource::Remote(remote) => remote,
            LimitSource::Local | LimitSource::Shared(_) => {
                self.add_checks(index, limiting, key, (request, route), headroom, selected);
                return None;
            }
        };
        let entries = match remote.descriptor(&limiting.key, request, route) {
            Ok(entries) => entries,
            Err(ambiguity) => return stop(Denial::Ambiguous(ambiguity)),
        };
        let mut local_fallback = SmallVec::new();
        self.add_checks(index, limiting, key, (request, route), headroom, &mut local_fallback);
        queries.push(RemoteQuery {
            rule: RuleIndex(index),
            is_enforced: key.is_enforced,
            entries,
            hits: limiting.tariff.on_arrival(request.headers),
            local_fallback,
        });
        None
    }

    /// Adds the checks of one rule that applies.
    fn add_checks(
        &self,
        index: usize,
        limiting: &Limiting,
        Keyed { key, is_whole, is_enforced, hasher }: Keyed,
        (request, route): (&Attributes<'_>, Route<'_>),
        headroom: Headroom,
        selected: &mut SmallVec<[Selected; 2]>,
    ) {
        let on_limit = if is_enforced { Enforcement::Enforced } else { Enforcement::Shadow };
        let tariff = &limiting.tariff;
        let units = tariff.on_arrival(request.headers);
        for planned in &self.plans[index] {
            let Planned { part, meter, terms, .. } = *planned;
            let plain =
                Check { meter, key, cost: 1, enforcement: on_limit, charging: Charging::OnArrival, terms };
            let (limit, enforcement) = match part {
                Part::Limit(limit) | Part::Margin(limit) => (limit, on_limit),
                Part::Mark(limit) if is_enforced => (limit, Enforcement::Marking),
                Part::Mark(limit) => (limit, on_limit),
                Part::Permit => {
                    let check = Check { charging: Charging::WhileServed, ..plain };
                    selected.push(Selected::unpriced(RuleIndex(index), part, check));
                    continue;
                }
                Part::Ban => {
                    // Who is only looked at is not banned either.
                    if is_enforced {
                        selected.push(Selected::unpriced(RuleIndex(index), part, plain));
                    }
                    continue;
                }
            };
            let limit = &limiting.limits[usize::from(limit)];
            let key = match &limit.nested {
                Some(nested) if nested.is_wider() && request.client.ip.is_ipv4() => continue,
                Some(nested) if is_whole => {
                    let own = nested.key.as_ref().and_then(|own| own.hash(request, route, hasher).ok());
                    own.unwrap_or(key)
                }
                _ => key,
            };
            let price = limit.prices.map_or(NonZeroU32::MIN, |prices| prices.at(headroom));
            let cost = units.saturating_mul(price.get());
            let check = Check { key, cost, enforcement, charging: tariff.charging(), ..plain };
            let settles = tariff.settles();
            selected.push(Selected { rule: RuleIndex(index), part, price, check, settles });
        }
    }
}

/// The rules of each domain, filed.
fn domains(rules: &[Rule]) -> HashMap<Box<str>, Index> {
    let names: BTreeSet<&str> = rules.iter().filter_map(|rule| rule.domain.as_deref()).collect();
    let index = |name: &str| Index::new(rules, |rule| rule.domain.as_deref() == Some(name));
    names.into_iter().map(|name| (name.into(), index(name))).collect()
}

#[cfg(test)]
mod tests;
