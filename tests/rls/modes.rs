//! Shadow mode, quota mode, headers and metadata.

use std::sync::Arc;

use serde_json::json;
use weir::rls::answer::{Answer, Code};
use weir::rls::request::Request;
use weir::rls::settings::{HeaderNames, Settings};
use weir::rls::unit::Unit;

use crate::desk::{Desk, codes, descriptor, hits, limited};

const RULES: &str = "domain: d\ndescriptors:\n\
    - {key: real, rate_limit: {unit: minute, requests_per_unit: 1}, metadata: {who: real, deep: {a: 1}}}\n\
    - {key: shadow, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}, metadata: {b: 2}}\n\
    - {key: quota, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}\n\
    - {key: ten, rate_limit: {unit: minute, requests_per_unit: 10}, metadata: {who: ten, deep: {a: 7, c: 3}}}\n\
    - {key: free}";

/// Sends the same request twice and returns the second response, in which limits of one are exceeded.
fn over(desk: &Desk, descriptors: &[&str]) -> Answer {
    let ask = || desk.ask_all("d", descriptors.iter().map(|entries| descriptor(entries)).collect());
    ask();
    ask()
}

#[test]
fn a_shadow_never_refuses_and_is_counted_as_one() {
    let answer = over(&Desk::new(RULES), &["shadow=1"]);
    assert_eq!((answer.overall, codes(&answer)), (Code::Ok, vec![Code::Ok]));
    assert_eq!(answer.statuses[0].limit_remaining, 0);
    let stats = &answer.stats.descriptors[0];
    assert_eq!((stats.shadow_mode, stats.over_limit, stats.within_limit), (1, 1, 0));
}

#[test]
fn a_shadow_does_not_cover_for_others() {
    let answer = over(&Desk::new(RULES), &["shadow=1", "real=1"]);
    assert_eq!((answer.overall, codes(&answer)), (Code::OverLimit, vec![Code::Ok, Code::OverLimit]));
}

#[test]
fn the_shadow_of_all_forgives_on_the_whole_and_says_so() {
    let desk = Desk::with(RULES, Settings { shadow_mode: true, ..Settings::default() });
    let answer = over(&desk, &["real=1"]);
    assert_eq!((answer.overall, codes(&answer)), (Code::Ok, vec![Code::OverLimit]));
    assert!(answer.stats.global_shadow_mode);
    assert!(!desk.ask("ten=1").stats.global_shadow_mode);
}

#[test]
fn it_takes_all_quotas_to_refuse() {
    let desk = Desk::new(RULES);
    desk.ask("quota=1");
    let one = desk.ask_all("d", vec![descriptor("quota=1"), descriptor("quota=2")]);
    assert_eq!((one.overall, codes(&one)), (Code::Ok, vec![Code::OverLimit, Code::Ok]));
    let both = desk.ask_all("d", vec![descriptor("quota=1"), descriptor("quota=2")]);
    assert_eq!(both.overall, Code::OverLimit);
    // A descriptor without a limit does not count as a quota with remaining units.
    let beside = desk.ask_all("d", vec![descriptor("quota=1"), descriptor("free=1")]);
    assert_eq!(beside.overall, Code::OverLimit);
}

#[test]
fn a_limit_that_is_no_quota_refuses_beside_quotas() {
    let answer = over(&Desk::new(RULES), &["quota=1", "real=1"]);
    assert_eq!(answer.overall, Code::OverLimit);
    let desk = Desk::new(RULES);
    desk.ask("real=1");
    assert_eq!(desk.ask_all("d", vec![descriptor("quota=1"), descriptor("real=1")]).overall, Code::OverLimit);
}

#[test]
fn every_limit_may_be_made_a_quota() {
    let settings = Settings { quota_mode: true, ..Settings::default() };
    let desk = Desk::with(RULES, settings.clone());
    assert_eq!(over(&desk, &["real=1", "ten=1"]).overall, Code::Ok);
    assert_eq!(over(&desk, &["real=1"]).overall, Code::OverLimit);
    let shadow = Desk::with(RULES, Settings { shadow_mode: true, ..settings });
    assert_eq!(over(&shadow, &["real=1"]).overall, Code::Ok);
}

fn headers(answer: &Answer) -> Vec<(&str, &str)> {
    answer.headers.iter().map(|(name, value)| (&**name, value.as_str())).collect()
}

#[test]
fn headers_are_of_the_descriptor_with_the_least_left() {
    let desk = Desk::with(RULES, Settings { headers: Some(HeaderNames::default()), ..Settings::default() });
    let answer = desk.ask_all("d", vec![descriptor("free=1"), hits("ten=1", 10), descriptor("real=1")]);
    assert_eq!(
        headers(&answer),
        [("RateLimit-Limit", "10"), ("RateLimit-Remaining", "0"), ("RateLimit-Reset", "58")]
    );
    assert_eq!(headers(&desk.ask("free=1")), []);
    // The last rejecting limit takes precedence over any that does not reject.
    let refused = desk.ask_all("d", vec![hits("ten=1", 1), descriptor("real=1"), hits("ten=2", 10)]);
    assert_eq!(headers(&refused)[0], ("RateLimit-Limit", "1"));
}

#[test]
fn headers_may_have_other_names() {
    let names = HeaderNames { limit: "X-L".into(), remaining: "X-R".into(), reset: "X-S".into() };
    let desk = Desk::with(RULES, Settings { headers: Some(names), ..Settings::default() });
    assert_eq!(headers(&desk.ask("ten=1")), [("X-L", "10"), ("X-R", "9"), ("X-S", "58")]);
    assert_eq!(headers(&Desk::new(RULES).ask("ten=1")), []);
}

#[test]
fn metadata_is_merged_from_what_passed_and_the_first_to_say_it_is_right() {
    let desk = Desk::with(RULES, Settings { dynamic_metadata: true, ..Settings::default() });
    let ask = || {
        let descriptors = vec![descriptor("real=1"), hits("ten=1", 2), descriptor("shadow=1")];
        let request = Request { domain: "d".into(), descriptors, hits_addend: 1 };
        serde_json::Value::Object(desk.try_ask(&request).unwrap().metadata.unwrap())
    };
    let asked =
        json!([{"entries": ["real=1"]}, {"entries": ["ten=1"], "hitsAddend": 2}, {"entries": ["shadow=1"]}]);
    let passed = json!({"who": "real", "deep": {"a": 1, "c": 3}, "b": 2});
    assert_eq!(ask(), json!({"domain": "d", "descriptors": asked, "hitsAddend": 1, "metadata": passed}));
    // The first limit is exceeded now; the one in shadow mode admits as before.
    assert_eq!(ask()["metadata"], json!({"who": "ten", "deep": {"a": 7, "c": 3}, "b": 2}));
}

#[test]
fn metadata_tells_limits_of_the_request() {
    let mut desk = Desk::new(RULES);
    assert_eq!(desk.ask("ten=1").metadata, None);
    desk.service.settings = Arc::new(Settings { dynamic_metadata: true, ..Settings::default() });
    let answer = desk.ask_all("d", vec![limited("a=", 10, Some(Unit::Hour))]);
    let expected = json!([{"entries": ["a="], "limit": "requests_per_unit:10 unit:HOUR"}]);
    assert_eq!(answer.metadata.unwrap()["descriptors"], expected);
}
