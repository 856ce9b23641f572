#![doc = include_str!("../README.md")]
//!
//! # Decisions
//!
//! [`RateLimiter`] is for programs with the same quotas for every key. Everything else is a [`Limiter`]: limits with
//! names, which can change, and requests with a [`Check`] for each limit that they must pass.
//!
//! All checks of a request are evaluated under the locks of their shards and committed together or not at all. So a
//! rejected request is charged to no counter, and concurrent requests cannot both take the last unit. The crate is
//! pure: no clock and no I/O; `now` is a parameter of every call. It has no notion of rules or HTTP.
#![warn(missing_docs)]
#![cfg_attr(not(test), deny(clippy::unwrap_used))]

#[cfg(doc)]
#[doc = include_str!("../docs/guide.md")]
pub mod guide {}

pub mod adaptive;
pub mod adaptive_throttle;
pub mod algorithm;
pub mod check_options;
pub mod classes;
pub mod control;
pub mod decision;
pub mod elastic;
pub mod feedback;
pub mod key;
pub mod leases;
pub mod memory_budget;
pub mod percent;
pub mod quota;
pub mod rate_limiter;
pub mod request_limit;
pub mod reservation;
pub mod saved;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod timestamp;
pub mod unconditional_count;
pub mod wait_queue;
pub mod zone;

mod duplicate_counters;
mod evaluation;
mod overrides;
mod prediction;
mod registry;
mod scale;
mod snapshot;
mod table;
mod transaction;
pub mod transfer;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};

use self::adaptive::limits::AdaptiveLimits;
use self::algorithm::{CounterState, Outcome, lease};
use self::check_options::{CheckOptions, CounterRole, WithoutRoom};
use self::decision::{Decision, Enforcement, Verdict, Verdicts};
use self::evaluation::CounterView;
use self::feedback::states::FeedbackBook;
use self::key::{CounterId, Fingerprint, KeyHash, KeyHasher};
use self::leases::{SharedBans, SharedCounter};
pub use self::quota::Quota;
pub use self::rate_limiter::{Admitted, DirectRateLimiter, RateLimiter, RetryAfter};
use self::registry::LimitRegistry;
pub use self::registry::{LimitHandle, LimitIdentity, LimitSpec};
use self::request_limit::RequestLimit;
use self::reservation::ChargeTiming;
pub use self::table::LimitId;
use self::table::{CounterTable, Placement, Shard, SlotLookup};
pub use self::timestamp::Timestamp;
use self::transaction::CheckList;
pub use self::transaction::JointOutcome;
use self::transfer::{LateCharge, Transfer};
use self::wait_queue::WaitQueues;

/// Size of the counter table, and the secret under which its keys are hashed.
#[derive(Clone, Copy, Debug)]
pub struct LimiterSettings {
    /// Maximum number of counters in the table.
    pub max_keys: usize,
    /// Secret of the key hasher.
    pub secret: [u64; 2],
}

/// One limit that one request must pass.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// An installed limit, of the limiter that decides.
    pub handle: LimitHandle,
    /// Key of the counter within the limit.
    pub key: KeyHash,
    /// Units that the request uses.
    pub cost: u32,
    /// Whether exceeding the limit rejects the request, only reports it (shadow mode), or marks it.
    pub enforcement: Enforcement,
    /// When the counter is charged.
    pub charge_timing: ChargeTiming,
    /// Additional behaviour: delay, ban, or charging of rejected requests. Most checks have none.
    pub options: Option<CheckOptions>,
}

impl Check {
    /// Returns the limit in force, if that is adaptive.
    pub fn adaptive_limit(&self) -> Option<u32> {
        match self.options?.role {
            CounterRole::Adaptive(limit) => Some(limit),
            CounterRole::Limit | CounterRole::Delay(_) | CounterRole::Ban | CounterRole::Seen => None,
        }
    }

    /// Returns the limit that the request states for its key.
    pub fn request_limit(&self) -> Option<RequestLimit> {
        self.options?.request_limit
    }

    /// Returns what becomes of the request if the group has no room.
    pub fn without_room(&self) -> WithoutRoom {
        self.options.map_or(WithoutRoom::Reject, |options| options.without_room)
    }

    /// Whether the checks of the group count different values, of which some may be known.
    pub fn is_distinct(&self) -> bool {
        matches!(self.without_room(), WithoutRoom::Distinct(_))
    }

    /// Whether this is the purpose of the counter.
    pub(crate) fn has_role(&self, role: CounterRole) -> bool {
        self.options.is_some_and(|options| options.role == role)
    }

