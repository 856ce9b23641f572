//! Which answers are being taken down, and how much memory that takes.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::{Memory, REFRESH};
use crate::limiter::timestamp::Timestamp;
use crate::response::fallback::Kept;
use crate::response::fallback::cache_key::StoreKey;

/// Who takes longer than this is at the pace of a slow client, and the next one need not wait for it.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is being taken down for one memory.
#[derive(Debug, Default)]
pub(super) struct Desk {
    /// One answer to each request at a time, since the others would say the same, and since when.
    keys: Mutex<HashMap<Arc<[u8]>, Timestamp>>,
    /// Bytes that all of them take.
    taken: AtomicU64,
}

/// A place on the desk of a memory; given back when dropped.
#[derive(Debug)]
pub(super) struct Taking {
    memory: Arc<Memory>,
    key: Arc<[u8]>,
    /// Whether the key may say who the client is.
    is_personal: bool,
    since: Timestamp,
    taken: u64,
}

impl Taking {
    /// Starts to record the response for `key`, if one is wanted and no other is being recorded for it.
    pub(super) fn begin(memory: &Arc<Memory>, key: StoreKey<'_>, now: Timestamp) -> Option<Self> {
        let StoreKey { bytes, is_personal } = key;
        if memory.answers.peek(bytes).is_some_and(|kept| kept.kept_for(now) < REFRESH) {
            return None;
        }
        let mut keys = memory.desk.keys.lock();
        let key: Arc<[u8]> = bytes.into();
        if keys.get(&key).is_some_and(|since| now.since(*since) < PATIENCE) {
            return None;
        }
        keys.insert(Arc::clone(&key), now);
        drop(keys);
        let length = key.len() as u64;
        let mut taking = Self { memory: Arc::clone(memory), key, is_personal, since: now, taken: 0 };
        taking.takes(length).then_some(taking)
    }

    /// Whether a response with such a head may be stored.
    pub(super) fn admits(&self, kept: &Kept) -> bool {
        kept.may_be_stored(self.is_personal, &self.memory.headers)
    }

    /// Bytes of an answer that are worth taking down.
    pub(super) fn largest(&self) -> u64 {
        self.memory.keeping.largest
    }

    /// Takes so many bytes more, if there are so many.
    pub(super) fn takes(&mut self, bytes: u64) -> bool {
        let budget = self.memory.keeping.budget;
        let fits = |taken: u64| taken.checked_add(bytes).filter(|sum| *sum <= budget);
        let taken = self.memory.desk.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        if taken.is_ok() {
            self.taken = self.taken.saturating_add(bytes);
        }
        taken.is_ok()
    }

    /// Keeps the answer.
    pub(super) fn keep(self, kept: &Arc<Kept>) {
        if kept.size() as u64 <= self.largest() {
            self.memory.answers.insert(self.key.as_ref().into(), Arc::clone(kept));
        }
    }
}

impl Drop for Taking {
    fn drop(&mut self) {
        self.memory.desk.taken.fetch_sub(self.taken, Ordering::Relaxed);
        let mut keys = self.memory.desk.keys.lock();
        // Else somebody else is at it by now.
        if keys.get(&self.key) == Some(&self.since) {
            keys.remove(&self.key);
        }
    }
}
