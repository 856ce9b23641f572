//! Import of envoyproxy/ratelimit configurations.
//!
//! In the reference, a descriptor matches the limit whose depth in the tree equals its number of entries. At
//! each level an exact value precedes patterns, patterns apply in file order, and a key without a value comes
//! last. Each limit becomes a rule for the whole descriptor, with an `except` for what its siblings match
//! first.

use super::Problem;
use super::writing::{Item, Names, RuleText, exactly, list, map, one_or_list, regex, scalar, written};
use crate::rls::document::{DescriptorDocument, Document, LimitDocument, LoadError};
use crate::rls::rules::Rules;
use crate::rls::unit::Unit;

/// Maximum count of a limit per second.
const MOST_IN_A_SECOND: u32 = 1_000_000_000;

/// Converts files, given by name and text, to rules. A domain may be in several files.
///
/// # Errors
/// Returns the problems of the files.
pub fn import(files: &[(&str, &str)]) -> Result<String, Vec<Problem>> {
    let mut files = files.to_vec();
    // Sorted as the reference loads them: the order matters if patterns of several files share a domain.
    files.sort_by_key(|(name, _)| *name);
    let (mut documents, mut problems) = (Vec::new(), Vec::new());
    for (name, text) in files {
        match Document::from_yaml(name, text) {
            Ok(document) => documents.push((name, document)),
            Err(error) => problems.push(problem(&error)),
        }
    }
    if problems.is_empty()
        && let Err(error) = Rules::load(documents.clone(), true)
    {
        problems.push(problem(&error));
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    let mut domains: Vec<(&str, Vec<&DescriptorDocument>)> = Vec::new();
    for (_, Document { domain, descriptors }) in &documents {
        match domains.iter_mut().find(|(known, _)| *known == domain.as_str()) {
            Some((_, all)) => all.extend(descriptors),
            None => domains.push((domain, descriptors.iter().collect())),
        }
    }
    let mut importer = Importer::default();
    for (domain, descriptors) in domains {
        importer.level(domain, &descriptors, &mut Vec::new());
    }
    let names = documents.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    Ok(written(&head(&names), &importer.items))
}

fn head(names: &str) -> Vec<String> {
    let lines = [
        "A rejected request is not charged; the reference charges all its limits, even exceeded ones.",
        "Keys and values are compared separately; the reference compares them joined by `_`.",
        "Decisions are counted by rule, without a statistic for requests near the limit.",
    ];
    let first =
        format!("From {names}, envoyproxy/ratelimit. Differences of a rule are above it, of all rules here:");
    std::iter::once(first).chain(lines.map(|line| format!("- {line}"))).collect()
}

fn problem(error: &LoadError) -> Problem {
    let place = error.place.map(|place| (place.line, place.column));
    Problem { file: error.file.clone(), place, message: error.problem.clone() }
}

/// A level of the path to a limit.
#[derive(Clone, Debug)]
struct Step<'d> {
    key: &'d str,
    /// The pattern of the value, as written in the rule.
    pattern: String,
    /// The patterns of the siblings that match first, as written in the rule.
    taken: Vec<String>,
    /// Whether each value has a counter of its own.
    is_counted: bool,
    /// Whether different values share a counter.
    is_shared: bool,
    /// The level's name in the reference's statistics.
    composite: String,
}

/// How specific a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Exact,
    Pattern,
    Bare,
    /// A `*` in the key.
    AnyKey,
}

impl Kind {
    fn of(node: &DescriptorDocument) -> Self {
        match (node.key.contains('*'), node.value.as_str()) {
            (true, _) => Self::AnyKey,
            (false, "") => Self::Bare,
            (false, value) if value.contains('*') => Self::Pattern,
            (false, _) => Self::Exact,
        }
    }
}

#[derive(Debug, Default)]
struct Importer {
    items: Vec<Item>,
    names: Names,
}

impl Importer {
    fn level<'d>(&mut self, domain: &str, nodes: &[&'d DescriptorDocument], path: &mut Vec<Step<'d>>) {
        for (index, node) in nodes.iter().enumerate() {
            if Kind::of(node) == Kind::AnyKey {
                let name = stat_key(domain, path, &composite(node));
                self.comment(format!(
                    "{name}: `*` in a key is not supported: skipped with all descriptors below it"
                ));
                continue;
            }
            path.push(step(nodes, index));
            let name = stat_key(domain, path, "");
            match &node.rate_limit {
                Some(limit) => self.limit(domain, path, node, limit),
                None if node.descriptors.is_empty() => {
                    self.comment(format!(
                        "{name}: no limit; matching descriptors skip the other limits of its level"
                    ));
                }
                None => {}
            }
            self.level(domain, &node.descriptors.iter().collect::<Vec<_>>(), path);
            path.pop();
        }
    }

    fn comment(&mut self, comment: String) {
        self.items.push(Item::Comment(comment));
    }

    fn limit(&mut self, domain: &str, path: &[Step<'_>], node: &DescriptorDocument, limit: &LimitDocument) {
        let name = stat_key(domain, path, "");
        if limit.unlimited {
            return self.comment(format!(
                "{name}: unlimited; matching descriptors skip the other limits of its level"
            ));
        }
        let is_nothing = limit.requests_per_unit == 0;
        if is_nothing && node.shadow_mode {
            return self.comment(format!("{name}: skipped, 0 requests in shadow mode reject nothing"));
        }
        let mut rule = RuleText::default();
        let wanted = if limit.name.is_empty() { &name } else { &limit.name };
        rule.set("name", scalar(&self.names.unique(wanted)));
        rule.set("domain", scalar(domain));
        let entries = path.iter().map(|step| map([(step.key, &step.pattern)]));
        rule.set("match", format!("{{ entries: {} }}", list(entries)));
        let excepts: Vec<String> = (0..path.len()).filter_map(|at| except(path, at)).collect();
        if !excepts.is_empty() {
            rule.set("except", one_or_list(&excepts));
        }
        notes(&mut rule, path, node, limit);
        if is_nothing {
            rule.note("0 requests: all requests are rejected, even those with 0 hits");
            rule.set("action", "deny");
        } else {
            let key = key(path);
            if !key.is_empty() {
                rule.set("key", list(key));
            }
            let rate = rate(limit, &mut rule.comments);
            rule.set("limit", rate);
            rule.set("algorithm", "fixed_window");
            if node.shadow_mode {
                rule.set("throttle", "shadow");
            }
        }
        self.items.push(Item::Rule(rule));
    }
}

