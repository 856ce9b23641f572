//! Counting of hits, and the remaining units in responses.

use std::collections::HashMap;
use std::time::Duration;

use weir::rls::answer::{Answer, Code};
use weir::rls::request::Request;
use weir::rls::settings::{Counting, DomainSettings, Settings, Smoothing};
use weir::rls::unit::Unit;

use crate::desk::{Desk, codes, descriptor, given_back, hits, limited, remaining};

const ANOTHER: &str = "domain: another\ndescriptors:\n- {key: key2, rate_limit: {unit: minute, \
                       requests_per_unit: 20}}\n- {key: key3, rate_limit: {unit: hour, requests_per_unit: 10}}";
const TEN: &str = "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: minute, requests_per_unit: 10}}\n\
                   - {key: none, rate_limit: {unit: minute, requests_per_unit: 0}}\n- {key: most, rate_limit: \
                   {unit: second, requests_per_unit: 4294967295}}";

fn both(desk: &Desk) -> Answer {
    desk.ask_all("another", vec![descriptor("key2=a"), descriptor("key3=a")])
}

fn one(desk: &Desk, descriptor: weir::rls::request::Descriptor) -> (Code, u32) {
    let answer = desk.ask_all("d", vec![descriptor]);
    (answer.statuses[0].code, answer.statuses[0].limit_remaining)
}

#[test]
fn twenty_pass_and_five_do_not() {
    let desk = Desk::new(ANOTHER);
    for count in 1..=25_u32 {
        let answer = desk.ask_all("another", vec![descriptor("key2=a")]);
        let stats = &answer.stats.descriptors[0];
        let expected = if count > 20 { Code::OverLimit } else { Code::Ok };
        assert_eq!((answer.overall, remaining(&answer)), (expected, vec![20_u32.saturating_sub(count)]));
        assert_eq!((stats.total_hits, stats.over_limit), (1, u64::from(count > 20)));
    }
}

#[test]
fn other_descriptors_go_on_counting_when_one_is_over() {
    let desk = Desk::new(ANOTHER);
    for count in 1..=15_u32 {
        let answer = both(&desk);
        assert_eq!(answer.overall == Code::OverLimit, count > 10, "{count}");
        assert_eq!(answer.statuses[0].code, Code::Ok);
        assert_eq!(remaining(&answer), [20 - count, 10_u32.saturating_sub(count)]);
    }
}

#[test]
fn counting_may_stop_for_those_within_their_limit() {
    let desk = Desk::with(ANOTHER, Settings { counting: Counting::OnlyOver, ..Settings::default() });
    for count in 1..=15_u32 {
        assert_eq!(remaining(&both(&desk)), [20 - count.min(10), 10_u32.saturating_sub(count)]);
    }
}

#[test]
fn a_domain_may_charge_all_or_nothing() {
    let own = DomainSettings { counting: Some(Counting::AllOrNothing), ..DomainSettings::default() };
    let domains = HashMap::from([("another".into(), own)]);
    let desk = Desk::with(ANOTHER, Settings { domains, ..Settings::default() });
    for _ in 0..8 {
        both(&desk);
    }
    // Five hits would exceed the limit and are not charged, so two are still admitted.
    let five = desk.ask_all("another", vec![descriptor("key2=a"), hits("key3=a", 5)]);
    assert_eq!((five.overall, codes(&five)), (Code::OverLimit, vec![Code::Ok, Code::OverLimit]));
    assert_eq!(five.statuses[0].limit_remaining, 12);
    let two = desk.ask_all("another", vec![descriptor("key2=a"), hits("key3=a", 2)]);
    assert_eq!((two.overall, remaining(&two)), (Code::Ok, vec![11, 0]));
}

#[test]
fn hits_are_those_of_the_descriptor_else_of_the_request_else_one() {
    let desk = Desk::new(TEN);
    let ask = |hits_addend, descriptor| {
        let request = Request { domain: "d".into(), descriptors: vec![descriptor], hits_addend };
        remaining(&desk.try_ask(&request).unwrap())[0]
    };
    assert_eq!(ask(0, descriptor("k=v")), 9);
    assert_eq!(ask(3, descriptor("k=v")), 6);
    assert_eq!(ask(3, hits("k=v", 2)), 4);
    assert_eq!(ask(3, hits("k=v", 0)), 4);
}

