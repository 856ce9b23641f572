//! Import of envoyproxy/ratelimit configurations.
//!
//! In the reference, a descriptor matches the limit whose depth in the tree equals its number of entries. At
//! each level an exact value precedes patterns, patterns apply in file order, and a key without a value comes
//! last. Each limit becomes a rule for the whole descriptor, with an `except` for what its siblings match
//! first.

use super::ImportError;
use super::importer::{Conversion, Importer};
use super::ledger::{Ledger, Message};
use super::output::Imported;
use super::remark::{Effect, Remark};
use super::rule_text::{
    RuleListItem, RuleText, UniqueNames, exact_pattern, list, map, one_or_list, regex_pattern, scalar,
};
use super::tree::{Documents, field_text, fields, get, items, read_documents, scalar_text};
use weir_rls::document::{DescriptorDocument, DomainDocument, LimitDocument, LoadError};
use weir_rls::rules::DescriptorRules;
use weir_rls::unit::RlsUnit;
use weir_yaml::Node;

/// The format on the command line.
pub static IMPORTER: Importer = Importer {
    name: "envoy-ratelimit",
    about: "Files of envoyproxy/ratelimit, as rules for Envoy's calls in their domains",
    files: "Files to import; a domain may be in several. `-` is standard input",
    examples: &[("weir import envoy-ratelimit config/*.yaml > rules.yaml", "all domains")],
    convert: Conversion::Files(|sources| {
        let files: Vec<_> = sources.iter().map(|source| (&*source.name, &*source.text)).collect();
        import(&files)
    }),
};

/// Maximum count of a limit per second.
const MAX_PER_SECOND: u32 = 1_000_000_000;

/// A document of a file.
#[derive(Debug)]
struct SourceDocument {
    name: String,
    document: DomainDocument,
    root: Node,
}

