//! Selection of the limit that applies to a descriptor.

use weir::rls::answer::{Code, Status, Undecided};
use weir::rls::request::Request;
use weir::rls::unit::Unit;

use crate::desk::{Desk, START, descriptor, limited, remaining};

fn rules(descriptors: &str) -> Desk {
    Desk::new(&format!("domain: d\ndescriptors:\n{descriptors}"))
}

/// Returns a limit of `count` per day.
fn day(count: u32) -> String {
    format!("rate_limit: {{unit: day, requests_per_unit: {count}}}")
}

#[test]
fn an_unknown_domain_has_no_limits() {
    let answer = rules("- key: hello").ask_all("foo", vec![descriptor("hello=world")]);
    assert_eq!((answer.overall, answer.statuses), (Code::Ok, vec![Status::default()]));
    assert_eq!(answer.stats.domain_not_found, 1);
}

#[test]
fn a_limit_is_told_with_what_is_left_of_it() {
    let desk = rules("- {key: key1, value: foo, rate_limit: {name: n, unit: minute, requests_per_unit: 50}}");
    let status = desk.status("key1=foo");
    let limit = status.current_limit.unwrap();
    assert_eq!((limit.requests_per_unit, limit.unit, &*limit.name), (50, Some(Unit::Minute), "n"));
    assert_eq!((status.limit_remaining, status.duration_until_reset.unwrap().as_secs()), (49, 58));
}

#[test]
fn exact_beats_wildcard_and_wildcard_beats_bare() {
    let desk = rules(&format!(
        "- {{key: k, {}}}\n- {{key: k, value: 'a*', {}}}\n- {{key: k, value: 'ab*', {}}}\n- {{key: k, value: \
         abc, {}}}",
        day(1),
        day(2),
        day(3),
        day(4)
    ));
    let limits = ["k=abc", "k=abd", "k=b", "k="].map(|entries| desk.limit(entries));
    // Of two matching wildcards the first one in the file applies, not the longest.
    assert_eq!(limits, [Some(4), Some(2), Some(1), Some(1)]);
}

#[test]
fn wildcards_stand_anywhere_in_a_value_and_at_any_depth() {
    let desk = rules(&format!(
        "- {{key: k, value: 'foo*', {0}}}\n- {{key: k, value: 'bar*b', {0}}}\n- {{key: k, value: \
         'a*bc*d', {0}}}\n- key: n\n  value: 'x*'\n  descriptors: [{{key: m, value: '*y', {0}}}]\n- {{key: e, \
         value: foo, {0}}}",
        day(9)
    ));
    for meets in ["k=foo", "k=foo1", "k=barb", "k=barab", "k=abcd", "k=a-bc-d", "n=x1,m=1y", "n=x,m=y"] {
        assert_eq!(desk.limit(meets), Some(9), "{meets}");
    }
    for misses in ["k=bara", "k=xbarb", "k=Foo", "k=abd", "n=x1,m=1", "n=y,m=y", "e=foo1", "e=fo"] {
        assert_eq!(desk.limit(misses), None, "{misses}");
    }
}

