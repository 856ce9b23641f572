use proptest::prelude::*;

use super::*;
use crate::observe::key_sketch::MAX_KEYS_PER_SKETCH;
use weir_limiter::key::KeyHasher;
use weir_policy::rules::outcome::DecisionOutcome;

const START: Timestamp = Timestamp::from_secs(600);

fn key(number: u16) -> KeyHash {
    KeyHasher::new([1, 2]).hash(&number.to_be_bytes())
}

fn sketch(top_keys: &TopKeys, worker: WorkerId, rule: &str, meaning: &str) -> Arc<WorkerSketch> {
    top_keys.sketch(worker, rule, meaning, SketchOwner::Rule)
}

fn record(sketch: &WorkerSketch, number: u16, outcome: DecisionOutcome, now: Timestamp) {
    sketch.lock_worker(now).record(sketch, key(number), outcome, || number.to_string().into());
}

fn seconds(after: u64) -> Timestamp {
    START.saturating_add(Duration::from_secs(after))
}

proptest! {
    #[test]
    fn merged_counts_are_the_sums_of_all_workers_and_windows(
        decisions in proptest::collection::vec((0_usize..3, 0_u16..600, 0_u64..120), 0..2000),
    ) {
        let top_keys = TopKeys::default();
        let workers = [(); 3].map(|()| sketch(&top_keys, top_keys.add_worker(), "r", "key"));
        let mut counts = BTreeMap::new();
        let mut ordered = decisions;
        ordered.sort_by_key(|(_, _, at)| *at);
        for (worker, number, at) in ordered {
            record(&workers[worker], number, DecisionOutcome::Allowed, seconds(at));
            *counts.entry(number).or_insert(0_u64) += 1;
        }
        let top = top_keys.top("r", usize::MAX, seconds(119));
        prop_assert_eq!(top.keys.len(), top.tracked);
        for shown in &top.keys {
            let number: u16 = shown.text.parse().unwrap();
            let (count, estimate) = (counts[&number], shown.counts.total());
            prop_assert!(estimate >= count && estimate - shown.overcount <= count);
            prop_assert!(shown.overcount <= top.max_overcount);
        }
        if counts.len() <= MAX_KEYS_PER_SKETCH {
            prop_assert_eq!(top.max_overcount, 0);
            prop_assert_eq!(top.tracked, counts.len());
        }
        prop_assert!(top.keys.is_sorted_by_key(|key| std::cmp::Reverse(key.counts.total())));
    }
}

proptest! {
    #[test]
    fn counts_are_too_low_only_if_the_rule_is_incomplete(
        budget in 0_usize..60,
        decisions in proptest::collection::vec((0_usize..4, 0_usize..2, 0_u16..40, 0_u64..120), 0..800),
    ) {
        let top_keys = TopKeys::with_budget(budget);
        let names = ["a", "b", "c", "d"];
        let workers = [(); 2].map(|()| top_keys.add_worker());
        let sketches = names.map(|rule| workers.map(|worker| sketch(&top_keys, worker, rule, "key")));
        let mut counts: BTreeMap<(usize, u16), u64> = BTreeMap::new();
        let mut ordered = decisions;
        ordered.sort_by_key(|(.., at)| *at);
        for (rule, worker, number, at) in ordered {
            record(&sketches[rule][worker], number, DecisionOutcome::Limited, seconds(at));
            *counts.entry((rule, number)).or_insert(0) += 1;
        }
        prop_assert!(tracked_keys(&sketches.concat()) <= budget);
        for (rule, name) in names.iter().enumerate() {
            let top = top_keys.top(name, usize::MAX, seconds(119));
            prop_assert!(!top.is_incomplete || budget < 16, "16 sketches have one key each");
            let seen = counts.keys().any(|(of, _)| *of == rule);
            prop_assert!(top.is_incomplete || top.keys.is_empty() != seen, "{name} is invisible");
            for shown in &top.keys {
                let (count, estimate) = (counts[&(rule, shown.text.parse().unwrap())], shown.counts.total());
                prop_assert!(top.is_incomplete || estimate >= count);
                prop_assert!(estimate - shown.overcount <= count && shown.overcount <= top.max_overcount);
            }
        }
    }
}

/// Returns the number of keys that these sketches track in all windows.
fn tracked_keys(sketches: &[Arc<WorkerSketch>]) -> usize {
    let copies = sketches.iter().filter_map(|sketch| sketch.copy(seconds(119))).flatten();
    copies.map(|copy| copy.keys.len()).sum()
}

