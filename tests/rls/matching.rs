//! Selection of the limit that applies to a descriptor.

use weir_rls::request::RlsRequest;
use weir_rls::response::{Code, RlsDescriptorStatus, RlsError};
use weir_rls::unit::RlsUnit;

use crate::fixture::{RlsFixture, START, descriptor, remaining, with_limit_override};

fn fixture(descriptors: &str) -> RlsFixture {
    RlsFixture::new(&format!("domain: d\ndescriptors:\n{descriptors}"))
}

/// Returns a limit of `count` per day.
fn daily_limit(count: u32) -> String {
    format!("rate_limit: {{unit: day, requests_per_unit: {count}}}")
}

#[test]
fn an_unknown_domain_has_no_limits() {
    let answer = fixture("- key: hello").decide("foo", vec![descriptor("hello=world")]);
    assert_eq!((answer.overall_code, answer.statuses), (Code::Ok, vec![RlsDescriptorStatus::default()]));
    assert_eq!(answer.stats.domain_not_found, 1);
}

#[test]
fn status_reports_limit_and_remaining() {
    let desk =
        fixture("- {key: key1, value: foo, rate_limit: {name: n, unit: minute, requests_per_unit: 50}}");
    let status = desk.status("key1=foo");
    let limit = status.current_limit.unwrap();
    assert_eq!((limit.requests_per_unit, limit.unit, &*limit.name), (50, Some(RlsUnit::Minute), "n"));
    assert_eq!((status.limit_remaining, status.duration_until_reset.unwrap().as_secs()), (49, 58));
}

#[test]
fn exact_beats_wildcard_and_wildcard_beats_bare() {
    let desk = fixture(&format!(
        "- {{key: k, {}}}\n- {{key: k, value: 'a*', {}}}\n- {{key: k, value: 'ab*', {}}}\n- {{key: k, value: \
         abc, {}}}",
        daily_limit(1),
        daily_limit(2),
        daily_limit(3),
        daily_limit(4)
    ));
    let limits = ["k=abc", "k=abd", "k=b", "k="].map(|entries| desk.limit(entries));
    // Of two matching wildcards the first one in the file applies, not the longest.
    assert_eq!(limits, [Some(4), Some(2), Some(1), Some(1)]);
}

#[test]
fn wildcards_match_anywhere_in_a_value_and_at_any_depth() {
    let desk = fixture(&format!(
        "- {{key: k, value: 'foo*', {0}}}\n- {{key: k, value: 'bar*b', {0}}}\n- {{key: k, value: \
         'a*bc*d', {0}}}\n- key: n\n  value: 'x*'\n  descriptors: [{{key: m, value: '*y', {0}}}]\n- {{key: e, \
         value: foo, {0}}}",
        daily_limit(9)
    ));
    for meets in ["k=foo", "k=foo1", "k=barb", "k=barab", "k=abcd", "k=a-bc-d", "n=x1,m=1y", "n=x,m=y"] {
        assert_eq!(desk.limit(meets), Some(9), "{meets}");
    }
    for misses in ["k=bara", "k=xbarb", "k=Foo", "k=abd", "n=x1,m=1", "n=y,m=y", "e=foo1", "e=fo"] {
        assert_eq!(desk.limit(misses), None, "{misses}");
    }
}

#[test]
fn descriptor_depth_must_match() {
    let desk = fixture(&format!(
        "- {{key: key2, value: value2, {0}}}\n- {{key: key2, value: value3}}\n- key: key5\n  {0}\n  \
         descriptors: [{{key: subkey5, value: right, {1}}}]",
        daily_limit(5),
        daily_limit(6)
    ));
    assert_eq!(desk.limit("key2=value2"), Some(5));
    assert_eq!(desk.limit("key2=value2,subkey=x"), None);
    assert_eq!(desk.limit("key2=value3"), None, "whitelisted");
    assert_eq!(desk.limit("key5=x"), Some(5));
    assert_eq!(desk.limit("key5=x,subkey5=right"), Some(6));
    assert_eq!(desk.limit("key5=x,subkey5=wrong"), None);
    assert_eq!(desk.limit("subkey5=right"), None);
}

#[test]
fn descriptor_matching_does_not_backtrack() {
    let below = format!("descriptors: [{{key: n, {}}}]", daily_limit(7));
    let desk = fixture(&format!("- {{key: k, value: v}}\n- key: k\n  {below}"));
    assert_eq!(desk.limit("k=other,n=1"), Some(7));
    // The exact node has no children and hides the bare one, which has some.
    assert_eq!(desk.limit("k=v,n=1"), None);
}

#[test]
fn key_with_an_underscore_matches_key_and_value() {
    assert_eq!(fixture(&format!("- {{key: foo_bar, {}}}", daily_limit(3))).limit("foo=bar"), Some(3));
}

#[test]
fn every_value_of_a_bare_key_and_of_a_wildcard_has_its_own_counter() {
    let desk = fixture(&format!("- {{key: k, {0}}}\n- {{key: w, value: 'v*', {0}}}", daily_limit(10)));
    for entries in ["k=a", "k=b", "w=v1", "w=v2"] {
        assert_eq!(desk.status(entries).limit_remaining, 9, "{entries}");
    }
    assert_eq!(desk.status("k=a").limit_remaining, 8);
}

