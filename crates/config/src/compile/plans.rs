//! Plans: the attribute that identifies a member, the members of each plan, and the parts of rules that use
//! plans.

use std::collections::HashSet;
use std::sync::Arc;

use super::context::CompileContext;
use super::matching::{compile_claim_part, compile_named_part, compile_plain_part};
use crate::at::At;
use crate::data_files::members::{MEMBERS, member_limit, random_secret};
use crate::diagnostic::ValueError;
use crate::parse::{self, nearest_name};
use crate::quoting::{backquoted_list, quoted};
use crate::raw;
use weir_limiter::quota::Limit;
use weir_policy::rules::attribute::Attribute;
use weir_policy::rules::membership::{Members, MembersBuilder, Plans};
use weir_policy::rules::pattern::HeaderPattern;
use weir_policy::rules::rule::{Action, Rule, Throttle};

/// Maximum number of notes on plans that no rule names; the rest is counted in one note.
const MAX_NOTES: usize = 10;

/// Compiles the section `plans` at `at`.
pub(super) fn compile(
    raw: Option<&raw::Plans>,
    at: At<'_>,
    context: &mut CompileContext<'_>,
) -> Option<Arc<Plans>> {
    let raw = raw?;
    let attribute = raw.of.as_ref().and_then(|badge| compile_attribute(badge, at.key("of"), context));
    let members = raw.members.as_ref().and_then(|raw| load_members(raw, at.key("members"), context));
    let default = match &raw.default {
        Some(name) => Some(at.key("default").ok(parse::plan_name(&name.0))?),
        None => None,
    };
    let is_inline = raw.members.as_ref().is_some_and(|members| members.file.is_none());
    if is_inline && !at.is_reported() {
        context.plan_names = Some(plan_names(raw));
    }
    Some(Arc::new(Plans { attribute: attribute?, members: members?, default }))
}

fn compile_attribute(
    raw: &raw::MemberAttribute,
    at: At<'_>,
    context: &CompileContext<'_>,
) -> Option<Attribute> {
    match raw {
        raw::MemberAttribute::Plain(raw::PlainMemberAttribute::Host) => {
            compile_plain_part(raw::PlainKey::Host, at, context)
        }
        raw::MemberAttribute::Plain(raw::PlainMemberAttribute::Country) => {
            compile_plain_part(raw::PlainKey::Country, at, context)
        }
        raw::MemberAttribute::Plain(raw::PlainMemberAttribute::Continent) => {
            compile_plain_part(raw::PlainKey::Continent, at, context)
        }
        raw::MemberAttribute::Named(raw::NamedMemberAttribute { jwt: Some(claim), .. }) => {
            compile_claim_part(claim, at.key("jwt"), context)
        }
        raw::MemberAttribute::Named(named) => {
            compile_named_part(&named.header, &named.cookie, &named.query, at)
        }
    }
}

fn load_members(raw: &raw::Members, at: At<'_>, context: &mut CompileContext<'_>) -> Option<Arc<Members>> {
    if let Some(file) = &raw.file {
        if !raw.inline_members.is_empty() {
            at.error("both `file` and members, expected one of them");
        }
        return at.key("file").load(context.files, file, &MEMBERS);
    }
    let mut builder = MembersBuilder::new(at.ok(random_secret())?);
    for (member, raw) in &raw.inline_members {
        let at = at.key(member);
        let Some((plan, limit)) = compile_member(raw, at) else { continue };
        at.ok(builder.add(member, &plan, limit).map_err(|error| error.to_string()));
    }
    // The keys of a map are unique, so there are no duplicate members.
    builder.close().ok().map(Arc::new)
}

fn compile_member(raw: &raw::Member, at: At<'_>) -> Option<(Box<str>, Option<Limit>)> {
    let map = match raw {
        raw::Member::Plan(plan) => return Some((at.ok(parse::plan_name(&plan.0))?, None)),
        raw::Member::Map(map) => map,
    };
    let limit = map.limit.as_ref().map(|rate| at.key("limit").ok(member_limit(&rate.0)));
    let plan_at = at.key("plan");
    if map.plan.is_none() && !plan_at.is_reported() {
        plan_at.error("missing, a member has a plan");
    }
    let plan = plan_at.ok(parse::plan_name(&map.plan.as_ref()?.0))?;
    Some((plan, limit.map_or(Some(None), |limit| limit.map(Some))?))
}

