mod simulation;

use proptest::prelude::*;

use self::simulation::Mesh;
use super::bucket_limit::BucketLimit;
use super::{AssignedStrategy, *};
use crate::rules::UnitRate;
use crate::unit::RlsUnit;

const START: Timestamp = Timestamp::from_secs(1_795_248_000);

fn rules(text: &str) -> DescriptorRules {
    DescriptorRules::from_yaml([("quotas.yaml", text)], false).unwrap()
}

fn per_minute(count: u32) -> DescriptorRules {
    rules(&format!(
        "domain: d\ndescriptors:\n  - key: a\n    rate_limit: {{ unit: minute, requests_per_unit: {count} }}\n"
    ))
}

fn bucket(entries: &[(&str, &str)]) -> BucketId {
    entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn usage(entries: &[(&str, &str)], seconds: u64, allowed: u64) -> BucketUsage {
    BucketUsage { bucket: bucket(entries), elapsed: Duration::from_secs(seconds), allowed, denied: 0 }
}

/// Returns the tokens that all clients of all buckets may be using.
fn tokens_in_force(quotas: &QuotaBuckets, now: Timestamp) -> u64 {
    quotas.buckets.values().map(|bucket| bucket.tokens_in_force(now)).sum()
}

#[test]
fn bucket_limit_is_found_for_any_order_of_entries() {
    let rules = rules(
        "domain: d\ndescriptors:\n  - key: b\n    value: x\n    descriptors:\n      - key: a\n        rate_limit: { unit: minute, requests_per_unit: 7 }\n",
    );
    let found = |entries: &[(&str, &str)]| find_bucket_limit(&rules, "d", &bucket(entries));
    let rate = UnitRate { requests_per_unit: 7, unit: RlsUnit::Minute };
    assert_eq!(found(&[("a", "1"), ("b", "x")]), Some(BucketLimit::Rate(rate)));
    assert_eq!(found(&[("b", "x")]), None, "a bucket with fewer keys has no limit");
    assert_eq!(found(&[("a", "1"), ("b", "y")]), None);
    assert_eq!(found(&[]), None);
    assert_eq!(find_bucket_limit(&rules, "other", &bucket(&[("a", "1"), ("b", "x")])), None);
}

#[test]
fn bucket_limit_search_is_bounded() {
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
    assert_eq!(find_bucket_limit(&rules, "d", &bucket(&entries)), None);
}

#[test]
fn assignment_is_withdrawn_once_when_its_rule_is_removed() {
    let mut quotas = QuotaBuckets::default();
    let report = vec![usage(&[("a", "1")], 0, 1)];
    assert_eq!(quotas.process_report(&per_minute(5), 1, "d", report.clone(), START).len(), 1);
    let assignments = quotas.process_report(&DescriptorRules::default(), 1, "d", report.clone(), START);
    assert_eq!(assignments, [Assignment { client: 1, bucket: bucket(&[("a", "1")]), strategy: None }]);
    assert!(
        quotas.process_report(&DescriptorRules::default(), 1, "d", report, START).is_empty(),
        "abandoned once"
    );
}

#[test]
fn unlimited_and_shadow_limits_are_assigned_allow_all() {
    let rules = rules(
        "domain: d\ndescriptors:\n  - { key: all, rate_limit: { unlimited: true } }\n  \
         - { key: shadow, shadow_mode: true, rate_limit: { unit: minute, requests_per_unit: 1 } }\n  \
         - { key: none, rate_limit: { unit: minute, requests_per_unit: 0 } }\n",
    );
    let mut quotas = QuotaBuckets::default();
    let mut strategy = |key: &str| {
        quotas.process_report(&rules, 1, "d", vec![usage(&[(key, "1")], 0, 1)], START)[0].strategy
    };
    assert_eq!(strategy("all"), Some(AssignedStrategy::AllowAll));
    assert_eq!(strategy("shadow"), Some(AssignedStrategy::AllowAll));
    assert_eq!(strategy("none"), Some(AssignedStrategy::DenyAll));
}

#[test]
fn assignment_of_a_closed_stream_counts_until_it_expires() {
    let (mut quotas, rules) = (QuotaBuckets::default(), per_minute(100));
    let report = || vec![usage(&[("a", "1")], 0, 1)];
    quotas.process_report(&rules, 1, "d", report(), START);
    quotas.close_stream(1);
    let assignments = quotas.process_report(&rules, 2, "d", report(), START);
    assert_eq!(assignments[0].strategy, Some(AssignedStrategy::DenyAll), "all tokens are still assigned");
    let later = START.saturating_add(ASSIGNMENT_TIME_TO_LIVE + Duration::from_secs(1));
    let assignments = quotas.process_report(&rules, 2, "d", report(), later);
    assert_eq!(
        assignments[0].strategy,
        Some(AssignedStrategy::TokenBucket { tokens: 100, period: Duration::from_secs(60) })
    );
    let much_later = later.saturating_add(ASSIGNMENT_TIME_TO_LIVE * 2);
    quotas.close_stream(2);
    quotas.sweep(much_later);
    assert!(quotas.buckets.is_empty());
}

proptest! {
    #[test]
    fn assignments_never_exceed_the_limit_and_every_reporter_gets_one(
        count in 1_u32..1000,
        steps in prop::collection::vec((0_u64..6, 0_u64..500, 0_u64..12, prop::bool::weighted(0.1)), 1..80),
    ) {
        let (mut quotas, rules) = (QuotaBuckets::default(), per_minute(count));
        let mut now = START;
        for (stream, allowed, seconds, leaves) in steps {
            now = now.saturating_add(Duration::from_secs(seconds));
            if leaves {
                quotas.close_stream(stream);
                continue;
            }
            let report = vec![usage(&[("a", "1")], seconds, allowed)];
            let assignments = quotas.process_report(&rules, stream, "d", report, now);
            prop_assert!(assignments.iter().any(|assignment| assignment.client == stream), "each report gets an assignment");
            let out = tokens_in_force(&quotas, now);
            prop_assert!(out <= u64::from(count), "{out} of {count}");
        }
    }
}

/// Returns rules with a limit of 100 per second.
fn per_second() -> DescriptorRules {
    rules("domain: d\ndescriptors:\n  - key: a\n    rate_limit: { unit: second, requests_per_unit: 100 }\n")
}

#[test]
fn tokens_unused_by_an_idle_client_are_assigned_to_a_busy_one_after_two_reports() {
    let mut mesh = Mesh::new(per_second(), Duration::from_secs(5));
    let (busy, idle) = (mesh.add_envoy(400.0), mesh.add_envoy(0.2));
    mesh.run(Duration::from_secs(11));
    let passed = mesh.run(Duration::from_secs(10));
    assert!(passed >= 900, "{passed} of 1000 admitted in 10 s");
    assert!(mesh.assigned_tokens(busy) >= 90 && mesh.assigned_tokens(idle) >= 1);
    mesh.set_demand(idle, 400.0);
    mesh.run(Duration::from_secs(16));
    assert!((45..=55).contains(&mesh.assigned_tokens(idle)), "equal shares for equal demand");
}

#[test]
fn new_client_gets_an_equal_share_only_once_other_clients_have_released_it() {
    let mut mesh = Mesh::new(per_second(), Duration::from_secs(5));
    let first = mesh.add_envoy(400.0);
    mesh.run(Duration::from_secs(20));
    assert_eq!(mesh.assigned_tokens(first), 100);
    let second = mesh.add_envoy(400.0);
    for _ in 0..200 {
        mesh.run(Duration::from_millis(100));
        assert!(mesh.tokens_in_force() <= 100, "{}", mesh.tokens_in_force());
    }
    assert!((45..=55).contains(&mesh.assigned_tokens(second)), "{}", mesh.assigned_tokens(second));
}

#[test]
fn share_of_a_client_that_stops_reporting_is_reassigned_after_expiry() {
    let mut mesh = Mesh::new(per_second(), Duration::from_secs(1));
    let (first, second) = (mesh.add_envoy(400.0), mesh.add_envoy(400.0));
    mesh.run(Duration::from_secs(20));
    mesh.stop_reports(first);
    mesh.run(ASSIGNMENT_TIME_TO_LIVE + Duration::from_secs(3));
    assert_eq!(mesh.assigned_tokens(second), 100);
}

#[test]
fn report_sent_before_a_lower_assignment_arrives_does_not_confirm_it() {
    let (mut quotas, rules) = (QuotaBuckets::default(), per_minute(100));
    let report = |seconds| vec![usage(&[("a", "1")], seconds, 1000)];
    quotas.process_report(&rules, 1, "d", report(0), START);
    let started = quotas.process_report(&rules, 2, "d", report(0), START);
    let strategy_for = |assignments: &[Assignment], to| {
        assignments.iter().rev().find(|assignment| assignment.client == to).map(|one| one.strategy)
    };
    let lowered = Some(Some(AssignedStrategy::TokenBucket { tokens: 50, period: Duration::from_secs(60) }));
    assert_eq!(
        (strategy_for(&started, 1), strategy_for(&started, 2)),
        (lowered, Some(Some(AssignedStrategy::DenyAll)))
    );
    let crossed = START.saturating_add(Duration::from_millis(10));
    let reported = quotas.process_report(&rules, 1, "d", report(5), crossed);
    assert_eq!(strategy_for(&reported, 2), None, "{reported:?}");
    let after = START.saturating_add(Duration::from_secs(5));
    let reported = quotas.process_report(&rules, 1, "d", report(5), after);
    assert!(strategy_for(&reported, 2).is_some(), "{reported:?}");
    assert!(tokens_in_force(&quotas, after) <= 100);
}

#[test]
fn quota_buckets_and_clients_are_bounded_and_removed_after_streams_close() {
    let (mut quotas, rules) = (QuotaBuckets::default(), per_minute(100));
    let buckets = 2_000;
    let reports: Vec<_> = (0..buckets).map(|name| usage(&[("a", &name.to_string())], 0, 1)).collect();
    for stream in 0..=(MAX_TOTAL_CLIENTS / buckets) as u64 {
        quotas.process_report(&rules, stream, "d", reports.clone(), START);
    }
    assert_eq!(quotas.total_clients, MAX_TOTAL_CLIENTS);
    for stream in 0..=(MAX_TOTAL_CLIENTS / buckets) as u64 {
        quotas.close_stream(stream);
    }
    quotas.sweep(START.saturating_add(ASSIGNMENT_TIME_TO_LIVE * 2));
    assert_eq!((quotas.total_clients, quotas.buckets.len(), quotas.streams.len()), (0, 0, 0));
    let long = "x".repeat(2_000);
    assert!(quotas.process_report(&rules, 1, "d", vec![usage(&[("a", &long)], 0, 1)], START).is_empty());
}

#[test]
fn quota_buckets_without_reports_are_removed_while_the_stream_is_open() {
    let (mut quotas, rules) = (QuotaBuckets::default(), per_minute(100));
    for name in 0..100 {
        let now = START.saturating_add(ASSIGNMENT_TIME_TO_LIVE * name);
        quotas.process_report(&rules, 1, "d", vec![usage(&[("a", &name.to_string())], 0, 1)], now);
    }
    let sizes = (quotas.buckets.len(), quotas.total_clients, quotas.streams[&1].len());
    assert!(sizes.0 <= 4 && sizes == (sizes.0, sizes.0, sizes.0), "{sizes:?}");
}

proptest! {
    #[test]
    fn assignments_in_use_never_exceed_the_limit_at_any_latency(
        seed in any::<u64>(),
        demands in prop::collection::vec(0.0_f64..300.0, 2..6),
    ) {
        let mut mesh = Mesh::new(per_second(), Duration::from_secs(2)).with_latencies(seed);
        let mut clients = Vec::new();
        for (index, demand) in demands.iter().enumerate() {
            clients.push(mesh.add_envoy(*demand));
            for step in 0..60 {
                mesh.run(Duration::from_millis(100));
                prop_assert!(mesh.tokens_in_force() <= 100, "{} after {} steps", mesh.tokens_in_force(), step);
            }
            mesh.set_demand(clients[index / 2], demands[demands.len() - 1 - index]);
        }
        mesh.close_stream(clients[0]);
        for _ in 0..300 {
            mesh.run(Duration::from_millis(100));
            prop_assert!(mesh.tokens_in_force() <= 100, "{}", mesh.tokens_in_force());
        }
    }
}