/// Converts files, given by name and text, to rules. A domain may be in several files, and in several documents of one;
/// a document may be a ConfigMap of files.
///
/// # Errors
/// Returns the problems of the files.
pub fn import(files: &[(&str, &str)]) -> Result<Imported, Vec<ImportError>> {
    let mut files = files.to_vec();
    // Sorted as the reference loads them: the order matters if patterns of several files share a domain.
    files.sort_by_key(|(name, _)| *name);
    let (mut sources, mut problems, mut remarks) = (Vec::new(), Vec::new(), Vec::new());
    for (name, text) in &files {
        read_file(name, text, &mut sources, &mut remarks).unwrap_or_else(|errors| problems.extend(errors));
    }
    let documents: Vec<(&str, DomainDocument)> =
        sources.iter().map(|source| (source.name.as_str(), source.document.clone())).collect();
    if problems.is_empty()
        && let Err(error) = DescriptorRules::from_documents(documents, true)
    {
        problems.push(import_error(&error));
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    let ledger = Ledger::default();
    let mut domains: Vec<(&str, Vec<TreeNode<'_>>)> = Vec::new();
    for SourceDocument { document: DomainDocument { domain, descriptors }, root, .. } in &sources {
        ledger.message(root, &DOMAIN);
        get(root, "domain").into_iter().for_each(|node| ledger.use_all(node));
        let nodes = descriptors.iter().zip(items(get(root, "descriptors")));
        match domains.iter_mut().find(|(known, _)| *known == domain.as_str()) {
            Some((_, all)) => all.extend(nodes),
            None => domains.push((domain, nodes.collect())),
        }
    }
    let mut importer = DocumentImporter { ledger: &ledger, items: Vec::new(), names: UniqueNames::default() };
    for (domain, nodes) in domains {
        importer.import_level(domain, &nodes, &mut Vec::new());
    }
    let mut names: Vec<&str> = files.iter().map(|(name, _)| *name).collect();
    names.dedup();
    for SourceDocument { name, root, .. } in &sources {
        remarks.extend(ledger.remarks(name, std::slice::from_ref(root), &DEFAULTS));
    }
    Ok(Imported::new(&header_comments(&names.join(", ")), importer.items, &remarks))
}

fn read_file(
    name: &str,
    text: &str,
    sources: &mut Vec<SourceDocument>,
    remarks: &mut Vec<Remark>,
) -> Result<(), Vec<ImportError>> {
    // The reference's words for errors of the first document, which is all that it reads.
    DomainDocument::from_yaml(name, text)
        .map(|_| ())
        .or_else(|error| if is_config_map(text) { Ok(()) } else { Err(vec![import_error(&error)]) })?;
    if text.trim().is_empty() {
        let message = "config file cannot have empty domain".to_owned();
        return Err(vec![ImportError { file: name.to_owned(), position: None, message }]);
    }
    let Documents { nodes, duplicates } = read_documents(name, text)?;
    remarks.extend(duplicates.into_iter().map(|text| Remark::new(Effect::Differs, text)));
    if nodes.len() > 1 {
        let text =
            format!("{name}: {} documents are imported; the reference reads the first one only", nodes.len());
        remarks.push(Remark::new(Effect::Tighter, text));
    }
    let mut problems = Vec::new();
    for root in nodes {
        if field_text(&root, "kind") == Some("ConfigMap") {
            let ledger = Ledger::default();
            ["data", "kind"].iter().filter_map(|name| get(&root, name)).for_each(|node| ledger.use_all(node));
            remarks.extend(ledger.remarks(name, std::slice::from_ref(&root), &[]));
            for (key, value) in get(&root, "data").map(fields).into_iter().flatten() {
                let inner = format!("{name}#{key}");
                let text = scalar_text(value).unwrap_or_default();
                read_file(&inner, text, sources, remarks).unwrap_or_else(|errors| problems.extend(errors));
            }
            continue;
        }
        match DomainDocument::from_node(name, &root) {
            Ok(document) => sources.push(SourceDocument { name: name.to_owned(), document, root }),
            Err(error) => problems.push(import_error(&error)),
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

/// Whether a text has Kubernetes manifests, which the reference does not read.
fn is_config_map(text: &str) -> bool {
    text.lines().any(|line| line.trim_end() == "kind: ConfigMap")
}

/// The top of a document.
static DOMAIN: Message = Message {
    name: "a domain",
    read: &["domain", "descriptors"],
    lost: &[("name", Effect::None, "a name of the document has no meaning for limits")],
    other: &[],
};
static DESCRIPTOR: Message = Message {
    name: "a descriptor",
    read: &["key", "value", "rate_limit", "descriptors", "share_threshold", "shadow_mode", "quota_mode"],
    lost: &[
        ("detailed_metric", Effect::None, "decisions are counted by rule"),
        ("value_to_metric", Effect::None, "decisions are counted by rule"),
        ("metadata", Effect::None, "not sent"),
    ],
    other: &[],
};
/// Values that change nothing.
const DEFAULTS: [(&str, &str); 1] = [("value", "")];

/// A node of the tree, as its meaning and as written.
type TreeNode<'d> = (&'d DescriptorDocument, &'d Node);

fn header_comments(names: &str) -> Vec<String> {
    let lines = [
        "A rejected request is not charged; the reference charges all its limits, even exceeded ones.",
        "Keys and values are compared separately; the reference compares them joined by `_`.",
        "Decisions are counted by rule, without a statistic for requests near the limit.",
    ];
    let first =
        format!("From {names}, envoyproxy/ratelimit. Differences of a rule are above it, of all rules here:");
    std::iter::once(first).chain(lines.map(|line| format!("- {line}"))).collect()
}

fn import_error(error: &LoadError) -> ImportError {
    let position = error.position.map(|place| (place.line, place.column));
    ImportError { file: error.file.clone(), position, message: error.problem.clone() }
}

/// A level of the path to a limit.
#[derive(Clone, Debug)]
struct TreeLevel<'d> {
    key: &'d str,
    /// The pattern of the value, as written in the rule.
    pattern: String,
    /// The patterns of the siblings that match first, as written in the rule.
    preceding_patterns: Vec<String>,
    /// Whether each value has a counter of its own.
    has_counter_per_value: bool,
    /// Whether different values share a counter.
    has_shared_counter: bool,
    /// The level's name in the reference's statistics.
    composite_key: String,
}

/// How specific a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Specificity {
    Exact,
    Pattern,
    KeyOnly,
    /// A `*` in the key.
    WildcardKey,
}

impl Specificity {
    fn from_node(node: &DescriptorDocument) -> Self {
        match (node.key.contains('*'), node.value.as_str()) {
            (true, _) => Self::WildcardKey,
            (false, "") => Self::KeyOnly,
            (false, value) if value.contains('*') => Self::Pattern,
            (false, _) => Self::Exact,
        }
    }
}

#[derive(Debug)]
struct DocumentImporter<'l> {
    ledger: &'l Ledger,
    items: Vec<RuleListItem>,
    names: UniqueNames,
}

impl DocumentImporter<'_> {
    fn import_level<'d>(&mut self, domain: &str, nodes: &[TreeNode<'d>], path: &mut Vec<TreeLevel<'d>>) {
        let documents: Vec<&DescriptorDocument> = nodes.iter().map(|(node, _)| *node).collect();
        for (index, (node, raw)) in nodes.iter().enumerate() {
            if Specificity::from_node(node) == Specificity::WildcardKey {
                let name = stat_key(domain, path, &composite_key(node));
                let reason = "`*` in a key is not supported: skipped with all descriptors below it";
                self.ledger.lose(raw, Effect::None, reason);
                self.add_comment(Effect::Looser, format!("{name}: {reason}"));
                continue;
            }
            self.mark(node, raw);
            path.push(tree_level(&documents, index));
            let name = stat_key(domain, path, "");
            match &node.rate_limit {
                Some(limit) => self.import_limit(domain, path, node, limit),
                None if node.descriptors.is_empty() => {
                    let text =
                        format!("{name}: no limit; matching descriptors skip the other limits of its level");
                    self.add_comment(Effect::None, text);
                }
                None => {}
            }
            let below: Vec<TreeNode<'d>> =
                node.descriptors.iter().zip(items(get(raw, "descriptors"))).collect();
            self.import_level(domain, &below, path);
            path.pop();
        }
    }

    /// Marks what the rule or the comments of a node express.
    fn mark(&self, node: &DescriptorDocument, raw: &Node) {
        self.ledger.message(raw, &DESCRIPTOR);
        let mark = |names: &[&str]| {
            names.iter().filter_map(|name| get(raw, name)).for_each(|value| self.ledger.use_all(value));
        };
        mark(&["key", "value", "share_threshold"]);
        let Some(limit) = &node.rate_limit else { return };
        let is_without_effect = limit.unlimited || limit.requests_per_unit == 0 && node.shadow_mode;
        mark(&["rate_limit", "shadow_mode", "quota_mode", "detailed_metric", "value_to_metric"]);
        let Some(raw_limit) = get(raw, "rate_limit") else { return };
        if is_without_effect {
            for name in ["quota_mode", "detailed_metric", "value_to_metric", "shadow_mode"] {
                get(raw, name)
                    .into_iter()
                    .for_each(|value| self.ledger.lose(value, Effect::None, "no limit here"));
            }
            self.ledger.lose(raw_limit, Effect::None, "rejects nothing");
        } else if limit.requests_per_unit == 0 {
            for name in ["unit", "requests_per_unit"] {
                get(raw_limit, name)
                    .into_iter()
                    .for_each(|value| self.ledger.lose(value, Effect::None, "0 requests in any time"));
            }
        }
    }

    fn add_comment(&mut self, effect: Effect, comment: String) {
        self.items.push(RuleListItem::Comment(Remark::new(effect, comment)));
    }

    fn import_limit(
        &mut self,
        domain: &str,
        path: &[TreeLevel<'_>],
        node: &DescriptorDocument,
        limit: &LimitDocument,
    ) {
        let name = stat_key(domain, path, "");
        if limit.unlimited {
            let text = format!("{name}: unlimited; matching descriptors skip the other limits of its level");
            return self.add_comment(Effect::None, text);
        }
        let rejects_all = limit.requests_per_unit == 0;
        if rejects_all && node.shadow_mode {
            let text = format!("{name}: skipped, 0 requests in shadow mode reject nothing");
            return self.add_comment(Effect::None, text);
        }
        let mut rule = RuleText::default();
        let base_name = if limit.name.is_empty() { &name } else { &limit.name };
        rule.set("name", scalar(&self.names.make_unique(base_name)));
        rule.set("domain", scalar(domain));
        let entries = path.iter().map(|step| map([(step.key, &step.pattern)]));
        rule.set("match", format!("{{ entries: {} }}", list(entries)));
        let excepts: Vec<String> = (0..path.len()).filter_map(|at| except_condition(path, at)).collect();
        if !excepts.is_empty() {
            rule.set("except", one_or_list(&excepts));
        }
        add_notes(&mut rule, path, node, limit);
        if rejects_all {
            rule.add_comment("0 requests: all requests are rejected, even those with 0 hits");
            rule.set("action", "deny");
        } else {
            let key = key_parts(path);
            if !key.is_empty() {
                rule.set("key", list(key));
            }
            let rate = format_rate(limit, &mut rule.comments);
            rule.set("limit", rate);
            rule.set("algorithm", "fixed_window");
            if node.shadow_mode {
                rule.set("throttle", "shadow");
            }
        }
        self.items.push(RuleListItem::Rule(rule));
    }
}

