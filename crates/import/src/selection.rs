//! The requests that a limit of another program applies to, as alternatives that have no request in common.
//!
//! A rule has one `match`, so each alternative becomes a rule, and rules of one limit share a counter. What `match` and
//! `except` cannot express makes a selection larger than the original, with a remark: its limit is then tighter.

use super::meet::{covers, may_meet, meet};
use super::remark::{Effect, Remark};
use super::scope::{MatchField, Scope, ScopeCondition};

/// Maximum number of alternatives.
const MAX_SCOPES: usize = 64;

/// Requests as alternatives without a request in common.
#[derive(Clone, Debug, Default)]
pub(super) struct RequestSet {
    pub(super) scopes: Vec<Scope>,
    /// What the scopes do not express.
    pub(super) remarks: Vec<Remark>,
}

impl RequestSet {
    /// All requests.
    pub(super) fn all() -> Self {
        Self { scopes: vec![Scope::default()], remarks: Vec::new() }
    }

    /// Requests whose attribute matches one of these patterns.
    pub(super) fn matching(field: MatchField, patterns: Vec<String>) -> Self {
        let mut scope = Scope::default();
        scope.require(field, patterns);
        Self { scopes: vec![scope], remarks: Vec::new() }
    }

    /// Requests whose attribute matches none of these patterns.
    pub(super) fn not_matching(field: MatchField, patterns: Vec<String>) -> Self {
        let mut scope = Scope::default();
        scope.except(field, patterns);
        Self { scopes: vec![scope], remarks: Vec::new() }
    }

    /// All requests, because rules cannot express which ones.
    pub(super) fn unknown(reason: impl Into<String>) -> Self {
        let mut all = Self::all();
        all.add(Effect::Tighter, reason);
        all
    }

    pub(super) fn add(&mut self, effect: Effect, text: impl Into<String>) {
        self.add_remark(Remark::new(effect, text));
    }

    fn add_remark(&mut self, remark: Remark) {
        if !self.remarks.contains(&remark) {
            self.remarks.push(remark);
        }
    }

    fn add_remarks_of(&mut self, other: &Self) {
        other.remarks.iter().for_each(|remark| self.add_remark(remark.clone()));
    }

    /// Whether these are all requests.
    pub(super) fn is_all(&self) -> bool {
        self.scopes.iter().any(|scope| scope.conditions.is_empty() && scope.exceptions.is_empty())
    }

    /// Whether it is larger than the original.
    pub(super) fn is_inexact(&self) -> bool {
        self.remarks.iter().any(|remark| remark.effect == Effect::Tighter)
    }

    /// Returns why there may be fewer requests than in the original.
    pub(super) fn looser_reasons(&self) -> impl Iterator<Item = &str> {
        let is_looser = |remark: &&Remark| remark.effect == Effect::Looser;
        self.remarks.iter().filter(is_looser).map(|remark| remark.text.as_str())
    }

    /// Returns the requests that are not in `other`, which takes precedence. Says so if none is left: a limit without requests is
    /// no limit, and what decides on the precedence may be outside of the input.
    pub(super) fn after(&self, other: &Self, title: &str) -> Self {
        let mut rest = self.without(other);
        if rest.scopes.is_empty() && !self.scopes.is_empty() {
            rest.add(Effect::Looser, format!("{title} takes its requests"));
        }
        rest
    }

