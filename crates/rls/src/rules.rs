//! Compiled limits of all domains, in the form in which descriptors are looked up.
//!
//! A set of documents is accepted or rejected as a whole. As in the reference, each level of the tree is a map by `key`
//! or `key_value`, and a list of the nodes with a `*` in file order.

mod listing;
mod wildcard;

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::FixedState;
use serde_json::{Map, Value};

pub use self::listing::DocumentLimit;
use self::wildcard::Wildcard;
use super::document::{DescriptorDocument, DomainDocument, LimitDocument, LoadError};
use super::request::RlsEntry;
use super::unit::RlsUnit;
use weir_yaml::Position;

/// Maximum nesting of descriptors; documents from YAML have less.
const MAX_DEPTH: usize = 100;

/// The limits of all domains.
#[derive(Debug, Default)]
pub struct DescriptorRules {
    domains: HashMap<Box<str>, DescriptorLevel, FixedState>,
}

/// Index of a level. Its keys are from the configuration only, so clients cannot cause collisions.
type NodeIndex = HashMap<Box<str>, usize, FixedState>;

/// Position of a descriptor and its problem.
type LocatedError = (Option<Position>, String);

/// One level of a tree.
#[derive(Debug, Default)]
pub(super) struct DescriptorLevel {
    nodes: Vec<DescriptorNode>,
    /// Node by key, or by key and value joined by `_`.
    index: NodeIndex,
    wildcards: Vec<(Wildcard, usize)>,
}

/// A node for entries with a certain key, and possibly value.
#[derive(Debug)]
pub(super) struct DescriptorNode {
    /// Name in statistics.
    pub(super) composite_key: Box<str>,
    /// Key and value of the configuration; an empty value is any.
    pub(super) entry: RlsEntry,
    pub(super) rule: Option<DescriptorRule>,
    /// Replacement for the value in the counter's key, if all values share one counter.
    pub(super) shared_value: Option<Box<str>>,
    pub(super) value_to_metric: bool,
    pub(super) children: DescriptorLevel,
}

/// A limit.
#[derive(Debug)]
pub(super) struct DescriptorRule {
    /// The rate; `None` if unlimited.
    pub(super) rate: Option<UnitRate>,
    pub(super) name: Arc<str>,
    pub(super) replaces: Box<[Box<str>]>,
    pub(super) shadow_mode: bool,
    pub(super) quota_mode: bool,
    pub(super) detailed_metric: bool,
    pub(super) metadata: Option<Map<String, Value>>,
    /// Name of the statistics, unless they are kept by value.
    pub(super) stat_key: Arc<str>,
    /// Position among all limits of all domains.
    pub(super) position: usize,
}

/// Hits per unit of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitRate {
    /// Hits per unit.
    pub requests_per_unit: u32,
    /// Unit of time.
    pub unit: RlsUnit,
}

impl DescriptorRules {
    /// Parses files, given by name and text, in the order of their names.
    ///
    /// # Errors
    /// The first [`LoadError`]; no file is loaded then.
    pub fn from_yaml<'a>(
        files: impl IntoIterator<Item = (&'a str, &'a str)>,
        merge_domains: bool,
    ) -> Result<Self, LoadError> {
        let mut files: Vec<_> = files.into_iter().collect();
        // Makes the order of wildcards deterministic if several files have the same domain.
        files.sort_by_key(|(name, _)| *name);
        let read = |(name, text)| Ok((name, DomainDocument::from_yaml(name, text)?));
        let documents = files.into_iter().map(read).collect::<Result<Vec<_>, _>>()?;
        Self::from_documents(documents, merge_domains)
    }

    /// Compiles documents in the given order; each has the name under which its problems are reported.
    ///
    /// # Errors
    /// The first [`LoadError`]; no document is loaded then.
    pub fn from_documents<'a>(
        documents: impl IntoIterator<Item = (&'a str, DomainDocument)>,
        merge_domains: bool,
    ) -> Result<Self, LoadError> {
        let mut rules = Self::default();
        for (file, DomainDocument { domain, descriptors }) in documents {
            if domain.is_empty() {
                return Err(LoadError::new(file, "config file cannot have empty domain"));
            }
            if rules.domains.contains_key(domain.as_str()) && !merge_domains {
                return Err(LoadError::new(file, format!("duplicate domain '{domain}' in config file")));
            }
            let parent = format!("{domain}.");
            let level = rules.domains.entry(domain.into()).or_default();
            let loaded = level.add_descriptors(&parent, descriptors, 1);
            loaded.map_err(|(position, problem)| LoadError::new(file, problem).with_position(position))?;
        }
        rules.number_limits();
        Ok(rules)
    }

    /// Returns whether there are no domains.
    pub fn is_empty(&self) -> bool {
        self.domains.is_empty()
    }

    /// Returns one line per limit, sorted, as the reference's `/rlconfig` prints them.
    pub fn dump(&self) -> String {
        let mut lines = Vec::new();
        self.domains.values().for_each(|level| level.dump(&mut lines));
        lines.sort_unstable();
        lines.concat()
    }

    pub(super) fn domain(&self, name: &str) -> Option<&DescriptorLevel> {
        self.domains.get(name)
    }
}

