use super::*;
use weir_limiter::testing::{NOW, limiter};

const VALID: Duration = Duration::from_secs(60);
/// Time of the store at [`NOW`], in microseconds, from its lead of a second.
const STORE_NOW: u64 = NOW.as_nanos() / 1000 + 1_000_000;

fn after(millis: u64) -> Timestamp {
    NOW.saturating_add(Duration::from_millis(millis))
}

/// Parts of one group, and a counter of it.
fn parts() -> (StoreParts, SharedCounter) {
    let (limiter, check) = limiter();
    let parts = StoreParts::default();
    parts.configure(1, VALID);
    parts.set_used(true);
    parts.record_clock_lead(0, 1_000_000_000, NOW);
    (parts, limiter.shared_counter(&check))
}

/// Parts that the store has renewed at [`NOW`]: a quarter of each limit.
fn renewed() -> (StoreParts, SharedCounter) {
    let (parts, counter) = parts();
    parts.renew(0, NOW).expect("a renewal");
    parts.apply(0, i64::from(WHOLE / 4), NOW, NOW);
    (parts, counter)
}

#[test]
fn part_may_be_spent_once_the_instance_counts_as_absent_and_until_it_is_granted_to_others() {
    let (parts, counter) = renewed();
    let part = parts.part_of(counter, NOW).expect("a part");
    // A renewal is executed within 250 ms, and the instance counts as absent 750 ms later; 250 ms more for the clocks.
    assert_eq!((part.fraction, part.from, part.until), (0.25, after(1250), after(52_500)));
    assert_eq!(part.max_settle_time, VALID);
    assert_eq!(parts.part_of(counter, after(52_500)), None);
}

#[test]
fn renewal_without_a_response_puts_the_start_off_and_not_the_end() {
    let (parts, counter) = renewed();
    parts.renew(0, after(400)).expect("a renewal");
    let part = parts.part_of(counter, after(500)).expect("a part");
    assert_eq!((part.from, part.until), (after(1650), after(52_500)));
}

#[test]
fn instance_without_a_renewal_has_no_part() {
    let (parts, counter) = parts();
    assert_eq!(parts.part_of(counter, NOW), None);
    parts.renew(0, NOW).expect("a renewal");
    parts.apply(0, -1, NOW, NOW);
    assert_eq!(parts.part_of(counter, NOW), None, "the store has not renewed it");
}

#[test]
fn renewals_need_the_time_of_the_store_of_a_moment_ago() {
    let (parts, _) = parts();
    assert!(parts.is_due(0, NOW));
    assert_eq!(parts.renew(0, after(501)), None, "clocks may have drifted since");
    parts.record_failure(0);
    assert_eq!(parts.renew(0, NOW), None, "a further renewal would put the start off");
    assert_eq!(StoreParts::default().renew(0, NOW), None);
}

#[test]
fn each_group_has_the_clock_of_its_server() {
    let parts = StoreParts::default();
    parts.configure(2, VALID);
    parts.record_clock_lead(1, 5_000_000_000, NOW);
    assert_eq!(parts.renew(0, NOW), None);
    assert_eq!(parts.renew(1, NOW).expect("a renewal").deadline, STORE_NOW + 4_250_000);
}

#[test]
fn smaller_fleet_does_not_bring_the_start_forward() {
    let (parts, counter) = parts();
    parts.set_instances(192);
    parts.renew(0, NOW).expect("a renewal");
    parts.apply(0, 1000, NOW, NOW);
    parts.set_instances(2);
    parts.renew(0, after(400)).expect("a renewal");
    assert_eq!(parts.part_of(counter, after(500)).expect("a part").from, after(5000));
}

#[test]
fn part_that_was_spent_before_a_late_reply_is_stated_again() {
    let (parts, counter) = renewed();
    parts.record_clock_lead(0, 1_000_000_000, after(1000));
    parts.renew(0, after(1000)).expect("a renewal");
    assert!(parts.part_of(counter, after(2300)).is_some());
    parts.apply(0, 1000, after(1000), after(2400));
    parts.record_clock_lead(0, 1_000_000_000, after(2400));
    assert!(parts.renew(0, after(2500)).expect("a renewal").is_spent);
}

#[test]
fn renewal_tells_the_store_what_it_needs() {
    let (parts, counter) = renewed();
    parts.record_demand(0, Duration::from_millis(500), after(100));
    assert!(!parts.is_due(0, after(249)) && parts.is_due(0, after(250)));
    assert!(parts.part_of(counter, after(1260)).is_some(), "requests spend it");
    parts.record_clock_lead(0, 1_000_000_000, after(1260));
    let renewal = parts.renew(0, after(1300)).expect("a renewal");
    let sent = after(1300).as_nanos() / 1000;
    let expected = PartRenewal {
        demand: renewal.demand,
        valid: 60_000_000,
        absent_after: 750_000,
        claimed: WHOLE / 4,
        is_spent: true,
        deadline: STORE_NOW + 1_550_000,
        sent,
    };
    assert_eq!(renewal, expected);
    assert!((0.1..0.2).contains(&renewal.demand), "half a second's worth, of 1.2 s ago: {}", renewal.demand);
    let demand = format!("{:.9}", renewal.demand);
    let deadline = expected.deadline;
    assert_eq!(renewal.encode(7), format!("7 {demand} 60000000 750000 262144 1 {deadline} {sent}"));
}

#[test]
fn part_that_was_spent_is_gone_after_the_return() {
    let (parts, counter) = renewed();
    assert!(parts.part_of(counter, after(2000)).is_some());
    parts.record_clock_lead(0, 1_000_000_000, after(3000));
    assert!(parts.renew(0, after(3000)).expect("a renewal").is_spent);
    assert_eq!(parts.part_of(counter, after(9000)), None, "the store holds it back for what was spent");
    parts.apply(0, 5, after(3000), after(3001));
    parts.record_clock_lead(0, 1_000_000_000, after(3250));
    assert!(!parts.renew(0, after(3250)).expect("a renewal").is_spent, "reported once");
}

#[test]
fn part_is_given_up_with_the_next_renewal() {
    let (parts, counter) = renewed();
    assert!(parts.give_up(after(10)));
    let renewal = parts.renew(0, after(10)).expect("a renewal");
    assert_eq!((renewal.valid, renewal.claimed), (0, 0));
    assert!(!parts.give_up(after(20)) && !parts.is_due(0, after(1000)));
    assert_eq!(parts.part_of(counter, after(5000)), None);
}

#[test]
fn large_fleets_renew_less_often() {
    let (parts, _) = parts();
    for (instances, millis) in [(10, 250), (96, 500), (384, 2000), (10_000, 3000)] {
        parts.set_instances(instances);
        parts.renew(0, NOW).expect("a renewal");
        assert_eq!(parts.due(0), Some(after(millis)), "{instances} instances");
    }
}
