//! Size of a shard: that of its array, which grows, and the maximum, which may change.

use super::{FREE, GROWTH, SLOTS_PER_GROUP, SPARE_GROUPS, Shard, SlotGroup, is_free};

impl Shard {
    /// Changes the maximum size. Counters in use stay: above a smaller maximum there is room for new ones once enough of them
    /// are unused, and the array keeps its size.
    pub(crate) fn set_max(&mut self, slots: usize, max_entries: usize) {
        self.full_groups = slots.div_ceil(SLOTS_PER_GROUP);
        self.max_entries = max_entries.min(slots);
        self.capacity = self.capacity_of(self.home_groups());
    }

    /// Returns the maximum number of entries in an array of `groups` home groups.
    fn capacity_of(&self, groups: usize) -> usize {
        let slots = groups * SLOTS_PER_GROUP;
        if groups < self.full_groups { slots - slots / 5 } else { self.max_entries }
    }

    /// Takes all entries over into a larger array.
    pub(super) fn grow(&mut self) {
        let entries = self.resize((self.home_groups() * GROWTH).min(self.full_groups));
        for entry in entries.as_flattened().iter().filter(|entry| !is_free(entry)) {
            // Fits: with more groups, entries push each other less far.
            self.place_entry(*entry);
        }
    }

    /// Replaces the array with an empty one of `groups` home groups; returns the old one.
    pub(super) fn resize(&mut self, groups: usize) -> Box<[SlotGroup]> {
        let free = vec![[FREE; SLOTS_PER_GROUP]; groups + SPARE_GROUPS].into_boxed_slice();
        self.capacity = self.capacity_of(groups);
        (self.live, self.hand) = (0, 0);
        std::mem::replace(&mut self.groups, free)
    }
}
