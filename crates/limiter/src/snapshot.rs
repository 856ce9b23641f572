//! Copies of the counters of one request, to decide it without changing anything.

use super::timestamp::Timestamp;
use super::{Check, Limiter, LimiterSettings};

/// Room in a copy besides one counter per check.
const SPARE_COUNTERS: usize = 64;

impl Limiter {
    /// Returns a limiter with copies of the counters of `checks` and their overrides, all of one moment, and nothing
    /// else. It decides these checks as this limiter would, and whatever it charges has no effect here.
    pub fn copy_for(&self, checks: &[Check], now: Timestamp) -> Self {
        let max_keys = checks.len().saturating_mul(2).saturating_add(SPARE_COUNTERS);
        let settings = LimiterSettings { max_keys, secret: self.hasher.secret() };
        let copy = Self::new(settings);
        copy.join_fleet(self.fleet());
        let keys = || checks.iter().map(|check| check.key.salted(check.handle.salt));
        let locked = self.table.lock_all(keys());
        for (check, key) in checks.iter().zip(keys()) {
            let source = locked.shard(key);
            let mut target = copy.table.lock(copy.table.shard_of(key));
            target.adopt_quotas(source.quotas(), now);
            if !target.contains(key) {
                source.copy_counter(key, check.handle.id, &mut target);
            }
        }
        drop(locked);
        copy
    }
}