    /// Whether both may have a request in common.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        self.scopes.iter().any(|ours| other.scopes.iter().any(|theirs| may_meet(ours, theirs)))
    }

    /// Returns the requests in both.
    pub(super) fn and(&self, other: &Self) -> Self {
        let mut both = Self::default();
        both.add_remarks_of(self);
        both.add_remarks_of(other);
        if self.scopes.len() * other.scopes.len() > MAX_SCOPES {
            both.add(
                Effect::Tighter,
                format!("more than {MAX_SCOPES} alternatives: a condition is left out"),
            );
            both.scopes.clone_from(&self.scopes);
            return both;
        }
        for one in &self.scopes {
            for other in &other.scopes {
                let Some(meeting) = meet(one, other) else { continue };
                for field in meeting.inexact {
                    both.add(
                        Effect::Tighter,
                        format!("two conditions on the {} are needed, and one is here", field_name(&field)),
                    );
                }
                both.scopes.push(meeting.scope);
            }
        }
        both
    }

    /// Returns the requests in one or both.
    pub(super) fn or(&self, other: &Self) -> Self {
        let mut either = self.clone();
        either.add_remarks_of(other);
        if self.is_all() || other.is_all() {
            either.scopes = vec![Scope::default()];
            return either;
        }
        for theirs in &other.scopes {
            let (parts, is_exact) = without_all(theirs, &either.scopes);
            either.note_approximation(is_exact);
            for part in parts {
                if !either.scopes.iter_mut().any(|ours| join(ours, &part)) {
                    either.scopes.push(part);
                }
            }
        }
        if either.scopes.len() > MAX_SCOPES {
            either.add(Effect::Tighter, format!("more than {MAX_SCOPES} alternatives: all requests"));
            either.scopes = vec![Scope::default()];
        }
        either
    }

    /// Returns the requests that are not in `other`.
    pub(super) fn without(&self, other: &Self) -> Self {
        let mut rest = Self { scopes: Vec::new(), remarks: self.remarks.clone() };
        let overlaps = self.overlaps(other);
        if overlaps && other.is_inexact() {
            rest.scopes.clone_from(&self.scopes);
            rest.add(
                Effect::Tighter,
                "requests that the original sends to another limit are not excepted, as rules cannot match them exactly",
            );
            return rest;
        }
        if overlaps {
            rest.add_remarks_of(other);
        }
        for ours in &self.scopes {
            let (parts, is_exact) = without_all(ours, &other.scopes);
            rest.scopes.extend(parts);
            rest.note_approximation(is_exact);
        }
        rest
    }

    /// Returns the requests that are in none of the alternatives.
    pub(super) fn inverse(&self) -> Self {
        if self.is_inexact() {
            let mut all = Self::all();
            all.add_remarks_of(self);
            return all;
        }
        Self::all().without(self)
    }

    fn note_approximation(&mut self, is_exact: bool) {
        if !is_exact {
            self.add(Effect::Differs, "`match` and `except` of overlapping requests are approximate");
        }
    }
}

/// Returns the requests of a scope that are in none of the others, and whether that is exact.
fn without_all(scope: &Scope, others: &[Scope]) -> (Vec<Scope>, bool) {
    let mut rest = vec![scope.clone()];
    let mut is_exact = true;
    for other in others {
        let mut parts = Vec::new();
        for one in &rest {
            let (outside, exact) = outside(one, other);
            parts.extend(outside);
            is_exact &= exact;
        }
        rest = parts;
        if rest.len() > MAX_SCOPES {
            return (vec![scope.clone()], false);
        }
    }
    (rest, is_exact)
}

/// Returns the requests of a scope that are not in another, in parts, and whether that is exact.
fn outside(scope: &Scope, other: &Scope) -> (Vec<Scope>, bool) {
    if !may_meet(scope, other) {
        return (vec![scope.clone()], true);
    }
    let mut parts = Vec::new();
    if !covers(&other.conditions, scope) {
        let mut part = scope.clone();
        add_exception(&mut part, &other.conditions);
        parts.push(part);
    }
    let of =
        |conditions: &[ScopeCondition]| Scope { conditions: conditions.to_vec(), exceptions: Vec::new() };
    let mut is_exact = true;
    // What the other excepts is not in it.
    for (index, exception) in other.exceptions.iter().enumerate() {
        let inside = meet(scope, &of(&other.conditions));
        let part = inside.and_then(|inside| {
            is_exact &= inside.inexact.is_empty();
            meet(&inside.scope, &of(exception))
        });
        let Some(part) = part else { continue };
        is_exact &= part.inexact.is_empty();
        let mut part = part.scope;
        for earlier in &other.exceptions[..index] {
            add_exception(&mut part, earlier);
        }
        parts.push(part);
    }
    (parts, is_exact)
}