impl DescriptorLevel {
    fn add_descriptors(
        &mut self,
        parent: &str,
        descriptors: Vec<DescriptorDocument>,
        depth: usize,
    ) -> Result<(), LocatedError> {
        for descriptor in descriptors {
            let position = descriptor.position;
            if depth > MAX_DEPTH {
                return Err((position, format!("descriptors nested more than {MAX_DEPTH} levels deep")));
            }
            let (composite, node) = self.build_node(parent, descriptor, depth)?;
            if composite.contains('*') {
                self.wildcards.push((Wildcard::new(&composite), self.nodes.len()));
            }
            self.index.insert(composite, self.nodes.len());
            self.nodes.push(node);
        }
        Ok(())
    }

    fn build_node(
        &self,
        parent: &str,
        document: DescriptorDocument,
        depth: usize,
    ) -> Result<(Box<str>, DescriptorNode), LocatedError> {
        let located_error = |problem| (document.position, problem);
        let composite = composite_key(&document).map_err(located_error)?;
        let stat_key = format!("{parent}{composite}");
        if self.index.contains_key(composite.as_str()) {
            return Err(located_error(format!("duplicate descriptor composite key '{stat_key}'")));
        }
        if document.share_threshold && !composite.contains('*') {
            return Err(located_error(format!(
                "share_threshold can only be used with wildcard values (containing '*'), \
                 but found key '{composite}'"
            )));
        }
        let pattern = if document.value.is_empty() { &document.key } else { &document.value };
        let shared_value = document.share_threshold.then(|| pattern.as_str().into());
        let rule = match &document.rate_limit {
            Some(limit) => Some(DescriptorRule {
                rate: parse_rate(limit).map_err(located_error)?,
                name: limit.name.as_str().into(),
                replaces: parse_replaces(limit).map_err(located_error)?,
                shadow_mode: document.shadow_mode,
                quota_mode: document.quota_mode,
                detailed_metric: document.detailed_metric,
                metadata: document.metadata.clone(),
                stat_key: stat_key.as_str().into(),
                position: 0,
            }),
            None => None,
        };
        let mut children = Self::default();
        children.add_descriptors(&format!("{stat_key}."), document.descriptors, depth + 1)?;
        let composite: Box<str> = composite.into();
        let value_to_metric = document.value_to_metric;
        let entry = RlsEntry { key: document.key, value: document.value };
        Ok((
            composite.clone(),
            DescriptorNode { composite_key: composite, entry, rule, shared_value, value_to_metric, children },
        ))
    }

    /// Returns the node for an entry; `joined` is its key and value joined by `_`.
    pub(super) fn find_node(&self, key: &str, joined: &str) -> Option<&DescriptorNode> {
        let wildcard = || {
            let matching = self.wildcards.iter().find(|(wildcard, _)| wildcard.matches(joined));
            matching.map(|(_, index)| *index)
        };
        let exact = self.index.get(joined).copied();
        let index = exact.or_else(wildcard).or_else(|| self.index.get(key).copied())?;
        self.nodes.get(index)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    fn dump(&self, lines: &mut Vec<String>) {
        for node in &self.nodes {
            if let Some(rule) = &node.rule {
                let (unit, count) = match rule.rate {
                    Some(UnitRate { requests_per_unit, unit }) => (unit.as_str(), requests_per_unit),
                    None => ("UNKNOWN", 0),
                };
                lines.push(format!(
                    "{}: unit={unit} requests_per_unit={count}, shadow_mode: {}, quota_mode: {}\n",
                    rule.stat_key, rule.shadow_mode, rule.quota_mode
                ));
            }
            node.children.dump(lines);
        }
    }
}

fn composite_key(document: &DescriptorDocument) -> Result<String, String> {
    match (document.key.as_str(), document.value.as_str()) {
        ("", _) => Err("descriptor has empty key".to_owned()),
        (key, "") => Ok(key.to_owned()),
        (key, value) => Ok(format!("{key}_{value}")),
    }
}

fn parse_rate(limit: &LimitDocument) -> Result<Option<UnitRate>, String> {
    match (RlsUnit::from_name(&limit.unit), limit.unlimited) {
        (Some(_), true) => Err("should not specify rate limit unit when unlimited".to_owned()),
        (None, true) => Ok(None),
        (Some(unit), false) => Ok(Some(UnitRate { requests_per_unit: limit.requests_per_unit, unit })),
        (None, false) => Err(format!("invalid rate limit unit '{}'", limit.unit)),
    }
}

fn parse_replaces(limit: &LimitDocument) -> Result<Box<[Box<str>]>, String> {
    let name = |name: &String| match name.as_str() {
        "" => Err("should not have an empty replaces entry".to_owned()),
        name if name == limit.name => Err("replaces should not contain name of same descriptor".to_owned()),
        name => Ok(name.into()),
    };
    limit.replaces.iter().map(name).collect()
}