    /// Returns the identity of the counter. A limit that is kept by a reload keeps it.
    pub fn counter_id(&self) -> CounterId {
        CounterId(self.key.salted(self.handle.salt).words())
    }
}

/// The counters of this process and the quotas that they count for.
#[derive(Debug)]
pub struct Limiter {
    table: CounterTable,
    max_keys: AtomicUsize,
    hasher: KeyHasher,
    fleet: Mutex<Fleet>,
    instances_by_name: Mutex<Arc<BTreeMap<Box<str>, NonZeroU32>>>,
    registry: Mutex<LimitRegistry>,
    overflows: AtomicU64,
    bans: Mutex<SharedBans>,
    feedback: FeedbackBook,
    /// Counters of shared limits that have run into debt.
    debts: Mutex<BTreeSet<SharedCounter>>,
    /// State of the adaptive limits that are in use.
    adaptive: Mutex<HashMap<LimitId, Weak<AdaptiveLimits>>>,
    /// Requests that wait for room.
    queues: Arc<WaitQueues>,
    /// Set while another process has the counters.
    transfer: Mutex<Option<Transfer>>,
    /// Whether it is set, or is about to be.
    is_transferred: AtomicBool,
}

/// What instances that share limits have in common.
#[derive(Clone, Copy, Debug)]
pub struct Fleet {
    /// Hasher for keys of shared limits, so that all instances use the same name for a counter.
    pub hasher: KeyHasher,
    /// Number of instances, as far as is known.
    pub instances: NonZeroU32,
}

/// Numbers of instances by which limits are divided.
#[derive(Clone, Debug)]
pub struct InstanceCounts {
    /// Size of the fleet.
    pub members: NonZeroU32,
    /// Number of addresses of each DNS name, as far as is known.
    pub instances_by_name: Arc<BTreeMap<Box<str>, NonZeroU32>>,
}

impl InstanceCounts {
    /// Returns the counts of an instance without a fleet, whose limits are not divided.
    pub fn single() -> Self {
        Self { members: NonZeroU32::MIN, instances_by_name: Arc::default() }
    }
}

impl Limiter {
    /// Returns a limiter without counters.
    pub fn new(settings: LimiterSettings) -> Self {
        Self {
            table: CounterTable::new(settings.max_keys),
            max_keys: AtomicUsize::new(settings.max_keys),
            hasher: KeyHasher::new(settings.secret),
            fleet: Mutex::new(Fleet { hasher: KeyHasher::new(settings.secret), instances: NonZeroU32::MIN }),
            instances_by_name: Mutex::default(),
            registry: Mutex::default(),
            overflows: AtomicU64::new(0),
            bans: Mutex::default(),
            feedback: FeedbackBook::default(),
            debts: Mutex::default(),
            adaptive: Mutex::default(),
            queues: Arc::default(),
            transfer: Mutex::default(),
            is_transferred: AtomicBool::new(false),
        }
    }

    /// Returns the number of counters for which there is room.
    pub fn max_keys(&self) -> usize {
        self.max_keys.load(Ordering::Relaxed)
    }

    /// Changes the number of counters for which there is room. Counters in use stay, also above a smaller number: new keys then
    /// share overflow counters until enough of them are unused. Memory that the table has taken is kept.
    pub fn set_max_keys(&self, keys: usize) {
        self.max_keys.store(keys, Ordering::Relaxed);
        self.table.set_max_keys(keys);
    }

    /// Returns the hasher for keys of limits that are not shared.
    pub fn hasher(&self) -> KeyHasher {
        self.hasher
    }

    /// Returns the shares of the limits that follow a provider.
    pub const fn feedback(&self) -> &FeedbackBook {
        &self.feedback
    }

    /// Returns the hasher and the size of the fleet. They apply to limits installed from now on.
    pub fn fleet(&self) -> Fleet {
        *self.fleet.lock()
    }

    /// Sets the hasher and the size of the fleet.
    pub fn join_fleet(&self, fleet: Fleet) {
        *self.fleet.lock() = fleet;
    }

    /// Returns the numbers by which limits installed from now on are divided.
    pub fn instance_counts(&self) -> InstanceCounts {
        InstanceCounts {
            members: self.fleet().instances,
            instances_by_name: Arc::clone(&self.instances_by_name.lock()),
        }
    }

    /// Sets the number of addresses of each DNS name; returns whether a number changed.
    pub fn set_instances_by_name(&self, named: BTreeMap<Box<str>, NonZeroU32>) -> bool {
        let mut known = self.instances_by_name.lock();
        let is_new = **known != named;
        *known = Arc::new(named);
        is_new
    }