/// Creates the step for the node at `index`, with the siblings that match before it.
fn step<'d>(nodes: &[&'d DescriptorDocument], index: usize) -> Step<'d> {
    let node = nodes[index];
    let kind = Kind::of(node);
    let is_before = |(at, other): &(usize, &&DescriptorDocument)| match (kind, Kind::of(other)) {
        (Kind::Pattern | Kind::Bare, Kind::Exact) | (Kind::Bare, Kind::Pattern) => true,
        (Kind::Pattern, Kind::Pattern) => *at < index,
        _ => false,
    };
    let of_key = nodes.iter().enumerate().filter(|(_, other)| other.key == node.key);
    let taken = of_key.filter(is_before).map(|(_, other)| pattern(other)).collect();
    Step {
        key: &node.key,
        pattern: pattern(node),
        taken,
        is_counted: kind != Kind::Exact && !node.share_threshold,
        is_shared: node.share_threshold,
        composite: composite(node),
    }
}

fn pattern(node: &DescriptorDocument) -> String {
    if node.value.is_empty() || node.value.bytes().all(|byte| byte == b'*') {
        return scalar("*");
    }
    if !node.value.contains('*') {
        return exactly(&node.value);
    }
    let parts: Vec<String> = node.value.split('*').map(regex::escape).collect();
    regex(&format!("(?s)^{}$", parts.join(".*")))
}

fn composite(node: &DescriptorDocument) -> String {
    if node.value.is_empty() { node.key.clone() } else { format!("{}_{}", node.key, node.value) }
}

/// Returns the name of a limit in the reference's statistics.
fn stat_key(domain: &str, path: &[Step<'_>], last: &str) -> String {
    let parts =
        path.iter().map(|step| step.composite.as_str()).chain(Some(last).filter(|last| !last.is_empty()));
    std::iter::once(domain).chain(parts).collect::<Vec<_>>().join(".")
}

/// Returns the exception for what siblings of the step at `at` match first, if there are any.
fn except(path: &[Step<'_>], at: usize) -> Option<String> {
    let step = &path[at];
    if step.taken.is_empty() {
        return None;
    }
    let taken = one_or_list(&step.taken);
    if is_once(path, step.key) {
        return Some(format!("{{ descriptor: {} }}", map([(step.key, taken)])));
    }
    let any = scalar("*");
    let entry =
        |(index, step): (usize, &Step<'_>)| map([(step.key, if index == at { &taken } else { &any })]);
    Some(format!("{{ entries: {} }}", list(path.iter().enumerate().map(entry))))
}

fn is_once(path: &[Step<'_>], key: &str) -> bool {
    path.iter().filter(|step| step.key == key).count() == 1
}

/// Returns the keys whose values are counted separately, without duplicates.
fn key(path: &[Step<'_>]) -> Vec<String> {
    let mut parts = Vec::new();
    for step in path.iter().filter(|step| step.is_counted) {
        let part = map([("descriptor", scalar(step.key))]);
        if !parts.contains(&part) {
            parts.push(part);
        }
    }
    parts
}

fn notes(rule: &mut RuleText, path: &[Step<'_>], node: &DescriptorDocument, limit: &LimitDocument) {
    for name in &limit.replaces {
        rule.note(format!("replaces `{name}`: not supported, both limits apply"));
    }
    if node.quota_mode {
        rule.note(
            "quota_mode: the reference rejects if all quotas of a request are exceeded, this rule on its own",
        );
    }
    for (key, is_given) in
        [("detailed_metric", node.detailed_metric), ("value_to_metric", node.value_to_metric)]
    {
        if is_given {
            rule.note(format!("{key}: not supported, decisions are counted by rule"));
        }
    }
    if node.metadata.is_some() {
        rule.note("metadata: not sent");
    }
    let splits = |step: &&Step<'_>| {
        step.is_shared && path.iter().any(|other| other.is_counted && other.key == step.key)
    };
    if let Some(step) = path.iter().find(splits) {
        let key = step.key;
        rule.note(format!(
            "share_threshold: `{key}` occurs several times, so each of its values has a counter"
        ));
    }
}

/// Returns the limit as fixed windows. As in the reference, weeks, months and years are 7, 30 and 365 days
/// from the epoch.
fn rate(limit: &LimitDocument, comments: &mut Vec<String>) -> String {
    let unit = Unit::named(&limit.unit).unwrap_or(Unit::Second);
    let period = match unit {
        Unit::Second => "s",
        Unit::Minute => "m",
        Unit::Hour => "h",
        Unit::Day => "d",
        Unit::Week => "7d",
        Unit::Month => "30d",
        Unit::Year => "365d",
    };
    let mut count = limit.requests_per_unit;
    if unit == Unit::Second && count > MOST_IN_A_SECOND {
        comments.push(format!("{count} per second: reduced to the maximum of {MOST_IN_A_SECOND}"));
        count = MOST_IN_A_SECOND;
    }
    format!("{count}/{period}")
}