#[test]
fn no_hits_look_without_counting_and_pass_at_the_limit() {
    let desk = Desk::new(TEN);
    assert_eq!(one(&desk, hits("k=v", 10)), (Code::Ok, 0));
    assert_eq!(one(&desk, hits("k=v", 0)), (Code::Ok, 0));
    assert_eq!(one(&desk, hits("k=v", 1)), (Code::OverLimit, 0));
    assert_eq!(one(&desk, hits("k=v", 0)), (Code::OverLimit, 0));
}

#[test]
fn negative_hits_give_back_and_never_more_than_was_taken() {
    let desk = Desk::new(TEN);
    assert_eq!(one(&desk, hits("k=v", 12)), (Code::OverLimit, 0));
    assert_eq!(one(&desk, given_back("k=v", 5)), (Code::Ok, 3));
    assert_eq!(one(&desk, given_back("k=v", u64::MAX)), (Code::Ok, 10));
    assert_eq!(one(&desk, descriptor("k=v")), (Code::Ok, 9));
}

#[test]
fn huge_addends_neither_wrap_nor_pass() {
    let desk = Desk::new(TEN);
    for entries in ["k=v", "most=v"] {
        assert_eq!(one(&desk, hits(entries, u64::MAX)), (Code::OverLimit, 0));
        assert_eq!(one(&desk, hits(entries, 1)), (Code::OverLimit, 0));
    }
    let answer = desk.ask_all("d", vec![hits("k=w", u64::MAX)]);
    assert_eq!(answer.stats.descriptors[0].total_hits, u64::MAX);
}

#[test]
fn a_limit_of_none_lets_nothing_pass() {
    let desk = Desk::new(TEN);
    assert_eq!(one(&desk, descriptor("none=v")), (Code::OverLimit, 0));
}

#[test]
fn windows_end_at_fixed_marks_of_the_epoch() {
    let yaml = Unit::ALL.map(|unit| {
        let unit = unit.as_str();
        format!("- {{key: {unit}, rate_limit: {{unit: {unit}, requests_per_unit: 1}}}}\n")
    });
    let mut desk = Desk::new(&format!("domain: d\ndescriptors:\n{}", yaml.concat()));
    for unit in Unit::ALL {
        let entries = format!("{}=v", unit.as_str());
        let left = desk.status(&entries).duration_until_reset.unwrap().as_secs();
        let now = desk.now.as_secs();
        assert!(
            (1..=unit.seconds()).contains(&left) && (now + left).is_multiple_of(unit.seconds()),
            "{unit:?}"
        );
        desk.pass(left - 1);
        let last = desk.status(&entries);
        assert_eq!(last.duration_until_reset.unwrap().as_secs(), 1, "{unit:?}");
        assert_eq!(last.code, Code::OverLimit, "{unit:?}");
        desk.pass(1);
        assert_eq!(desk.status(&entries).code, Code::Ok, "{unit:?}");
    }
}

#[test]
fn the_time_until_reset_falls_as_time_goes_by() {
    let mut desk = Desk::new("{domain: d, descriptors: [{key: k, rate_limit: {unit: day}}]}");
    let first = desk.status("k=v").duration_until_reset.unwrap();
    desk.pass(2);
    assert_eq!(first.as_secs() - desk.status("k=v").duration_until_reset.unwrap().as_secs(), 2);
}

#[test]
fn a_limit_that_changes_keeps_what_was_counted() {
    let mut desk = Desk::new(TEN);
    assert_eq!(one(&desk, hits("k=v", 8)), (Code::Ok, 2));
    desk.reload("{domain: d, descriptors: [{key: k, rate_limit: {unit: minute, requests_per_unit: 9}}]}");
    assert_eq!(one(&desk, descriptor("k=v")), (Code::Ok, 0));
    // A limit in the request uses the same counter as the limit of the rule.
    let answer = desk.ask_all("d", vec![limited("k=v", 11, Some(Unit::Minute))]);
    assert_eq!(remaining(&answer), [1]);
}

