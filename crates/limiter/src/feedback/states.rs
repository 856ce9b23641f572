//! Shares of one rule's keys, for all threads and across reloads.
//!
//! Only keys that the provider has rejected have an entry. While there is none, a request reads one atomic word. The
//! table is bounded: if it is full of keys that have not recovered, further keys share one entry.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};

use super::super::key::KeyHash;
use super::super::timestamp::Timestamp;
use super::super::{LimitHandle, Limiter};
use super::LimitShare;
use super::controller::{ControllerSettings, MAX_IDLE, MIN_RISE_INTERVAL, ShareController};
use super::sharing::EXCHANGE_TIME;

/// Maximum number of keys of a rule that are followed separately.
const MAX_KEYS: usize = 4096;
/// Minimum time between two removals of recovered entries from a full table.
const MIN_SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Precision of the time at which a key was last used.
const USE_PRECISION: Duration = Duration::from_secs(1);

/// Shares of all rules, by name.
#[derive(Debug, Default)]
pub struct FeedbackBook(Mutex<BTreeMap<Box<str>, Arc<RuleFeedback>>>);

/// What the provider has signalled for the keys of one rule.
#[derive(Debug, Default)]
pub struct RuleFeedback {
    /// Number of entries.
    entries: AtomicU32,
    pub(super) keys: RwLock<HashMap<KeyHash, Arc<KeyFeedback>>>,
    /// Limits that a pause applies to.
    limits: Mutex<Box<[LimitHandle]>>,
    /// When recovered entries were last removed, in nanoseconds.
    swept_at: AtomicU64,
    /// Whether other instances share the limits.
    is_shared: AtomicBool,
    /// Entry of the keys for which the table has no room.
    overflow: Arc<KeyFeedback>,
    rejections: AtomicU64,
    decreases: AtomicU64,
    delayed_retries: AtomicU64,
}

/// What the provider has signalled for one key.
#[derive(Debug)]
pub struct KeyFeedback {
    /// Share in force, in millionths; a copy of that in `state`.
    pub(super) share: AtomicU32,
    /// Whether the limit has been in use since the last increase.
    is_limiting: AtomicBool,
    /// Requests that the provider has admitted and that the controller has not counted.
    admitted: AtomicU32,
    /// When the controller last counted, and when the key was last used, in nanoseconds. They save most requests the
    /// lock.
    counted_at: AtomicU64,
    pub(super) used_at: AtomicU64,
    pub(super) state: Mutex<KeyState>,
}

/// State of one key.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KeyState {
    pub(super) controller: ShareController,
    pub(super) paused_until: Timestamp,
    /// Epoch of the last decrease; 0 if the store does not know it.
    pub(super) epoch: u64,
    /// End of the pause in the store.
    pub(super) shared_pause: Timestamp,
    /// When the state was last published.
    pub(super) published_at: Timestamp,
}

/// State of a rule's keys at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FeedbackStatus {
    /// The smallest share in force among all keys.
    pub share: LimitShare,
    /// Time until the last pause ends; zero if none is in force.
    pub paused_for: Duration,
    /// Number of keys whose limit is reduced or paused.
    pub keys: usize,
    /// Rejections by the provider since the start.
    pub rejections: u64,
    /// Decreases of shares since the start.
    pub decreases: u64,
    /// Retries that waited because the provider has signalled to.
    pub delayed_retries: u64,
}

impl FeedbackBook {
    /// Returns the shares of the rule `name`, whose limits in `limiter` are `limits`. Pauses in force apply to them.
    pub fn of_rule(
        &self,
        name: &str,
        limits: Box<[LimitHandle]>,
        is_shared: bool,
        limiter: &Limiter,
        now: Timestamp,
    ) -> Arc<RuleFeedback> {
        let mut rules = self.0.lock();
        let rule = Arc::clone(rules.entry(name.into()).or_default());
        rule.is_shared.store(is_shared, Ordering::Relaxed);
        rule.replace_limits(limits, limiter, now);
        rule
    }

    /// Forgets the shares of all rules except those for which `is_kept`.
    pub fn retain(&self, is_kept: impl Fn(&str) -> bool) {
        self.0.lock().retain(|name, _| is_kept(name));
    }

    /// Returns all rules, by name.
    pub fn all(&self) -> Vec<(Box<str>, Arc<RuleFeedback>)> {
        self.0.lock().iter().map(|(name, rule)| (name.clone(), Arc::clone(rule))).collect()
    }

    /// Returns the rules whose limits other instances share, by name.
    pub fn shared(&self) -> Vec<(Box<str>, Arc<RuleFeedback>)> {
        let rules = self.0.lock();
        let shared = rules.iter().filter(|(_, rule)| rule.is_shared.load(Ordering::Relaxed));
        shared.map(|(name, rule)| (name.clone(), Arc::clone(rule))).collect()
    }
}

