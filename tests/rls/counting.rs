//! Counting of hits, and the remaining units in responses.

use std::collections::HashMap;
use std::time::Duration;

use weir_rls::request::RlsRequest;
use weir_rls::response::{Code, RlsResponse};
use weir_rls::settings::{Counting, DomainSettings, RlsSettings, Smoothing};
use weir_rls::unit::RlsUnit;

use crate::fixture::{
    RlsFixture, codes, descriptor, remaining, with_hits, with_limit_override, with_negative_hits,
};

const TWO_LIMITS: &str = "domain: another\ndescriptors:\n- {key: key2, rate_limit: {unit: minute, \
                       requests_per_unit: 20}}\n- {key: key3, rate_limit: {unit: hour, requests_per_unit: 10}}";
const TEN_PER_MINUTE: &str = "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: minute, requests_per_unit: 10}}\n\
                   - {key: none, rate_limit: {unit: minute, requests_per_unit: 0}}\n- {key: most, rate_limit: \
                   {unit: second, requests_per_unit: 4294967295}}";

fn decide_both(desk: &RlsFixture) -> RlsResponse {
    desk.decide("another", vec![descriptor("key2=a"), descriptor("key3=a")])
}

fn decide_single(desk: &RlsFixture, descriptor: weir_rls::request::RlsDescriptor) -> (Code, u32) {
    let answer = desk.decide("d", vec![descriptor]);
    (answer.statuses[0].code, answer.statuses[0].limit_remaining)
}

#[test]
fn limit_of_twenty_admits_twenty_hits() {
    let desk = RlsFixture::new(TWO_LIMITS);
    for count in 1..=25_u32 {
        let answer = desk.decide("another", vec![descriptor("key2=a")]);
        let stats = &answer.stats.descriptors[0];
        let expected = if count > 20 { Code::OverLimit } else { Code::Ok };
        assert_eq!((answer.overall_code, remaining(&answer)), (expected, vec![20_u32.saturating_sub(count)]));
        assert_eq!((stats.total_hits, stats.over_limit), (1, u64::from(count > 20)));
    }
}

#[test]
fn other_descriptors_keep_counting_when_one_is_limited() {
    let desk = RlsFixture::new(TWO_LIMITS);
    for count in 1..=15_u32 {
        let answer = decide_both(&desk);
        assert_eq!(answer.overall_code == Code::OverLimit, count > 10, "{count}");
        assert_eq!(answer.statuses[0].code, Code::Ok);
        assert_eq!(remaining(&answer), [20 - count, 10_u32.saturating_sub(count)]);
    }
}

#[test]
fn only_over_counting_stops_descriptors_within_their_limit() {
    let desk = RlsFixture::with_settings(
        TWO_LIMITS,
        RlsSettings { counting: Counting::OnlyOver, ..RlsSettings::default() },
    );
    for count in 1..=15_u32 {
        assert_eq!(remaining(&decide_both(&desk)), [20 - count.min(10), 10_u32.saturating_sub(count)]);
    }
}

#[test]
fn domain_setting_enables_all_or_nothing_counting() {
    let own = DomainSettings { counting: Some(Counting::AllOrNothing), ..DomainSettings::default() };
    let domains = HashMap::from([("another".into(), own)]);
    let desk = RlsFixture::with_settings(TWO_LIMITS, RlsSettings { domains, ..RlsSettings::default() });
    for _ in 0..8 {
        decide_both(&desk);
    }
    // Five hits would exceed the limit and are not charged, so two are still admitted.
    let five = desk.decide("another", vec![descriptor("key2=a"), with_hits("key3=a", 5)]);
    assert_eq!((five.overall_code, codes(&five)), (Code::OverLimit, vec![Code::Ok, Code::OverLimit]));
    assert_eq!(five.statuses[0].limit_remaining, 12);
    let two = desk.decide("another", vec![descriptor("key2=a"), with_hits("key3=a", 2)]);
    assert_eq!((two.overall_code, remaining(&two)), (Code::Ok, vec![11, 0]));
}