#[test]
fn lists_of_entries_that_join_to_the_same_text_do_not_share_a_counter() {
    let desk = Desk::new(TEN);
    let ask = |entries| remaining(&desk.ask_all("d", vec![limited(entries, 10, Some(Unit::Day))]))[0];
    assert_eq!(["a=b_c", "a_b=c", "a=b,c=", "a=b_c"].map(ask), [9, 9, 9, 8]);
}

fn spread(counting: Option<Counting>) -> Desk {
    let rules = "domain: d\ndescriptors:\n  \
                 - { key: k, rate_limit: { unit: minute, requests_per_unit: 10 } }\n  \
                 - { key: other, rate_limit: { unit: minute, requests_per_unit: 100 } }\n  \
                 - { key: none, rate_limit: { unit: minute, requests_per_unit: 0 } }\n";
    let domains = HashMap::from([("d".into(), DomainSettings { counting, smoothing: Smoothing::Gcra })]);
    Desk::with(rules, Settings { domains, ..Settings::default() })
}

#[test]
fn where_limits_are_spread_there_is_room_for_one_after_the_other() {
    let mut desk = spread(None);
    for left in (0..10).rev() {
        let status = desk.status("k=v");
        assert_eq!((status.code, status.limit_remaining), (Code::Ok, left));
    }
    let over = desk.status("k=v");
    assert_eq!((over.code, over.limit_remaining), (Code::OverLimit, 0));
    assert_eq!(over.duration_until_reset, Some(Duration::from_secs(6)), "until one hit is admitted");
    // Rejected requests are not charged, and the limit does not reset at the end of the minute.
    desk.pass(5);
    assert_eq!(desk.status("k=v").code, Code::OverLimit);
    desk.pass(1);
    assert_eq!(desk.status("k=v").code, Code::Ok);
    assert_eq!(desk.status("k=v").code, Code::OverLimit);
    desk.pass(60);
    let rested = desk.ask_all("d", vec![hits("k=v", 0)]).statuses.remove(0);
    assert_eq!((rested.code, rested.limit_remaining), (Code::Ok, 10));
    assert_eq!(desk.ask_all("d", vec![hits("k=v", 11)]).overall, Code::OverLimit, "more than the limit");
    assert_eq!(desk.ask_all("d", vec![hits("k=v", 10)]).overall, Code::Ok);
    assert_eq!(desk.ask_all("d", vec![given_back("k=v", 4)]).statuses[0].limit_remaining, 4);
}

#[test]
fn where_limits_are_spread_what_is_over_counts_nowhere_and_the_rest_as_told() {
    for (counting, left) in [(None, 89), (Some(Counting::AllOrNothing), 90)] {
        let desk = spread(counting);
        let both = || vec![descriptor("k=v"), descriptor("other=v")];
        (0..11).for_each(|_| drop(desk.ask_all("d", both())));
        let looked = desk.ask_all("d", vec![hits("other=v", 0)]);
        assert_eq!(looked.statuses[0].limit_remaining, left, "{counting:?}");
    }
    assert_eq!(spread(None).status("none=x").code, Code::OverLimit);
    assert_eq!(spread(None).ask_all("d", vec![hits("none=x", 0)]).overall, Code::Ok, "zero hits");
}

#[test]
fn a_limit_that_changes_keeps_what_was_used_of_it_where_limits_are_spread() {
    let mut desk = spread(None);
    let ask = |desk: &Desk, limit: u32| {
        desk.ask_all("d", vec![limited("k=v", limit, Some(Unit::Minute))]).statuses.remove(0).limit_remaining
    };
    assert_eq!(ask(&desk, 7), 6);
    // A seventh of a minute is used, which is less than one unit of three per minute and counts as one.
    assert_eq!(ask(&desk, 3), 1);
    desk.pass(60);
    assert_eq!(ask(&desk, 7), 6);
    assert_eq!(ask(&desk, u32::MAX), u32::MAX - u32::MAX / 7 - 2);
}
