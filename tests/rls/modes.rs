//! Shadow mode, quota mode, headers and metadata.

use std::sync::Arc;

use serde_json::json;
use weir_rls::request::RlsRequest;
use weir_rls::response::{Code, RlsResponse};
use weir_rls::settings::{HeaderNames, RlsSettings};
use weir_rls::unit::RlsUnit;

use crate::fixture::{RlsFixture, codes, descriptor, with_hits, with_limit_override};

const RULES: &str = "domain: d\ndescriptors:\n\
    - {key: real, rate_limit: {unit: minute, requests_per_unit: 1}, metadata: {who: real, deep: {a: 1}}}\n\
    - {key: shadow, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}, metadata: {b: 2}}\n\
    - {key: quota, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}\n\
    - {key: ten, rate_limit: {unit: minute, requests_per_unit: 10}, metadata: {who: ten, deep: {a: 7, c: 3}}}\n\
    - {key: free}";

/// Sends the same request twice and returns the second response, in which limits of one are exceeded.
fn decide_twice(desk: &RlsFixture, descriptors: &[&str]) -> RlsResponse {
    let ask = || desk.decide("d", descriptors.iter().map(|entries| descriptor(entries)).collect());
    ask();
    ask()
}

#[test]
fn shadow_mode_limit_never_rejects_and_is_counted() {
    let answer = decide_twice(&RlsFixture::new(RULES), &["shadow=1"]);
    assert_eq!((answer.overall_code, codes(&answer)), (Code::Ok, vec![Code::Ok]));
    assert_eq!(answer.statuses[0].limit_remaining, 0);
    let stats = &answer.stats.descriptors[0];
    assert_eq!((stats.shadow_mode, stats.over_limit, stats.within_limit), (1, 1, 0));
}

#[test]
fn shadow_mode_limit_does_not_exempt_from_others() {
    let answer = decide_twice(&RlsFixture::new(RULES), &["shadow=1", "real=1"]);
    assert_eq!((answer.overall_code, codes(&answer)), (Code::OverLimit, vec![Code::Ok, Code::OverLimit]));
}

#[test]
fn global_shadow_mode_admits_and_is_reported() {
    let desk = RlsFixture::with_settings(RULES, RlsSettings { shadow_mode: true, ..RlsSettings::default() });
    let answer = decide_twice(&desk, &["real=1"]);
    assert_eq!((answer.overall_code, codes(&answer)), (Code::Ok, vec![Code::OverLimit]));
    assert!(answer.stats.global_shadow_mode);
    assert!(!desk.decide_one("ten=1").stats.global_shadow_mode);
}

#[test]
fn quota_mode_rejects_only_if_all_quotas_are_exceeded() {
    let desk = RlsFixture::new(RULES);
    desk.decide_one("quota=1");
    let one = desk.decide("d", vec![descriptor("quota=1"), descriptor("quota=2")]);
    assert_eq!((one.overall_code, codes(&one)), (Code::Ok, vec![Code::OverLimit, Code::Ok]));
    let both = desk.decide("d", vec![descriptor("quota=1"), descriptor("quota=2")]);
    assert_eq!(both.overall_code, Code::OverLimit);
    // A descriptor without a limit does not count as a quota with remaining units.
    let beside = desk.decide("d", vec![descriptor("quota=1"), descriptor("free=1")]);
    assert_eq!(beside.overall_code, Code::OverLimit);
}

#[test]
fn limit_without_quota_mode_rejects_beside_quotas() {
    let answer = decide_twice(&RlsFixture::new(RULES), &["quota=1", "real=1"]);
    assert_eq!(answer.overall_code, Code::OverLimit);
    let desk = RlsFixture::new(RULES);
    desk.decide_one("real=1");
    assert_eq!(
        desk.decide("d", vec![descriptor("quota=1"), descriptor("real=1")]).overall_code,
        Code::OverLimit
    );
}