/// Creates the step for the node at `index`, with the siblings that match before it.
fn tree_level<'d>(nodes: &[&'d DescriptorDocument], index: usize) -> TreeLevel<'d> {
    let node = nodes[index];
    let kind = Specificity::from_node(node);
    let precedes = |(at, other): &(usize, &&DescriptorDocument)| match (kind, Specificity::from_node(other)) {
        (Specificity::Pattern | Specificity::KeyOnly, Specificity::Exact)
        | (Specificity::KeyOnly, Specificity::Pattern) => true,
        (Specificity::Pattern, Specificity::Pattern) => *at < index,
        _ => false,
    };
    let with_same_key = nodes.iter().enumerate().filter(|(_, other)| other.key == node.key);
    let preceding_patterns = with_same_key.filter(precedes).map(|(_, other)| value_pattern(other)).collect();
    TreeLevel {
        key: &node.key,
        pattern: value_pattern(node),
        preceding_patterns,
        has_counter_per_value: kind != Specificity::Exact && !node.share_threshold,
        has_shared_counter: node.share_threshold,
        composite_key: composite_key(node),
    }
}

fn value_pattern(node: &DescriptorDocument) -> String {
    if node.value.is_empty() || node.value.bytes().all(|byte| byte == b'*') {
        return scalar("*");
    }
    if !node.value.contains('*') {
        return exact_pattern(&node.value);
    }
    let parts: Vec<String> = node.value.split('*').map(regex::escape).collect();
    regex_pattern(&format!("(?s)^{}$", parts.join(".*")))
}

