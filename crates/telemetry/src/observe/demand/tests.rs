use std::sync::Arc;

use super::*;
use crate::observe::key_sketch::DecisionEffects;
use crate::observe::top_keys::TopKey;
use weir_policy::rules::outcome::DecisionOutcome;

fn key(number: u64) -> KeyHash {
    KeyHash::from_words([number, number])
}

fn top(counts: &[(u64, u64)], at: Timestamp) -> RuleTop {
    let keys = counts.iter().map(|(number, count)| {
        let mut effects = DecisionEffects::default();
        (0..*count).for_each(|_| effects.record(DecisionOutcome::Allowed));
        TopKey {
            key: key(*number),
            text: Arc::from(""),
            counts: effects,
            overcount: 0,
            first_seen: at,
            last_seen: at,
        }
    });
    RuleTop { tracked: counts.len(), keys: keys.collect(), ..RuleTop::default() }
}

fn minute(number: u64) -> Timestamp {
    Timestamp::from_secs(1_000_000_800 + 60 * number)
}

#[test]
fn peaks_are_kept_for_minutes_hours_and_days() {
    let history = DemandHistory::default();
    for (number, count) in [(1, 5), (2, 9), (3, 7), (90, 4)] {
        history.record("a", "client_ip", &top(&[(1, count), (2, 1)], minute(number)), minute(number));
    }
    let summary = history.summary("a", minute(90)).unwrap();
    assert_eq!((summary.observed, summary.keys), (Duration::from_secs(90 * 60), 2));
    let peaks = summary.peaks.map(|(_, peaks)| peaks);
    assert_eq!(peaks, [vec![9, 1], vec![21, 3], vec![25, 4]]);
}

#[test]
fn peaks_end_after_a_week_and_keys_of_another_meaning_start_anew() {
    let history = DemandHistory::default();
    history.record("a", "client_ip", &top(&[(1, 9)], minute(1)), minute(1));
    let later = minute(8 * 24 * 60);
    history.record("a", "client_ip", &top(&[(2, 3)], later), later);
    assert_eq!(history.summary("a", later).unwrap().peaks[0].1, [3]);
    history.record("a", "header x-user", &top(&[(4, 1)], later), later);
    assert_eq!(history.summary("a", later).unwrap().peaks[0].1, [1]);
    history.retain(|rule| rule != "a");
    assert_eq!(history.summary("a", later), None);
}

#[test]
fn number_of_keys_is_bounded_and_the_heaviest_stay() {
    let history = DemandHistory::default();
    for number in 0..40_u64 {
        let counts: Vec<(u64, u64)> = (0..50).map(|index| (number * 50 + index, number + 1)).collect();
        history.record("a", "client_ip", &top(&counts, minute(number)), minute(number));
    }
    let peaks = history.summary("a", minute(40)).unwrap().peaks[0].1.clone();
    assert_eq!((peaks.len(), peaks[0]), (512, 40));
    assert!(peaks.iter().all(|peak| *peak >= 30), "{peaks:?}");
}
