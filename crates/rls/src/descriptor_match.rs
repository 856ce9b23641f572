//! Lookup of a descriptor's limit, and of the keys of its counters.

use std::sync::Arc;

use smallvec::SmallVec;

use super::request::{RlsDescriptor, RlsEntry};
use super::rules::{DescriptorLevel, DescriptorNode, DescriptorRule, UnitRate};
use weir_limiter::key::{KeyHash, KeyHasher};
use weir_telemetry::observe::key_writer::KeyEntry;

/// Result of the lookup for one descriptor.
#[derive(Debug)]
pub(super) enum MatchedLimit<'r> {
    /// No limit applies.
    NoLimit,
    /// A rule applies.
    Rule { rule: &'r DescriptorRule, path: SmallVec<[&'r DescriptorNode; 4]> },
    /// A limit that came with the request applies.
    Override(UnitRate),
}

/// Looks up the entries of a descriptor in the tree.
///
/// The limit must be at exactly the depth of the descriptor; limits on the way do not apply. There is no backtracking,
/// even if an exact node without children hides a node without a value that has children.
pub(super) fn find_limit<'r>(root: &'r DescriptorLevel, entries: &[RlsEntry]) -> MatchedLimit<'r> {
    let (mut level, mut joined) = (root, String::new());
    let mut path: SmallVec<[&'r DescriptorNode; 4]> = SmallVec::new();
    for (index, RlsEntry { key, value }) in entries.iter().enumerate() {
        joined.clear();
        joined.reserve(key.len() + 1 + value.len());
        joined.extend([key, "_", value]);
        let Some(node) = level.find_node(key, &joined) else { return MatchedLimit::NoLimit };
        path.push(node);
        let is_last = index + 1 == entries.len();
        match &node.rule {
            Some(rule) if is_last => return MatchedLimit::Rule { rule, path },
            _ if node.children.is_empty() => return MatchedLimit::NoLimit,
            _ => level = &node.children,
        }
    }
    MatchedLimit::NoLimit
}

/// Computes the key of a descriptor's counter. Values that share a counter are represented by their pattern.
/// `suffix` separates counters that have no salt of a limit.
pub(super) fn counter_key(
    domain: &str,
    entries: &[RlsEntry],
    path: &[&DescriptorNode],
    hasher: KeyHasher,
    suffix: &[u8],
) -> KeyHash {
    let mut encoded: SmallVec<[u8; 256]> = SmallVec::new();
    // Lengths make the encoding unambiguous; the flag distinguishes a pattern from a value.
    let mut write = |text: &str, is_shared: bool| {
        encoded.push(is_shared.into());
        encoded.extend_from_slice(&(text.len() as u64).to_le_bytes());
        encoded.extend_from_slice(text.as_bytes());
    };
    write(domain, false);
    for (index, RlsEntry { key, value }) in entries.iter().enumerate() {
        let shared = path.get(index).and_then(|node| node.shared_value.as_deref());
        write(key, false);
        write(shared.unwrap_or(value), shared.is_some());
    }
    encoded.extend_from_slice(suffix);
    hasher.hash(&encoded)
}

/// Returns the entries of a descriptor as [`counter_key`] counts them, for operators.
pub(super) fn key_entries<'a>(
    entries: &'a [RlsEntry],
    path: &'a [&DescriptorNode],
) -> impl Iterator<Item = KeyEntry<'a>> {
    entries.iter().zip(path).map(|(RlsEntry { key, value }, node)| KeyEntry {
        key,
        value: node.shared_value.as_deref().unwrap_or(value),
        is_configured: node.shared_value.is_some() || (!value.is_empty() && node.entry.value == *value),
    })
}

/// Returns the name of the statistics of a rule for a descriptor.
pub(super) fn stat_key(
    domain: &str,
    entries: &[RlsEntry],
    rule: &DescriptorRule,
    path: &[&DescriptorNode],
) -> Arc<str> {
    if !rule.detailed_metric && !path.iter().any(|node| node.value_to_metric) {
        return Arc::clone(&rule.stat_key);
    }
    // As in the reference, a detailed name has an empty value after its underscore, unless values share a counter.
    let keeps_empty = rule.detailed_metric && path.iter().all(|node| node.shared_value.is_none());
    let mut name = domain.to_owned();
    for (node, RlsEntry { key, value }) in path.iter().zip(entries) {
        name.push('.');
        match (&node.shared_value, rule.detailed_metric || node.value_to_metric) {
            (Some(pattern), true) => join(&mut name, key, pattern),
            (None, true) if keeps_empty => name.extend([key, "_", value]),
            (None, true) => join(&mut name, key, value),
            (_, false) => name.push_str(&node.composite_key),
        }
    }
    name.into()
}

/// Returns the name of the statistics of a limit that came with the request; it contains all values.
pub(super) fn override_stat_key(domain: &str, descriptor: &RlsDescriptor) -> Arc<str> {
    let mut name = format!("{domain}.");
    for (index, RlsEntry { key, value }) in descriptor.entries.iter().enumerate() {
        if index > 0 {
            name.push('.');
        }
        join(&mut name, key, value);
    }
    name.into()
}

fn join(name: &mut String, key: &str, value: &str) {
    name.push_str(key);
    if !value.is_empty() {
        name.extend(["_", value]);
    }
}
