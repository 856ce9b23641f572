//! Leases: the units that counters of this process have of shared limits, which the store counts.
//!
//! A counter of a shared limit spends the lease in its slot like any quota. In addition to the slot, a
//! `LeaseAccount` stores what matters when the lease runs out: units held back so that the next lease is
//! requested in time, a later lease, and the demand. A request whose counter is out of units calls
//! [`Limiter::acquire_units`]; the task that queries the store calls [`Limiter::lease_request`] and
//! [`Limiter::apply_grant`].

pub mod acquisition;

mod account;
mod bans;
mod debts;
mod giving_up;
mod lease_request;
mod parts;
mod status;

use std::collections::BTreeMap;
use std::time::Duration;

pub(super) use self::account::LeaseAccount;
use self::account::LeaseTerms;
pub(super) use self::bans::SharedBans;
use self::lease_request::MIN_ARRIVAL;
pub use self::lease_request::{
    LeaseGrant, LeaseRequest, ReturnedUnits, StoreCounterKind, excess, settle_time,
};
pub use self::parts::{PartsByGroup, StorePart};
pub use self::status::{SharedCounterStatus, SharedLimitStatus};
use super::algorithm::lease::{self, LeaseState};
use super::decision::Verdict;
use super::key::{CounterId, Fingerprint};
use super::quota::Quota;
use super::table::{LimitId, Shard, SlotLookup};
use super::timestamp::Timestamp;
use super::{Check, Limiter};

/// How instances share the units of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeasePolicy {
    /// Units are leased for each request separately, never ahead of demand.
    pub is_exact: bool,
    /// Maximum time that a request waits for the store. If zero, units are leased ahead however few they are. `None` for
    /// as long as the latency of the store needs.
    pub max_wait: Option<Duration>,
    /// Priority; the store serves the demand of lower numbers first.
    pub priority: u8,
    /// Under contention all instances get equal shares, instead of shares in proportion to their demand.
    pub is_max_min: bool,
    /// The store holds back the parts of instances that it does not hear of, which may spend them.
    pub has_parts: bool,
}

/// Measured latency of the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreLatency {
    /// Time that the store takes to respond to the next call.
    pub next_call: Duration,
    /// Maximum time that a request waits, unless its policy has one of its own.
    pub wait: Duration,
}

/// One counter of a shared limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SharedCounter {
    /// Id of the limit in this process; [`Self::name`] is the same on all instances.
    pub limit: LimitId,
    pub(super) key: Fingerprint,
}

impl SharedCounter {
    /// Name of the counter in the store, the same on all instances of a fleet.
    pub fn name(&self) -> u128 {
        let [first, second] = self.key.words();
        u128::from(first) << 64 | u128::from(second)
    }
}

/// What a request whose counter is out of units has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseOutcome {
    /// Units are available now: check again. If `true`, the caller also has to query the store for more.
    Ready(bool),
    /// The store has to be queried: by the caller if `true`, otherwise a query is pending.
    Requested(bool),
    /// The store has no units for this time.
    Rejected(Duration),
    /// The limit has been removed, or there is no room for the lease of another key.
    Unavailable,
}

/// Where a request whose counter is out of units may get some.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum UnitSource {
    /// From the reserve, or from the store, which is queried.
    Store,
    /// From the reserve, or from this instance's part, because the store is unreachable. [`LeaseOutcome::Unavailable`] means
    /// that the limit has no parts, or that they may not be spent any more.
    Part(StorePart),
    /// From the reserve only. [`LeaseOutcome::Requested`] then means that there are none, and starts no query.
    Held,
}

/// The lease accounts of one shard.
pub(super) type LeaseAccounts = BTreeMap<Fingerprint, LeaseAccount>;

impl Verdict {
    /// Whether the request was rejected only because the store has to be queried first.
    pub fn awaits_lease(&self) -> bool {
        self.rejects() && self.needs_lease()
    }