#[test]
fn global_quota_mode_applies_to_every_limit() {
    let settings = RlsSettings { quota_mode: true, ..RlsSettings::default() };
    let desk = RlsFixture::with_settings(RULES, settings.clone());
    assert_eq!(decide_twice(&desk, &["real=1", "ten=1"]).overall_code, Code::Ok);
    assert_eq!(decide_twice(&desk, &["real=1"]).overall_code, Code::OverLimit);
    let shadow = RlsFixture::with_settings(RULES, RlsSettings { shadow_mode: true, ..settings });
    assert_eq!(decide_twice(&shadow, &["real=1"]).overall_code, Code::Ok);
}

fn headers(answer: &RlsResponse) -> Vec<(&str, &str)> {
    answer.headers.iter().map(|(name, value)| (&**name, value.as_str())).collect()
}

#[test]
fn headers_describe_the_limit_with_the_least_remaining() {
    let desk = RlsFixture::with_settings(
        RULES,
        RlsSettings { header_names: Some(HeaderNames::default()), ..RlsSettings::default() },
    );
    let answer = desk.decide("d", vec![descriptor("free=1"), with_hits("ten=1", 10), descriptor("real=1")]);
    assert_eq!(
        headers(&answer),
        [("RateLimit-Limit", "10"), ("RateLimit-Remaining", "0"), ("RateLimit-Reset", "58")]
    );
    assert_eq!(headers(&desk.decide_one("free=1")), []);
    // The last rejecting limit takes precedence over any that does not reject.
    let refused = desk.decide("d", vec![with_hits("ten=1", 1), descriptor("real=1"), with_hits("ten=2", 10)]);
    assert_eq!(headers(&refused)[0], ("RateLimit-Limit", "1"));
}

#[test]
fn header_names_are_configurable() {
    let names = HeaderNames { limit: "X-L".into(), remaining: "X-R".into(), reset: "X-S".into() };
    let desk =
        RlsFixture::with_settings(RULES, RlsSettings { header_names: Some(names), ..RlsSettings::default() });
    assert_eq!(headers(&desk.decide_one("ten=1")), [("X-L", "10"), ("X-R", "9"), ("X-S", "58")]);
    assert_eq!(headers(&RlsFixture::new(RULES).decide_one("ten=1")), []);
}

#[test]
fn dynamic_metadata_merges_limits_that_passed_and_the_first_wins() {
    let desk =
        RlsFixture::with_settings(RULES, RlsSettings { dynamic_metadata: true, ..RlsSettings::default() });
    let ask = || {
        let descriptors = vec![descriptor("real=1"), with_hits("ten=1", 2), descriptor("shadow=1")];
        let request = RlsRequest { domain: "d".into(), descriptors, hits_addend: 1 };
        serde_json::Value::Object(desk.try_decide(&request).unwrap().metadata.unwrap())
    };
    let asked =
        json!([{"entries": ["real=1"]}, {"entries": ["ten=1"], "hitsAddend": 2}, {"entries": ["shadow=1"]}]);
    let passed = json!({"who": "real", "deep": {"a": 1, "c": 3}, "b": 2});
    assert_eq!(ask(), json!({"domain": "d", "descriptors": asked, "hitsAddend": 1, "metadata": passed}));
    // The first limit is exceeded now; the one in shadow mode admits as before.
    assert_eq!(ask()["metadata"], json!({"who": "ten", "deep": {"a": 7, "c": 3}, "b": 2}));
}

#[test]
fn dynamic_metadata_includes_limit_overrides() {
    let mut desk = RlsFixture::new(RULES);
    assert_eq!(desk.decide_one("ten=1").metadata, None);
    desk.service.settings = Arc::new(RlsSettings { dynamic_metadata: true, ..RlsSettings::default() });
    let answer = desk.decide("d", vec![with_limit_override("a=", 10, Some(RlsUnit::Hour))]);
    let expected = json!([{"entries": ["a="], "limit": "requests_per_unit:10 unit:HOUR"}]);
    assert_eq!(answer.metadata.unwrap()["descriptors"], expected);
}
