//! Compares the service with the reference's algorithm in its simplest form: a map from a text, which ends with the
//! start of the window, to a number.

use std::collections::HashMap;

use proptest::prelude::*;
use weir::rls::answer::Code;
use weir::rls::request::{Descriptor, Request};
use weir::rls::settings::{Counting, Settings};
use weir::rls::unit::Unit;

use crate::desk::{Desk, descriptor};

/// Key, value and limit of each rule, in order of preference.
const RULES: [(&str, &str, u32, Unit); 5] = [
    ("a", "x", 3, Unit::Second),
    ("a", "y*", 5, Unit::Minute),
    ("a", "", 7, Unit::Second),
    ("b", "", 4, Unit::Minute),
    ("c", "z", 0, Unit::Week),
];
const ASKED: [&str; 8] = ["a=x", "a=y", "a=y1", "a=other", "b=1", "b=2", "c=z", "c=free"];

fn rules() -> String {
    let rule = |(key, value, count, unit): &(&str, &str, u32, Unit)| {
        let unit = unit.as_str();
        format!(
            "- {{key: {key}, value: '{value}', rate_limit: {{unit: {unit}, requests_per_unit: {count}}}}}\n"
        )
    };
    format!("domain: d\ndescriptors:\n{}", RULES.iter().map(rule).collect::<String>())
}

fn limit_of(asked: &str) -> Option<(u32, Unit)> {
    let (key, value) = asked.split_once('=').expect("an entry `key=value`");
    let fits = |(of, wanted, ..): &&(&str, &str, u32, Unit)| {
        *of == key
            && match wanted.strip_suffix('*') {
                Some(prefix) => value.starts_with(prefix),
                None => wanted.is_empty() || *wanted == value,
            }
    };
    RULES.iter().find(fits).map(|(_, _, count, unit)| (*count, *unit))
}

#[derive(Clone, Debug)]
struct Question {
    after: u64,
    asked: Vec<(usize, u8, bool)>,
}

fn questions() -> impl Strategy<Value = Vec<Question>> {
    // No descriptor occurs twice in one request, since the reference reads all counters before it writes any.
    let asked = prop::collection::btree_map(0..ASKED.len(), (0_u8..4, prop::bool::weighted(0.1)), 1..4);
    let question = (prop_oneof![5 => Just(0_u64), 2 => Just(1), 1 => Just(30)], asked);
    let question = question.prop_map(|(after, asked)| Question {
        after,
        asked: asked.into_iter().map(|(index, (hits, back))| (index, hits, back)).collect(),
    });
    prop::collection::vec(question, 1..60)
}

/// Returns the result of the reference for each descriptor: whether it is over its limit, and the remaining units.
fn model(
    counters: &mut HashMap<String, i64>,
    now: u64,
    asked: &[(usize, u8, bool)],
    stops: bool,
) -> Vec<(bool, u32)> {
    let key =
        |index: usize, unit: Unit| format!("{}_{}", ASKED[index], now / unit.seconds() * unit.seconds());
    let amount = |hits: u8, back: bool| if back { -i64::from(hits) } else { i64::from(hits) };
    let would_be_over = |counters: &HashMap<String, i64>, (index, hits, back): (usize, u8, bool)| {
        limit_of(ASKED[index]).is_some_and(|(count, unit)| {
            let before = counters.get(&key(index, unit)).copied().unwrap_or(0);
            (before + amount(hits, back)).max(0) > i64::from(count)
        })
    };
    let over: Vec<bool> = asked.iter().map(|asked| would_be_over(counters, *asked)).collect();
    let holds = stops && over.contains(&true);
    let each = asked.iter().zip(&over).map(|((index, hits, back), over)| {
        let Some((count, unit)) = limit_of(ASKED[*index]) else { return (false, 0) };
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
    fn the_service_decides_as_the_reference_does(questions in questions(), stops: bool) {
        let counting = if stops { Counting::OnlyOver } else { Counting::Everything };
        let mut desk = Desk::with(&rules(), Settings { counting, ..Settings::default() });
        let mut counters = HashMap::new();
        for Question { after, asked } in questions {
            desk.pass(after);
            let descriptors = asked.iter().map(|(index, hits, back)| Descriptor {
                hits_addend: Some((*hits).into()),
                is_negative_hits: *back,
                ..descriptor(ASKED[*index])
            });
            let request = Request { domain: "d".into(), descriptors: descriptors.collect(), hits_addend: 0 };
            let answer = desk.try_ask(&request).unwrap();
            let expected = model(&mut counters, desk.now.as_secs(), &asked, stops);
            let found: Vec<(bool, u32)> = answer
                .statuses
                .iter()
                .map(|status| (status.code == Code::OverLimit, status.limit_remaining))
                .collect();
            prop_assert_eq!(&found, &expected);
            prop_assert_eq!(answer.overall == Code::OverLimit, expected.iter().any(|(over, _)| *over));
        }
    }
}
