//! Rules that share a counter.

use proptest::prelude::*;

use super::*;
use crate::rules::cost::{Cost, CostModel, HeaderCost};
use weir_limiter::LimitIdentity;
use weir_limiter::quota::Ban;
use weir_limiter::reservation::{ChargeTiming, Reservation};

/// Returns a rule for `path` with 10 units per hour that charges the counter `budget`.
fn rule_with_shared_counter(name: &str, path: &str, change: impl FnOnce(&mut LimitAction)) -> Rule {
    let Action::Limit(mut limiting) = limiting(&[Attribute::ClientIp], OnMissing::Skip, &[10]) else {
        panic!()
    };
    limiting.counter = Some("budget".into());
    change(&mut limiting);
    rule(name, &[path], Action::Limit(limiting))
}

fn with_fixed_cost(cost: u32) -> impl FnOnce(&mut LimitAction) {
    move |limiting| limiting.cost_model = CostModel::fixed(cost)
}

/// Makes a rule hold units until a response header reports the cost.
fn with_response_cost(limiting: &mut LimitAction) {
    let header_cost = HeaderCost { name: HeaderName::from_static("x-tokens"), default: 4, max_units: None };
    limiting.cost_model = CostModel { cost: Cost::ResponseHeader(header_cost), ..CostModel::fixed(1) };
}

#[test]
fn shared_counter_is_charged_by_each_rule_at_its_cost() {
    let bound = bound(vec![
        rule_with_shared_counter("exports", "/export", with_fixed_cost(5)),
        rule_with_shared_counter("rest", "/", with_fixed_cost(1)),
    ]);
    assert!(bound.passes("/export"));
    assert!((0..5).all(|_| bound.passes("/")));
    assert!(!bound.passes("/") && !bound.passes("/export"));
}

#[test]
fn shared_counter_is_charged_by_all_matching_rules_or_none() {
    let bound = bound(vec![
        rule_with_shared_counter("exports", "/export", with_fixed_cost(5)),
        rule_with_shared_counter("all", "~.", with_fixed_cost(1)),
    ]);
    assert!(bound.passes("/export"));
    // Four units are left. The rule "exports" rejects, so "all" is not charged either.
    assert!(!bound.passes("/export"));
    assert!((0..4).all(|_| bound.passes("/")));
    assert!(!bound.passes("/"));
}

#[test]
fn retry_after_covers_all_charges_to_a_shared_counter() {
    let bound = bound(vec![
        rule_with_shared_counter("a", "/both", with_fixed_cost(5)),
        rule_with_shared_counter("b", "~.", with_fixed_cost(5)),
    ]);
    assert!(bound.passes("/both"));
    let decision = bound.decide("/both");
    // The wait covers ten units at 10 per hour, not five.
    assert_eq!(decision.verdicts()[0].retry_after().as_secs(), 3600);
    assert!(!bound.passes("/both"));
}

#[test]
fn shared_counter_hold_blocks_other_rules() {
    let bound = bound(vec![
        rule_with_shared_counter("tokens", "/tokens", with_response_cost),
        rule_with_shared_counter("rest", "/", with_fixed_cost(4)),
    ]);
    let held = bound.limit_checks("/tokens")[0];
    assert_eq!(held.check.charge_timing, ChargeTiming::OnResponse);
    assert!(bound.passes("/tokens"));
    assert!(bound.passes("/"));
    assert!(!bound.passes("/"), "four are charged and four are held");
    // The response reports a cost of 0.
    let mut reservation = Reservation::new(&held.check, START);
    bound.limiter.settle(&mut reservation, 0, START);
    assert!(bound.passes("/"));
    assert!(!bound.passes("/"));
}