    /// Whether a counter of a shared limit is out of units and the store has not reported that there are none. Applies
    /// to checks that are not enforced too.
    pub fn needs_lease(&self) -> bool {
        self.exceeds() && self.quota().is_some_and(Quota::is_leased) && lease::needs_lease(self.outcome)
    }
}

impl Limiter {
    /// Returns the counter of `check`, for queries of the store.
    pub fn shared_counter(&self, check: &Check) -> SharedCounter {
        SharedCounter { limit: check.handle.id, key: check.key.salted(check.handle.salt) }
    }

    /// Provides units that were held back to a request whose counter is out of units, or returns that the store has to
    /// be queried.
    pub fn acquire_units(&self, check: &Check, now: Timestamp) -> LeaseOutcome {
        self.acquire_units_from(UnitSource::Store, check, now)
    }

    /// As [`Self::acquire_units`], from this source.
    pub fn acquire_units_from(&self, source: UnitSource, check: &Check, now: Timestamp) -> LeaseOutcome {
        self.acquire_counter_units(source, self.shared_counter(check), check.cost, None, now)
    }

    /// As [`Self::acquire_units_from`] for `cost` units. `limit` is the number of units of the limit if its handle
    /// does not determine it.
    pub(super) fn acquire_counter_units(
        &self,
        source: UnitSource,
        SharedCounter { limit, key }: SharedCounter,
        cost: u32,
        limit_units: Option<u32>,
        now: Timestamp,
    ) -> LeaseOutcome {
        if let UnitSource::Part(part) = &source {
            return self.acquire_part_units(part, SharedCounter { limit, key }, cost, limit_units, now);
        }
        // Before the shard is locked.
        let queued = self.queues().demand(CounterId(key.words())).saturating_mul(cost);
        let mut shard = self.table.lock(self.table.shard_of(key));
        let Some(quota) = shard.quota(limit).filter(|quota| quota.is_leased()).copied() else {
            return LeaseOutcome::Unavailable;
        };
        let quota = limit_units.map_or(quota, |units| quota.with_units(units));
        if cost > quota.capacity() {
            // More than the limit can ever grant. Clients need a finite wait.
            return LeaseOutcome::Rejected(quota.refill());
        }
        let Some(policy) = shard.quotas().lease_policy(limit) else { return LeaseOutcome::Unavailable };
        let reserved = shard.reserved_of(key, limit);
        let held = lease_of(&shard, key, limit, now);
        if source == UnitSource::Held && !shard.lease_accounts().contains_key(&key) {
            return LeaseOutcome::Requested(false);
        }
        let Some(account) = shard.lease_account(key, limit, now) else { return LeaseOutcome::Unavailable };
        account.limit = limit_units;
        if account.is_for_other_quota(&quota) {
            account.unpause();
        }
        let left = account.expire(held, reserved, now);
        let needed = u64::from(account.uncovered(reserved)).saturating_add(cost.into());
        let held = account.replenish(left, needed, now);
        let units = held.units(now);
        if u64::from(units) < needed {
            account.pause_after_partial_grant(now);
        }
        let outcome = if u64::from(units) >= needed {
            LeaseOutcome::Ready(account.start_renewal(now))
        } else if account.pauses_until > now {
            LeaseOutcome::Rejected(account.pauses_until.since(now))
        } else if source == UnitSource::Held {
            LeaseOutcome::Requested(false)
        } else {
            account.need(cost, &quota, policy.is_exact);
            account.queued = queued;
            LeaseOutcome::Requested(account.start_request(now))
        };
        let held = match outcome {
            LeaseOutcome::Rejected(_) if units == 0 => {
                LeaseState::Exhausted { until: account.pauses_until, rejected: cost }
            }
            _ => held,
        };
        write_lease(&mut shard, key, limit, held, now);
        outcome
    }

