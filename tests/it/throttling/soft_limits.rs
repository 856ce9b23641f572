//! Soft limits, and rules that are enforced for a share of the keys.

use super::{config_with_rules, decisions, start_with_rules, statuses};
use crate::support::{Origin, Request, Weir, fetch, get};

const OVER_LIMIT_HEADER: &str = "x-weir-over-limit";

#[test]
fn requests_within_the_margin_are_admitted_and_marked() {
    let origin = Origin::hello();
    let weir = start_with_rules(&origin, &["{ name: quota, key: [], limit: 10/d, throttle: soft 10% }"]);
    let answers: Vec<_> = (0..12).map(|_| get(weir.address(), "/")).collect();
    let marks: Vec<_> =
        answers.iter().map(|answer| (answer.status, answer.head.get(OVER_LIMIT_HEADER))).collect();
    assert!(marks[..10].iter().all(|mark| *mark == (200, None)), "{marks:?}");
    assert_eq!(marks[10..], [(200, Some("quota")), (429, None)]);
    let seen: Vec<_> =
        origin.requests().iter().map(|seen| seen.head.get(OVER_LIMIT_HEADER).map(str::to_owned)).collect();
    assert!(seen[..10].iter().all(Option::is_none), "{seen:?}");
    assert_eq!(seen[10..], [Some("quota".to_owned())]);
    let counted = ["allowed", "soft", "limited"].map(|outcome| decisions(&weir, "quota", outcome));
    assert_eq!(counted, [10.0, 1.0, 1.0]);
}

#[test]
fn rate_limit_headers_show_the_configured_limit() {
    let origin = Origin::hello();
    let weir = start_with_rules(&origin, &["{ name: q, key: [], limit: 2/d, throttle: soft 100% }"]);
    let told = |expected: &str| {
        let answer = get(weir.address(), "/");
        assert_eq!(answer.header("x-ratelimit-limit"), "2, 2;w=86400;name=\"q\"");
        assert_eq!(answer.header("x-ratelimit-remaining"), expected);
        answer.status
    };
    let statuses = ["1", "0", "0", "0", "0"].map(told);
    assert_eq!(statuses, [200, 200, 200, 200, 429]);
}

