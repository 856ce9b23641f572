//! `any_of`: groups of rules of which a request needs room in one.

use std::collections::HashMap;

use super::map_items;
use super::rules::describe;
use crate::at::At;
use crate::diagnostic::ValueError;
use crate::parse::nearest_name;
use crate::quoting::{backquoted, quoted};
use crate::raw;
use weir_limiter::check_options::OnDenied;
use weir_policy::rules::group_place::{GroupPlace, MAX_GROUP_RULES, MAX_GROUPS};
use weir_policy::rules::rule::{Action, LimitAction, LimitSource, Rule, Throttle};
use weir_policy::rules::shared_limit::Mode;

/// The rules of the configuration, by name.
struct NamedRules<'r> {
    rules: &'r mut [Rule],
    /// Position of each rule, and its index in the list as written.
    by_name: HashMap<Box<str>, (usize, Option<usize>)>,
    /// Where each rule of a group is named.
    places: HashMap<usize, String>,
}

/// Puts the `rules` into the groups that `root` names.
pub(super) fn compile(root: &raw::Root, rules: &mut [Rule], at: At<'_>) {
    let (Some(groups), Some(raw_rules)) = (&root.any_of, &root.rules) else { return };
    let indices = raw_rules.items().map(|(index, _)| index);
    let named = rules.iter().zip(indices).enumerate();
    let by_name = named.map(|(position, (rule, index))| (rule.name.clone(), (position, index))).collect();
    let mut named = NamedRules { rules, by_name, places: HashMap::new() };
    let (groups_at, rules_at) = (at.key("any_of"), at.key("rules"));
    if groups.items().count() > MAX_GROUPS {
        groups_at.error(format!("expected at most {MAX_GROUPS} groups, got {}", groups.items().count()));
        return;
    }
    let mut numbers = 0_u8..=u8::MAX;
    map_items(groups, groups_at, |group, group_at| {
        compile_group(group, numbers.next()?, &mut named, group_at, rules_at);
        Some(())
    });
}

fn compile_group(
    raw: &raw::OneOrMany<String>,
    group: u8,
    named: &mut NamedRules<'_>,
    at: At<'_>,
    rules_at: At<'_>,
) {
    let count = raw.items().count();
    if count < 2 {
        let error = ValueError::new("a group of one rule, expected at least 2");
        at.error(error.with_hint("a group is a list: `any_of: [[subscription, credits]]`"));
        return;
    }
    if count > MAX_GROUP_RULES {
        at.error(format!("expected at most {MAX_GROUP_RULES} rules in a group, got {count}"));
        return;
    }
    let mut positions = 0_u8..=u8::MAX;
    map_items(raw, at, |name, at| {
        let position = positions.next()?;
        named.put(name, GroupPlace { group, position }, at, rules_at)
    });
}

impl NamedRules<'_> {
    /// Puts the rule `name`, which is named at `at`, in its place. The rules are at `rules_at`.
    fn put(&mut self, name: &str, place: GroupPlace, at: At<'_>, rules_at: At<'_>) -> Option<()> {
        let Some(&(position, index)) = self.by_name.get(name) else {
            let names = self.by_name.keys().map(|name| &**name);
            let error = ValueError::new(format!("unknown rule {}", quoted(name)));
            at.error(error.with_suggestion(nearest_name(name, names)));
            return None;
        };
        if let Some(first) = self.places.insert(position, at.to_string()) {
            let error = format!("rule {} is in a group already", backquoted(name));
            at.error(ValueError::new(error).with_hint(format!("first at `{first}`")));
            return None;
        }
        let described = describe(&self.rules[position], index, rules_at);
        let rule = &mut self.rules[position];
        if let Some((what, hint)) = conflict(rule) {
            let error = ValueError::new(format!("rule {described} cannot be in a group: {what}"));
            at.error(error.with_hint(hint));
            return None;
        }
        if let Action::Limit(limiting) = &mut rule.action {
            limiting.group_place = Some(place);
        }
        Some(())
    }
}

/// Returns why a rule cannot be in a group, and what to do instead.
fn conflict(rule: &Rule) -> Option<(&'static str, &'static str)> {
    let limiting = match &rule.action {
        Action::Limit(limiting) => limiting,
        Action::Allow => return Some(("`action: allow`", "such a rule has no limit")),
        Action::Deny => return Some(("`action: deny`", "such a rule has no limit")),
    };
    if rule.domain.is_some() {
        return Some(("`domain`", "Envoy makes a call for each descriptor, and not for a group"));
    }
    stream_conflict(limiting)
        .or_else(|| throttle_conflict(limiting))
        .or_else(|| scope_conflict(&limiting.source))
        .or_else(|| setting_conflict(limiting))
}

fn stream_conflict(limiting: &LimitAction) -> Option<(&'static str, &'static str)> {
    let conflict =
        ("limits inside streams", "they slow streams down and reject nothing: use a separate rule");
    limiting.streams.is_some().then_some(conflict)
}

fn throttle_conflict(limiting: &LimitAction) -> Option<(&'static str, &'static str)> {
    match limiting.throttle {
        Throttle::Hard | Throttle::Soft { .. } | Throttle::Elastic(_) => None,
        Throttle::Shadow => {
            Some(("`throttle: shadow`", "it admits every request, so no other rule would be tried"))
        }
        Throttle::Delay(_) => {
            Some(("`throttle: delay`", "it would delay requests although another rule has room"))
        }
        Throttle::Wait => Some(("`throttle: wait`", "it would hold requests although another rule has room")),
    }
}

fn scope_conflict(source: &LimitSource) -> Option<(&'static str, &'static str)> {
    match source {
        LimitSource::Local => None,
        LimitSource::Shared(shared) if shared.mode == Mode::Split => None,
        LimitSource::Shared(_) => Some((
            "`scope: shared` with leases",
            "whether it has room is known when the store responds; use `scope: { shared: split }`",
        )),
        LimitSource::Remote(_) => {
            Some(("`scope: {rls: …}`", "that service decides after the limits of this process are charged"))
        }
    }
}

fn setting_conflict(limiting: &LimitAction) -> Option<(&'static str, &'static str)> {
    let settings = [
        (
            !limiting.enforced_share.is_for_all(),
            "`enforce`",
            "for other keys it admits every request, so no other rule would be tried",
        ),
        (limiting.ban.is_some(), "`ban`", "a rule without room is passed over and rejects nothing"),
        (limiting.divert_to.is_some(), "`on_limit.upstream`", "a rule without room is passed over"),
        (
            limiting.on_denied == OnDenied::Charge,
            "`on_denied: charge`",
            "a request is charged to one rule of the group",
        ),
        (limiting.distinct.is_some(), "`distinct`", "a known value is charged to no rule"),
        (limiting.feedback.is_some(), "`feedback`", "its pauses are those of one provider"),
        (limiting.deferral.is_some(), "`respond`", "its limit applies to the calls that it sends"),
    ];
    settings.into_iter().find(|(is_given, ..)| *is_given).map(|(_, what, hint)| (what, hint))
}
