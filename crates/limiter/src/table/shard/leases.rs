//! Lease accounts: what the counters of shared limits have beside the units in their slots.

use super::Shard;
use crate::key::Fingerprint;
use crate::leases::{LeaseAccount, LeaseAccounts};
use crate::table::LimitId;
use crate::timestamp::Timestamp;

impl Shard {
    /// Units of a shared limit left for all instances, in addition to those in the slot of `key`.
    pub(crate) fn remaining_outside_slot(&self, key: Fingerprint, now: Timestamp) -> u32 {
        self.lease_accounts.get(&key).map_or(0, |book| book.remaining_outside_slot(now))
    }

    /// As [`Self::remaining_outside_slot`]; `None` before the first response of the store.
    pub(crate) fn known_remaining_outside_slot(&self, key: Fingerprint, now: Timestamp) -> Option<u32> {
        self.lease_accounts.get(&key).and_then(|book| book.known_remaining_outside_slot(now))
    }

    /// Lease accounts of shared limits: what they have in addition to their slots.
    pub(crate) fn lease_accounts(&self) -> &LeaseAccounts {
        &self.lease_accounts
    }

    /// As [`Self::lease_accounts`], mutable.
    pub(crate) fn lease_accounts_mut(&mut self) -> &mut LeaseAccounts {
        &mut self.lease_accounts
    }

    /// Returns the lease account of a counter, new if there is none; `None` if there are as many as counters are
    /// allowed.
    pub(crate) fn lease_account(
        &mut self,
        key: Fingerprint,
        limit: LimitId,
        now: Timestamp,
    ) -> Option<&mut LeaseAccount> {
        if self.lease_accounts.len() >= self.max_entries && !self.lease_accounts.contains_key(&key) {
            return None;
        }
        Some(self.lease_accounts.entry(key).or_insert_with(|| LeaseAccount::new(limit, now)))
    }

    /// As [`Self::reserved_of`], without those for which units of a lease are set aside.
    pub(crate) fn held_of(&self, key: Fingerprint, limit: LimitId) -> u64 {
        match self.reserved_of(key, limit) {
            0 => 0,
            reserved => {
                let covered = self.lease_accounts().get(&key).map_or(0, |account| account.covered());
                reserved.saturating_sub(covered.into())
            }
        }
    }

    /// Spends units of a reservation that was settled, from those that were set aside for it. Returns how many are to be charged.
    pub(crate) fn spend_covered(
        &mut self,
        key: Fingerprint,
        limit: LimitId,
        units: u32,
        now: Timestamp,
    ) -> u32 {
        let reserved = self.reserved_of(key, limit);
        let account = self.lease_accounts_mut().get_mut(&key).filter(|account| account.covered() > 0);
        account.map_or(units, |account| account.spend_covered(units, reserved, now))
    }
}