    /// Installs the limits of a configuration generation; returns their handles in the order of `specs`.
    ///
    /// A limit whose identity is already installed keeps its counters; if its quota changed, its counters are converted
    /// as its `on_change` requires. Limits that are not among `specs` stay in force until [`Self::retire_others`], so
    /// that the generation still being served keeps its limits.
    pub fn install(&self, specs: &[LimitSpec], now: Timestamp) -> Vec<LimitHandle> {
        let mut registry = self.registry.lock();
        let installed = registry.install(specs, self.hasher, self.fleet().hasher, now);
        self.table.adopt_quotas(&registry.quotas(), now);
        installed
    }

    /// Makes the requests that wait for room try again under the configuration that is now in force, which has the limits
    /// in `handles`.
    pub fn configuration_changed(&self, handles: impl Iterator<Item = LimitHandle>) {
        self.queues.set_installed(handles);
    }

    /// Returns the queues of requests that wait for room.
    pub const fn queues(&self) -> &Arc<WaitQueues> {
        &self.queues
    }

    /// Makes the first request that waits for a counter try again, because units may have come back.
    #[inline]
    fn notify_waiting(&self, key: Fingerprint) {
        self.queues.wake_first(CounterId(key.words()));
    }

    /// Removes every limit that is not among `handles`, with its counters.
    pub fn retire_others(&self, handles: &[LimitHandle], now: Timestamp) {
        let mut known = self.registry.lock();
        if known.retire_others(handles) {
            self.table.adopt_quotas(&known.quotas(), now);
        }
    }

    /// Returns the state of an adaptive limit, which is kept as long as a generation uses it. `has_key` is whether its
    /// requests have different keys.
    pub fn adaptive_limits(&self, handle: LimitHandle, has_key: bool) -> Arc<AdaptiveLimits> {
        let mut known = self.adaptive.lock();
        known.retain(|_, limits| limits.strong_count() > 0);
        if let Some(limits) = known.get(&handle.id).and_then(Weak::upgrade) {
            return limits;
        }
        let limits = Arc::new(AdaptiveLimits::new(has_key));
        known.insert(handle.id, Arc::downgrade(&limits));
        limits
    }

    /// Decides one request: all checks together, or none.
    ///
    /// If no enforced limit rejects, every limit that conforms is charged; otherwise none is, except as
    /// [`CheckOptions`] require.
    #[inline]
    pub fn check<'c, C>(&self, checks: C, now: Timestamp) -> Decision
    where
        C: IntoIterator<Item = &'c Check, IntoIter: ExactSizeIterator>,
    {
        let mut checks = checks.into_iter();
        // Most requests have one check, for which a list costs too much.
        if checks.len() > 1 {
            let checks = checks.collect::<CheckList<'_>>();
            let decision = transaction::check(self, &checks, now);
            self.note(&checks, &decision, now);
            return decision;
        }
        let Some(check) = checks.next() else { return Decision::default() };
        let decision = match check.options.is_none() {
            true => self.check_one(check, now),
            false => transaction::check(self, &[check], now),
        };
        self.note(&[check], &decision, now);
        decision
    }

