//! Rules for the buckets of a configuration and of its descriptors.

use std::collections::HashSet;

use super::super::ledger::Ledger;
use super::super::remark::{Effect, Remark};
use super::super::rule_text::{
    RuleListItem, RuleText, UniqueNames, exact_pattern, list, map, one_or_list, scalar,
};
use super::super::tree::{as_bool, as_u64, entries, field_text, get, is_true, items};
use super::actions::{ActionMismatch, ExpectedEntry, Translation, translate};
use super::buckets::set_bucket;
use super::filter::Descriptor;
use super::messages;
use super::requests::Requests;
use super::units::{Source, Unit};
use weir_yaml::Node;

/// Maximum number of rules of a file.
const MAX_RULES: usize = 2000;

/// Writes the rules of a file.
#[derive(Debug)]
pub(super) struct FilterRuleWriter<'l> {
    pub(super) ledger: &'l Ledger,
    pub(super) names: UniqueNames,
    pub(super) items: Vec<RuleListItem>,
    /// The rate limits of which a rule has become, by address.
    paired: HashSet<usize>,
}

/// One meaning of a descriptor: the requests that it is made for, what it is counted by, and the price.
pub(super) struct Meaning<'n> {
    pub(super) translation: Translation<'n>,
    exceptions: Vec<Requests<'n>>,
    cost: Option<String>,
    /// The number of tokens of a fixed price.
    tokens: u64,
}

impl<'l> FilterRuleWriter<'l> {
    pub(super) fn new(ledger: &'l Ledger) -> Self {
        Self { ledger, names: UniqueNames::default(), items: Vec::new(), paired: HashSet::new() }
    }

    pub(super) fn comment(&mut self, effect: Effect, text: impl Into<String>) {
        self.items.push(RuleListItem::Comment(Remark::new(effect, text)));
    }

    fn is_full(&self) -> bool {
        self.items.len() >= MAX_RULES
    }

    /// Adds the rules of a unit. `place` says which listener it belongs to, if there are several.
    pub(super) fn add_unit(&mut self, unit: &Unit<'_>, place: Option<&Remark>) {
        if self.is_full() {
            let text = format!("more than {MAX_RULES} rules and comments: the rest is not imported");
            return self.ledger.lose(unit.filter.config, Effect::Looser, text);
        }
        let meanings: Vec<Vec<Meaning<'_>>> =
            unit.filter.descriptors.iter().map(|one| self.meanings(unit, one)).collect();
        match &unit.filter.bucket {
            Some(bucket) => self.add_bucket(unit, bucket, &meanings, place),
            None if unit.filter.descriptors.is_empty() => {
                self.comment(Effect::None, format!("{}: no token bucket", unit.filter.name));
            }
            None => {}
        }
        for (descriptor, meanings) in unit.filter.descriptors.iter().zip(meanings) {
            self.add_descriptor(unit, descriptor, meanings, place);
        }
    }

    pub(super) fn start_rule(&mut self, name: &str, place: Option<&Remark>) -> RuleText {
        let mut rule = RuleText::default();
        rule.set("name", scalar(&self.names.make_unique(name)));
        place.into_iter().for_each(|place| rule.add_remark(place.clone()));
        rule
    }

    /// Sets the conditions of a rule.
    pub(super) fn set_requests(&self, rule: &mut RuleText, requests: &Requests<'_>) {
        requests.remarks.iter().for_each(|remark| rule.add_remark(remark.clone()));
        requests.scope.write(rule);
        requests.mark_used(self.ledger);
    }

    /// Adds a rule, or its comments if it has no effect.
    pub(super) fn push(&mut self, rule: RuleText) {
        if rule.field("action").or_else(|| rule.field("limit")).is_some() {
            return self.items.push(RuleListItem::Rule(rule));
        }
        let name = rule.field("name").unwrap_or_default().to_owned();
        for Remark { effect, text } in rule.comments {
            self.comment(effect, format!("{name}: {text}"));
        }
    }

