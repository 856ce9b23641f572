//! Reading ahead: fetches slots from memory before they are searched.

use super::Shard;
use super::slot::SLOTS_PER_GROUP;
use crate::key::Fingerprint;

impl Shard {
    /// Returns words from both cache lines in which a search for `key` begins.
    #[inline]
    pub(crate) fn words_near(&self, key: Fingerprint) -> u64 {
        let group = &self.groups[self.home(key.words()[0])];
        group[0][0] | group[SLOTS_PER_GROUP / 2][0]
    }
}
