//! Groups of rules of which a request needs room in one.

use super::*;
use crate::rules::group_place::GroupPlace;
use crate::rules::outcome::{DecisionOutcome, by_rule};
use DecisionOutcome::{Allowed, Diverted, Limited};
use weir_limiter::check_options::{AlternativePlace, WithoutRoom};

/// Returns a rule for `path` at this position of the group 0.
fn grouped(name: &str, path: &str, position: u8, count: u32) -> Rule {
    let Action::Limit(mut limiting) = limiting(&[], OnMissing::Skip, &[count]) else { panic!() };
    limiting.group_place = Some(GroupPlace { group: 0, position });
    rule(name, &[path], Action::Limit(limiting))
}

fn checks(selection: Selection) -> SmallVec<[SelectedCheck; 2]> {
    match selection {
        Selection::Limited(checks, _) => checks,
        other => panic!("{other:?}"),
    }
}

/// Returns what becomes of the request if each of its checks has no room.
fn without_room(checks: &[SelectedCheck]) -> Vec<WithoutRoom> {
    let of =
        |one: &SelectedCheck| one.check.options.map_or(WithoutRoom::Reject, |options| options.without_room);
    checks.iter().map(of).collect()
}

fn try_next(rules: u8, rank: u8) -> WithoutRoom {
    WithoutRoom::TryNext(AlternativePlace { set: u16::from(rules), rank })
}

/// Returns the outcome of each rule for the next request for this path.
fn outcomes(bound: &BoundRules, uri: &str) -> Vec<Option<DecisionOutcome>> {
    let checks = checks(bound.select(uri));
    let decision = bound.limiter.check(checks.iter().map(|one| &one.check), START);
    let outcome = |(checks, verdicts): (&[SelectedCheck], &[_])| {
        DecisionOutcome::from_verdicts(checks, verdicts, decision.is_rejected())
    };
    by_rule(&checks, &decision).map(outcome).collect()
}

#[test]
fn rules_that_apply_are_alternatives_in_the_order_of_the_group() {
    let bound = bound(vec![
        grouped("credits", "~.", 1, 5),
        grouped("subscription", "~.", 0, 5),
        limit("all", &["~."], &[], &[9]),
        grouped("exports", "/export", 2, 5),
    ]);
    let selected = checks(bound.select("/"));
    assert_eq!(without_room(&selected), [try_next(3, 1), try_next(3, 0), WithoutRoom::Reject]);
    let selected = checks(bound.select("/export"));
    let expected = [try_next(7, 1), try_next(7, 0), WithoutRoom::Reject, try_next(7, 2)];
    assert_eq!(without_room(&selected), expected);
}

#[test]
fn only_rule_of_a_group_that_applies_rejects_as_usual() {
    let bound = bound(vec![grouped("one", "/", 0, 1), grouped("other", "/export", 1, 1)]);
    assert_eq!(without_room(&checks(bound.select("/"))), [WithoutRoom::Reject]);
}

#[test]
fn only_the_charged_rule_has_an_outcome() {
    let bound = bound(vec![grouped("subscription", "~.", 0, 1), grouped("credits", "~.", 1, 1)]);
    assert_eq!(outcomes(&bound, "/"), [Some(Allowed), None]);
    assert_eq!(outcomes(&bound, "/"), [None, Some(Allowed)]);
    assert_eq!(outcomes(&bound, "/"), [Some(Limited), None], "the first of equals");
}

#[test]
fn elements_of_a_batch_are_charged_by_the_rules_that_apply_to_each() {
    let bound = bound(vec![grouped("subscription", "/call", 0, 3), grouped("credits", "~.", 1, 4)]);
    let element = |uri: &str| bound.select(uri);
    let both = checks(element("/call").joined(element("/call")));
    assert_eq!(both.iter().map(|one| one.check.cost).collect::<Vec<_>>(), [2, 2]);
    let mixed = checks(element("/call").joined(element("/list")));
    assert_eq!(without_room(&mixed), [try_next(3, 0), try_next(3, 1), WithoutRoom::Reject]);
    let decide = |checks: &[SelectedCheck]| {
        let decision = bound.limiter.check(checks.iter().map(|one| &one.check), START);
        let is_charged = |verdict: &weir_limiter::decision::Verdict| verdict.is_charged();
        (!decision.is_rejected()).then(|| decision.verdicts().iter().map(is_charged).collect::<Vec<_>>())
    };
    assert_eq!(decide(&both), Some(vec![true, false]));
    assert_eq!(decide(&both), Some(vec![false, true]), "one unit is left of the first");
    assert_eq!(decide(&mixed), Some(vec![true, false, true]));
    assert_eq!(decide(&mixed), None, "one unit is left of both together");
}

#[test]
fn rule_that_diverts_has_an_outcome_of_its_own() {
    let Action::Limit(mut limiting) = limiting(&[], OnMissing::Skip, &[1]) else { panic!() };
    limiting.divert_to = Some("cheap".into());
    let rules = vec![rule("models", &["~."], Action::Limit(limiting)), limit("all", &["~."], &[], &[2])];
    let bound = bound(rules);
    assert_eq!(outcomes(&bound, "/"), [Some(Allowed), Some(Allowed)]);
    assert_eq!(outcomes(&bound, "/"), [Some(Diverted), Some(Allowed)]);
    assert_eq!(outcomes(&bound, "/"), [None, Some(Limited)]);
}
