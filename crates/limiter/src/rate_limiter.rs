//! A limiter with the same quotas for every key, for programs that need no more than that.
//!
//! [`RateLimiter`] has counters per key, [`DirectRateLimiter`] has one for all requests. Both use a [`Limiter`], whose
//! table decides under a lock, so threads never admit more than the quota. The time is an argument of every call.
//! Limits that change while the program runs, shared limits and bans need a [`Limiter`].

mod admitted;

use std::fmt;
use std::hash::{BuildHasher, Hash, RandomState};
use std::marker::PhantomData;
use std::time::Duration;

use smallvec::SmallVec;

pub use self::admitted::{Admitted, RetryAfter};
use crate::algorithm::CounterUsage;
use crate::algorithm::conversion::OnChange;
use crate::check_options::{CheckOptions, CounterRole, DelayPolicy};
use crate::decision::Enforcement;
use crate::key::KeyHash;
use crate::quota::Quota;
use crate::reservation::ChargeTiming;
use crate::timestamp::Timestamp;
use crate::{Check, LimitHandle, LimitIdentity, LimitSpec, Limiter, LimiterSettings};

/// Maximum number of counters, unless [`RateLimiter::with_settings`] sets it.
pub const DEFAULT_MAX_KEYS: usize = 100_000;

impl LimiterSettings {
    /// Returns settings for at most `max_keys` counters, with a secret of the standard library's source of randomness.
    pub fn with_max_keys(max_keys: usize) -> Self {
        let random = RandomState::new();
        Self { max_keys, secret: [random.hash_one(0_u8), random.hash_one(1_u8)] }
    }
}

/// Limits every key of type `K` on its own, by the same quotas.
///
/// A key can be anything that is [`Hash`]: an address, a `str`, bytes, a tuple. Only its hash is kept, 128 bits under a
/// secret, so a counter has the same size for every key. `Eq` is not used: keys that feed the same bytes to a hasher are
/// the same key.
///
/// The table has room for a fixed number of counters. A counter that is in use is never removed to make room. If the
/// table is full of them, new keys share a counter, which can reject sooner but never admits more, and
/// [`Admitted::is_shared`] and [`Self::overflows`] report it.
///
/// ```
/// use weir_limiter::{Quota, RateLimiter, Timestamp};
///
/// let limiter = RateLimiter::keyed(Quota::per_second(100).burst(2).build()?);
/// let now = Timestamp::from_secs(1_800_000_000);
/// assert_eq!(limiter.check("alice", now)?.remaining(), 1);
/// assert!(limiter.check("alice", now).is_ok());
/// assert_eq!(limiter.check("alice", now).unwrap_err().wait().as_millis(), 10);
/// assert!(limiter.check("bob", now).is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RateLimiter<K: ?Sized> {
    limits: Limits,
    keys: PhantomData<fn(&K)>,
}

/// Limits all requests together, by the same quotas.
///
/// ```
/// use weir_limiter::{Quota, RateLimiter, Timestamp};
///
/// let limiter = RateLimiter::direct(Quota::per_minute(3).build()?);
/// let now = Timestamp::from_secs(1_800_000_000);
/// assert_eq!((1..=5).filter(|_| limiter.check(now).is_ok()).count(), 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct DirectRateLimiter {
    limits: Limits,
}

impl RateLimiter<()> {
    /// Creates a limiter without keys.
    pub fn direct(quota: Quota) -> DirectRateLimiter {
        Self::direct_all(&[quota])
    }

    /// Creates a limiter without keys that admits a request only if all of `quotas` do. A rejected request is charged to
    /// none of them.
    pub fn direct_all(quotas: &[Quota]) -> DirectRateLimiter {
        DirectRateLimiter { limits: Limits::new(quotas, LimiterSettings::with_max_keys(quotas.len())) }
    }
}

impl<K: Hash + ?Sized> RateLimiter<K> {
    /// Creates a limiter for at most [`DEFAULT_MAX_KEYS`] keys at once.
    ///
    /// A leased quota is counted here, as [`Quota::store_quota`]. The quota of a ban rejects nothing.
    pub fn keyed(quota: Quota) -> Self {
        Self::with_settings(&[quota], LimiterSettings::with_max_keys(DEFAULT_MAX_KEYS))
    }

    /// Creates a limiter that admits a request only if all of `quotas` do. A rejected request is charged to none of them.
    pub fn keyed_all(quotas: &[Quota]) -> Self {
        Self::with_settings(quotas, LimiterSettings::with_max_keys(DEFAULT_MAX_KEYS))
    }

