mod simulation;

use proptest::prelude::*;

use self::simulation::Mesh;
use super::bound::Bound;
use super::{Strategy, *};
use crate::rls::rules::Rate;
use crate::rls::unit::Unit;

const START: Timestamp = Timestamp::from_secs(1_795_248_000);

fn rules(text: &str) -> Rules {
    Rules::from_yaml([("quotas.yaml", text)], false).unwrap()
}

fn limited(count: u32) -> Rules {
    rules(&format!(
        "domain: d\ndescriptors:\n  - key: a\n    rate_limit: {{ unit: minute, requests_per_unit: {count} }}\n"
    ))
}

fn bucket(entries: &[(&str, &str)]) -> BucketId {
    entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn usage(entries: &[(&str, &str)], seconds: u64, allowed: u64) -> Usage {
    Usage { bucket: bucket(entries), elapsed: Duration::from_secs(seconds), allowed, denied: 0 }
}

/// Returns the tokens that all clients of all buckets may be using.
fn outstanding(quotas: &Quotas, now: Timestamp) -> u64 {
    quotas.buckets.values().map(|bucket| bucket.in_force(now)).sum()
}

#[test]
fn entries_lead_to_a_limit_in_whatever_order() {
    let rules = rules(
        "domain: d\ndescriptors:\n  - key: b\n    value: x\n    descriptors:\n      - key: a\n        rate_limit: { unit: minute, requests_per_unit: 7 }\n",
    );
    let found = |entries: &[(&str, &str)]| limit(&rules, "d", &bucket(entries));
    let rate = Rate { requests_per_unit: 7, unit: Unit::Minute };
    assert_eq!(found(&[("a", "1"), ("b", "x")]), Some(Bound::Rate(rate)));
    assert_eq!(found(&[("b", "x")]), None, "a bucket with fewer keys has no limit");
    assert_eq!(found(&[("a", "1"), ("b", "y")]), None);
    assert_eq!(found(&[]), None);
    assert_eq!(limit(&rules, "other", &bucket(&[("a", "1"), ("b", "x")])), None);
}

#[test]
fn a_search_through_many_orders_ends() {
    let level = |below: &str| {
        let mut text = String::new();
        for key in ["a", "b", "c", "d", "e", "f", "g", "h"] {
            text.push_str(&format!("- {{ key: {key}, descriptors: [{below}] }}\n"));
        }
        text
    };
    // Two levels with all keys, none of which leads to a limit.
    let inner = level("{ key: z, rate_limit: { unit: minute, requests_per_unit: 1 } }").replace("\n- ", ", ");
    let text = format!("domain: d\ndescriptors:\n{}", level(inner.trim().trim_start_matches("- ")));
    let rules = rules(&text);
    let entries: Vec<_> = ["a", "b", "c", "d", "e", "f", "g", "h"].map(|key| (key, "1")).into();
    assert_eq!(limit(&rules, "d", &bucket(&entries)), None);
}

#[test]
fn a_bucket_whose_rule_has_gone_is_given_up() {
    let mut quotas = Quotas::default();
    let report = vec![usage(&[("a", "1")], 0, 1)];
    assert_eq!(quotas.report(&limited(5), (1, "d"), report.clone(), START).len(), 1);
    let told = quotas.report(&Rules::default(), (1, "d"), report.clone(), START);
    assert_eq!(told, [Assignment { to: 1, bucket: bucket(&[("a", "1")]), strategy: None }]);
    assert!(quotas.report(&Rules::default(), (1, "d"), report, START).is_empty(), "abandoned once");
}

#[test]
fn what_is_unlimited_or_only_looks_on_allows_everything() {
    let rules = rules(
        "domain: d\ndescriptors:\n  - { key: all, rate_limit: { unlimited: true } }\n  \
         - { key: shadow, shadow_mode: true, rate_limit: { unit: minute, requests_per_unit: 1 } }\n  \
         - { key: none, rate_limit: { unit: minute, requests_per_unit: 0 } }\n",
    );
    let mut quotas = Quotas::default();
    let mut told =
        |key: &str| quotas.report(&rules, (1, "d"), vec![usage(&[(key, "1")], 0, 1)], START)[0].strategy;
    assert_eq!(told("all"), Some(Strategy::AllowAll));
    assert_eq!(told("shadow"), Some(Strategy::AllowAll));
    assert_eq!(told("none"), Some(Strategy::DenyAll));
}

#[test]
fn who_has_gone_keeps_its_share_until_that_has_run_out() {
    let (mut quotas, rules) = (Quotas::default(), limited(100));
    let report = || vec![usage(&[("a", "1")], 0, 1)];
    quotas.report(&rules, (1, "d"), report(), START);
    quotas.leave(1);
    let told = quotas.report(&rules, (2, "d"), report(), START);
    assert_eq!(told[0].strategy, Some(Strategy::DenyAll), "all tokens are still assigned");
    let later = START.saturating_add(TIME_TO_LIVE + Duration::from_secs(1));
    let told = quotas.report(&rules, (2, "d"), report(), later);
    assert_eq!(told[0].strategy, Some(Strategy::Tokens { count: 100, per: Duration::from_secs(60) }));
    let much_later = later.saturating_add(TIME_TO_LIVE * 2);
    quotas.leave(2);
    quotas.sweep(much_later);
    assert!(quotas.buckets.is_empty());
}

proptest! {
    #[test]
    fn shares_never_exceed_the_limit_and_nobody_starves_while_there_is_room(
        count in 1_u32..1000,
        steps in prop::collection::vec((0_u64..6, 0_u64..500, 0_u64..12, prop::bool::weighted(0.1)), 1..80),
    ) {
        let (mut quotas, rules) = (Quotas::default(), limited(count));
        let mut now = START;
        for (stream, allowed, seconds, leaves) in steps {
            now = now.saturating_add(Duration::from_secs(seconds));
            if leaves {
                quotas.leave(stream);
                continue;
            }
            let report = vec![usage(&[("a", "1")], seconds, allowed)];
            let told = quotas.report(&rules, (stream, "d"), report, now);
            prop_assert!(told.iter().any(|assignment| assignment.to == stream), "each report gets an assignment");
            let out = outstanding(&quotas, now);
            prop_assert!(out <= u64::from(count), "{out} of {count}");
        }
    }
}

/// Returns rules with a limit of 100 per second.
fn per_second() -> Rules {
    rules("domain: d\ndescriptors:\n  - key: a\n    rate_limit: { unit: second, requests_per_unit: 100 }\n")
}

#[test]
fn a_busy_client_has_what_an_idle_one_does_not_use_after_two_reports() {
    let mut mesh = Mesh::new(per_second(), Duration::from_secs(5));
    let (busy, idle) = (mesh.join(400.0), mesh.join(0.2));
    mesh.run(Duration::from_secs(11));
    let passed = mesh.run(Duration::from_secs(10));
    assert!(passed >= 900, "{passed} of 1000 admitted in 10 s");
    assert!(mesh.assigned(busy) >= 90 && mesh.assigned(idle) >= 1);
    mesh.set_demand(idle, 400.0);
    mesh.run(Duration::from_secs(16));
    assert!((45..=55).contains(&mesh.assigned(idle)), "equal shares for equal demand");
}

#[test]
fn a_new_busy_client_gets_an_equal_share_and_never_before_it_was_given_up() {
    let mut mesh = Mesh::new(per_second(), Duration::from_secs(5));
    let first = mesh.join(400.0);
    mesh.run(Duration::from_secs(20));
    assert_eq!(mesh.assigned(first), 100);
    let second = mesh.join(400.0);
    for _ in 0..200 {
        mesh.run(Duration::from_millis(100));
        assert!(mesh.in_force() <= 100, "{}", mesh.in_force());
    }
    assert!((45..=55).contains(&mesh.assigned(second)), "{}", mesh.assigned(second));
}

#[test]
fn a_client_that_is_not_heard_of_any_more_leaves_its_share_when_that_has_run_out() {
    let mut mesh = Mesh::new(per_second(), Duration::from_secs(1));
    let (first, second) = (mesh.join(400.0), mesh.join(400.0));
    mesh.run(Duration::from_secs(20));
    mesh.silence(first);
    mesh.run(TIME_TO_LIVE + Duration::from_secs(3));
    assert_eq!(mesh.assigned(second), 100);
}

#[test]
fn a_report_that_crossed_a_lower_assignment_does_not_confirm_it() {
    let (mut quotas, rules) = (Quotas::default(), limited(100));
    let report = |seconds| vec![usage(&[("a", "1")], seconds, 1000)];
    quotas.report(&rules, (1, "d"), report(0), START);
    let started = quotas.report(&rules, (2, "d"), report(0), START);
    let of = |assignments: &[Assignment], to| {
        assignments.iter().rev().find(|assignment| assignment.to == to).map(|one| one.strategy)
    };
    let lowered = Some(Some(Strategy::Tokens { count: 50, per: Duration::from_secs(60) }));
    assert_eq!((of(&started, 1), of(&started, 2)), (lowered, Some(Some(Strategy::DenyAll))));
    let crossed = START.saturating_add(Duration::from_millis(10));
    let reported = quotas.report(&rules, (1, "d"), report(5), crossed);
    assert_eq!(of(&reported, 2), None, "{reported:?}");
    let after = START.saturating_add(Duration::from_secs(5));
    let reported = quotas.report(&rules, (1, "d"), report(5), after);
    assert!(of(&reported, 2).is_some(), "{reported:?}");
    assert!(outstanding(&quotas, after) <= 100);
}

#[test]
fn buckets_and_clients_are_bounded_and_a_client_that_leaves_is_forgotten_in_all_of_them() {
    let (mut quotas, rules) = (Quotas::default(), limited(100));
    let buckets = 2_000;
    let reports: Vec<_> = (0..buckets).map(|name| usage(&[("a", &name.to_string())], 0, 1)).collect();
    for stream in 0..=(MAX_SHARES / buckets) as u64 {
        quotas.report(&rules, (stream, "d"), reports.clone(), START);
    }
    assert_eq!(quotas.shares, MAX_SHARES);
    for stream in 0..=(MAX_SHARES / buckets) as u64 {
        quotas.leave(stream);
    }
    quotas.sweep(START.saturating_add(TIME_TO_LIVE * 2));
    assert_eq!((quotas.shares, quotas.buckets.len(), quotas.streams.len()), (0, 0, 0));
    let long = "x".repeat(2_000);
    assert!(quotas.report(&rules, (1, "d"), vec![usage(&[("a", &long)], 0, 1)], START).is_empty());
}

#[test]
fn a_bucket_that_is_not_reported_on_any_more_is_forgotten_while_its_stream_is_open() {
    let (mut quotas, rules) = (Quotas::default(), limited(100));
    for name in 0..100 {
        let now = START.saturating_add(TIME_TO_LIVE * name);
        quotas.report(&rules, (1, "d"), vec![usage(&[("a", &name.to_string())], 0, 1)], now);
    }
    let kept = (quotas.buckets.len(), quotas.shares, quotas.streams[&1].len());
    assert!(kept.0 <= 4 && kept == (kept.0, kept.0, kept.0), "{kept:?}");
}

proptest! {
    #[test]
    fn what_clients_go_by_never_exceeds_the_limit_however_late_it_reaches_them(
        seed in any::<u64>(),
        demands in prop::collection::vec(0.0_f64..300.0, 2..6),
    ) {
        let mut mesh = Mesh::new(per_second(), Duration::from_secs(2)).with_latencies(seed);
        let mut clients = Vec::new();
        for (index, demand) in demands.iter().enumerate() {
            clients.push(mesh.join(*demand));
            for step in 0..60 {
                mesh.run(Duration::from_millis(100));
                prop_assert!(mesh.in_force() <= 100, "{} after {} steps", mesh.in_force(), step);
            }
            mesh.set_demand(clients[index / 2], demands[demands.len() - 1 - index]);
        }
        mesh.leave(clients[0]);
        for _ in 0..300 {
            mesh.run(Duration::from_millis(100));
            prop_assert!(mesh.in_force() <= 100, "{}", mesh.in_force());
        }
    }
}