fn add_exception(scope: &mut Scope, conditions: &[ScopeCondition]) {
    // What the rule requires anyway need not be in the exception.
    let new = |condition: &&ScopeCondition| !scope.conditions.contains(condition);
    let mut needed: Vec<ScopeCondition> = conditions.iter().filter(new).cloned().collect();
    if needed.is_empty() {
        needed = conditions.to_vec();
    }
    if !scope.exceptions.contains(&needed) {
        scope.exceptions.push(needed);
    }
}

/// Adds the requests of another scope if they differ in the patterns of one attribute only.
fn join(ours: &mut Scope, theirs: &Scope) -> bool {
    if ours == theirs {
        return true;
    }
    if ours.exceptions != theirs.exceptions || ours.conditions.len() != theirs.conditions.len() {
        return false;
    }
    let other =
        |condition: &ScopeCondition| theirs.conditions.iter().find(|one| one.field == condition.field);
    let differing: Vec<usize> = (0..ours.conditions.len())
        .filter(|index| other(&ours.conditions[*index]) != Some(&ours.conditions[*index]))
        .collect();
    let [index] = differing.as_slice() else { return false };
    let condition = &ours.conditions[*index];
    let Some(other) = other(condition) else { return false };
    let new: Vec<String> =
        other.patterns.iter().filter(|pattern| !condition.patterns.contains(pattern)).cloned().collect();
    ours.conditions[*index].patterns.extend(new);
    true
}

fn field_name(field: &MatchField) -> String {
    match field {
        MatchField::Host => "host".to_owned(),
        MatchField::Path => "path".to_owned(),
        MatchField::Method => "method".to_owned(),
        MatchField::ClientIp => "client's address".to_owned(),
        MatchField::Header(name) => format!("header `{name}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(pattern: &str) -> RequestSet {
        RequestSet::matching(MatchField::Path, vec![pattern.to_owned()])
    }

    fn host(pattern: &str) -> RequestSet {
        RequestSet::matching(MatchField::Host, vec![pattern.to_owned()])
    }

    #[test]
    fn alternatives_on_one_attribute_become_one_scope() {
        let either = path("/a").or(&path("/b")).and(&host("a.com"));
        assert_eq!(either.scopes.len(), 1);
        let patterns = &either.scopes[0].conditions[0].patterns;
        assert_eq!(*patterns, ["/a", "/b"]);
        assert!(path("/a").or(&RequestSet::all()).is_all());
    }

    #[test]
    fn overlapping_alternatives_have_no_request_in_common() {
        let either = path("/a").or(&host("a.com"));
        assert_eq!(either.scopes.len(), 2);
        assert_eq!(either.scopes[1].exceptions, [path("/a").scopes[0].conditions.clone()]);
    }

    #[test]
    fn what_another_selection_excepts_is_not_taken_away() {
        let api = path("/api/*").without(&path("/api/v1/*"));
        let rest = RequestSet::all().without(&api);
        assert_eq!(rest.scopes.len(), 2);
        assert_eq!(rest.scopes[0].exceptions, [path("/api/*").scopes[0].conditions.clone()]);
        assert_eq!(rest.scopes[1].conditions[0].patterns, ["/api/v1/*"]);
        assert!(!rest.is_inexact());
    }

    #[test]
    fn inverse_of_an_inverse_selects_the_same_requests() {
        let twice = path("/a").and(&host("a.com")).inverse().inverse();
        assert_eq!(twice.scopes.len(), 1);
        assert_eq!(twice.scopes[0].conditions.len(), 2);
    }

    #[test]
    fn unknown_requests_are_all_and_make_the_limit_tighter() {
        let unknown = RequestSet::unknown("a query");
        assert!(unknown.is_all() && unknown.is_inexact());
        assert_eq!(path("/a").and(&unknown).scopes, path("/a").scopes);
        assert!(unknown.inverse().is_all());
        let kept = path("/a").without(&unknown.and(&path("/a")));
        assert_eq!(kept.scopes, path("/a").scopes);
        assert_eq!(kept.remarks[0].effect, Effect::Tighter);
    }
}
