//! Quotas of keys whose requests state a limit of their own.
//!
//! A slot names such a quota by a number, beside the id of its limit. So a counter takes no more memory, and its state is
//! always read by the quota under which it was written. Each distinct limit is stored once per shard, and the number of
//! limits is bounded.

use std::collections::HashMap;
use std::time::Duration;

use super::slot::{
    MAX_QUOTA_NUMBER, QuotaNumber, Slot, is_free, limit_of, new_slot, quota_number_of, with_quota_number,
};
use super::{LimitId, Shard, SlotLookup};
use crate::algorithm::CounterState;
use crate::algorithm::conversion::{Change, OnChange};
use crate::key::Fingerprint;
use crate::quota::Quota;
use crate::request_limit::RequestLimit;
use crate::table::QuotaTable;
use crate::timestamp::Timestamp;

/// Minimum time between two searches for numbers that no counter has.
const FREE_INTERVAL: Duration = Duration::from_secs(1);
/// State of a counter of which nothing is used.
const UNUSED: CounterState = CounterState { word: 0, extra: 0 };

/// A limit that keys of the shard have.
#[derive(Clone, Copy, Debug)]
struct RequestQuota {
    limit: LimitId,
    requested: RequestLimit,
    quota: Quota,
}

/// The distinct limits of the keys of one shard.
#[derive(Clone, Debug, Default)]
pub(super) struct RequestQuotas {
    /// Indexed by number less one.
    quotas: Vec<Option<RequestQuota>>,
    numbers: HashMap<(LimitId, RequestLimit), QuotaNumber>,
    /// Latest time at which a request stated one. Counters that a request has just set up are not reclaimed before it is
    /// charged.
    stated_at: Timestamp,
    /// When unused ones were last freed.
    freed_at: Timestamp,
    dropped: u64,
}

impl RequestQuotas {
    pub(super) fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    fn get(&self, number: QuotaNumber) -> Option<&RequestQuota> {
        self.quotas.get(usize::from(number).checked_sub(1)?)?.as_ref()
    }

    /// Returns the quota with this number; `None` for 0, which stands for that of the limit.
    pub(super) fn quota(&self, number: QuotaNumber) -> Option<&Quota> {
        self.get(number).map(|known| &known.quota)
    }

    /// Whether this number stands for what a request states.
    fn is(&self, number: QuotaNumber, limit: LimitId, requested: Option<RequestLimit>) -> bool {
        match (self.get(number), requested) {
            (Some(known), Some(requested)) => (known.limit, known.requested) == (limit, requested),
            (None, None) => number == 0,
            (Some(_), None) | (None, Some(_)) => false,
        }
    }

    /// Returns the number of a limit, which gets one unless it has one; `None` if there is none left.
    fn number(&mut self, limit: LimitId, requested: RequestLimit, quota: Quota) -> Option<QuotaNumber> {
        if let Some(number) = self.numbers.get(&(limit, requested)) {
            return Some(*number);
        }
        let index = if self.numbers.len() == self.quotas.len() {
            self.quotas.len()
        } else {
            self.quotas.iter().position(Option::is_none)?
        };
        let number = QuotaNumber::try_from(index + 1).ok().filter(|number| *number <= MAX_QUOTA_NUMBER)?;
        if index == self.quotas.len() {
            self.quotas.push(None);
        }
        self.quotas[index] = Some(RequestQuota { limit, requested, quota });
        self.numbers.insert((limit, requested), number);
        Some(number)
    }

    /// Keeps those for which `is_kept` returns true.
    fn retain(&mut self, is_kept: impl Fn(QuotaNumber, &RequestQuota) -> bool) {
        for (number, place) in (1..).zip(&mut self.quotas) {
            if let Some(known) = place.filter(|known| !is_kept(number, known)) {
                self.numbers.remove(&(known.limit, known.requested));
                *place = None;
            }
        }
    }

    /// Keeps those that are the same under the quotas of another generation.
    pub(super) fn rebase(&mut self, quotas: &QuotaTable) {
        self.retain(|_, known| {
            let base = quotas.get(known.limit);
            base.and_then(|base| base.with_request_limit(known.requested)) == Some(known.quota)
        });
    }
}

impl Shard {
    /// Number of limits of requests that did not apply for lack of room.
    pub(crate) fn request_limits_dropped(&self) -> u64 {
        self.request_quotas.dropped
    }

    /// Puts the limit that a request states into force for its key, or the limit's own quota if it states none. Units
    /// used stay used.
    #[inline]
    pub(crate) fn set_request_limit(
        &mut self,
        key: Fingerprint,
        limit: LimitId,
        requested: Option<RequestLimit>,
        now: Timestamp,
    ) {
        if requested.is_some() || !self.request_quotas.is_empty() {
            self.change_request_limit(key, limit, requested, now);
        }
        if requested.is_some() {
            self.request_quotas.stated_at = now;
        }
    }

    #[inline(never)]
    fn change_request_limit(
        &mut self,
        key: Fingerprint,
        limit: LimitId,
        requested: Option<RequestLimit>,
        now: Timestamp,
    ) {
        if self.request_quotas.is(self.quota_number(key), limit, requested) {
            return;
        }
        let Some(base) = self.quotas.get(limit).copied() else { return };
        let number = requested.map_or(0, |requested| self.number_of(limit, requested, &base, now));
        let (Some(from), own) =
            (self.quota_of(key, limit).copied(), self.request_quotas.quota(number).copied().unwrap_or(base))
        else {
            return;
        };
        let to = self.overrides.raise(key, &own);
        if number != self.quota_number(key) {
            self.convert_counter(key, &from, &to, now);
            self.set_quota_number(
                key,
                limit,
                number,
                Change { from: &base, to: &to, on_change: OnChange::Keep },
                now,
            );
        }
    }