impl Default for KeyFeedback {
    fn default() -> Self {
        Self {
            share: AtomicU32::new(LimitShare::FULL.millionths()),
            is_limiting: AtomicBool::new(false),
            admitted: AtomicU32::new(0),
            counted_at: AtomicU64::new(0),
            used_at: AtomicU64::new(0),
            state: Mutex::default(),
        }
    }
}

impl KeyFeedback {
    fn share(&self) -> LimitShare {
        // Relaxed: no other memory depends on this value.
        LimitShare::from_millionths(self.share.load(Ordering::Relaxed))
    }

    fn time_unused(&self, now: Timestamp) -> Duration {
        now.since(Timestamp::from_nanos(self.used_at.load(Ordering::Relaxed)))
    }

    pub(super) fn change<T>(&self, now: Timestamp, change: impl FnOnce(&mut KeyState) -> T) -> T {
        let mut state = self.state.lock();
        let result = change(&mut state);
        self.used_at.fetch_max(now.as_nanos(), Ordering::Relaxed);
        self.share.store(state.controller.share().millionths(), Ordering::Relaxed);
        result
    }

    fn count_admitted(
        &self,
        state: &mut KeyState,
        decided_at: Timestamp,
        now: Timestamp,
        settings: &ControllerSettings,
    ) {
        let admitted = self.admitted.swap(0, Ordering::Relaxed);
        state.controller.count_admitted(admitted, decided_at, now, settings);
    }

    pub(super) fn is_recovered(&self, now: Timestamp) -> bool {
        let state = self.state.lock();
        let is_idle = self.time_unused(now) > MAX_IDLE;
        state.paused_until <= now && (is_idle || state.controller.share().is_full())
    }
}

impl RuleFeedback {
    /// Returns the share in force for `key`.
    #[inline]
    pub fn share(&self, key: KeyHash) -> LimitShare {
        if self.entries.load(Ordering::Relaxed) == 0 {
            return LimitShare::FULL;
        }
        self.with_entry(key, KeyFeedback::share).unwrap_or(LimitShare::FULL)
    }

    /// Returns the share in force for `key`, and the end of its pause.
    pub fn status_of(&self, key: KeyHash) -> (LimitShare, Timestamp) {
        let status = self.with_entry(key, |entry| {
            let state = entry.state.lock();
            (state.controller.share(), state.paused_until)
        });
        status.unwrap_or((LimitShare::FULL, Timestamp::EPOCH))
    }

    /// Records a request of `key`. `is_limiting`: little of the limit was left, or nothing.
    pub fn record_use(&self, key: KeyHash, is_limiting: bool, now: Timestamp) {
        if self.entries.load(Ordering::Relaxed) == 0 {
            return;
        }
        self.with_entry(key, |entry| {
            if is_limiting {
                entry.is_limiting.store(true, Ordering::Relaxed);
            }
            let unused = entry.time_unused(now);
            if unused > MAX_IDLE {
                entry.change(now, |state| state.controller = ShareController::default());
            } else if unused > USE_PRECISION {
                entry.used_at.fetch_max(now.as_nanos(), Ordering::Relaxed);
            }
        });
    }

    /// Records a rejection by the provider of a request that was decided at `decided_at`, which states that the provider
    /// rejects others for `closed_for`; returns whether the share fell.
    pub fn record_rejection(
        &self,
        key: KeyHash,
        decided_at: Timestamp,
        closed_for: Duration,
        now: Timestamp,
        settings: &ControllerSettings,
    ) -> bool {
        self.rejections.fetch_add(1, Ordering::Relaxed);
        let entry = self.find_or_insert(key, now);
        let has_fallen = entry.change(now, |state| {
            entry.count_admitted(state, decided_at, now, settings);
            let has_fallen = state.controller.on_rejection(decided_at, closed_for, now, settings);
            if has_fallen {
                state.epoch = 0;
            }
            has_fallen
        });
        self.decreases.fetch_add(has_fallen.into(), Ordering::Relaxed);
        has_fallen
    }

