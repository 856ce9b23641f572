//! Recordings in progress for a fallback cache, and the memory that they take.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::{REFRESH_INTERVAL, RuleCache};
use weir_limiter::timestamp::Timestamp;
use weir_policy::response::fallback::CachedResponse;
use weir_policy::response::fallback::cache_key::StoreKey;

/// Age after which a recording no longer prevents another one of the same response. Its client is slow.
const RECORDING_TIMEOUT: Duration = Duration::from_secs(5);

/// Recordings in progress for one cache.
#[derive(Debug, Default)]
pub(super) struct RecordingRegistry {
    /// Keys being recorded and the start of each recording. Concurrent responses to the same request would be the same,
    /// so only one is recorded.
    keys: Mutex<HashMap<Arc<[u8]>, Timestamp>>,
    /// Bytes that all recordings take.
    reserved: AtomicU64,
}

/// One recording for one cache; releases its key and its memory on drop.
#[derive(Debug)]
pub(super) struct ActiveRecording {
    cache: Arc<RuleCache>,
    key: Arc<[u8]>,
    /// Whether the key may identify the client.
    is_personal: bool,
    since: Timestamp,
    reserved: u64,
}

impl ActiveRecording {
    /// Starts to record the response for `key`. Returns `None` if the stored one is recent, if it is already being
    /// recorded, or if there is no memory left.
    pub(super) fn start(memory: &Arc<RuleCache>, key: StoreKey<'_>, now: Timestamp) -> Option<Self> {
        let StoreKey { bytes, is_personal } = key;
        if memory.responses.peek(bytes).is_some_and(|kept| kept.time_in_cache(now) < REFRESH_INTERVAL) {
            return None;
        }
        let mut keys = memory.recordings.keys.lock();
        let key: Arc<[u8]> = bytes.into();
        if keys.get(&key).is_some_and(|since| now.since(*since) < RECORDING_TIMEOUT) {
            return None;
        }
        keys.insert(Arc::clone(&key), now);
        drop(keys);
        let length = key.len() as u64;
        let mut taking = Self { cache: Arc::clone(memory), key, is_personal, since: now, reserved: 0 };
        taking.reserve(length).then_some(taking)
    }

    /// Whether a response with such a head may be stored.
    pub(super) fn may_store(&self, response: &CachedResponse) -> bool {
        response.may_be_stored(self.is_personal, &self.cache.headers)
    }

    /// Returns the maximum size of a stored response in bytes.
    pub(super) fn max_size(&self) -> u64 {
        self.cache.settings.max_size
    }

    /// Reserves memory; returns `false` if the budget does not allow it.
    pub(super) fn reserve(&mut self, bytes: u64) -> bool {
        let budget = self.cache.settings.budget;
        let fits = |taken: u64| taken.checked_add(bytes).filter(|sum| *sum <= budget);
        let taken = self.cache.recordings.reserved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        if taken.is_ok() {
            self.reserved = self.reserved.saturating_add(bytes);
        }
        taken.is_ok()
    }

    /// Stores the response, unless it is too large.
    pub(super) fn store(self, response: &Arc<CachedResponse>) {
        if response.size() as u64 <= self.max_size() {
            self.cache.responses.insert(self.key.as_ref().into(), Arc::clone(response));
        }
    }
}

impl Drop for ActiveRecording {
    fn drop(&mut self) {
        self.cache.recordings.reserved.fetch_sub(self.reserved, Ordering::Relaxed);
        let mut keys = self.cache.recordings.keys.lock();
        // A later recording may have replaced this one.
        if keys.get(&self.key) == Some(&self.since) {
            keys.remove(&self.key);
        }
    }
}