#[test]
fn client_cannot_forge_the_mark_and_each_rule_adds_one() {
    let origin = Origin::hello();
    let soft = |name: &str| format!("{{ name: {name}, key: [], limits: [1/d, 1/w], throttle: soft 100% }}");
    let weir = start_with_rules(&origin, &[&soft("a"), &soft("b")]);
    let request = Request::get("/").header("X-Weir-Over-Limit", "forged");
    fetch(weir.address(), &request);
    assert_eq!(origin.last_request().head.get(OVER_LIMIT_HEADER), None);
    let answer = fetch(weir.address(), &request);
    let lines = |head: &crate::support::wire::Head| {
        head.get_all(OVER_LIMIT_HEADER).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(
        (lines(&answer.head), lines(&origin.last_request().head)),
        (vec!["a".into(), "b".into()], vec!["a".into(), "b".into()])
    );
}

#[test]
fn fixed_delay_applies_only_over_the_limit() {
    let origin = Origin::hello();
    let weir = start_with_rules(
        &origin,
        &["{ name: q, key: [], limit: 3/d, throttle: { soft: 100%, delay: 100ms } }"],
    );
    assert_eq!(statuses(&weir, 7), [200, 200, 200, 200, 200, 200, 429]);
    assert_eq!(weir.metric("weir_request_delay_seconds_count", &[]), 3.0);
    assert!(weir.metric("weir_request_delay_seconds_sum", &[]) >= 0.3);
    assert_eq!((decisions(&weir, "q", "soft"), decisions(&weir, "q", "delayed")), (3.0, 0.0));
}

#[test]
fn changing_between_soft_and_hard_keeps_used_units() {
    let origin = Origin::hello();
    let rule = |throttle: &str| {
        format!("{{ name: q, key: [], limit: 4/year, algorithm: fixed_window, throttle: {throttle} }}")
    };
    let weir = start_with_rules(&origin, &[&rule("hard")]);
    assert_eq!(statuses(&weir, 5), [200, 200, 200, 200, 429]);
    weir.reload(&config_with_rules(&origin, &[&rule("soft 50%")]));
    assert_eq!(statuses(&weir, 3), [200, 200, 429]);
    weir.reload(&config_with_rules(&origin, &[&rule("hard")]));
    assert_eq!(statuses(&weir, 1), [429]);
}

#[test]
fn enforce_share_rejects_always_the_same_keys() {
    let origin = Origin::hello();
    let weir = start_with_rules(&origin, &["{ name: q, key: { header: x-id }, limit: 1/d, enforce: 30% }"]);
    let refused = || -> Vec<u32> {
        let status =
            |id: &u32| fetch(weir.address(), &Request::get("/").header("x-id", &id.to_string())).status;
        (0..100).filter(|id| status(id) == 429).collect()
    };
    assert!(refused().is_empty());
    let (second, third) = (refused(), refused());
    assert_eq!(second, third);
    // About 30 of 100 are expected. The probability of fewer than 5 or more than 60 is one in 10⁹.
    assert!((5..=60).contains(&second.len()), "{}", second.len());
    let over = 200.0;
    assert_eq!(decisions(&weir, "q", "limited") + decisions(&weir, "q", "shadow"), over);
    assert_eq!(decisions(&weir, "q", "limited"), 2.0 * second.len() as f64);
}

/// Returns the keys from 0 to 99 that the rule `q` rejects once their limit is used up.
fn enforced_keys(weir: &Weir) -> Vec<u32> {
    let status = |id: u32| fetch(weir.address(), &Request::get("/").header("x-id", &id.to_string())).status;
    (0..100).filter(|id| [status(*id), status(*id)] == [200, 429]).collect()
}

#[test]
fn enforce_share_is_the_same_on_every_instance_and_after_a_restart() {
    let origin = Origin::hello();
    let rule =
        |enforce: &str| format!("{{ name: q, key: {{ header: x-id }}, limit: 1/d, enforce: {enforce} }}");
    let start = |enforce: &str| start_with_rules(&origin, &[&rule(enforce)]);
    let first = enforced_keys(&start("30%"));
    assert!((5..=60).contains(&first.len()), "{}", first.len());
    assert_eq!(enforced_keys(&start("30%")), first, "another process");
    assert_eq!(enforced_keys(&start("{ share: 30% }")), first, "the long form");
    assert_eq!(enforced_keys(&start("{ share: 30%, seed: weir }")), first, "the default seed");
    let wider = enforced_keys(&start("60%"));
    assert!(first.iter().all(|key| wider.contains(key)), "{first:?} {wider:?}");
    assert_ne!(enforced_keys(&start("{ share: 30%, seed: canary-2 }")), first, "another seed");
}

#[test]
fn rules_with_the_same_key_enforce_the_same_share() {
    let origin = Origin::hello();
    let rule = |name: &str, path: &str, seed: &str| {
        format!(
            "{{ name: {name}, match: {{ path: {path} }}, key: {{ header: x-id }}, limit: 1/d, enforce: {seed} }}"
        )
    };
    let rules =
        [rule("a", "/a", "30%"), rule("b", "/b", "30%"), rule("c", "/c", "{ share: 30%, seed: other }")];
    let weir = start_with_rules(&origin, &rules.each_ref().map(String::as_str));
    let canary = |path: &str| -> Vec<u32> {
        let status =
            |id: u32| fetch(weir.address(), &Request::get(path).header("x-id", &id.to_string())).status;
        (0..100).filter(|id| [status(*id), status(*id)] == [200, 429]).collect()
    };
    let [a, b, c] = ["/a", "/b", "/c"].map(canary);
    assert_eq!(a, b);
    assert_ne!(a, c);
}
