use proptest::prelude::*;

use super::{Strategy, *};

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

/// What all clients of all buckets were told that may still be in use.
fn outstanding(quotas: &Quotas, now: Timestamp) -> u64 {
    let clients = quotas.buckets.values().flat_map(HashMap::values);
    clients.filter(|client| client.expires > now).filter_map(|client| client.told).map(tokens).sum()
}

#[test]
fn entries_lead_to_a_limit_in_whatever_order() {
    let rules = rules(
        "domain: d\ndescriptors:\n  - key: b\n    value: x\n    descriptors:\n      - key: a\n        rate_limit: { unit: minute, requests_per_unit: 7 }\n",
    );
    let found = |entries: &[(&str, &str)]| limit(&rules, "d", &bucket(entries));
    let rate = Rate { requests_per_unit: 7, unit: Unit::Minute };
    assert_eq!(found(&[("a", "1"), ("b", "x")]), Some(Bound::Rate(rate)));
    assert_eq!(found(&[("b", "x")]), None, "not as deep");
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
    // Two levels of everything, and nowhere a limit.
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
    assert!(quotas.report(&Rules::default(), (1, "d"), report, START).is_empty(), "said once");
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
    assert_eq!(told[0].strategy, Some(Strategy::DenyAll), "all of it is still out there");
    let later = START.saturating_add(TIME_TO_LIVE);
    let told = quotas.report(&rules, (2, "d"), report(), later);
    assert_eq!(told[0].strategy, Some(Strategy::Tokens { count: 100, per: Duration::from_secs(60) }));
    let much_later = later.saturating_add(TIME_TO_LIVE);
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
            prop_assert!(told.iter().any(|assignment| assignment.to == stream), "the reporter is answered");
            let out = outstanding(&quotas, now);
            prop_assert!(out <= u64::from(count), "{out} of {count}");
        }
    }
}