#[test]
fn depth_must_be_equal() {
    let desk = rules(&format!(
        "- {{key: key2, value: value2, {0}}}\n- {{key: key2, value: value3}}\n- key: key5\n  {0}\n  \
         descriptors: [{{key: subkey5, value: right, {1}}}]",
        day(5),
        day(6)
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
fn nothing_is_tried_twice() {
    let below = format!("descriptors: [{{key: n, {}}}]", day(7));
    let desk = rules(&format!("- {{key: k, value: v}}\n- key: k\n  {below}"));
    assert_eq!(desk.limit("k=other,n=1"), Some(7));
    // The exact node has no children and hides the bare one, which has some.
    assert_eq!(desk.limit("k=v,n=1"), None);
}

#[test]
fn a_key_with_an_underscore_is_a_key_with_a_value() {
    assert_eq!(rules(&format!("- {{key: foo_bar, {}}}", day(3))).limit("foo=bar"), Some(3));
}

#[test]
fn every_value_of_a_bare_key_and_of_a_wildcard_has_its_own_counter() {
    let desk = rules(&format!("- {{key: k, {0}}}\n- {{key: w, value: 'v*', {0}}}", day(10)));
    for entries in ["k=a", "k=b", "w=v1", "w=v2"] {
        assert_eq!(desk.status(entries).limit_remaining, 9, "{entries}");
    }
    assert_eq!(desk.status("k=a").limit_remaining, 8);
}

#[test]
fn values_that_share_a_threshold_share_a_counter_also_further_down() {
    let desk = rules(&format!(
        "- {{key: files, value: 'files/*', share_threshold: true, {0}}}\n- key: t\n  value: 't*'\n  \
         share_threshold: true\n  descriptors: [{{key: n, {0}}}]",
        day(10)
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
    let desk = rules("- {key: k, rate_limit: {unlimited: true}}");
    let answer = desk.ask("k=v");
    let expected = Status { limit_remaining: u32::MAX, ..Status::default() };
    assert_eq!((answer.statuses, answer.stats.descriptors.len()), (vec![expected], 0));
    assert_eq!(desk.limiter.live_keys(), 0);
}

#[test]
fn a_limit_that_is_replaced_neither_applies_nor_counts() {
    let desk = rules(
        "- {key: all, rate_limit: {name: base, unit: day, requests_per_unit: 1}}\n- {key: vip, rate_limit: \
         {name: vip, unit: day, requests_per_unit: 9, replaces: [{name: base}, {name: other}]}}\n- {key: free, \
         rate_limit: {unlimited: true, replaces: [{name: base}]}}",
    );
    let both = desk.ask_all("d", vec![descriptor("all=1"), descriptor("vip=1")]);
    assert_eq!((both.overall, both.statuses[0].clone()), (Code::Ok, Status::default()));
    assert_eq!(remaining(&both), [0, 8]);
    let free = desk.ask_all("d", vec![descriptor("all=1"), descriptor("free=1")]);
    assert_eq!(remaining(&free), [0, u32::MAX]);
    assert_eq!(desk.status("all=1").limit_remaining, 0);
    assert_eq!(desk.status("all=1").code, Code::OverLimit);
}

#[test]
fn a_limit_in_the_request_takes_the_place_of_the_configured_one() {
    let desk = rules(&format!("- {{key: k, shadow_mode: true, {}}}", day(1)));
    let ask = |entries, count, unit| {
        let answer = desk.ask_all("d", vec![limited(entries, count, Some(unit))]);
        assert_eq!(&*answer.stats.descriptors[0].key, &format!("d.{}", entries.replace('=', "_")));
        (answer.statuses[0].code, answer.statuses[0].limit_remaining)
    };
    assert_eq!(ask("k=v", 10, Unit::Day), (Code::Ok, 9));
    assert_eq!(ask("k=v", 42, Unit::Hour), (Code::Ok, 41));
    assert_eq!(ask("k=w", 10, Unit::Day), (Code::Ok, 9));
    assert_eq!(ask("unknown=x", 0, Unit::Day), (Code::OverLimit, 0));
    let elsewhere = desk.ask_all("other", vec![limited("k=v", 10, Some(Unit::Day))]);
    assert_eq!(elsewhere.statuses, [Status::default()]);
}

#[test]
fn a_limit_in_the_request_without_a_unit_is_an_error_and_counts_nothing() {
    let desk = rules(&format!("- {{key: k, {}}}", day(5)));
    let descriptors = vec![descriptor("k=v"), limited("k=v", 10, None)];
    let refused = desk.try_ask(&Request { domain: "d".into(), descriptors, hits_addend: 0 });
    assert_eq!(refused.unwrap_err(), Undecided::NoUnit(1));
    assert_eq!(desk.limiter.live_keys(), 0);
}

#[test]
fn a_descriptor_without_entries_meets_no_limit() {
    assert_eq!(rules(&format!("- {{key: k, {}}}", day(5))).status(""), Status::default());
}

#[test]
fn questions_that_ask_nothing_are_refused_in_the_words_of_the_reference() {
    let mut desk = rules("- key: k");
    let words = |desk: &Desk, domain: &str, descriptors| {
        let request = Request { domain: domain.to_owned(), descriptors, hits_addend: 0 };
        desk.try_ask(&request).unwrap_err().to_string()
    };
    assert_eq!(words(&desk, "", vec![descriptor("k=v")]), "rate limit domain must not be empty");
    assert_eq!(words(&desk, "d", Vec::new()), "rate limit descriptor list must not be empty");
    desk.service.rules = None;
    assert_eq!(words(&desk, "d", vec![descriptor("k=v")]), "no rate limit configuration loaded");
    assert_eq!(desk.now, START);
}
