//! Which checks a rule makes of a request, worked out once.
//!
//! A rule with one limit makes one check. A soft limit makes two: with its margin it refuses, as written it
//! marks, so that exactly what the written limit would refuse is marked. Permits and bans are checks like others.

use super::rule::{Action, Limiting, Rule, RuleLimit, Throttle};
use super::selection::Part;
use crate::limiter::quota::Quota;
use crate::limiter::terms::{OnDenied, Role, Slack, Terms};
use crate::limiter::{Lineage, Meter, MeterSpec};

/// One check of a rule, bound to its meter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planned {
    pub(super) part: Part,
    pub(super) meter: Meter,
    pub(super) terms: Option<Terms>,
}

/// The meters that `rules` need, rule by rule and check by check, in the order that rules are bound in.
pub fn meter_specs(rules: &[Rule]) -> Vec<MeterSpec> {
    let mut specs = Vec::new();
    for rule in rules {
        let Action::Limit(limiting) = &rule.action else { continue };
        for part in parts(limiting) {
            let Some(quota) = quota(limiting, part) else { continue };
            let key = limit(limiting, part).and_then(RuleLimit::own_key).unwrap_or(&limiting.key);
            let lineage = Lineage { rule: rule.name.clone(), key: key.to_string().into() };
            specs.push(MeterSpec { lineage, quota, on_change: limiting.on_change });
        }
    }
    specs
}

/// The checks of the rule at `index`, counted by the next of `meters`.
pub(super) fn plan(index: usize, rule: &Rule, meters: &mut impl Iterator<Item = Meter>) -> Box<[Planned]> {
    let Action::Limit(limiting) = &rule.action else { return Box::default() };
    let bind = |part| {
        let meter = meters.next()?;
        Some(Planned { part, meter, terms: terms(index, limiting, part) })
    };
    parts(limiting).into_iter().filter(|part| quota(limiting, *part).is_some()).filter_map(bind).collect()
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
    let plain = role == Role::Limit && limiting.ban.is_none() && limiting.on_denied == OnDenied::Free;
    let group = u32::try_from(index).unwrap_or(u32::MAX);
    (!plain).then_some(Terms { group, role, on_denied: limiting.on_denied })
}
