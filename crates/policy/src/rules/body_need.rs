//! Which fields of a body decide what follows from a request. No body is held for a rule that cannot apply, whatever is in the body.

use weir_bodies::fields::FieldMask;

use super::attribute::IncompleteKey;
use super::bound_rule::ActionKind;
use super::matcher::Match;
use super::rule::{Action, LimitAction, OnMissing, Rule};
use super::{Route, RuleSet};
use crate::identify::Attributes;

impl RuleSet {
    /// Returns the fields of an unread body without which it is unclear which rules apply to the request, and with which key.
    pub fn body_fields_needed(&self, request: &Attributes<'_>) -> FieldMask {
        let candidates = self.index.candidates(request);
        let needed = self.fields_needed_by(candidates.iter().map(|index| *index as usize), request);
        if needed.is_empty() || self.all_limit {
            return needed;
        }
        let of_kind = |kind| self.of_kind(&candidates, kind);
        let applies = |index: usize| matches!(self.rules[index].applies_to(request), Match::Yes(_));
        if of_kind(ActionKind::Allow).any(applies) {
            return FieldMask::default();
        }
        match of_kind(ActionKind::Deny).any(applies) {
            // Only an `allow` rule that reads the body may still let the request pass.
            true => self.fields_needed_by(of_kind(ActionKind::Allow), request),
            false => needed,
        }
    }

    fn fields_needed_by(&self, rules: impl Iterator<Item = usize>, request: &Attributes<'_>) -> FieldMask {
        rules.fold(FieldMask::default(), |all, index| all | fields_needed(&self.rules[index], request))
    }
}

/// Returns the fields that the rule reads, if it may apply.
fn fields_needed(rule: &Rule, request: &Attributes<'_>) -> FieldMask {
    let fields = rule.body_fields();
    if fields.is_empty() {
        return fields;
    }
    let may_apply = match (rule.applies_to(request), &rule.action) {
        (Match::No, _) => false,
        (Match::Yes(route) | Match::Unclear(route, _), Action::Limit(limiting)) => {
            !is_skipped(limiting, request, route)
        }
        (Match::Yes(_) | Match::Unclear(..), Action::Allow | Action::Deny) => true,
    };
    if may_apply { fields } else { FieldMask::default() }
}

/// Whether the rule is skipped, because a part of the key is absent that is not in the body.
fn is_skipped(limiting: &LimitAction, request: &Attributes<'_>, route: Route<'_>) -> bool {
    let is_missing = |read| matches!(read, Err(IncompleteKey::Missing));
    limiting.on_missing == OnMissing::Skip
        && limiting.counted_parts().iter().any(|part| is_missing(part.read(request, route, |_| ())))
}
