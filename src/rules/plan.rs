//! Which checks a rule makes of a request, worked out once.
//!
//! A rule with one limit makes one check. A soft limit makes two: with its margin it refuses, as written it
//! marks, so that exactly what the written limit would refuse is marked. Permits and bans are checks like others.

use std::collections::HashMap;

use super::rule::{Action, LimitSource, Limiting, Rule, RuleLimit, Throttle};
use super::selection::Part;
use super::shared_limit::{Mode, OnStoreLoss};
use crate::limiter::claims::Sharing;
use crate::limiter::quota::Quota;
use crate::limiter::reservation::Charging;
use crate::limiter::terms::{OnDenied, Role, Slack, Terms};
use crate::limiter::{Divisors, Lineage, Meter, MeterSpec};

/// One check of a rule, bound to its meter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planned {
    pub(super) part: Part,
    pub(super) meter: Meter,
    pub(super) terms: Option<Terms>,
    /// What counts in its place while the store is away.
    pub(super) away: Option<Away>,
}

/// What becomes of a shared limit while the store is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Away {
    /// This is counted here.
    Counted(Meter),
    /// This is counted here, and what is over passes, marked.
    Marked(Meter),
    /// Nothing passes.
    Denied,
}

/// The meters that `rules` need, in the order that rules are bound in. Rules with one counter share its meters.
pub fn meter_specs(rules: &[Rule]) -> Vec<MeterSpec> {
    meter_specs_among(rules, &Divisors::alone())
}

/// The same for one of so many instances, which divide some limits among them.
pub fn meter_specs_among(rules: &[Rule], divisors: &Divisors) -> Vec<MeterSpec> {
    Needs::of(rules, divisors).specs
}

/// The checks of each of `rules`, bound to `meters` as the limiter returned them for [`meter_specs`].
pub(super) fn plans(rules: &[Rule], meters: &[Meter]) -> Box<[Box<[Planned]>]> {
    let needs = Needs::of(rules, &Divisors::alone());
    let of_rule = |(index, rule): (usize, &Rule)| {
        let Action::Limit(limiting) = &rule.action else { return Box::default() };
        let bind = |&(part, spec, away): &(Part, usize, Option<usize>)| {
            let meter = *meters.get(spec)?;
            // Requests of another rule hold units of the counter that have not been charged yet.
            let is_beside_holds = needs.is_held[spec]
                && limiting.tariff.charging() == Charging::OnArrival
                && part != Part::Permit;
            let terms = terms(index, limiting, part).or_else(|| is_beside_holds.then(|| plain(index)));
            Some(Planned {
                part,
                meter,
                terms,
                away: away_of(limiting, away.and_then(|away| meters.get(away))),
            })
        };
        needs.of_rules[index].iter().filter_map(bind).collect()
    };
    rules.iter().enumerate().map(of_rule).collect()
}

/// Which meters rules need.
#[derive(Debug, Default)]
struct Needs {
    specs: Vec<MeterSpec>,
    /// Beside `specs`: whether some rule only holds units of it until the response decides.
    is_held: Vec<bool>,
    /// The checks of each rule, each with its place in `specs`, and that of what counts while the store is away.
    of_rules: Vec<Vec<(Part, usize, Option<usize>)>>,
}

impl Needs {
    fn of(rules: &[Rule], divisors: &Divisors) -> Self {
        let (mut needs, mut places) = (Self::default(), HashMap::new());
        for rule in rules {
            let mut checks = Vec::new();
            if let Action::Limit(limiting) = &rule.action {
                for part in parts(limiting) {
                    let Some(quota) = limiting.quota(part) else { continue };
                    let lineage = lineage(rule, limiting, part);
                    let is_held = limiting.tariff.charging() == Charging::OnAnswer;
                    let mut need = |lineage: Lineage, quota, sharing| {
                        let place = *places.entry((lineage.clone(), part)).or_insert(needs.specs.len());
                        if place == needs.specs.len() {
                            let on_change = limiting.on_change;
                            needs.specs.push(MeterSpec { lineage, quota, on_change, sharing });
                            needs.is_held.push(false);
                        }
                        needs.is_held[place] |= is_held;
                        place
                    };
                    let check = match shared(limiting, quota, divisors) {
                        Shared::No(quota) => (part, need(lineage, quota, None), None),
                        Shared::Claimed(claimed, sharing, away) => {
                            let name = format!("{}{AWAY}", lineage.rule).into();
                            let here = Lineage { rule: name, key: lineage.key.clone() };
                            let away = away.map(|quota| need(here, quota, None));
                            (part, need(lineage, claimed, Some(sharing)), away)
                        }
                    };
                    checks.push(check);
                }
            }
            needs.of_rules.push(checks);
        }
        needs
    }
}

