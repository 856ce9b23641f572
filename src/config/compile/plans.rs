//! Plans: the attribute that identifies a member, the members of each plan, and the parts of rules that use
//! plans.

use std::collections::HashSet;
use std::sync::Arc;

use super::matching::{claim_part, named_part, plain_part};
use super::scope::Scope;
use crate::config::at::At;
use crate::config::files::members::{MEMBERS, secret};
use crate::config::parse::{self, nearest};
use crate::config::problem::{Fault, Report, listed, quoted};
use crate::config::raw;
use crate::response::rejection::RejectionResponse;
use crate::rules::attribute::Attribute;
use crate::rules::membership::{Members, MembersBuilder, Plans};
use crate::rules::pattern::HeaderPattern;
use crate::rules::rule::{Action, Rule, Throttle};

/// Maximum number of notes on plans that no rule names; the rest is counted in one note.
const MAX_TOLD: usize = 10;

/// Compiles the section `plans` at `at`.
pub(super) fn compile(
    raw: Option<&raw::Plans>,
    at: At<'_>,
    scope: &mut Scope<'_>,
    report: &mut Report<'_>,
) -> Option<Arc<Plans>> {
    let raw = raw?;
    let of = raw.of.as_ref().and_then(|badge| of(badge, at.key("of"), scope, report));
    let members = raw.members.as_ref().and_then(|raw| members(raw, at.key("members"), scope, report));
    let default = match &raw.default {
        Some(name) => Some(report.take(at.key("default"), parse::plan(&name.0))?),
        None => None,
    };
    let is_written = raw.members.as_ref().is_some_and(|members| members.file.is_none());
    if is_written && !report.is_faulty(at) {
        scope.plan_names = Some(names(raw));
    }
    Some(Arc::new(Plans { attribute: of?, members: members?, default }))
}

fn of(raw: &raw::Badge, at: At<'_>, scope: &Scope<'_>, report: &mut Report<'_>) -> Option<Attribute> {
    match raw {
        raw::Badge::Plain(raw::PlainBadge::Host) => plain_part(raw::PlainKey::Host, at, scope, report),
        raw::Badge::Plain(raw::PlainBadge::Country) => plain_part(raw::PlainKey::Country, at, scope, report),
        raw::Badge::Plain(raw::PlainBadge::Continent) => {
            plain_part(raw::PlainKey::Continent, at, scope, report)
        }
        raw::Badge::Named(raw::NamedBadge { jwt: Some(claim), .. }) => {
            claim_part(claim, at.key("jwt"), scope, report)
        }
        raw::Badge::Named(named) => named_part([&named.header, &named.cookie, &named.query], at, report),
    }
}

fn members(
    raw: &raw::Members,
    at: At<'_>,
    scope: &mut Scope<'_>,
    report: &mut Report<'_>,
) -> Option<Arc<Members>> {
    if let Some(file) = &raw.file {
        if !raw.written.is_empty() {
            report.value(at, "both `file` and members, expected one of them");
        }
        return scope.files.load(file, &MEMBERS, at.key("file"), report);
    }
    let mut builder = MembersBuilder::new(report.take(at, secret())?);
    for (member, plan) in &raw.written {
        let at = at.key(member);
        let Some(plan) = report.take(at, parse::plan(&plan.0)) else { continue };
        report.take(at, builder.add(member, &plan).map_err(|error| error.to_string()));
    }
    // The keys of a map are unique, so there are no duplicate members.
    builder.close().ok().map(Arc::new)
}

/// Returns the names of all plans in the configuration.
fn names(raw: &raw::Plans) -> Vec<String> {
    let written = raw.members.iter().flat_map(|members| members.written.values());
    let mut names: Vec<String> = written.chain(&raw.default).map(|name| name.0.clone()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Adds a note for each plan that has clients but is named by no rule, if other rules match by plan. Clients
/// on such a plan are unlimited, which is easily overlooked. `at` is the section.
pub(super) fn note_unnamed(
    raw: Option<&raw::Plans>,
    plans: Option<&Plans>,
    rules: &[(Rule, RejectionResponse)],
    at: At<'_>,
    report: &mut Report<'_>,
) {
    let (Some(raw), Some(plans)) = (raw, plans) else { return };
    let matchers = rules.iter().flat_map(|(rule, _)| rule.except.iter().chain([&rule.matcher]));
    let conditions = matchers.flat_map(|matcher| &matcher.conditions);
    let named: HashSet<&str> = conditions
        .filter(|condition| condition.attribute.source().plans().is_some())
        .flat_map(|condition| condition.patterns.iter().filter_map(HeaderPattern::exact))
        .collect();
    let limits_all = |(rule, _): &(Rule, RejectionResponse)| match &rule.action {
        Action::Limit(limiting) if limiting.throttle != Throttle::Shadow => {
            rule.matcher.holds_for_all() && rule.except.is_empty()
        }
        Action::Limit(_) | Action::Allow | Action::Deny => false,
    };
    // If no rule matches by plan, plans are used only in keys. If a rule limits every request, no client is
    // unlimited.
    if named.is_empty() || rules.iter().any(limits_all) {
        return;
    }
    let note =
        |note: String| Fault::new(note).hint("add a rule that names it in `match.plan` or `except.plan`");
    if let Some(default) = plans.default.as_deref().filter(|default| !named.contains(default)) {
        let who = format!(
            "no rule names the plan {}, so clients that are not members are unlimited",
            quoted(default)
        );
        report.note(at.key("default"), note(who));
    }
    let members_at = at.key("members");
    let (mut told, mut more) = (0, 0);
    for (plan, count) in plans.members.counts().filter(|(plan, count)| *count > 0 && !named.contains(plan)) {
        if told == MAX_TOLD {
            more += 1;
            continue;
        }
        told += 1;
        let who = match count {
            1 => "its only member is".to_owned(),
            several => format!("its {several} members are"),
        };
        let fault = note(format!("no rule names the plan {}, so {who} unlimited", quoted(plan)));
        let member = raw.members.as_ref().and_then(|members| {
            members.written.iter().find(|(_, written)| *written.0 == *plan).map(|(member, _)| member)
        });
        match member {
            Some(member) => report.note(members_at.key(member), fault),
            None => report.note(members_at.key("file"), fault),
        }
    }
    if more > 0 {
        report.note(members_at, format!("no rule names {more} other plans either"));
    }
}

/// Compiles a plan of a matcher.
pub(super) fn pattern(
    raw: &raw::PlanName,
    at: At<'_>,
    scope: &Scope<'_>,
    report: &mut Report<'_>,
) -> Option<HeaderPattern> {
    let plan = report.take(at, parse::plan(&raw.0))?;
    let known = scope.plan_names.as_deref().unwrap_or_default();
    if scope.plan_names.is_some() && !known.iter().any(|known| **known == *plan) {
        let names = || known.iter().map(String::as_str);
        let fault = Fault::new(format!("no client has the plan {}", quoted(&plan)));
        let fault = fault.hint(format!("known plans: {}", listed(names())));
        report.value(at, fault.meant(nearest(&plan, names())));
    }
    Some(HeaderPattern::Exact(plan))
}

/// Returns the plans; reports that the setting at `at` needs them, if there are none.
pub(super) fn plans_for(at: At<'_>, scope: &Scope<'_>, report: &mut Report<'_>) -> Option<Arc<Plans>> {
    if !scope.has_plans {
        report.value(at, "`plan` needs `plans`, and there is none");
    }
    scope.plans.clone()
}