#[test]
fn hits_addend_falls_back_to_the_request_and_then_to_one() {
    let desk = RlsFixture::new(TEN_PER_MINUTE);
    let ask = |hits_addend, descriptor| {
        let request = RlsRequest { domain: "d".into(), descriptors: vec![descriptor], hits_addend };
        remaining(&desk.try_decide(&request).unwrap())[0]
    };
    assert_eq!(ask(0, descriptor("k=v")), 9);
    assert_eq!(ask(3, descriptor("k=v")), 6);
    assert_eq!(ask(3, with_hits("k=v", 2)), 4);
    assert_eq!(ask(3, with_hits("k=v", 0)), 4);
}

#[test]
fn zero_hits_query_without_counting() {
    let desk = RlsFixture::new(TEN_PER_MINUTE);
    assert_eq!(decide_single(&desk, with_hits("k=v", 10)), (Code::Ok, 0));
    assert_eq!(decide_single(&desk, with_hits("k=v", 0)), (Code::Ok, 0));
    assert_eq!(decide_single(&desk, with_hits("k=v", 1)), (Code::OverLimit, 0));
    assert_eq!(decide_single(&desk, with_hits("k=v", 0)), (Code::OverLimit, 0));
}

#[test]
fn negative_hits_refund_at_most_what_was_charged() {
    let desk = RlsFixture::new(TEN_PER_MINUTE);
    assert_eq!(decide_single(&desk, with_hits("k=v", 12)), (Code::OverLimit, 0));
    assert_eq!(decide_single(&desk, with_negative_hits("k=v", 5)), (Code::Ok, 3));
    assert_eq!(decide_single(&desk, with_negative_hits("k=v", u64::MAX)), (Code::Ok, 10));
    assert_eq!(decide_single(&desk, descriptor("k=v")), (Code::Ok, 9));
}

#[test]
fn huge_hits_addends_are_rejected_without_overflow() {
    let desk = RlsFixture::new(TEN_PER_MINUTE);
    for entries in ["k=v", "most=v"] {
        assert_eq!(decide_single(&desk, with_hits(entries, u64::MAX)), (Code::OverLimit, 0));
        assert_eq!(decide_single(&desk, with_hits(entries, 1)), (Code::OverLimit, 0));
    }
    let answer = desk.decide("d", vec![with_hits("k=w", u64::MAX)]);
    assert_eq!(answer.stats.descriptors[0].total_hits, u64::MAX);
}

#[test]
fn limit_of_zero_rejects_everything() {
    let desk = RlsFixture::new(TEN_PER_MINUTE);
    assert_eq!(decide_single(&desk, descriptor("none=v")), (Code::OverLimit, 0));
}

#[test]
fn fixed_windows_are_aligned_to_the_epoch() {
    let yaml = RlsUnit::ALL.map(|unit| {
        let unit = unit.as_str();
        format!("- {{key: {unit}, rate_limit: {{unit: {unit}, requests_per_unit: 1}}}}\n")
    });
    let mut desk = RlsFixture::new(&format!("domain: d\ndescriptors:\n{}", yaml.concat()));
    for unit in RlsUnit::ALL {
        let entries = format!("{}=v", unit.as_str());
        let left = desk.status(&entries).duration_until_reset.unwrap().as_secs();
        let now = desk.now.as_secs();
        assert!(
            (1..=unit.seconds()).contains(&left) && (now + left).is_multiple_of(unit.seconds()),
            "{unit:?}"
        );
        desk.advance(left - 1);
        let last = desk.status(&entries);
        assert_eq!(last.duration_until_reset.unwrap().as_secs(), 1, "{unit:?}");
        assert_eq!(last.code, Code::OverLimit, "{unit:?}");
        desk.advance(1);
        assert_eq!(desk.status(&entries).code, Code::Ok, "{unit:?}");
    }
}

#[test]
fn duration_until_reset_decreases() {
    let mut desk = RlsFixture::new("{domain: d, descriptors: [{key: k, rate_limit: {unit: day}}]}");
    let first = desk.status("k=v").duration_until_reset.unwrap();
    desk.advance(2);
    assert_eq!(first.as_secs() - desk.status("k=v").duration_until_reset.unwrap().as_secs(), 2);
}

#[test]
fn changed_limit_keeps_its_counter() {
    let mut desk = RlsFixture::new(TEN_PER_MINUTE);
    assert_eq!(decide_single(&desk, with_hits("k=v", 8)), (Code::Ok, 2));
    desk.reload("{domain: d, descriptors: [{key: k, rate_limit: {unit: minute, requests_per_unit: 9}}]}");
    assert_eq!(decide_single(&desk, descriptor("k=v")), (Code::Ok, 0));
    // A limit in the request uses the same counter as the limit of the rule.
    let answer = desk.decide("d", vec![with_limit_override("k=v", 11, Some(RlsUnit::Minute))]);
    assert_eq!(remaining(&answer), [1]);
}

