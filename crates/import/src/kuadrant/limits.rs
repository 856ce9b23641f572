//! A limit of a policy: its rates as token buckets, and its counters as a key.
//!
//! Limitador's window begins with the first request that it counts, and ends after its length. A bucket that is refilled
//! as a whole does the same.

use super::super::duration::parse_duration;
use super::super::expression::Expression;
use super::super::ledger::Ledger;
use super::super::limit_draft::{LimitContent, LimitDraft};
use super::super::remark::{Effect, brief};
use super::super::rule_text::{list, map};
use super::super::selection::RequestSet;
use super::super::tree::{as_i64, field_text, get, items, scalar_text};
use super::attributes::RequestAttribute;
use super::conditions::{read_conditions, read_route_selectors};
use super::messages;
use weir_yaml::Node;

/// A limit, read.
#[derive(Clone, Debug)]
pub(super) struct PolicyLimit<'n> {
    pub(super) name: String,
    pub(super) node: &'n Node,
    pub(super) requests: RequestSet,
    /// Without name and origin; `None` if it limits nothing.
    pub(super) draft: Option<LimitDraft>,
}

impl<'n> PolicyLimit<'n> {
    pub(super) fn read(name: &str, node: &'n Node, ledger: &Ledger) -> Self {
        ledger.message(node, &messages::LIMIT);
        let requests = read_conditions(get(node, "when"), ledger)
            .and(&read_route_selectors(get(node, "routeSelectors"), ledger));
        let draft = read_rates(node, ledger).map(|counting| {
            let mut draft = LimitDraft::new("", "", counting);
            items(get(node, "counters")).iter().for_each(|counter| add_counter(&mut draft, counter, ledger));
            if draft.key.iter().any(|part| part.contains("header")) {
                draft.on_missing = Some("skip");
            }
            if draft.counting != LimitContent::Nothing {
                draft.add(
                    Effect::Looser,
                    "each instance has the whole limit, Limitador counts all together: use `store` and `scope: shared`",
                );
            }
            draft
        });
        Self { name: name.to_owned(), node, requests, draft }
    }
}

/// Returns what the rates of a limit count.
fn read_rates(limit: &Node, ledger: &Ledger) -> Option<LimitContent> {
    let mut rates: Vec<(i64, u64)> = Vec::new();
    for rate in items(get(limit, "rates")) {
        ledger.message(rate, &messages::RATE);
        let count = get(rate, "limit").and_then(as_i64).filter(|count| *count <= i64::from(u32::MAX));
        let (Some(count), Some(seconds)) = (count, window(rate)) else {
            let reason = "left out: expected `limit` with a number and `window` with a duration such as `1m`";
            ledger.lose(rate, Effect::Looser, reason);
            continue;
        };
        ["limit", "window", "duration", "unit"]
            .into_iter()
            .filter_map(|name| get(rate, name))
            .for_each(|value| ledger.use_all(value));
        if seconds == 0 {
            ledger.lose(rate, Effect::None, "a window of less than a second limits nothing");
        } else if rates.iter().any(|(_, known)| *known == seconds) {
            ledger.lose(rate, Effect::Differs, "Limitador keeps one of two rates with the same window");
        } else {
            rates.push((count.max(0), seconds));
        }
    }
    (!rates.is_empty()).then(|| counting(&rates, limit, ledger))
}

/// Returns how rates count: each a number of requests, and seconds.
fn counting(rates: &[(i64, u64)], limit: &Node, ledger: &Ledger) -> LimitContent {
    if rates.iter().any(|(count, _)| *count == 0) {
        items(get(limit, "rates")).iter().for_each(|rate| {
            ledger.lose(rate, Effect::None, "a limit of 0 rejects all requests");
        });
        return LimitContent::Nothing;
    }
    let bucket = |(count, seconds): &(i64, u64)| {
        map([("refill", count.to_string()), ("every", format!("{seconds}s"))])
    };
    LimitContent::Fields(match rates {
        [only] => vec![("token_bucket", bucket(only))],
        several => {
            let limits = several.iter().map(|rate| map([("token_bucket", bucket(rate))]));
            vec![("limits", list(limits))]
        }
    })
}

/// Returns the window of a rate in whole seconds, as Kuadrant does.
fn window(rate: &Node) -> Option<u64> {
    if let Some(text) = field_text(rate, "window") {
        let seconds = parse_duration(text)? / 1_000_000_000;
        return u64::try_from(seconds).ok();
    }
    let length: u64 = field_text(rate, "duration")?.parse().ok()?;
    let unit = match field_text(rate, "unit")? {
        "second" => 1,
        "minute" => 60,
        "hour" => 3600,
        "day" => 86_400,
        _ => return None,
    };
    length.checked_mul(unit)
}

/// Adds a counter to the key: an expression, or in `v1beta2` a selector.
fn add_counter(draft: &mut LimitDraft, counter: &Node, ledger: &Ledger) {
    let text = match scalar_text(counter) {
        Some(selector) => {
            ledger.use_all(counter);
            selector
        }
        None => {
            ledger.message(counter, &messages::COUNTER);
            get(counter, "expression").into_iter().for_each(|expression| ledger.use_all(expression));
            field_text(counter, "expression").unwrap_or_default()
        }
    };
    let parsed = Expression::parse(text).ok();
    let attribute = parsed.as_ref().and_then(RequestAttribute::of);
    let Some(attribute) = attribute.or_else(|| RequestAttribute::of_selector(text)) else {
        let hint = match text.starts_with("auth.") {
            true => ", such as `{ jwt: CLAIM }` or a header that the authentication sets",
            false => "",
        };
        return draft.add(
            Effect::Tighter,
            format!(
                "the counter `{}` is not expressed, so all its values share one: add a key{hint}",
                brief(text)
            ),
        );
    };
    let (part, difference) = attribute.key();
    difference.into_iter().for_each(|text| draft.add(Effect::Differs, text));
    if !draft.key.contains(&part) {
        draft.key.push(part);
    }
}