    /// Creates a query to the store about a counter; `None` if there is nothing to query. The query is pending until
    /// [`Self::apply_grant`] or [`Self::abandon_request`].
    pub fn lease_request(
        &self,
        counter: SharedCounter,
        latency: StoreLatency,
        now: Timestamp,
    ) -> Option<LeaseRequest> {
        let SharedCounter { limit, key } = counter;
        let mut shard = self.table.lock(self.table.shard_of(key));
        let quota = shard.quota(limit).filter(|quota| quota.is_leased()).copied();
        let policy = shard.quotas().lease_policy(limit).map(|policy| policy.with_wait(latency.wait));
        let (Some(quota), Some(policy)) = (quota, policy) else {
            shard.lease_accounts_mut().remove(&key);
            return None;
        };
        let held = lease_of(&shard, key, limit, now);
        let in_use = shard.reserved_of(key, limit);
        let account = shard.lease_accounts_mut().get_mut(&key)?;
        let quota = account.limit.map_or(quota, |units| quota.with_units(units));
        let terms = LeaseTerms { quota, policy, latency: latency.next_call };
        let (request, held) = account.lease_request(counter, held, terms, in_use, now);
        write_lease(&mut shard, key, limit, held, now);
        Some(request)
    }

    /// Stores what the store has granted. `sent` is when the query was sent: the lease expires by this process's clock,
    /// counted from then.
    pub fn apply_grant(
        &self,
        request: &LeaseRequest,
        grant: LeaseGrant,
        sent: Timestamp,
        now: Timestamp,
    ) -> AppliedGrant {
        let SharedCounter { limit, key } = request.counter;
        let mut shard = self.table.lock(self.table.shard_of(key));
        let quota = shard.quota(limit).filter(|quota| quota.is_leased()).copied();
        let held = lease_of(&shard, key, limit, now);
        let in_use = shard.reserved_of(key, limit);
        let accounts = shard.lease_accounts_mut();
        let (Some(account), Some(quota)) = (accounts.get_mut(&key), quota) else {
            accounts.remove(&key);
            // The limit is gone, which requests find out when they are decided again.
            return AppliedGrant { next: AfterGrant::Done, response: LeaseResponse::Units };
        };
        let quota = account.limit.map_or(quota, |units| quota.with_units(units));
        // The wait that was computed for the previous limit says nothing about this one.
        let none = Duration::ZERO;
        let grant = match account.is_for_other_quota(&quota) {
            true => LeaseGrant { wait: none, spread: none, pause: none, ..grant },
            false => grant,
        };
        let response = request.response(grant, sent, now);
        let held = account.apply_grant(request, grant, held, in_use, sent, now);
        let next = account.next_step(request, held, account.uncovered(in_use).into(), now);
        let is_stored = write_lease(&mut shard, key, limit, held, now);
        if !is_stored || next == AfterGrant::Done {
            shard.lease_accounts_mut().remove(&key);
        }
        drop(shard);
        self.notify_waiting(key);
        match is_stored {
            true => AppliedGrant { next, response },
            // The table is full.
            false => AppliedGrant { next: AfterGrant::Done, response: LeaseResponse::Unusable },
        }
    }

    /// Returns whether a query about a counter is queued or in flight.
    pub fn is_request_pending(&self, counter: SharedCounter) -> bool {
        self.update_account(counter, |account| account.is_request_pending()).unwrap_or(false)
    }

    /// Ends a query without a response. Units that it may have granted expire unspent.
    pub fn abandon_request(&self, request: &LeaseRequest) {
        self.update_account(request.counter, |account| account.abandon_request(request));
    }

    /// Repeats a query for which the store could grant nothing. It is still pending, for the same requests.
    pub fn repeat_request(&self, request: &LeaseRequest) {
        self.update_account(request.counter, |account| account.repeat_request(request));
    }

    /// Cancels a query that was not sent; the next request that needs units starts another.
    pub fn cancel_request(&self, counter: SharedCounter) {
        self.update_account(counter, LeaseAccount::cancel_request);
    }