fn composite_key(node: &DescriptorDocument) -> String {
    if node.value.is_empty() { node.key.clone() } else { format!("{}_{}", node.key, node.value) }
}

/// Returns the name of a limit in the reference's statistics.
fn stat_key(domain: &str, path: &[TreeLevel<'_>], last: &str) -> String {
    let parts =
        path.iter().map(|step| step.composite_key.as_str()).chain(Some(last).filter(|last| !last.is_empty()));
    std::iter::once(domain).chain(parts).collect::<Vec<_>>().join(".")
}

/// Returns the exception for what siblings of the step at `at` match first, if there are any.
fn except_condition(path: &[TreeLevel<'_>], at: usize) -> Option<String> {
    let step = &path[at];
    if step.preceding_patterns.is_empty() {
        return None;
    }
    let preceding_patterns = one_or_list(&step.preceding_patterns);
    if is_key_unique(path, step.key) {
        return Some(format!("{{ descriptor: {} }}", map([(step.key, preceding_patterns)])));
    }
    let any = scalar("*");
    let entry = |(index, step): (usize, &TreeLevel<'_>)| {
        map([(step.key, if index == at { &preceding_patterns } else { &any })])
    };
    Some(format!("{{ entries: {} }}", list(path.iter().enumerate().map(entry))))
}

fn is_key_unique(path: &[TreeLevel<'_>], key: &str) -> bool {
    path.iter().filter(|step| step.key == key).count() == 1
}

/// Returns the keys whose values are counted separately, without duplicates.
fn key_parts(path: &[TreeLevel<'_>]) -> Vec<String> {
    let mut parts = Vec::new();
    for step in path.iter().filter(|step| step.has_counter_per_value) {
        let part = map([("descriptor", scalar(step.key))]);
        if !parts.contains(&part) {
            parts.push(part);
        }
    }
    parts
}

fn add_notes(rule: &mut RuleText, path: &[TreeLevel<'_>], node: &DescriptorDocument, limit: &LimitDocument) {
    for name in &limit.replaces {
        let text = format!("replaces `{name}`: not supported, both limits apply");
        rule.add_remark(Remark::new(Effect::Tighter, text));
    }
    if node.quota_mode {
        let text =
            "quota_mode: the reference rejects if all quotas of a request are exceeded, this rule on its own";
        rule.add_remark(Remark::new(Effect::Tighter, text));
    }
    for (key, is_given) in
        [("detailed_metric", node.detailed_metric), ("value_to_metric", node.value_to_metric)]
    {
        if is_given {
            rule.add_comment(format!("{key}: not supported, decisions are counted by rule"));
        }
    }
    let splits = |step: &&TreeLevel<'_>| {
        step.has_shared_counter
            && path.iter().any(|other| other.has_counter_per_value && other.key == step.key)
    };
    if let Some(step) = path.iter().find(splits) {
        let key = step.key;
        let text =
            format!("share_threshold: `{key}` occurs several times, so each of its values has a counter");
        rule.add_remark(Remark::new(Effect::Looser, text));
    }
}

/// Returns the limit as fixed windows. As in the reference, weeks, months and years are 7, 30 and 365 days
/// from the epoch.
fn format_rate(limit: &LimitDocument, comments: &mut Vec<Remark>) -> String {
    let unit = RlsUnit::from_name(&limit.unit).unwrap_or(RlsUnit::Second);
    let period = match unit {
        RlsUnit::Second => "s",
        RlsUnit::Minute => "m",
        RlsUnit::Hour => "h",
        RlsUnit::Day => "d",
        RlsUnit::Week => "7d",
        RlsUnit::Month => "30d",
        RlsUnit::Year => "365d",
    };
    let mut count = limit.requests_per_unit;
    if unit == RlsUnit::Second && count > MAX_PER_SECOND {
        let text = format!("{count} per second: reduced to the maximum of {MAX_PER_SECOND}");
        comments.push(Remark::new(Effect::Tighter, text));
        count = MAX_PER_SECOND;
    }
    format!("{count}/{period}")
}