    /// Creates a limiter with a table of another size. Each key has one counter per quota.
    pub fn with_settings(quotas: &[Quota], settings: LimiterSettings) -> Self {
        Self { limits: Limits::new(quotas, settings), keys: PhantomData }
    }

    /// Decides a request of one unit, and charges it if it is admitted.
    ///
    /// # Errors
    /// [`RetryAfter`] if the request is rejected. It is not charged.
    #[inline]
    pub fn check(&self, key: &K, now: Timestamp) -> Result<Admitted<'_>, RetryAfter> {
        self.limits.check(self.hash(key), 1, now)
    }

    /// Decides a request of `units`, of which all are charged or none.
    ///
    /// # Errors
    /// [`RetryAfter`] if the request is rejected. It is not charged.
    #[inline]
    pub fn check_n(&self, key: &K, units: u32, now: Timestamp) -> Result<Admitted<'_>, RetryAfter> {
        self.limits.check(self.hash(key), units, now)
    }

    /// Decides a request of `units` that may wait for up to `max_delay`, in whole milliseconds. It is charged now, in the
    /// order of the calls, and has to wait for [`Admitted::delay`]. At most 10 000 requests of a key wait at once.
    ///
    /// Quotas whose algorithm cannot delay ([`crate::algorithm::Algorithm::can_delay`]) admit or reject at once.
    ///
    /// # Errors
    /// [`RetryAfter`] if the wait would be longer. The request is not charged. The time is that until the same request
    /// would be admitted with a wait.
    pub fn reserve(
        &self,
        key: &K,
        units: u32,
        max_delay: Duration,
        now: Timestamp,
    ) -> Result<Admitted<'_>, RetryAfter> {
        self.limits.reserve(self.hash(key), units, max_delay, now)
    }

    /// Returns whether a request of `units` would be admitted, without charging it.
    ///
    /// # Errors
    /// [`RetryAfter`] if it would be rejected.
    pub fn peek(&self, key: &K, units: u32, now: Timestamp) -> Result<(), RetryAfter> {
        self.limits.peek(self.hash(key), units, now)
    }

    /// Charges `units` without deciding, even beyond the limit: for costs that are known afterwards, such as failed
    /// logins.
    pub fn charge(&self, key: &K, units: u32, now: Timestamp) {
        self.limits.charge(self.hash(key), units, now);
    }

    /// Returns the usage of the quota that has the fewest units left for `key`.
    pub fn usage(&self, key: &K, now: Timestamp) -> CounterUsage {
        self.limits.usage(self.hash(key), now)
    }

    /// Returns the number of counters in the table, in use or not yet reclaimed.
    pub fn live_keys(&self) -> usize {
        self.limits.limiter.live_keys()
    }

    /// Returns how often a new key was charged to a shared counter, because the table was full.
    pub fn overflows(&self) -> u64 {
        self.limits.limiter.overflows()
    }

    #[inline]
    fn hash(&self, key: &K) -> KeyHash {
        self.limits.limiter.hasher().hash_of(key)
    }
}

impl<K: ?Sized> fmt::Debug for RateLimiter<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimiter").field("limits", &self.limits).finish()
    }
}

impl DirectRateLimiter {
    /// The only key.
    const KEY: KeyHash = KeyHash::from_words([0; 2]);

    /// Decides a request of one unit; see [`RateLimiter::check`].
    ///
    /// # Errors
    /// [`RetryAfter`] if the request is rejected. It is not charged.
    #[inline]
    pub fn check(&self, now: Timestamp) -> Result<Admitted<'_>, RetryAfter> {
        self.limits.check(Self::KEY, 1, now)
    }

    /// Decides a request of `units`; see [`RateLimiter::check_n`].
    ///
    /// # Errors
    /// [`RetryAfter`] if the request is rejected. It is not charged.
    #[inline]
    pub fn check_n(&self, units: u32, now: Timestamp) -> Result<Admitted<'_>, RetryAfter> {
        self.limits.check(Self::KEY, units, now)
    }

    /// Decides a request of `units` that may wait; see [`RateLimiter::reserve`].
    ///
    /// # Errors
    /// [`RetryAfter`] if the wait would be longer than `max_delay`. The request is not charged.
    pub fn reserve(
        &self,
        units: u32,
        max_delay: Duration,
        now: Timestamp,
    ) -> Result<Admitted<'_>, RetryAfter> {
        self.limits.reserve(Self::KEY, units, max_delay, now)
    }

    /// Returns whether a request of `units` would be admitted, without charging it.
    ///
    /// # Errors
    /// [`RetryAfter`] if it would be rejected.
    pub fn peek(&self, units: u32, now: Timestamp) -> Result<(), RetryAfter> {
        self.limits.peek(Self::KEY, units, now)
    }

    /// Charges `units` without deciding, even beyond the limit.
    pub fn charge(&self, units: u32, now: Timestamp) {
        self.limits.charge(Self::KEY, units, now);
    }

    /// Returns the usage of the quota that has the fewest units left.
    pub fn usage(&self, now: Timestamp) -> CounterUsage {
        self.limits.usage(Self::KEY, now)
    }
}

