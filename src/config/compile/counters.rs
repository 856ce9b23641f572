//! `counter` of rules: which rules charge the same counter, and whether they can.
//!
//! Unless a rule names another counter, it charges the one of its own name. Rules of one counter may differ
//! in the requests that they match, in the cost of a request and in how they reject. Everything that defines
//! the counter must be the same.

use std::collections::HashMap;
use std::num::NonZeroU32;

use super::each;
use super::rules::check_name;
use crate::config::at::At;
use crate::config::parse::nearest;
use crate::config::problem::{Fault, Report, named};
use crate::config::raw;
use crate::limiter::quota::Quota;
use crate::limiter::reservation::ChargeTiming;
use crate::limiter::zone::Zone;
use crate::response::rejection::RejectionResponse;
use crate::rules::rule::{Action, LimitAction, LimitSource, Rule, RuleLimit, Throttle};

/// Reads the counter that the rule at `at` names.
pub(super) fn name(raw: &raw::Rule, at: At<'_>, report: &mut Report<'_>) -> Option<Box<str>> {
    let counter = raw.counter.as_deref()?;
    report.take(at.key("counter"), check_name(counter))?;
    Some(counter.into())
}

/// A rule and its line.
#[derive(Clone, Copy)]
struct Sharing<'r> {
    rule: &'r Rule,
    limiting: &'r LimitAction,
    line: usize,
}

/// Checks that the `rules` at `at` can share counters as configured.
pub(super) fn check(
    raw: &raw::ZeroOrMany<raw::Rule>,
    rules: &[(Rule, RejectionResponse)],
    at: At<'_>,
    report: &mut Report<'_>,
) {
    let mut counters: HashMap<&str, Vec<Sharing<'_>>> = HashMap::new();
    let mut compiled = rules.iter();
    each(raw, at, |raw, at| {
        let (rule, _) = compiled.next()?;
        let Action::Limit(limiting) = &rule.action else { return None };
        let sharing = Sharing { rule, limiting, line: report.line(at.key("name")) };
        let others = counters.entry(rule.counter()).or_default();
        // A rule with problems is not compared: they are reported already, and may be the reason for a
        // difference.
        let is_comparable = raw.name.is_some() && !report.is_faulty(at);
        if let Some(first) = others.first().filter(|_| is_comparable) {
            compare(*first, sharing, at, report);
        }
        for other in others.iter().filter(|_| is_comparable) {
            compare_beside(*other, sharing, at, report);
        }
        if is_comparable {
            others.push(sharing);
        }
        Some(())
    });
    note_unshared(raw, &counters, at, report);
}

/// Reports what a rule does not have in common with the first rule of its counter.
fn compare(first: Sharing<'_>, other: Sharing<'_>, at: At<'_>, report: &mut Report<'_>) {
    let (one, two) = (first.limiting, other.limiting);
    let aspects = [
        ("key", one.key.to_string(), two.key.to_string()),
        ("limits", limits(one), limits(two)),
        ("throttle", throttle(one.throttle), throttle(two.throttle)),
        ("enforce", one.enforced_share.to_string(), two.enforced_share.to_string()),
        (
            "on_change",
            format!("{:?}", one.on_change).to_lowercase(),
            format!("{:?}", two.on_change).to_lowercase(),
        ),
        ("scope", scope(one), scope(two)),
    ];
    for (what, one, two) in aspects.into_iter().filter(|(_, one, two)| one != two) {
        differ(what, (first, &one), (other, &two), at, report);
    }
}

