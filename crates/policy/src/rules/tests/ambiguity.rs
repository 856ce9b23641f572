//! Rules applied to requests with ambiguous keys.

use std::sync::Arc;

use super::*;
use crate::identify::lookup::Ambiguity;
use crate::rules::enforced_share::EnforcedShare;
use crate::rules::matcher::Condition;
use crate::rules::membership::{MembersBuilder, Plans};
use crate::rules::pattern::HeaderPattern;
use crate::rules::rule::Throttle;
use weir_limiter::percent::Percent;

/// What the rule at index 0 did with a request.
#[derive(Debug, PartialEq, Eq)]
enum RuleResult {
    Exempt,
    Denied,
    Ambiguous,
    Shadowed,
    Limited(usize),
}

fn rule_result(bound: &BoundRules, keys: &[&'static str]) -> RuleResult {
    match bound.select_with("/", keys) {
        Selection::Exempt(RuleIndex(0)) => RuleResult::Exempt,
        Selection::Denied(RuleIndex(0), Denial::Forbidden) => RuleResult::Denied,
        Selection::Denied(RuleIndex(0), Denial::Ambiguous(Ambiguity::Repeated)) => RuleResult::Ambiguous,
        Selection::Limited(selected, beside) if beside.shadow_rules.is_empty() => {
            RuleResult::Limited(selected.len())
        }
        Selection::Limited(_, beside) if beside.shadow_rules == [RuleIndex(0)] => RuleResult::Shadowed,
        other => panic!("{other:?}"),
    }
}

fn limit_by_key(change: impl FnOnce(&mut LimitAction)) -> BoundRules {
    let mut limiting = LimitAction {
        key: KeyTemplate([Attribute::Header(API_KEY)].into()),
        limits: [RuleLimit::from(quota())].into(),
        ..LimitAction::default()
    };
    change(&mut limiting);
    bound(vec![rule("a", &[], Action::Limit(limiting))])
}

fn quota() -> Quota {
    let limit = Limit::new(NonZeroU32::MIN, Period::one(TimeUnit::Hour));
    Quota::new(Algorithm::Gcra, limit, None).unwrap()
}

#[test]
fn repeated_key_is_rejected_for_every_on_missing() {
    for on_missing in [OnMissing::Skip, OnMissing::Shared, OnMissing::Deny] {
        let bound = limit_by_key(|limiting| limiting.on_missing = on_missing);
        assert_eq!(rule_result(&bound, &["a", "b"]), RuleResult::Ambiguous, "{on_missing:?}");
        assert_eq!(rule_result(&bound, &["a", "a"]), RuleResult::Limited(1));
    }
}

#[test]
fn unenforced_rule_rejects_no_ambiguous_key() {
    for (throttle, enforce) in
        [(Throttle::Shadow, Percent::ONE_HUNDRED), (Throttle::Hard, Percent::from_hundredths(0))]
    {
        let bound = limit_by_key(|limiting| {
            (limiting.throttle, limiting.enforced_share) = (throttle, EnforcedShare::new(enforce, "a seed"));
            limiting.on_missing = OnMissing::Deny;
        });
        assert_eq!(rule_result(&bound, &[]), RuleResult::Shadowed, "{throttle:?} {enforce}");
        assert_eq!(rule_result(&bound, &["a", "b"]), RuleResult::Shadowed, "{throttle:?} {enforce}");
        assert_eq!(rule_result(&bound, &["a"]), RuleResult::Limited(1));
    }
    let enforced = limit_by_key(|limiting| limiting.on_missing = OnMissing::Deny);
    assert_eq!(rule_result(&enforced, &[]), RuleResult::Denied);
}

/// Returns a rule for one of two plans that are selected by `x-api-key`.
fn for_plan(plan_name: &str, excepted: bool, action: Action) -> BoundRules {
    let mut builder = MembersBuilder::new([3, 5]);
    [("a", "slow"), ("b", "fast")].iter().for_each(|(key, plan)| builder.add(key, plan, None).unwrap());
    let members = Arc::new(builder.close().unwrap());
    let plans = Arc::new(Plans { attribute: Attribute::Header(API_KEY), members, default: None });
    let any = [HeaderPattern::Exact(plan_name.into())].into();
    let conditions = [Condition { attribute: Attribute::Plan(plans), patterns: any }].into();
    let matcher = Matcher { conditions, ..Matcher::default() };
    let (matcher, except) =
        if excepted { (Matcher::default(), [matcher].into()) } else { (matcher, Box::default()) };
    bound(vec![Rule { name: "a".into(), matcher, except, action, ..Rule::default() }])
}

#[test]
fn rule_with_an_ambiguous_match_is_not_bypassed() {
    let limiting = || limiting(&[], OnMissing::Skip, &[5]);
    let cases = [
        (Action::Allow, RuleResult::Exempt, RuleResult::Limited(0)),
        (Action::Deny, RuleResult::Denied, RuleResult::Ambiguous),
        (limiting(), RuleResult::Limited(1), RuleResult::Ambiguous),
    ];
    for (action, plain, unclear) in cases {
        let bound = for_plan("slow", false, action.clone());
        assert_eq!(rule_result(&bound, &["a"]), plain, "{action:?}");
        assert_eq!(rule_result(&bound, &["b"]), RuleResult::Limited(0), "{action:?}");
        assert_eq!(rule_result(&bound, &["a", "b"]), unclear, "{action:?}");
        let excepting = for_plan("slow", true, action.clone());
        assert_eq!(rule_result(&excepting, &["b"]), plain, "{action:?}");
        assert_eq!(rule_result(&excepting, &["b", "a"]), unclear, "{action:?}");
    }
}
