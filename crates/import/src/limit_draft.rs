//! A limit of another program as rules: one for each alternative of the requests that it applies to.
//!
//! Rules of one limit share its counter, so several alternatives admit no more than one.

use super::remark::{Effect, Remark};
use super::rule_text::{RuleListItem, RuleText, UniqueNames, list, map, scalar};
use super::selection::RequestSet;

/// Maximum number of rules and comments.
const MAX_ITEMS: usize = 2000;

/// How a limit counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LimitContent {
    /// Nothing passes; rejections have the status of a limit.
    Nothing,
    /// These keys of a rule: `limit` or `token_bucket` with what belongs to it, or `in_flight`.
    Fields(Vec<(&'static str, String)>),
}

/// A limit before it is written.
#[derive(Clone, Debug)]
pub(super) struct LimitDraft {
    /// The name of its first rule.
    pub(super) name: String,
    /// Where it comes from, for a comment.
    pub(super) origin: String,
    /// The parts of the key, in flow style; none for one counter.
    pub(super) key: Vec<String>,
    /// `on_missing`, if it matters.
    pub(super) on_missing: Option<&'static str>,
    pub(super) counting: LimitContent,
    /// Keys that follow those of the counting.
    pub(super) others: Vec<(&'static str, String)>,
    /// Status of rejections, unless it is 429.
    pub(super) status: Option<u16>,
    pub(super) remarks: Vec<Remark>,
}

impl LimitDraft {
    pub(super) fn new(name: impl Into<String>, origin: impl Into<String>, counting: LimitContent) -> Self {
        Self {
            name: name.into(),
            origin: origin.into(),
            key: Vec::new(),
            on_missing: None,
            counting,
            others: Vec::new(),
            status: None,
            remarks: Vec::new(),
        }
    }

    /// Returns the limit on one line.
    fn summary(&self) -> String {
        match &self.counting {
            LimitContent::Nothing => "deny".to_owned(),
            LimitContent::Fields(fields) => {
                map(fields.iter().chain(&self.others).map(|(key, value)| (*key, value)))
            }
        }
    }

    pub(super) fn add(&mut self, effect: Effect, text: impl Into<String>) {
        self.remarks.push(Remark::new(effect, text));
    }
}

/// Writes limits as rules.
#[derive(Debug, Default)]
pub(super) struct DraftWriter {
    names: UniqueNames,
    pub(super) items: Vec<RuleListItem>,
}

impl DraftWriter {
    pub(super) fn comment(&mut self, effect: Effect, text: impl Into<String>) {
        self.items.push(RuleListItem::Comment(Remark::new(effect, text)));
    }

    /// Adds the rules of a limit for these requests.
    pub(super) fn add(&mut self, draft: &LimitDraft, selection: &RequestSet) {
        if self.items.len() >= MAX_ITEMS {
            if self.items.len() == MAX_ITEMS {
                self.comment(
                    Effect::Looser,
                    format!("more than {MAX_ITEMS} rules: the rest is not imported"),
                );
            }
            return;
        }
        if selection.scopes.is_empty() {
            let LimitDraft { name, origin, .. } = draft;
            let limit = draft.summary();
            let reasons: Vec<_> = selection.looser_reasons().map(|reason| format!("; {reason}")).collect();
            let effect = if reasons.is_empty() { Effect::None } else { Effect::Looser };
            let reasons = reasons.concat();
            let text = format!("{name}: no request meets its conditions ({origin}): {limit}{reasons}");
            return self.comment(effect, text);
        }
        let shares = selection.scopes.len() > 1 && draft.counting != LimitContent::Nothing;
        let mut counter = None;
        for scope in &selection.scopes {
            let mut rule = RuleText::default();
            rule.add_comment(draft.origin.clone());
            let remarks = draft.remarks.iter().chain(&selection.remarks);
            remarks.for_each(|remark| rule.add_remark(remark.clone()));
            let name = self.names.make_unique(&draft.name);
            rule.set("name", scalar(&name));
            let first = counter.get_or_insert(name);
            scope.write(&mut rule);
            set_counting(&mut rule, draft, shares.then_some(first.as_str()));
            self.items.push(RuleListItem::Rule(rule));
        }
    }
}

fn set_counting(rule: &mut RuleText, draft: &LimitDraft, counter: Option<&str>) {
    let status = |status: u16| map([("status", status.to_string())]);
    match &draft.counting {
        LimitContent::Nothing => {
            rule.set("action", "deny");
            rule.set("on_limit", status(draft.status.unwrap_or(429)));
        }
        LimitContent::Fields(fields) => {
            if !draft.key.is_empty() {
                rule.set("key", list(&draft.key));
                draft.on_missing.into_iter().for_each(|missing| rule.set("on_missing", missing));
            }
            fields.iter().chain(&draft.others).for_each(|(name, value)| rule.set(name, value.clone()));
            counter.into_iter().for_each(|counter| rule.set("counter", scalar(counter)));
            draft.status.into_iter().for_each(|code| rule.set("on_limit", status(code)));
        }
    }
}