/// Reports differences between two rules of a counter in settings that may be absent from either.
fn compare_beside(earlier: Sharing<'_>, later: Sharing<'_>, at: At<'_>, report: &mut Report<'_>) {
    let most = |sharing: Sharing<'_>| sharing.limiting.in_flight.map(NonZeroU32::get);
    if let (Some(one), Some(two)) = (most(earlier), most(later))
        && one != two
    {
        differ("in_flight", (earlier, &one.to_string()), (later, &two.to_string()), at, report);
    }
    let delays = |sharing: Sharing<'_>| matches!(sharing.limiting.throttle, Throttle::Delay(_));
    let holds =
        |sharing: Sharing<'_>| sharing.limiting.cost_model.charge_timing() == ChargeTiming::OnResponse;
    for (delaying, holding) in [(earlier, later), (later, earlier)] {
        if delays(delaying) && holds(holding) {
            let fault = Fault::new(format!(
                "rule {} in line {} delays requests, but the charges of rule {} in line {} to the same \
                 counter {} depend on the response",
                named(&delaying.rule.name),
                delaying.line,
                named(&holding.rule.name),
                holding.line,
                named(later.rule.counter()),
            ));
            report.value(at.key(place(later.rule)), fault.hint("delays are computed before the response"));
        }
    }
}

fn differ(
    what: &str,
    (first, one): (Sharing<'_>, &str),
    (other, two): (Sharing<'_>, &str),
    at: At<'_>,
    report: &mut Report<'_>,
) {
    let fault = Fault::new(format!(
        "rules sharing counter {} need the same `{what}`: {} in line {} has {one}, {} in line {} has {two}",
        named(other.rule.counter()),
        named(&first.rule.name),
        first.line,
        named(&other.rule.name),
        other.line,
    ));
    report.value(at.key(place(other.rule)), fault.hint("use another `counter` to count separately"));
}

/// Returns the key of a rule that names its counter.
fn place(rule: &Rule) -> &'static str {
    if rule.counter() == &*rule.name { "name" } else { "counter" }
}

/// Adds a note for a counter that only one rule charges, because its name may be misspelt.
fn note_unshared(
    raw: &raw::ZeroOrMany<raw::Rule>,
    counters: &HashMap<&str, Vec<Sharing<'_>>>,
    at: At<'_>,
    report: &mut Report<'_>,
) {
    each(raw, at, |raw, at| {
        let counter = raw.counter.as_deref()?;
        let alone = counters.get(counter).is_some_and(|rules| rules.len() == 1);
        if alone && raw.name.as_deref() != Some(counter) {
            let others = counters.keys().copied().filter(|other| *other != counter);
            let note = Fault::new(format!("no other rule charges the counter {}", named(counter)));
            report.note(at.key("counter"), note.meant(nearest(counter, others)));
        }
        Some(())
    });
}

fn limits(limiting: &LimitAction) -> String {
    let shown: Vec<String> = limiting.limits.iter().map(limit).collect();
    if shown.is_empty() { "none".to_owned() } else { shown.join(" and ") }
}

fn limit(limit: &RuleLimit) -> String {
    let mut text = quota(&limit.quota);
    if let Some(raised) = &limit.quota_with_margin {
        text += &format!(", raised to {}", raised.limit());
    }
    if let Some(nested) = &limit.nested {
        text += &format!(", prefix {}", nested.prefix);
    }
    text
}

fn quota(quota: &Quota) -> String {
    let algorithm = quota.algorithm();
    let mut text = format!("{}, {algorithm}", quota.limit());
    if algorithm.has_burst() {
        text += &format!(", burst {}", quota.burst());
    }
    if quota.precision() > 1 {
        text += &format!(", precision {}", quota.precision());
    }
    if quota.zone() != Zone::default() {
        text += &format!(", {}", quota.zone().name());
    }
    text
}

/// Formats the part of `throttle` that changes the counters or makes a rule charge without enforcing. Whether
/// excess requests are delayed or rejected may differ between rules.
fn throttle(throttle: Throttle) -> String {
    match throttle {
        Throttle::Hard | Throttle::Delay(_) => "hard".to_owned(),
        Throttle::Soft { margin, .. } => Throttle::Soft { margin, delay: None }.to_string(),
        Throttle::Shadow | Throttle::Elastic(_) => throttle.to_string(),
    }
}

fn scope(limiting: &LimitAction) -> String {
    match &limiting.source {
        LimitSource::Local => "local".to_owned(),
        LimitSource::Remote(remote) => format!("rls {}", remote.service_address),
        LimitSource::Shared(shared) => shared.to_string(),
    }
}