/// Behind the name of a rule whose limit is shared: what counts while the store is away. No name ends so.
const AWAY: &str = "\0away";

/// Where a check is counted.
enum Shared {
    /// Here.
    No(Quota),
    /// In the store, and by the other quota here while that is away.
    Claimed(Quota, Sharing, Option<Quota>),
}

fn shared(limiting: &Limiting, quota: Quota, divisors: &Divisors) -> Shared {
    let LimitSource::Shared(shared) = &limiting.source else { return Shared::No(quota) };
    if shared.mode == Mode::Split {
        return Shared::No(quota.divided(shared.divided_by(divisors)));
    }
    let Some(claimed) = quota.claimed() else { return Shared::No(quota) };
    let sharing = shared.sharing();
    let away = match shared.on_store_loss {
        OnStoreLoss::Split => Some(quota.divided(divisors.members)),
        OnStoreLoss::Local | OnStoreLoss::Allow => Some(quota),
        OnStoreLoss::Deny => None,
    };
    Shared::Claimed(claimed, sharing, away)
}

fn away_of(limiting: &Limiting, meter: Option<&Meter>) -> Option<Away> {
    let LimitSource::Shared(shared) = &limiting.source else { return None };
    Some(match (shared.on_store_loss, meter) {
        (OnStoreLoss::Allow, Some(meter)) => Away::Marked(*meter),
        (OnStoreLoss::Split | OnStoreLoss::Local | OnStoreLoss::Deny, Some(meter)) => Away::Counted(*meter),
        (_, None) => Away::Denied,
    })
}

/// Whose counters a check of `rule` continues. A ban is for what the rule itself applies to.
fn lineage(rule: &Rule, limiting: &Limiting, part: Part) -> Lineage {
    let key = limit(limiting, part).and_then(RuleLimit::own_key).unwrap_or(&limiting.key);
    let name = if part == Part::Ban { &*rule.name } else { rule.counter() };
    Lineage { rule: name.into(), key: key.to_string().into() }
}

/// The limit that takes over another's counters comes first: that which refuses, before that which marks.
fn parts(limiting: &Limiting) -> Vec<Part> {
    let mut parts = Vec::new();
    parts.extend(limiting.ban.map(|_| Part::Ban));
    parts.extend(limiting.in_flight.map(|_| Part::Permit));
    for (position, limit) in (0..).zip(&limiting.limits) {
        match limit.raised {
            None => parts.push(Part::Limit(position)),
            Some(_) => parts.extend([Part::Margin(position), Part::Mark(position)]),
        }
    }
    parts
}

impl Limiting {
    /// What the check of `part` is held against, over all instances.
    pub fn quota(&self, part: Part) -> Option<Quota> {
        match part {
            Part::Ban => self.ban.map(Quota::ban),
            Part::Permit => self.in_flight.map(Quota::in_flight),
            Part::Margin(_) => limit(self, part)?.raised,
            Part::Limit(_) | Part::Mark(_) => limit(self, part).map(|limit| limit.quota),
        }
    }
}

impl Limiting {
    /// Whether its units are claimed from the store.
    pub(super) fn is_claimed(&self) -> bool {
        matches!(&self.source, LimitSource::Shared(shared) if shared.mode != Mode::Split)
    }

    /// Whether the counters of `part` have the same keys as the rule's bans.
    pub(super) fn has_key_of_ban(&self, part: Part) -> bool {
        part != Part::Ban && limit(self, part).is_none_or(|limit| limit.own_key().is_none())
    }
}

fn limit(limiting: &Limiting, part: Part) -> Option<&RuleLimit> {
    match part {
        Part::Limit(position) | Part::Margin(position) | Part::Mark(position) => {
            limiting.limits.get(usize::from(position))
        }
        Part::Ban | Part::Permit => None,
    }
}

/// What the check of `part` asks beyond whether there is room.
fn terms(index: usize, limiting: &Limiting, part: Part) -> Option<Terms> {
    let role = match (part, limiting.throttle) {
        (Part::Ban, _) => Role::Ban,
        (Part::Limit(_), Throttle::Delay(slack)) => Role::Delay(slack),
        (Part::Mark(_), Throttle::Soft { delay: Some(delay), .. }) => Role::Delay(Slack::new(delay, None)),
        (Part::Permit | Part::Limit(_) | Part::Margin(_) | Part::Mark(_), _) => Role::Limit,
    };
    let is_plain = role == Role::Limit && limiting.ban.is_none() && limiting.on_denied == OnDenied::Free;
    (!is_plain).then(|| Terms { role, on_denied: limiting.on_denied, ..plain(index) })
}

/// Terms that ask for nothing but a look at what is held.
fn plain(index: usize) -> Terms {
    let group = u32::try_from(index).unwrap_or(u32::MAX);
    Terms { group, role: Role::Limit, on_denied: OnDenied::Free }
}