#[test]
fn request_blocked_only_by_holds_of_another_rule_is_not_banned() {
    let ban = |limiting: &mut LimitAction| {
        with_fixed_cost(8)(limiting);
        let (first, most) = (std::time::Duration::from_secs(60), std::time::Duration::from_secs(60));
        limiting.ban = Some(Ban { initial_duration: first, max_duration: most });
    };
    let bound = bound(vec![
        rule_with_shared_counter("tokens", "/tokens", with_response_cost),
        rule_with_shared_counter("rest", "/", ban),
    ]);
    let held = bound.limit_checks("/tokens")[0];
    assert!(bound.passes("/tokens"));
    let decision = bound.decide("/");
    assert!(decision.is_rejected());
    assert!(decision.verdicts().iter().all(|verdict| verdict.retry_after().is_zero()), "{decision:?}");
    bound.limiter.settle(&mut Reservation::new(&held.check, START), 0, START);
    assert!(bound.passes("/"));
}

#[test]
fn limit_identity_is_the_counter_except_for_bans() {
    let change = |limiting: &mut LimitAction| {
        limiting.in_flight = NonZeroU32::new(3);
        let (first, most) = (std::time::Duration::from_secs(60), std::time::Duration::from_secs(60));
        limiting.ban = Some(Ban { initial_duration: first, max_duration: most });
    };
    let rules = [
        rule_with_shared_counter("a", "/a", change),
        rule_with_shared_counter("b", "/b", change),
        limit("budget", &[], &[Attribute::ClientIp], &[10]),
    ];
    let specs = limit_specs(&rules);
    let identity = |name: &str| LimitIdentity { rule: name.into(), key: "[client_ip]".into() };
    let lineages: Vec<_> = specs.into_iter().map(|spec| spec.identity).collect();
    // The first rule has a ban, a concurrency limit and a limit. Of the second rule only the ban is its own. The third
    // rule has the name of the counter.
    assert_eq!(lineages, ["a", "budget", "budget", "b"].map(identity));
    let bound = bound(rules.into());
    let handles = |index| bound.rules.limit_handles(RuleIndex(index)).collect::<Vec<_>>();
    assert_eq!(handles(0)[1..], handles(1)[1..]);
    assert_ne!(handles(0)[0], handles(1)[0]);
    assert_eq!(handles(2), handles(0)[2..]);
}

#[test]
fn route_moved_to_another_rule_of_its_counter_keeps_usage() {
    let before = vec![
        rule_with_shared_counter("a", "/a", with_fixed_cost(6)),
        rule_with_shared_counter("b", "/b", with_fixed_cost(1)),
    ];
    let after = vec![rule_with_shared_counter("c", "/a", with_fixed_cost(6))];
    let bound = bound(before);
    assert!(bound.passes("/a"));
    let limits = RequiredLimits::from_rules(&after, &InstanceCounts::single());
    let handles = bound.limiter.install(limits.specs(), START);
    bound.limiter.retire_others(&handles, START);
    let rules = RuleSet::bind(after.into(), &limits, &handles, bound.limiter.hasher());
    let bound = BoundRules { rules, limiter: bound.limiter };
    assert!(!bound.passes("/a"));
}

proptest! {
    /// Two rules share a counter, and one of them charges it when the response arrives. In any order of requests and
    /// responses, the units charged and held never exceed the limit, and no available unit is withheld.
    #[test]
    fn shared_counter_charges_and_holds_never_exceed_the_limit(steps in prop::collection::vec((0..4_u8, 0..=4_u32), 1..60)) {
        let bound = bound(vec![rule_with_shared_counter("tokens", "/tokens", with_response_cost), rule_with_shared_counter("rest", "/", with_fixed_cost(1))]);
        let (mut charged, mut held) = (0, Vec::new());
        for (step, due) in steps {
            let room = 10 - charged - 4 * u32::try_from(held.len()).unwrap();
            match step {
                0 => {
                    let check = bound.limit_checks("/tokens")[0].check;
                    let passes = bound.passes("/tokens");
                    prop_assert_eq!(passes, room >= 4);
                    held.extend(passes.then(|| Reservation::new(&check, START)));
                }
                1 => if let Some(mut reservation) = held.pop() {
                    bound.limiter.settle(&mut reservation, due, START);
                    charged += due;
                },
                _ => {
                    let passes = bound.passes("/");
                    prop_assert_eq!(passes, room >= 1);
                    charged += u32::from(passes);
                }
            }
        }
    }
}