    /// Returns the number that the slot of `key` names; 0 if it has none.
    fn quota_number(&self, key: Fingerprint) -> QuotaNumber {
        match self.find(key) {
            SlotLookup::Found(index) => quota_number_of(&self.slots()[index]),
            SlotLookup::Absent => 0,
        }
    }

    /// Returns the number of a limit that a request states; 0 if it cannot apply.
    fn number_of(
        &mut self,
        limit: LimitId,
        requested: RequestLimit,
        base: &Quota,
        now: Timestamp,
    ) -> QuotaNumber {
        let number = base.with_request_limit(requested).and_then(|quota| {
            self.request_quotas.number(limit, requested, quota).or_else(|| {
                self.free_request_quotas(now);
                self.request_quotas.number(limit, requested, quota)
            })
        });
        self.request_quotas.dropped += u64::from(number.is_none());
        number.unwrap_or(0)
    }

    /// Names the quota of a counter, which gets a slot if it has none: with the usage of the overflow counter, if that is
    /// in use. Without room, it shares the overflow counter, which is in units of the limit's own quota; `change` is from
    /// that one.
    fn set_quota_number(
        &mut self,
        key: Fingerprint,
        limit: LimitId,
        number: QuotaNumber,
        change: Change<'_>,
        now: Timestamp,
    ) {
        match self.find(key) {
            SlotLookup::Found(index) => {
                let entry = self.slots()[index];
                self.slots_mut()[index] = with_quota_number(&entry, number);
            }
            SlotLookup::Absent if number == 0 => {}
            SlotLookup::Absent => {
                let shared = self.overflow.get(&limit).and_then(|state| change.convert(*state, now));
                let entry = with_quota_number(&new_slot(key, limit, shared.unwrap_or(UNUSED)), number);
                let is_stored = self.insert_entry(entry, now);
                self.request_quotas.dropped += u64::from(!is_stored);
            }
        }
    }

    /// Frees the numbers that no counter in use has; at most once a second, because it reads the whole shard.
    #[cold]
    fn free_request_quotas(&mut self, now: Timestamp) {
        if now.since(self.request_quotas.freed_at) < FREE_INTERVAL {
            return;
        }
        self.request_quotas.freed_at = now;
        let mut is_used = vec![false; usize::from(MAX_QUOTA_NUMBER) + 1];
        let mut index = 0;
        while let Some(slot) = self.slots().get(index) {
            let number = quota_number_of(slot);
            if number != 0 && !is_free(slot) && self.is_reclaimable(slot, now) {
                // The following entries move back.
                self.remove(index);
                continue;
            }
            is_used[usize::from(number)] = true;
            index += 1;
        }
        self.request_quotas.retain(|number, _| is_used[usize::from(number)]);
    }

    /// Returns the limit in force that a request of `key` has stated.
    pub(crate) fn request_limit_of(&self, key: Fingerprint) -> Option<RequestLimit> {
        Some(self.request_quota_of(key)?.requested)
    }

    fn request_quota_of(&self, key: Fingerprint) -> Option<&RequestQuota> {
        if self.request_quotas.is_empty() {
            return None;
        }
        let SlotLookup::Found(index) = self.find(key) else { return None };
        self.request_quotas.get(quota_number_of(&self.slots()[index]))
    }

    /// Returns the quota of a counter, apart from overrides.
    pub(super) fn own_quota(&self, key: Fingerprint, limit: LimitId) -> Option<&Quota> {
        let base = self.quotas.get(limit)?;
        Some(self.request_quota_of(key).map_or(base, |known| &known.quota))
    }

    /// Returns the quota of the counter in `slot`, apart from overrides.
    #[inline]
    pub(super) fn own_quota_of_slot(&self, slot: &Slot) -> Option<&Quota> {
        match quota_number_of(slot) {
            0 => self.quotas.get(limit_of(slot)),
            number => self.request_quotas.quota(number).or_else(|| self.quotas.get(limit_of(slot))),
        }
    }

    /// Whether the counter in `slot` is kept, though nothing of it may be used, because it names the limit of a request
    /// that is being decided or whose cost is reserved.
    #[inline]
    pub(super) fn is_kept_for_request(&self, slot: &Slot, now: Timestamp) -> bool {
        quota_number_of(slot) != 0
            && (now <= self.request_quotas.stated_at
                || Fingerprint::from_words([slot[0], slot[1]]).is_some_and(|key| self.holds.contains(key)))
    }

    /// Returns the entry, whose quota is that of its limit if the quota of its request is gone.
    pub(super) fn without_dropped_quota(&self, entry: Slot) -> Slot {
        match quota_number_of(&entry) {
            0 => entry,
            number if self.request_quotas.get(number).is_some() => entry,
            _ => with_quota_number(&entry, 0),
        }
    }

    /// Returns a copy of an entry for `target`, which gets a copy of the quota of its request if it has one.
    pub(super) fn copy_request_quota(&self, entry: &Slot, copy: Slot, target: &mut Self) -> Slot {
        let known = self.request_quotas.get(quota_number_of(entry));
        let number =
            known.and_then(|known| target.request_quotas.number(known.limit, known.requested, known.quota));
        with_quota_number(&copy, number.unwrap_or(0))
    }
}