#[test]
fn share_threshold_shares_counters_at_any_depth() {
    let desk = fixture(&format!(
        "- {{key: files, value: 'files/*', share_threshold: true, {0}}}\n- key: t\n  value: 't*'\n  \
         share_threshold: true\n  descriptors: [{{key: n, {0}}}]",
        daily_limit(10)
    ));
    for count in 1..=10 {
        assert_eq!(desk.status("files=files/a.pdf").limit_remaining, 10 - count);
    }
    assert_eq!(desk.status("files=files/b.csv").code, Code::OverLimit);
    assert_eq!(desk.status("t=t1,n=x").limit_remaining, 9);
    assert_eq!(desk.status("t=t2,n=x").limit_remaining, 8);
    assert_eq!(desk.status("t=t2,n=y").limit_remaining, 9);
    // A value that looks like the pattern shares the counter of the others.
    assert_eq!(desk.status("t=t*,n=x").limit_remaining, 7);
}

#[test]
fn unlimited_is_never_counted() {
    let desk = fixture("- {key: k, rate_limit: {unlimited: true}}");
    let answer = desk.decide_one("k=v");
    let expected = RlsDescriptorStatus { limit_remaining: u32::MAX, ..RlsDescriptorStatus::default() };
    assert_eq!((answer.statuses, answer.stats.descriptors.len()), (vec![expected], 0));
    assert_eq!(desk.limiter.live_keys(), 0);
}

#[test]
fn a_limit_that_is_replaced_neither_applies_nor_counts() {
    let desk = fixture(
        "- {key: all, rate_limit: {name: base, unit: day, requests_per_unit: 1}}\n- {key: vip, rate_limit: \
         {name: vip, unit: day, requests_per_unit: 9, replaces: [{name: base}, {name: other}]}}\n- {key: free, \
         rate_limit: {unlimited: true, replaces: [{name: base}]}}",
    );
    let both = desk.decide("d", vec![descriptor("all=1"), descriptor("vip=1")]);
    assert_eq!((both.overall_code, both.statuses[0].clone()), (Code::Ok, RlsDescriptorStatus::default()));
    assert_eq!(remaining(&both), [0, 8]);
    let free = desk.decide("d", vec![descriptor("all=1"), descriptor("free=1")]);
    assert_eq!(remaining(&free), [0, u32::MAX]);
    assert_eq!(desk.status("all=1").limit_remaining, 0);
    assert_eq!(desk.status("all=1").code, Code::OverLimit);
}

#[test]
fn limit_override_replaces_the_configured_limit() {
    let desk = fixture(&format!("- {{key: k, shadow_mode: true, {}}}", daily_limit(1)));
    let ask = |entries, count, unit| {
        let answer = desk.decide("d", vec![with_limit_override(entries, count, Some(unit))]);
        assert_eq!(&*answer.stats.descriptors[0].key, &format!("d.{}", entries.replace('=', "_")));
        (answer.statuses[0].code, answer.statuses[0].limit_remaining)
    };
    assert_eq!(ask("k=v", 10, RlsUnit::Day), (Code::Ok, 9));
    assert_eq!(ask("k=v", 42, RlsUnit::Hour), (Code::Ok, 41));
    assert_eq!(ask("k=w", 10, RlsUnit::Day), (Code::Ok, 9));
    assert_eq!(ask("unknown=x", 0, RlsUnit::Day), (Code::OverLimit, 0));
    let elsewhere = desk.decide("other", vec![with_limit_override("k=v", 10, Some(RlsUnit::Day))]);
    assert_eq!(elsewhere.statuses, [RlsDescriptorStatus::default()]);
}

#[test]
fn limit_override_without_a_unit_is_an_error() {
    let desk = fixture(&format!("- {{key: k, {}}}", daily_limit(5)));
    let descriptors = vec![descriptor("k=v"), with_limit_override("k=v", 10, None)];
    let refused = desk.try_decide(&RlsRequest { domain: "d".into(), descriptors, hits_addend: 0 });
    assert_eq!(refused.unwrap_err(), RlsError::NoUnit(1));
    assert_eq!(desk.limiter.live_keys(), 0);
}

#[test]
fn descriptor_without_entries_matches_no_limit() {
    assert_eq!(
        fixture(&format!("- {{key: k, {}}}", daily_limit(5))).status(""),
        RlsDescriptorStatus::default()
    );
}

#[test]
fn empty_requests_are_rejected_with_the_text_of_envoyproxy_ratelimit() {
    let mut desk = fixture("- key: k");
    let words = |desk: &RlsFixture, domain: &str, descriptors| {
        let request = RlsRequest { domain: domain.to_owned(), descriptors, hits_addend: 0 };
        desk.try_decide(&request).unwrap_err().to_string()
    };
    assert_eq!(words(&desk, "", vec![descriptor("k=v")]), "rate limit domain must not be empty");
    assert_eq!(words(&desk, "d", Vec::new()), "rate limit descriptor list must not be empty");
    desk.service.rules = None;
    assert_eq!(words(&desk, "d", vec![descriptor("k=v")]), "no rate limit configuration loaded");
    assert_eq!(desk.now, START);
}