/// A limiter, and the limits that each of its requests must pass.
#[derive(Debug)]
struct Limits {
    limiter: Limiter,
    handles: SmallVec<[LimitHandle; 1]>,
}

impl Limits {
    fn new(quotas: &[Quota], settings: LimiterSettings) -> Self {
        let limiter = Limiter::new(settings);
        let spec = |quota: &Quota| LimitSpec {
            identity: LimitIdentity { rule: "".into(), key: "".into() },
            quota: quota.store_quota(),
            on_change: OnChange::Keep,
            lease_policy: None,
        };
        let specs: Vec<_> = quotas.iter().map(spec).collect();
        // Units that were charged before the installation could not be given back.
        let handles = limiter.install(&specs, Timestamp::EPOCH).into();
        Self { limiter, handles }
    }

    #[inline]
    fn check(&self, key: KeyHash, cost: u32, now: Timestamp) -> Result<Admitted<'_>, RetryAfter> {
        self.decide(key, cost, None, now)
    }

    fn reserve(
        &self,
        key: KeyHash,
        cost: u32,
        max_delay: Duration,
        now: Timestamp,
    ) -> Result<Admitted<'_>, RetryAfter> {
        let role = CounterRole::Delay(DelayPolicy::new(max_delay, None));
        let options = CheckOptions::new(0, role);
        self.decide(key, cost, Some(options), now)
    }

    #[inline]
    fn decide(
        &self,
        key: KeyHash,
        cost: u32,
        options: Option<CheckOptions>,
        now: Timestamp,
    ) -> Result<Admitted<'_>, RetryAfter> {
        let decision = match self.handles.as_slice() {
            // One limit, the common case, needs no list.
            &[handle] => self.limiter.check(&[check(handle, key, cost, options)], now),
            _ => {
                let checks: SmallVec<[Check; 4]> = self.checks(key, cost, options).collect();
                self.limiter.check(&checks, now)
            }
        };
        match decision.is_rejected() {
            true => Err(RetryAfter::of(&decision)),
            false => Ok(Admitted { limits: self, key, units: cost, at: now, decision }),
        }
    }

    fn peek(&self, key: KeyHash, cost: u32, now: Timestamp) -> Result<(), RetryAfter> {
        let decision = self.limiter.peek(self.checks(key, cost, None), now);
        if decision.is_rejected() { Err(RetryAfter::of(&decision)) } else { Ok(()) }
    }

    fn charge(&self, key: KeyHash, units: u32, now: Timestamp) {
        self.handles.iter().for_each(|handle| self.limiter.charge(*handle, key, units.into(), now));
    }

    fn usage(&self, key: KeyHash, now: Timestamp) -> CounterUsage {
        tightest(self.handles.iter().filter_map(|handle| self.limiter.usage(*handle, key, now)))
    }

    fn checks(&self, key: KeyHash, cost: u32, options: Option<CheckOptions>) -> impl Iterator<Item = Check> {
        self.handles.iter().map(move |handle| check(*handle, key, cost, options))
    }
}

#[inline]
const fn check(handle: LimitHandle, key: KeyHash, cost: u32, options: Option<CheckOptions>) -> Check {
    let (enforcement, charge_timing) = (Enforcement::Enforced, ChargeTiming::OnArrival);
    Check { handle, key, cost, enforcement, charge_timing, options }
}

/// Returns the usage with the fewest units left. Without a limit, nothing is used and everything is left.
fn tightest(usages: impl Iterator<Item = CounterUsage>) -> CounterUsage {
    let unlimited = CounterUsage { used: 0, remaining: u32::MAX, reset: Duration::ZERO };
    usages.min_by_key(|usage| usage.remaining).unwrap_or(unlimited)
}

#[cfg(test)]
mod tests;
