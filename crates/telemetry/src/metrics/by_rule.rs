//! Metrics of each rule, by rule name, across reloads and workers.

use std::collections::BTreeMap;

/// Name under which further rules are counted together.
pub(super) const OTHER_RULES: &str = "other";

/// Metrics of every rule since the start, of at most `MAX` rules. Names come from the configuration, but a long-lived process may see many
/// configurations.
#[derive(Debug)]
pub(super) struct ByRule<M, const MAX: usize>(BTreeMap<Box<str>, M>);

impl<M, const MAX: usize> Default for ByRule<M, MAX> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<M: Clone + Default, const MAX: usize> ByRule<M, MAX> {
    /// Returns the metrics of a rule, which are shared with all others of this name.
    pub(super) fn get_or_insert(&mut self, name: &str) -> M {
        if let Some(known) = self.0.get(name) {
            return known.clone();
        }
        let name = if self.0.len() < MAX { name } else { OTHER_RULES };
        self.0.entry(name.into()).or_default().clone()
    }

    pub(super) fn get(&self, name: &str) -> Option<&M> {
        self.0.get(name)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Yields the metrics of all rules, by name.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &M)> {
        self.0.iter().map(|(name, metrics)| (&**name, metrics))
    }
}