/// Returns the names of all plans in the configuration.
fn plan_names(raw: &raw::Plans) -> Vec<String> {
    let members = raw.members.iter().flat_map(|members| members.inline_members.values());
    let written = members.filter_map(raw::Member::plan);
    let mut names: Vec<String> = written.chain(&raw.default).map(|name| name.0.clone()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Adds a note for each plan that has clients but is named by no rule, if other rules match by plan. Clients
/// on such a plan are unlimited, which is easily overlooked. `at` is the section.
pub(super) fn note_plans_without_rule(
    raw: Option<&raw::Plans>,
    plans: Option<&Plans>,
    rules: &[Rule],
    at: At<'_>,
) {
    let (Some(raw), Some(plans)) = (raw, plans) else { return };
    let matchers = rules.iter().flat_map(|rule| rule.except.iter().chain([&rule.matcher]));
    let conditions = matchers.flat_map(|matcher| &matcher.conditions);
    let named: HashSet<&str> = conditions
        .filter(|condition| condition.attribute.source().plans().is_some())
        .flat_map(|condition| condition.patterns.iter().filter_map(HeaderPattern::exact))
        .collect();
    let limits_all = |rule: &Rule| match &rule.action {
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
    let note = |note: String| {
        ValueError::new(note).with_hint("add a rule that names it in `match.plan` or `except.plan`")
    };
    if let Some(default) = plans.default.as_deref().filter(|default| !named.contains(default)) {
        let message = format!(
            "no rule names the plan {}, so clients that are not members are unlimited",
            quoted(default)
        );
        at.key("default").note(note(message));
    }
    let members_at = at.key("members");
    let (mut noted, mut omitted) = (0, 0);
    for (plan, count) in plans.members.counts().filter(|(plan, count)| *count > 0 && !named.contains(plan)) {
        if noted == MAX_NOTES {
            omitted += 1;
            continue;
        }
        noted += 1;
        let subject = match count {
            1 => "its only member is".to_owned(),
            several => format!("its {several} members are"),
        };
        let error = note(format!("no rule names the plan {}, so {subject} unlimited", quoted(plan)));
        let member = raw.members.as_ref().and_then(|members| {
            let mut inline = members.inline_members.iter();
            let has_plan = |member: &raw::Member| member.plan().is_some_and(|written| *written.0 == *plan);
            inline.find(|(_, written)| has_plan(written)).map(|(member, _)| member)
        });
        match member {
            Some(member) => members_at.key(member).note(error),
            None => members_at.key("file").note(error),
        }
    }
    if omitted > 0 {
        members_at.note(format!("no rule names {omitted} other plans either"));
    }
}

/// Compiles a plan of a matcher.
pub(super) fn compile_pattern(
    raw: &raw::PlanName,
    at: At<'_>,
    context: &CompileContext<'_>,
) -> Option<HeaderPattern> {
    let plan = at.ok(parse::plan_name(&raw.0))?;
    let known = context.plan_names.as_deref().unwrap_or_default();
    if context.plan_names.is_some() && !known.iter().any(|known| **known == *plan) {
        let names = || known.iter().map(String::as_str);
        let error = ValueError::new(format!("no client has the plan {}", quoted(&plan)));
        let error = error.with_hint(format!("known plans: {}", backquoted_list(names())));
        at.error(error.with_suggestion(nearest_name(&plan, names())));
    }
    Some(HeaderPattern::Exact(plan))
}

/// Returns the plans; reports that the setting at `at` needs them, if there are none.
pub(super) fn require_plans(at: At<'_>, context: &CompileContext<'_>) -> Option<Arc<Plans>> {
    if !context.has_plans {
        at.error("`plan` needs `plans`, and there is none");
    }
    context.plans.clone()
}
