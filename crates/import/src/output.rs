//! The output of an importer: rules that are a valid configuration, with comments, and warnings.

use std::path::Path;

use super::remark::{Effect, Remark};
use super::rule_text::{RuleListItem, RuleText, format_rules};
use weir_config as config;

/// What rules need beside them to be a whole configuration.
const SERVICE: &str = "listeners: 127.0.0.1:0\nupstream: echo\n";
/// Maximum number of times that invalid rules are taken out: one problem may hide another.
const MAX_CHECKS: usize = 8;

/// The rules that an importer writes, and what it says on standard error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// `rules:` with comments, in YAML.
    pub rules: String,
    /// Differences that admit more or fewer requests than the original. They are comments in `rules`, too.
    pub warnings: Vec<String>,
}

impl Imported {
    /// Writes rules with what is said above them, and with remarks on the rest of the input. A rule that is not valid,
    /// for instance because of a name that rules do not accept, becomes a comment.
    pub(super) fn new(head: &[String], mut items: Vec<RuleListItem>, tail: &[Remark]) -> Self {
        for _ in 0..MAX_CHECKS {
            let invalid = invalid_rules(&items);
            if invalid.is_empty() {
                break;
            }
            items = without_invalid(items, &invalid);
        }
        if let Some((_, problem)) = invalid_rules(&items).into_iter().next() {
            items = without_invalid(items, &[(usize::MAX, problem)]);
        }
        Self { rules: format_rules(head, &items, tail), warnings: warnings(&items, tail) }
    }
}

/// Returns the problems of rules, by index among the rules.
fn invalid_rules(items: &[RuleListItem]) -> Vec<(usize, String)> {
    let text = format!("{SERVICE}{}", format_rules(&[], items, &[]));
    let problems = config::from_text(&text, Path::new("rules"), &|_| None).err().unwrap_or_default();
    let index = |path: &str| -> usize {
        let digits = path.strip_prefix("rules[").and_then(|rest| rest.split(']').next());
        // A problem of the whole, such as too many rules, concerns the last one first.
        digits.and_then(|digits| digits.parse().ok()).unwrap_or(usize::MAX)
    };
    problems
        .iter()
        .map(|problem| (index(&problem.path), format!("{}: {}", problem.path, problem.message)))
        .collect()
}

fn without_invalid(items: Vec<RuleListItem>, invalid: &[(usize, String)]) -> Vec<RuleListItem> {
    let mut index = 0;
    let mut valid = Vec::with_capacity(items.len());
    for item in items {
        let RuleListItem::Rule(rule) = item else {
            valid.push(item);
            continue;
        };
        let own = invalid.iter().find(|(known, _)| *known == index || *known == usize::MAX);
        index += 1;
        match own {
            None => valid.push(RuleListItem::Rule(rule)),
            Some((_, problem)) => valid.extend(as_comments(rule, problem)),
        }
    }
    valid
}

/// Returns a rule as comments, with the reason.
fn as_comments(rule: RuleText, problem: &str) -> Vec<RuleListItem> {
    let fields: Vec<String> = rule.fields.iter().map(|(key, value)| format!("{key}: {value}")).collect();
    let effect = if rule.field("action") == Some("allow") { Effect::Tighter } else { Effect::Looser };
    let lost = Remark::new(effect, format!("not converted, as {problem}: {{ {} }}", fields.join(", ")));
    rule.comments.into_iter().chain(Some(lost)).map(RuleListItem::Comment).collect()
}

fn warnings(items: &[RuleListItem], tail: &[Remark]) -> Vec<String> {
    let mut warnings: Vec<String> = Vec::new();
    let mut add = |text: String| {
        if !warnings.contains(&text) {
            warnings.push(text);
        }
    };
    for item in items {
        match item {
            RuleListItem::Comment(remark) if remark.is_warning() => add(remark.comment()),
            RuleListItem::Comment(_) => {}
            RuleListItem::Rule(rule) => {
                let name = rule.field("name").unwrap_or("?");
                let all = rule.comments.iter().filter(|remark| remark.is_warning());
                all.for_each(|remark| add(format!("rule {name}: {}", remark.comment())));
            }
        }
    }
    tail.iter().filter(|remark| remark.is_warning()).for_each(|remark| add(remark.comment()));
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(name: &str, limit: &str) -> RuleListItem {
        let mut rule = RuleText::default();
        rule.set("name", name);
        rule.set("limit", limit);
        rule.add_remark(Remark::new(Effect::Tighter, "all hosts"));
        RuleListItem::Rule(rule)
    }

    #[test]
    fn imported_rules_that_are_invalid_become_comments_and_warnings() {
        let imported = Imported::new(&[], vec![rule("good", "1/s"), rule("bad", "5/fortnight")], &[]);
        assert!(imported.rules.contains("- name: good"), "{}", imported.rules);
        assert!(!imported.rules.contains("- name: bad"), "{}", imported.rules);
        assert!(
            imported.warnings.iter().any(|one| one.starts_with("looser: not converted, as rules[1].limit"))
        );
        assert!(imported.warnings.contains(&"rule good: tighter: all hosts".to_owned()));
    }
}
