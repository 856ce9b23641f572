//! Compares the service with the reference's algorithm in its simplest form: a map from a text, which ends with the
//! start of the window, to a number.

use std::collections::HashMap;

use proptest::prelude::*;
use weir_rls::request::{RlsDescriptor, RlsRequest};
use weir_rls::response::Code;
use weir_rls::settings::{Counting, RlsSettings};
use weir_rls::unit::RlsUnit;

use crate::fixture::{RlsFixture, descriptor};

/// Key, value and limit of each rule, in order of preference.
const RULES: [(&str, &str, u32, RlsUnit); 5] = [
    ("a", "x", 3, RlsUnit::Second),
    ("a", "y*", 5, RlsUnit::Minute),
    ("a", "", 7, RlsUnit::Second),
    ("b", "", 4, RlsUnit::Minute),
    ("c", "z", 0, RlsUnit::Week),
];
const DESCRIPTORS: [&str; 8] = ["a=x", "a=y", "a=y1", "a=other", "b=1", "b=2", "c=z", "c=free"];

fn rules() -> String {
    let rule = |(key, value, count, unit): &(&str, &str, u32, RlsUnit)| {
        let unit = unit.as_str();
        format!(
            "- {{key: {key}, value: '{value}', rate_limit: {{unit: {unit}, requests_per_unit: {count}}}}}\n"
        )
    };
    format!("domain: d\ndescriptors:\n{}", RULES.iter().map(rule).collect::<String>())
}

fn limit_of(entries: &str) -> Option<(u32, RlsUnit)> {
    let (key, value) = entries.split_once('=').expect("an entry `key=value`");
    let fits = |(of, wanted, ..): &&(&str, &str, u32, RlsUnit)| {
        *of == key
            && match wanted.strip_suffix('*') {
                Some(prefix) => value.starts_with(prefix),
                None => wanted.is_empty() || *wanted == value,
            }
    };
    RULES.iter().find(fits).map(|(_, _, count, unit)| (*count, *unit))
}

#[derive(Clone, Debug)]
struct TimedDescriptors {
    delay: u64,
    descriptors: Vec<(usize, u8, bool)>,
}

fn timed_descriptors() -> impl Strategy<Value = Vec<TimedDescriptors>> {
    // No descriptor occurs twice in one request, since the reference reads all counters before it writes any.
    let asked = prop::collection::btree_map(0..DESCRIPTORS.len(), (0_u8..4, prop::bool::weighted(0.1)), 1..4);
    let question = (prop_oneof![5 => Just(0_u64), 2 => Just(1), 1 => Just(30)], asked);
    let question = question.prop_map(|(after, asked)| TimedDescriptors {
        delay: after,
        descriptors: asked.into_iter().map(|(index, (hits, back))| (index, hits, back)).collect(),
    });
    prop::collection::vec(question, 1..60)
}

/// Returns the result of the reference for each descriptor: whether it is over its limit, and the remaining units.
fn reference_decision(
    counters: &mut HashMap<String, i64>,
    now: u64,
    descriptors: &[(usize, u8, bool)],
    only_over: bool,
) -> Vec<(bool, u32)> {
    let key = |index: usize, unit: RlsUnit| {
        format!("{}_{}", DESCRIPTORS[index], now / unit.seconds() * unit.seconds())
    };
    let amount = |hits: u8, back: bool| if back { -i64::from(hits) } else { i64::from(hits) };
    let would_be_over = |counters: &HashMap<String, i64>, (index, hits, back): (usize, u8, bool)| {
        limit_of(DESCRIPTORS[index]).is_some_and(|(count, unit)| {
            let before = counters.get(&key(index, unit)).copied().unwrap_or(0);
            (before + amount(hits, back)).max(0) > i64::from(count)
        })
    };
    let over: Vec<bool> = descriptors.iter().map(|asked| would_be_over(counters, *asked)).collect();
    let holds = only_over && over.contains(&true);
    let each = descriptors.iter().zip(&over).map(|((index, hits, back), over)| {
        let Some((count, unit)) = limit_of(DESCRIPTORS[*index]) else { return (false, 0) };
        let counter = counters.entry(key(*index, unit)).or_default();
        if !holds || *over {
            *counter = (*counter + amount(*hits, *back)).max(0);
        }
        let after = *counter;
        let is_over = after > i64::from(count);
        (is_over, if is_over { 0 } else { count - after as u32 })
    });
    each.collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn service_decides_like_envoyproxy_ratelimit(questions in timed_descriptors(), stops: bool) {
        let counting = if stops { Counting::OnlyOver } else { Counting::Everything };
        let mut desk = RlsFixture::with_settings(&rules(), RlsSettings { counting, ..RlsSettings::default() });
        let mut counters = HashMap::new();
        for TimedDescriptors { delay, descriptors } in questions {
            desk.advance(delay);
            let sent = descriptors.iter().map(|(index, hits, back)| RlsDescriptor {
                hits_addend: Some((*hits).into()),
                is_negative_hits: *back,
                ..descriptor(DESCRIPTORS[*index])
            });
            let request = RlsRequest { domain: "d".into(), descriptors: sent.collect(), hits_addend: 0 };
            let answer = desk.try_decide(&request).unwrap();
            let expected = reference_decision(&mut counters, desk.now.as_secs(), &descriptors, stops);
            let found: Vec<(bool, u32)> = answer
                .statuses
                .iter()
                .map(|status| (status.code == Code::OverLimit, status.limit_remaining))
                .collect();
            prop_assert_eq!(&found, &expected);
            prop_assert_eq!(answer.overall_code == Code::OverLimit, expected.iter().any(|(over, _)| *over));
        }
    }
}