#[test]
fn rules_with_many_keys_do_not_hide_another_rule() {
    let top_keys = TopKeys::default();
    let worker = top_keys.add_worker();
    let flooded: Vec<_> =
        (0..256).map(|rule| sketch(&top_keys, worker, &format!("flooded-{rule}"), "[path]")).collect();
    let quiet = sketch(&top_keys, worker, "z", "[client_ip]");
    for (sketch, number) in flooded.iter().flat_map(|sketch| (0..257).map(move |number| (sketch, number))) {
        record(sketch, number, DecisionOutcome::Allowed, START);
    }
    (0..3).for_each(|_| record(&quiet, 1, DecisionOutcome::Limited, START));
    let top = top_keys.top("z", 5, START);
    assert_eq!((top.tracked, top.max_overcount, top.is_incomplete), (1, 0, false));
    assert_eq!(top.keys[0].counts.rejected, 3);
    assert!(tracked_keys(&flooded) <= MAX_TRACKED_KEYS);
}

#[test]
fn documents_with_thousands_of_limits_do_not_hide_keys_of_rules() {
    let top_keys = TopKeys::default();
    let workers = [(); 8].map(|()| top_keys.add_worker());
    let rules = workers.map(|worker| sketch(&top_keys, worker, "r", "[client_ip]"));
    let names: Vec<String> = (0..5000).map(|number| format!("limit {number}")).collect();
    let documents: Vec<_> = names
        .iter()
        .flat_map(|name| workers.map(|worker| top_keys.document_sketch(worker, name, "")))
        .collect();
    for (limit, number) in documents.iter().flat_map(|limit| [(limit, 1), (limit, 2)]) {
        record(limit, number, DecisionOutcome::Allowed, START);
    }
    let decisions = rules.iter().flat_map(|sketch| (0..256).map(move |number| (sketch, number)));
    decisions.for_each(|(sketch, number)| record(sketch, number, DecisionOutcome::Allowed, START));
    let top = top_keys.top("r", usize::MAX, START);
    assert_eq!((top.tracked, top.max_overcount, top.is_incomplete), (256, 0, false));
    assert!(tracked_keys(&documents) <= MAX_TRACKED_KEYS - 8 * 256);
}

#[test]
fn decisions_are_shown_for_one_to_two_windows() {
    let top_keys = TopKeys::default();
    let sketch = sketch(&top_keys, top_keys.add_worker(), "r", "key");
    record(&sketch, 1, DecisionOutcome::Limited, START);
    record(&sketch, 1, DecisionOutcome::Allowed, seconds(60));
    let total = |now| top_keys.top("r", 5, now).keys.first().map(|key| key.counts.total());
    assert_eq!([total(seconds(60)), total(seconds(119))], [Some(2); 2]);
    assert_eq!([total(seconds(120)), total(seconds(180))], [Some(1), None]);
}

#[test]
fn covered_time_grows_from_one_window_to_two() {
    let start = Timestamp::EPOCH;
    assert_eq!(covered_time(start, START), WINDOW);
    assert_eq!(covered_time(start, seconds(59)), Duration::from_secs(119));
    assert_eq!(covered_time(seconds(10), seconds(15)), Duration::from_secs(5));
}

#[test]
fn sketch_continues_across_reloads_unless_the_key_changes() {
    let top_keys = TopKeys::default();
    let worker = top_keys.add_worker();
    record(&sketch(&top_keys, worker, "r", "[client_ip]"), 1, DecisionOutcome::Allowed, START);
    sketch(&top_keys, worker, "r", "[client_ip]");
    assert_eq!(top_keys.top("r", 5, START).tracked, 1);
    sketch(&top_keys, worker, "r", "[path]");
    assert_eq!(top_keys.top("r", 5, START).tracked, 0);
}

#[test]
fn expiry_frees_passed_windows_and_removed_rules() {
    let top_keys = TopKeys::with_budget(1);
    let idle = sketch(&top_keys, top_keys.add_worker(), "idle", "key");
    record(&idle, 1, DecisionOutcome::Allowed, START);
    let busy = sketch(&top_keys, top_keys.add_worker(), "busy", "key");
    record(&busy, 1, DecisionOutcome::Allowed, seconds(180));
    let starved = top_keys.top("busy", 5, seconds(180));
    assert_eq!((starved.tracked, starved.is_incomplete), (0, true), "the budget is used up");
    top_keys.expire(seconds(180));
    record(&busy, 1, DecisionOutcome::Allowed, seconds(180));
    assert_eq!(top_keys.top("busy", 5, seconds(180)).tracked, 1);
    drop(idle);
    top_keys.expire(seconds(180));
    assert_eq!(top_keys.rules.lock().by_name.keys().map(|name| &**name).collect::<Vec<_>>(), ["busy"]);
}