#[test]
fn lists_of_entries_that_join_to_the_same_text_do_not_share_a_counter() {
    let desk = RlsFixture::new(TEN_PER_MINUTE);
    let ask =
        |entries| remaining(&desk.decide("d", vec![with_limit_override(entries, 10, Some(RlsUnit::Day))]))[0];
    assert_eq!(["a=b_c", "a_b=c", "a=b,c=", "a=b_c"].map(ask), [9, 9, 9, 8]);
}

fn smoothed(counting: Option<Counting>) -> RlsFixture {
    let rules = "domain: d\ndescriptors:\n  \
                 - { key: k, rate_limit: { unit: minute, requests_per_unit: 10 } }\n  \
                 - { key: other, rate_limit: { unit: minute, requests_per_unit: 100 } }\n  \
                 - { key: none, rate_limit: { unit: minute, requests_per_unit: 0 } }\n";
    let domains = HashMap::from([("d".into(), DomainSettings { counting, smoothing: Smoothing::Gcra })]);
    RlsFixture::with_settings(rules, RlsSettings { domains, ..RlsSettings::default() })
}

#[test]
fn smoothed_limit_admits_at_a_steady_rate_after_its_burst() {
    let mut desk = smoothed(None);
    for left in (0..10).rev() {
        let status = desk.status("k=v");
        assert_eq!((status.code, status.limit_remaining), (Code::Ok, left));
    }
    let over = desk.status("k=v");
    assert_eq!((over.code, over.limit_remaining), (Code::OverLimit, 0));
    assert_eq!(over.duration_until_reset, Some(Duration::from_secs(6)), "until one hit is admitted");
    // Rejected requests are not charged, and the limit does not reset at the end of the minute.
    desk.advance(5);
    assert_eq!(desk.status("k=v").code, Code::OverLimit);
    desk.advance(1);
    assert_eq!(desk.status("k=v").code, Code::Ok);
    assert_eq!(desk.status("k=v").code, Code::OverLimit);
    desk.advance(60);
    let rested = desk.decide("d", vec![with_hits("k=v", 0)]).statuses.remove(0);
    assert_eq!((rested.code, rested.limit_remaining), (Code::Ok, 10));
    assert_eq!(
        desk.decide("d", vec![with_hits("k=v", 11)]).overall_code,
        Code::OverLimit,
        "more than the limit"
    );
    assert_eq!(desk.decide("d", vec![with_hits("k=v", 10)]).overall_code, Code::Ok);
    assert_eq!(desk.decide("d", vec![with_negative_hits("k=v", 4)]).statuses[0].limit_remaining, 4);
}

#[test]
fn smoothed_limits_follow_the_counting_mode() {
    for (counting, left) in [(None, 89), (Some(Counting::AllOrNothing), 90)] {
        let desk = smoothed(counting);
        let both = || vec![descriptor("k=v"), descriptor("other=v")];
        (0..11).for_each(|_| drop(desk.decide("d", both())));
        let looked = desk.decide("d", vec![with_hits("other=v", 0)]);
        assert_eq!(looked.statuses[0].limit_remaining, left, "{counting:?}");
    }
    assert_eq!(smoothed(None).status("none=x").code, Code::OverLimit);
    assert_eq!(smoothed(None).decide("d", vec![with_hits("none=x", 0)]).overall_code, Code::Ok, "zero hits");
}

#[test]
fn changed_smoothed_limit_keeps_its_usage() {
    let mut desk = smoothed(None);
    let ask = |desk: &RlsFixture, limit: u32| {
        desk.decide("d", vec![with_limit_override("k=v", limit, Some(RlsUnit::Minute))])
            .statuses
            .remove(0)
            .limit_remaining
    };
    assert_eq!(ask(&desk, 7), 6);
    // A seventh of a minute is used, which is less than one unit of three per minute and counts as one.
    assert_eq!(ask(&desk, 3), 1);
    desk.advance(60);
    assert_eq!(ask(&desk, 7), 6);
    assert_eq!(ask(&desk, u32::MAX), u32::MAX - u32::MAX / 7 - 2);
}
