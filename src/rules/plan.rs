//! Which checks a rule makes of a request, worked out once.
//!
//! A rule with one limit makes one check. A soft limit makes two: with its margin it refuses, as written it
//! marks, so that exactly what the written limit would refuse is marked. Permits and bans are checks like others.

use std::collections::HashMap;

use super::rule::{Action, Limiting, Rule, RuleLimit, Throttle};
use super::selection::Part;
use crate::limiter::quota::Quota;
use crate::limiter::reservation::Charging;
use crate::limiter::terms::{OnDenied, Role, Slack, Terms};
use crate::limiter::{Lineage, Meter, MeterSpec};

/// One check of a rule, bound to its meter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planned {
    pub(super) part: Part,
    pub(super) meter: Meter,
    pub(super) terms: Option<Terms>,
}

/// The meters that `rules` need, in the order that rules are bound in. Rules with one counter share its meters.
pub fn meter_specs(rules: &[Rule]) -> Vec<MeterSpec> {
    Needs::of(rules).specs
}

/// The checks of each of `rules`, bound to `meters` as the limiter returned them for [`meter_specs`].
pub(super) fn plans(rules: &[Rule], meters: &[Meter]) -> Box<[Box<[Planned]>]> {
    let needs = Needs::of(rules);
    let of_rule = |(index, rule): (usize, &Rule)| {
        let Action::Limit(limiting) = &rule.action else { return Box::default() };
        let bind = |&(part, spec): &(Part, usize)| {
            let meter = *meters.get(spec)?;
            // Requests of another rule hold units of the counter that have not been charged yet.
            let is_beside_holds = needs.is_held[spec]
                && limiting.tariff.charging() == Charging::OnArrival
                && part != Part::Permit;
            let terms = terms(index, limiting, part).or_else(|| is_beside_holds.then(|| plain(index)));
            Some(Planned { part, meter, terms })
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
    /// The checks of each rule, each with its place in `specs`.
    of_rules: Vec<Vec<(Part, usize)>>,
}

impl Needs {
    fn of(rules: &[Rule]) -> Self {
        let (mut needs, mut places) = (Self::default(), HashMap::new());
        for rule in rules {
            let mut checks = Vec::new();
            if let Action::Limit(limiting) = &rule.action {
                for part in parts(limiting) {
                    let Some(quota) = quota(limiting, part) else { continue };
                    let lineage = lineage(rule, limiting, part);
                    let place = *places.entry((lineage.clone(), part)).or_insert(needs.specs.len());
                    if place == needs.specs.len() {
                        needs.specs.push(MeterSpec {
                            lineage,
                            quota,
                            on_change: limiting.on_change,
                            sharing: None,
                        });
                        needs.is_held.push(false);
                    }
                    needs.is_held[place] |= limiting.tariff.charging() == Charging::OnAnswer;
                    checks.push((part, place));
                }
            }
            needs.of_rules.push(checks);
        }
        needs
    }
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

fn limit(limiting: &Limiting, part: Part) -> Option<&RuleLimit> {
    match part {
        Part::Limit(position) | Part::Margin(position) | Part::Mark(position) => {
            limiting.limits.get(usize::from(position))
        }
        Part::Ban | Part::Permit => None,
    }
}

fn quota(limiting: &Limiting, part: Part) -> Option<Quota> {
    match part {
        Part::Ban => limiting.ban.map(Quota::ban),
        Part::Permit => limiting.in_flight.map(Quota::in_flight),
        Part::Margin(_) => limit(limiting, part)?.raised,
        Part::Limit(_) | Part::Mark(_) => limit(limiting, part).map(|limit| limit.quota),
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
