//! Equality of two states of the server, for searches.

use super::Model;

impl Model {
    /// Returns what tells two states of the server apart, for searches.
    pub(crate) fn fingerprint(&self) -> Vec<u64> {
        let mut values: Vec<_> = self.values.iter().collect();
        values.sort_unstable_by_key(|(key, _)| *key);
        let numbers = values.iter().flat_map(|(_, (list, until))| list.iter().chain([until]));
        let since = self.generations.values().map(|(_, _, since)| since);
        numbers.chain(since).map(|number| number.to_bits()).collect()
    }
}