    /// Fetches the counters of checks that follow from memory, all at the same time. Changes nothing, and is worth its
    /// cost only for checks of many requests, on a limiter that is in no other use.
    pub fn warm<'c>(&mut self, checks: impl Iterator<Item = &'c Check>) {
        self.table.warm(checks.map(|check| check.key.salted(check.handle.salt)));
    }

    /// Charges a settled cost, or gives back a negative one; never rejects.
    pub fn charge(&self, handle: LimitHandle, key: KeyHash, amount: i64, now: Timestamp) {
        let key = key.salted(handle.salt);
        let mut shard = self.table.lock(self.table.shard_of(key));
        shard.end_overrides(now);
        if shard.is_transferred() {
            self.report_late(LateCharge::Charge(handle, amount), key);
        }
        let Some(quota) = shard.quota_of(key, handle.id).copied() else { return };
        let slot = shard.find(key);
        let state = algorithm::charge(shard.state(slot, handle.id, now), &quota, amount, now);
        let placement = shard.store_state(slot, key, handle.id, state, now);
        drop(shard);
        self.record_placement(placement);
        if amount < 0 {
            self.notify_waiting(key);
        }
    }

    /// Reads a counter without changing it; `None` if the limit is gone.
    pub fn usage(
        &self,
        handle: LimitHandle,
        key: KeyHash,
        now: Timestamp,
    ) -> Option<algorithm::CounterUsage> {
        let key = key.salted(handle.salt);
        let mut shard = self.table.lock(self.table.shard_of(key));
        shard.end_overrides(now);
        let quota = shard.quota_of(key, handle.id)?;
        let slot = shard.find(key);
        Some(match quota.is_leased() {
            true => {
                let state = shard.state(slot, handle.id, now);
                lease::fleet_usage(state, quota, shard.remaining_outside_slot(key, now), now)
            }
            false => algorithm::usage(shard.counter(slot, handle.id), quota, now),
        })
    }

    /// Number of counters in use per limit id, for metrics. Scans the whole table, with one shard locked at a time.
    pub fn keys_per_limit(&self, now: Timestamp) -> HashMap<LimitId, u64> {
        let mut counts = HashMap::new();
        self.table.for_each_used(now, |limit| *counts.entry(limit).or_insert(0) += 1);
        counts
    }

    /// Number of entries in the table, in use or not yet reclaimed.
    pub fn live_keys(&self) -> usize {
        self.table.live()
    }

    /// Number of shards in which new keys share overflow counters, and the number of all shards.
    pub fn overflowing_shards(&self) -> (usize, usize) {
        (self.table.overflowing_shards(), self.table.shards())
    }

    /// Number of charges to an overflow counter because the table was full, since the start.
    pub fn overflows(&self) -> u64 {
        self.overflows.load(Ordering::Relaxed)
    }

    fn check_one(&self, check: &Check, now: Timestamp) -> Decision {
        let key = check.key.salted(check.handle.salt);
        let mut shard = self.table.lock(self.table.shard_of(key));
        match evaluation::try_fast_path(&mut shard, check, key, now) {
            Some(verdict) => Decision { verdicts: Verdicts::One(verdict), overflowed: false },
            None => self.check_one_general(shard, check, now),
        }
    }

    /// Decides a check of any kind. Out of line and with its own copy of the key, because the values that it keeps in
    /// registers would slow down the common path.
    #[inline(never)]
    fn check_one_general(&self, mut shard: MutexGuard<'_, Shard>, check: &Check, now: Timestamp) -> Decision {
        let key = check.key.salted(check.handle.salt);
        if let Some(decision) = self.start_counter(&mut shard, check, key, now) {
            return decision;
        }
        shard.end_overrides(now);
        shard.set_request_limit(key, check.handle.id, check.request_limit(), now);
        let slot = shard.find(key);
        let before = CounterView::new(&shard, check, key, slot, now);
        let (verdict, next) = evaluation::evaluate(&shard, check, key, before, now);
        let placement = next.map(|state| commit(&mut shard, check, key, slot, state, now));
        drop(shard);
        Decision {
            verdicts: Verdicts::One(verdict),
            overflowed: placement.is_some_and(|placement| self.record_placement(placement)),
        }
    }

    /// Decides and charges the other common case: one check without options, charged on arrival, whose key is new.
    /// Returns `None` for all other checks.
    #[inline(always)]
    fn start_counter(
        &self,
        shard: &mut Shard,
        check: &Check,
        key: Fingerprint,
        now: Timestamp,
    ) -> Option<Decision> {
        if check.charge_timing != ChargeTiming::OnArrival {
            return None;
        }
        let quota = *shard.quota_of_unused(key, check.handle.id)?;
        let (next, outcome) = algorithm::evaluate(None, &quota, check.cost, now);
        let is_charged = outcome == Outcome::Conform;
        let overflowed = is_charged && self.record_placement(shard.insert(key, check.handle.id, next, now));
        let verdict = Verdict::plain(check, outcome, Some((quota, Some(next))));
        Some(Decision { verdicts: Verdicts::One(verdict), overflowed })
    }

    fn record_placement(&self, placement: Placement) -> bool {
        if placement == Placement::Overflow {
            self.overflows.fetch_add(1, Ordering::Relaxed);
        }
        placement == Placement::Overflow
    }
}

/// Charges a request that passes, or reserves its cost until the response is known.
fn commit(
    shard: &mut Shard,
    check: &Check,
    key: Fingerprint,
    slot: SlotLookup,
    state: CounterState,
    now: Timestamp,
) -> Placement {
    match check.charge_timing {
        ChargeTiming::OnArrival => shard.store_state(slot, key, check.handle.id, state, now),
        ChargeTiming::OnResponse | ChargeTiming::WhileInFlight => {
            shard.hold(key, check.handle.id, check.cost);
            Placement::Own
        }
    }
}

#[cfg(test)]
mod tests;