    /// Records the response to a request that was decided at `decided_at`, which is no rejection. `stated` is the limit
    /// that it states.
    pub fn record_success(
        &self,
        key: KeyHash,
        decided_at: Timestamp,
        stated: Option<u64>,
        now: Timestamp,
        settings: &ControllerSettings,
    ) {
        if self.entries.load(Ordering::Relaxed) == 0 {
            return;
        }
        self.with_entry(key, |entry| {
            entry.admitted.fetch_add(1, Ordering::Relaxed);
            let since = now.since(Timestamp::from_nanos(entry.counted_at.load(Ordering::Relaxed)));
            if since < MIN_RISE_INTERVAL {
                return;
            }
            entry.counted_at.store(now.as_nanos(), Ordering::Relaxed);
            let is_shared = self.is_shared.load(Ordering::Relaxed);
            let settings = &if is_shared { settings.with_lag(EXCHANGE_TIME) } else { *settings };
            let has_risen = entry.change(now, |state| {
                entry.count_admitted(state, decided_at, now, settings);
                if let Some(limit) = stated {
                    state.controller.record_stated(limit, now);
                }
                entry.is_limiting.load(Ordering::Relaxed)
                    && state.controller.on_success(decided_at, now, settings)
            });
            if has_risen {
                entry.is_limiting.store(false, Ordering::Relaxed);
            }
        });
    }

    /// Pauses the limits for `key` until `until`, unless they are paused longer, or the table has no room for the key:
    /// each pause takes memory.
    pub fn pause(&self, key: KeyHash, until: Timestamp, now: Timestamp, limiter: &Limiter) {
        let entry = self.find_or_insert(key, now);
        if Arc::ptr_eq(&entry, &self.overflow) {
            return;
        }
        let is_later = entry.change(now, |state| {
            let is_later = until > state.paused_until;
            state.paused_until = state.paused_until.max(until);
            is_later
        });
        if is_later {
            self.limits.lock().iter().for_each(|limit| limiter.pause_counter(*limit, key, until, now));
        }
    }

    /// Replaces the limits that pauses apply to. New ones are paused as the others were.
    fn replace_limits(&self, limits: Box<[LimitHandle]>, limiter: &Limiter, now: Timestamp) {
        let mut current = self.limits.lock();
        let added: Vec<_> = limits.iter().filter(|limit| !current.contains(limit)).copied().collect();
        *current = limits;
        drop(current);
        if added.is_empty() {
            return;
        }
        // A pause since the replacement applies to the new limits already, and that of an earlier time has been stored.
        for (key, entry) in self.keys.read().iter() {
            let until = entry.state.lock().paused_until;
            if until > now {
                added.iter().for_each(|limit| limiter.pause_counter(*limit, *key, until, now));
            }
        }
    }

    /// Records a retry that waits because the provider has signalled to.
    pub fn record_delayed_retry(&self) {
        self.delayed_retries.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the state of all keys.
    pub fn status(&self, now: Timestamp) -> FeedbackStatus {
        let mut status = FeedbackStatus {
            share: LimitShare::FULL,
            paused_for: Duration::ZERO,
            keys: 0,
            rejections: self.rejections.load(Ordering::Relaxed),
            decreases: self.decreases.load(Ordering::Relaxed),
            delayed_retries: self.delayed_retries.load(Ordering::Relaxed),
        };
        let keys = self.keys.read();
        for entry in keys.values().chain([&self.overflow]).filter(|entry| !entry.is_recovered(now)) {
            let state = entry.state.lock();
            status.share = status.share.min(state.controller.share());
            status.paused_for = status.paused_for.max(state.paused_until.since(now));
            status.keys += 1;
        }
        status
    }

    /// Calls `read` with the entry of `key`, if there is one.
    fn with_entry<T>(&self, key: KeyHash, read: impl FnOnce(&KeyFeedback) -> T) -> Option<T> {
        let keys = self.keys.read();
        match keys.get(&key) {
            Some(entry) => Some(read(entry)),
            None => (keys.len() >= MAX_KEYS).then(|| read(&self.overflow)),
        }
    }

    pub(super) fn has_entry(&self, key: KeyHash) -> bool {
        self.keys.read().contains_key(&key)
    }

    /// Returns the entry of `key`. If the table is full, entries that have recovered are removed first.
    pub(super) fn find_or_insert(&self, key: KeyHash, now: Timestamp) -> Arc<KeyFeedback> {
        if let Some(entry) = self.keys.read().get(&key) {
            return Arc::clone(entry);
        }
        let mut keys = self.keys.write();
        let swept_at = Timestamp::from_nanos(self.swept_at.load(Ordering::Relaxed));
        if keys.len() >= MAX_KEYS && now.since(swept_at) >= MIN_SWEEP_INTERVAL {
            keys.retain(|_, entry| !entry.is_recovered(now));
            self.swept_at.store(now.as_nanos(), Ordering::Relaxed);
        }
        if keys.len() >= MAX_KEYS && !keys.contains_key(&key) {
            return Arc::clone(&self.overflow);
        }
        let entry = Arc::clone(keys.entry(key).or_default());
        self.entries.store(u32::try_from(keys.len()).unwrap_or(u32::MAX), Ordering::Relaxed);
        entry
    }
}

#[cfg(test)]
mod tests;