    /// Returns what a descriptor means by each of the rate limits that make it.
    fn meanings<'n>(&mut self, unit: &Unit<'n>, descriptor: &Descriptor) -> Vec<Meaning<'n>> {
        let preceding: Vec<&Descriptor> =
            unit.filter.descriptors.iter().filter(|other| other.takes_precedence_over(descriptor)).collect();
        let mut meanings: Vec<Meaning<'n>> = Vec::new();
        for source in &unit.sources {
            for limit in source.limits {
                self.ledger.message(limit, &messages::RATE_LIMIT);
                if get(limit, "stage").map_or(Some(0), as_u64) != Some(unit.filter.stage) {
                    continue;
                }
                let actions = items(get(limit, "actions"));
                let Ok(translation) = translate(actions, &descriptor.entries, &source.requests) else {
                    continue;
                };
                self.paired.insert(std::ptr::from_ref(limit).addr());
                let (cost, tokens) = self.cost(limit, source);
                let exceptions = preceding
                    .iter()
                    .filter_map(|other| translate(actions, &other.entries, &source.requests).ok())
                    .map(|meaning| meaning.requests)
                    .collect();
                ["actions", "stage"]
                    .iter()
                    .filter_map(|name| get(limit, name))
                    .for_each(|node| self.ledger.use_all(node));
                meanings.push(Meaning { translation, exceptions, cost, tokens });
            }
        }
        meanings
    }

    /// Returns the price of a request in tokens, as the value of `cost` and as a number.
    fn cost(&self, limit: &Node, source: &Source<'_>) -> (Option<String>, u64) {
        let Some(hits) = get(limit, "hits_addend") else { return (None, 1) };
        if !source.is_own {
            self.ledger.lose(hits, Effect::None, "Envoy reads it in the filter's own `rate_limits` only");
            return (None, 1);
        }
        let (number, format) = (get(hits, "number").map(as_u64), field_text(hits, "format"));
        let is_other = entries(hits).len() > 1
            && (is_true(hits, "is_negative_hits") || number.is_some() && format.is_some());
        match (number, format.and_then(header_of_format)) {
            _ if is_other || get(hits, "is_negative_hits").is_some_and(|flag| as_bool(flag).is_none()) => {}
            (Some(Some(number)), None) if (1..=u64::from(u32::MAX)).contains(&number) && format.is_none() => {
                self.ledger.use_all(hits);
                return ((number > 1).then(|| number.to_string()), number);
            }
            (None, Some(name)) => {
                self.ledger.use_all(hits);
                return (Some(map([("header", scalar(&name))])), 1);
            }
            _ => {}
        }
        self.ledger.lose(hits, Effect::Differs, "not supported: each request takes one token");
        (None, 1)
    }

    fn add_descriptor(
        &mut self,
        unit: &Unit<'_>,
        descriptor: &Descriptor,
        meanings: Vec<Meaning<'_>>,
        place: Option<&Remark>,
    ) {
        let name = format!("{}.{}", unit.filter.name, descriptor.name());
        let mut rules: Vec<(RuleText, String)> = Vec::new();
        for meaning in meanings {
            let mut requests = meaning.translation.requests;
            if !meaning.exceptions.iter().all(|exception| requests.except(exception)) {
                continue;
            }
            let mut rule = self.start_rule(&name, place);
            self.set_requests(&mut rule, &requests);
            let bucket = descriptor.bucket.clone().with_cost(meaning.tokens);
            set_bucket(
                &mut rule,
                &unit.filter,
                &meaning.translation.key,
                &bucket,
                meaning.cost.as_deref(),
                descriptor.is_shadow,
            );
            if !rules.iter().any(|(known, _)| is_same_but_name(known, &rule)) {
                rules.push((rule, list(&meaning.translation.key)));
            }
        }
        if rules.is_empty() {
            return self.add_untranslated(unit, descriptor, &name, place);
        }
        self.share_counters(rules);
    }

    /// Adds rules for one descriptor. Those with one key share the counter, as in Envoy.
    pub(super) fn share_counters(&mut self, rules: Vec<(RuleText, String)>) {
        let has_other_keys = rules.iter().any(|(_, key)| *key != rules[0].1);
        let mut counters: Vec<(String, String)> = Vec::new();
        let counted: Vec<String> = rules.iter().map(|(_, key)| key.clone()).collect();
        for (mut rule, key) in rules {
            let is_shared = counted.iter().filter(|other| **other == key).count() > 1;
            if is_shared && rule.field("limit").is_some() {
                let name = rule.field("name").unwrap_or_default().to_owned();
                let counter = match counters.iter().find(|(known, _)| *known == key) {
                    Some((_, counter)) => counter.clone(),
                    None => {
                        counters.push((key, name.clone()));
                        name
                    }
                };
                rule.set("counter", counter);
            }
            if has_other_keys {
                rule.add_remark(Remark::new(
                    Effect::Looser,
                    "several actions make this descriptor from different values: each has its own buckets",
                ));
            }
            self.push(rule);
        }
    }

    /// Adds a rule for a descriptor of which the file does not show what makes it.
    fn add_untranslated(
        &mut self,
        unit: &Unit<'_>,
        descriptor: &Descriptor,
        name: &str,
        place: Option<&Remark>,
    ) {
        let mut rule = self.start_rule(name, place);
        rule.add_remark(Remark::new(
            Effect::Looser,
            "no action that rules express makes this descriptor for these requests: the rule applies to Envoy's calls \
             of the rate limit service, not to proxied requests",
        ));
        rule.set("domain", scalar(&unit.filter.name));
        rule.set("match", entries_condition(&descriptor.entries));
        let preceding =
            unit.filter.descriptors.iter().filter(|other| other.takes_precedence_over(descriptor));
        let exceptions: Vec<String> = preceding.map(|other| entries_condition(&other.entries)).collect();
        if !exceptions.is_empty() {
            rule.set("except", one_or_list(&exceptions));
        }
        let mut key: Vec<String> = Vec::new();
        for entry in descriptor.entries.iter().filter(|entry| entry.value.is_empty()) {
            let part = map([("descriptor", scalar(&entry.key))]);
            if !key.contains(&part) {
                key.push(part);
            }
        }
        set_bucket(&mut rule, &unit.filter, &key, &descriptor.bucket, None, descriptor.is_shadow);
        self.push(rule);
    }

    /// Says of rate limits of which no rule has become why.
    pub(super) fn lose_unpaired(&self, units: &[Unit<'_>]) {
        for unit in units {
            for source in &unit.sources {
                for limit in source.limits {
                    if !self.paired.contains(&std::ptr::from_ref(limit).addr()) {
                        self.lose_limit(unit, source, limit);
                    }
                }
            }
        }
    }

    fn lose_limit(&self, unit: &Unit<'_>, source: &Source<'_>, limit: &Node) {
        let actions = items(get(limit, "actions"));
        let reason = unit.filter.descriptors.iter().find_map(|descriptor| {
            match translate(actions, &descriptor.entries, &source.requests) {
                Err(ActionMismatch::Unsupported(what)) => Some(what),
                Err(ActionMismatch::Other) | Ok(_) => None,
            }
        });
        match reason {
            Some(what) => self.ledger.lose(limit, Effect::Looser, format!("not supported by rules ({what})")),
            None => self.ledger.lose(limit, Effect::None, "no descriptor of the filter has its entries"),
        }
    }
}

/// Whether two rules differ in their names only.
fn is_same_but_name(one: &RuleText, other: &RuleText) -> bool {
    let fields =
        |rule: &RuleText| rule.fields.iter().filter(|(key, _)| *key != "name").cloned().collect::<Vec<_>>();
    fields(one) == fields(other)
}

/// Formats the whole descriptor as a condition of `match`.
fn entries_condition(expected: &[ExpectedEntry]) -> String {
    let pattern = |wanted: &ExpectedEntry| {
        let value = if wanted.value.is_empty() { scalar("*") } else { exact_pattern(&wanted.value) };
        map([(&wanted.key, value)])
    };
    format!("{{ entries: {} }}", list(expected.iter().map(pattern)))
}

/// Returns the header of `%REQ(NAME)%`.
fn header_of_format(format: &str) -> Option<String> {
    let inner = format.strip_prefix('%')?.strip_suffix(")%")?;
    let name = inner.strip_prefix("REQ(").or_else(|| inner.strip_prefix("REQUEST_HEADER("))?;
    let is_name = http::HeaderName::from_bytes(name.as_bytes()).is_ok();
    is_name.then(|| name.to_ascii_lowercase())
}