    /// Calls `update` with the lease account of a counter, if there is one.
    fn update_account<T>(
        &self,
        SharedCounter { key, .. }: SharedCounter,
        update: impl FnOnce(&mut LeaseAccount) -> T,
    ) -> Option<T> {
        self.table.lock(self.table.shard_of(key)).lease_accounts_mut().get_mut(&key).map(update)
    }

    /// Reviews a counter: whether units are about to expire unspent, so that the store has to be queried, or the lease
    /// account can be removed.
    pub fn review(&self, counter: SharedCounter, now: Timestamp) -> LeaseReview {
        let SharedCounter { limit, key } = counter;
        let mut shard = self.table.lock(self.table.shard_of(key));
        let held = lease_of(&shard, key, limit, now);
        let in_use = shard.reserved_of(key, limit);
        let Some(account) = shard.lease_accounts_mut().get_mut(&key) else { return LeaseReview::Done };
        let (review, held) = account.review(held, in_use, now);
        write_lease(&mut shard, key, limit, held, now);
        if review == LeaseReview::Done {
            shard.lease_accounts_mut().remove(&key);
        }
        review
    }

    /// Number of counters of shared limits that have a lease account.
    pub fn shared_counter_count(&self) -> usize {
        (0..self.table.shards()).map(|shard| self.table.lock(shard).lease_accounts_mut().len()).sum()
    }
}

impl LeaseAccount {
    /// Adds the cost of a waiting request to the next query. A request that does not fit into one lease with the others
    /// is left out, because units without a validity are granted only for a single request that costs that much.
    fn need(&mut self, cost: u32, quota: &Quota, is_exact: bool) {
        let kind = StoreCounterKind::from_quota(quota, 0);
        let needed = self.needed.saturating_add(cost);
        if self.needed == 0
            || f64::from(needed) <= kind.max_leasable(kind.valid_to_arrive(MIN_ARRIVAL, is_exact))
        {
            self.add_needed(cost, cost);
        }
    }
}

/// Result of a grant of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppliedGrant {
    /// What follows.
    pub next: AfterGrant,
    /// What it means for the requests that waited for it.
    pub response: LeaseResponse,
}

/// What a response of the store means for a request that waited for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseResponse {
    /// The request may get units, now or with another query.
    Units,
    /// The store has none.
    NoUnits,
    /// The store granted units that cannot be spent: they came too late, as those of another query would, or there is no
    /// room for them. It says nothing about the limit.
    Unusable,
}

/// What follows a grant of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterGrant {
    /// Requests that arrived since the query need units: query the store again.
    Query,
    /// Review the counter at this time.
    Review(Timestamp),
    /// Nothing: the lease account has been removed.
    Done,
}

/// Result of a review of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseReview {
    /// Query the store.
    Query,
    /// Units would expire unspent: query the store to give them back.
    GiveBack,
    /// Review again at this time.
    Later(Timestamp),
    /// No units are held.
    Done,
}

/// Returns the lease in the slot of `key`. A counter with a raised quota has none, because this process alone counts it.
pub(super) fn lease_of(shard: &Shard, key: Fingerprint, limit: LimitId, now: Timestamp) -> LeaseState {
    match shard.is_boosted(key) {
        true => LeaseState::from_counter(None),
        false => LeaseState::from_counter(shard.state(shard.find(key), limit, now)),
    }
}

/// Stores `held` in the counter; returns whether there was room. A lease is never stored in an overflow counter.
pub(super) fn write_lease(
    shard: &mut Shard,
    key: Fingerprint,
    limit: LimitId,
    held: LeaseState,
    now: Timestamp,
) -> bool {
    if shard.is_boosted(key) {
        return true;
    }
    let (slot, state) = (shard.find(key), held.into());
    if matches!(slot, SlotLookup::Absent) && lease::is_unused(state, now) {
        return true;
    }
    shard.store_own_state(slot, key, limit, state, now)
}
