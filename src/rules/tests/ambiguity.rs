//! Rules applied to requests with ambiguous keys.

use std::sync::Arc;

use super::*;
use crate::identify::lookup::Ambiguity;
use crate::limiter::percent::Percent;
use crate::rules::enforced_share::EnforcedShare;
use crate::rules::matcher::Condition;
use crate::rules::membership::{MembersBuilder, Plans};
use crate::rules::pattern::HeaderPattern;
use crate::rules::rule::Throttle;

/// What the rule at index 0 did with a request.
#[derive(Debug, PartialEq, Eq)]
enum Became {
    Exempt,
    Denied,
    Ambiguous,
    LookedOn,
    Limited(usize),
}

fn became(bound: &Bound, keys: &[&'static str]) -> Became {
    match bound.select_with("/", keys) {
        Selection::Exempt(RuleIndex(0)) => Became::Exempt,
        Selection::Denied(RuleIndex(0), Denial::Forbidden) => Became::Denied,
        Selection::Denied(RuleIndex(0), Denial::Ambiguous(Ambiguity::Repeated)) => Became::Ambiguous,
        Selection::Limited(selected, beside) if beside.shadow_rules.is_empty() => {
            Became::Limited(selected.len())
        }
        Selection::Limited(_, beside) if beside.shadow_rules == [RuleIndex(0)] => Became::LookedOn,
        other => panic!("{other:?}"),
    }
}

fn by_key(change: impl FnOnce(&mut LimitAction)) -> Bound {
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
fn a_second_key_is_refused_whatever_is_done_about_a_missing_one() {
    for on_missing in [OnMissing::Skip, OnMissing::Shared, OnMissing::Deny] {
        let bound = by_key(|limiting| limiting.on_missing = on_missing);
        assert_eq!(became(&bound, &["a", "b"]), Became::Ambiguous, "{on_missing:?}");
        assert_eq!(became(&bound, &["a", "a"]), Became::Limited(1));
    }
}

#[test]
fn a_rule_that_only_looks_on_refuses_no_key() {
    for (throttle, enforce) in
        [(Throttle::Shadow, Percent::WHOLE), (Throttle::Hard, Percent::from_hundredths(0))]
    {
        let bound = by_key(|limiting| {
            (limiting.throttle, limiting.enforced_share) = (throttle, EnforcedShare::new(enforce, "a seed"));
            limiting.on_missing = OnMissing::Deny;
        });
        assert_eq!(became(&bound, &[]), Became::LookedOn, "{throttle:?} {enforce}");
        assert_eq!(became(&bound, &["a", "b"]), Became::LookedOn, "{throttle:?} {enforce}");
        assert_eq!(became(&bound, &["a"]), Became::Limited(1));
    }
    let enforced = by_key(|limiting| limiting.on_missing = OnMissing::Deny);
    assert_eq!(became(&enforced, &[]), Became::Denied);
}

/// Returns a rule for one of two plans that are selected by `x-api-key`.
fn for_plan(wanted: &str, excepted: bool, action: Action) -> Bound {
    let mut builder = MembersBuilder::new([3, 5]);
    [("a", "slow"), ("b", "fast")].iter().for_each(|(key, plan)| builder.add(key, plan).unwrap());
    let members = Arc::new(builder.close().unwrap());
    let plans = Arc::new(Plans { attribute: Attribute::Header(API_KEY), members, default: None });
    let any = [HeaderPattern::Exact(wanted.into())].into();
    let conditions = [Condition { attribute: Attribute::Plan(plans), patterns: any }].into();
    let matcher = Matcher { conditions, ..Matcher::default() };
    let (matcher, except) =
        if excepted { (Matcher::default(), [matcher].into()) } else { (matcher, Box::default()) };
    bound(vec![Rule { name: "a".into(), matcher, except, action, domain: None }])
}

#[test]
fn a_rule_that_may_be_for_the_client_lets_nobody_by() {
    let limiting = || limiting(&[], OnMissing::Skip, &[5]);
    let cases = [
        (Action::Allow, Became::Exempt, Became::Limited(0)),
        (Action::Deny, Became::Denied, Became::Ambiguous),
        (limiting(), Became::Limited(1), Became::Ambiguous),
    ];
    for (action, plain, unclear) in cases {
        let bound = for_plan("slow", false, action.clone());
        assert_eq!(became(&bound, &["a"]), plain, "{action:?}");
        assert_eq!(became(&bound, &["b"]), Became::Limited(0), "{action:?}");
        assert_eq!(became(&bound, &["a", "b"]), unclear, "{action:?}");
        let excepting = for_plan("slow", true, action.clone());
        assert_eq!(became(&excepting, &["b"]), plain, "{action:?}");
        assert_eq!(became(&excepting, &["b", "a"]), unclear, "{action:?}");
    }
}
