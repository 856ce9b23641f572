//! The limits of all domains as a list, for operators.

use std::sync::Arc;

use super::{DescriptorLevel, DescriptorNode, DescriptorRule, DescriptorRules, UnitRate};
use crate::request::RlsEntry;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentLimit {
    pub domain: Box<str>,
    /// Keys of the descriptor, in order, each with the value that the document has; an empty value is any.
    pub entries: Vec<RlsEntry>,
    /// Name as in the statistics: the domain and the keys.
    pub name: Arc<str>,
    /// The rate; `None` if unlimited.
    pub rate: Option<UnitRate>,
    /// Whether it never rejects.
    pub shadow_mode: bool,
    /// Whether it rejects only together with all other quotas of a call.
    pub quota_mode: bool,
    /// Whether its statistics are kept by values of descriptors, and not under `name`.
    pub has_values_in_statistics: bool,
    /// Position among all limits of all domains.
    pub(crate) position: usize,
}

impl DocumentLimit {
    fn new(domain: &str, path: &[&DescriptorNode], rule: &DescriptorRule) -> Self {
        Self {
            domain: domain.into(),
            entries: path.iter().map(|node| node.entry.clone()).collect(),
            name: Arc::clone(&rule.stat_key),
            rate: rule.rate,
            shadow_mode: rule.shadow_mode,
            quota_mode: rule.quota_mode,
            has_values_in_statistics: rule.detailed_metric || path.iter().any(|node| node.value_to_metric),
            position: rule.position,
        }
    }

    /// Returns the name under which its heaviest keys are counted. Unlike the name in statistics, it is unambiguous. No
    /// rule has it, because names of rules contain no spaces.
    pub fn sketch_name(&self) -> String {
        let entries = self.entries.iter().map(|entry| (&*entry.key, &*entry.value));
        format!("limit of {:?} {:?}", self.domain, entries.collect::<Vec<_>>())
    }
}

impl DescriptorRules {
    /// Returns all limits, by domain and name.
    pub fn limits(&self) -> Vec<DocumentLimit> {
        let mut limits = Vec::new();
        for (domain, level) in &self.domains {
            level.list(domain, &mut Vec::new(), &mut limits);
        }
        limits.sort_by(|one, other| (&one.domain, &one.name).cmp(&(&other.domain, &other.name)));
        limits
    }

    pub(super) fn number_limits(&mut self) {
        let mut count = 0;
        self.domains.values_mut().for_each(|level| level.number_limits(&mut count));
    }
}

impl DescriptorLevel {
    fn list<'r>(&'r self, domain: &str, path: &mut Vec<&'r DescriptorNode>, limits: &mut Vec<DocumentLimit>) {
        for node in &self.nodes {
            path.push(node);
            limits.extend(node.rule.as_ref().map(|rule| DocumentLimit::new(domain, path, rule)));
            node.children.list(domain, path, limits);
            path.pop();
        }
    }

    fn number_limits(&mut self, count: &mut usize) {
        for node in &mut self.nodes {
            if let Some(rule) = &mut node.rule {
                rule.position = *count;
                *count += 1;
            }
            node.children.number_limits(count);
        }
    }
}
