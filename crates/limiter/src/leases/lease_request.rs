//! Queries to the store about one counter, and the grants that it returns.

use std::time::Duration;

use super::{LeasePolicy, LeaseResponse, SharedCounter};
use crate::algorithm::{Refill, fixed_window};
use crate::quota::Quota;
use crate::timestamp::Timestamp;

/// Maximum validity of a lease. It bounds how long a unit can be unused, and how long a change of a limit takes.
pub(super) const MAX_VALID: Duration = Duration::from_secs(1);
/// Minimum validity of a lease. If the maximum for a limit is shorter, units are leased only for waiting requests, one
/// at a time.
const MIN_VALID: Duration = Duration::from_millis(4);
/// Minimum validity of a grant for a waiting request. Such a request is decided when the units are granted, so that they
/// only have to arrive.
pub(super) const MIN_ARRIVAL: Duration = Duration::from_millis(20);
/// Number of sub-windows in which the store counts a sliding window.
const SUB_WINDOWS: u32 = 100;
/// A day without a change of the clock.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Validity of permits without a query from their instance.
const PERMITS_VALID: Duration = Duration::from_secs(3);

/// A query about one counter.
#[derive(Clone, Debug, PartialEq)]
pub struct LeaseRequest {
    /// The counter.
    pub counter: SharedCounter,
    /// How the store counts it.
    pub kind: StoreCounterKind,
    /// How it is shared.
    pub lease_policy: LeasePolicy,
    /// Validity of the lease, from the query on; zero if it is for waiting requests.
    pub valid: Duration,
    /// Time for a grant for waiting requests to arrive.
    pub arrival: Duration,
    /// Units for waiting requests. If fewer are left, the store grants what is left.
    pub needed: u32,
    /// Units of the smallest of these requests. If fewer are left, the store grants none.
    pub least: u32,
    /// Units that would be spent within `period`, including `needed`.
    pub requested: u32,
    /// Units demanded since the last query, spent or rejected.
    pub demanded: u32,
    /// Time since the last query.
    pub elapsed: Duration,
    /// Units given back.
    pub returned: ReturnedUnits,
    /// Units spent beyond the lease.
    pub owed: u32,
    /// The time for which `requested` is needed.
    pub period: Duration,
}

/// Units that an instance gives back to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReturnedUnits {
    /// Number of units.
    pub units: u32,
    /// Earliest time at which they were granted, by the store's clock, in microseconds.
    pub granted_at: u64,
}

/// How the store counts a limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StoreCounterKind {
    /// A bucket that drains continuously.
    Bucket {
        /// Microseconds in which one unit drains.
        interval: f64,
        /// Maximum level.
        burst: u32,
    },
    /// A count per window of the clock and the calendar.
    Window {
        /// Units.
        count: u32,
        /// The quota, whose calendar determines the windows.
        quota: Quota,
    },
    /// A count in any span of this length.
    Sliding {
        /// Units.
        count: u32,
        /// The span.
        length: Duration,
        /// Number of sub-windows.
        sub_windows: u32,
    },
    /// Tokens added at intervals, up to a burst.
    Refill {
        /// Tokens of one refill.
        count: u32,
        /// Time between refills.
        every: Duration,
        /// Maximum number of tokens.
        burst: u32,
    },
    /// A concurrency limit.
    Permits {
        /// Permits.
        count: u32,
        /// Permits in use by this instance.
        used: u32,
        /// Permits that this instance may use until the store has responded.
        held: u32,
    },
}

/// A grant of the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseGrant {
    /// Units.
    pub granted: u32,
    /// Validity, from when the query was sent.
    pub valid: Duration,
    /// Time of the grant by the store's clock, in microseconds.
    pub granted_at: u64,
    /// If nothing is granted to waiting requests: time until there is something.
    pub wait: Duration,
    /// Period over which instances spread their next queries after `wait`.
    pub spread: Duration,
    /// If less than `requested` is granted: time until the next share is due.
    pub pause: Duration,
    /// Units left for all instances.
    pub remaining: u32,
}

impl LeasePolicy {
    /// Returns the policy with `wait` as the maximum wait, unless it has one of its own.
    pub fn with_wait(self, wait: Duration) -> Self {
        Self { max_wait: self.max_wait.or(Some(wait)), ..self }
    }

    /// Time for a grant for a waiting request to arrive from a store that takes `latency` to respond. Twice the latency,
    /// because the next response may take longer, and twice as long for each of the last grants that came too late.
    pub(super) fn arrival(&self, latency: Duration, late_grants: u32) -> Duration {
        let arrival = latency.saturating_mul(2).max(MIN_ARRIVAL);
        arrival.saturating_mul(1_u32.checked_shl(late_grants).unwrap_or(u32::MAX)).min(self.max_arrival())
    }

    /// Maximum of [`Self::arrival`]: after seven eighths of it no request waits any more, except by rules whose
    /// requests wait for almost a second.
    pub(super) fn max_arrival(&self) -> Duration {
        (self.max_wait.unwrap_or_default().saturating_mul(8) / 7).clamp(MIN_ARRIVAL, MAX_VALID)
    }
}

impl StoreCounterKind {
    pub(super) fn from_quota(quota: &Quota, in_use: u64) -> Self {
        let quota = quota.store_quota();
        let count = u32::try_from(quota.count()).unwrap_or(u32::MAX);
        match quota.algorithm().refill() {
            Refill::Continuous => Self::Bucket {
                interval: quota.period_nanos() as f64 / 1000.0 / f64::from(count),
                burst: quota.capacity(),
            },
            Refill::Batches => {
                Self::Refill { count, every: quota.window().duration(), burst: quota.capacity() }
            }
            Refill::Window => Self::Window { count, quota },
            Refill::Sliding => {
                Self::Sliding { count, length: quota.window().duration(), sub_windows: SUB_WINDOWS }
            }
            Refill::None => {
                let used = u32::try_from(in_use).unwrap_or(u32::MAX);
                Self::Permits { count: quota.capacity(), used, held: 0 }
            }
        }
    }

    /// Maximum validity of a lease for which the bound holds.
    ///
    /// The store reduces a bucket's burst by what drains during the validity, and two fifths of the burst must be left.
    /// Units of a window have to be spent in the part of the window in which they were counted.
    fn max_valid(&self) -> Duration {
        let max_validity = match *self {
            Self::Bucket { interval, burst } => {
                Duration::from_secs_f64(interval * f64::from(burst - 1) * 0.6 / 1e6)
            }
            Self::Window { .. } => MAX_VALID,
            Self::Sliding { length, sub_windows: parts, .. } => length / parts,
            Self::Refill { every, .. } => every,
            Self::Permits { .. } => return PERMITS_VALID,
        };
        if max_validity < MIN_VALID { Duration::ZERO } else { max_validity.min(MAX_VALID) }
    }

    /// Maximum validity of a lease; zero if leases are only for waiting requests and valid until they arrive.
    pub(super) fn max_validity(&self, is_exact: bool) -> Duration {
        if is_exact && !self.is_permits() {
            return self.valid_to_arrive(MIN_ARRIVAL, is_exact);
        }
        self.max_valid()
    }

    /// Validity of a lease for waiting requests that is to arrive within `arrival`.
    pub(super) fn valid_to_arrive(&self, arrival: Duration, is_exact: bool) -> Duration {
        match self {
            // No part of the burst is withheld for units that are granted and not yet spent.
            Self::Bucket { .. } if is_exact => Duration::ZERO,
            _ => self.max_valid().min(arrival),
        }
    }

    /// Validity of a lease of `needed` units for waiting requests; with `is_ahead`, also for further demand.
    pub(super) fn valid_for(
        &self,
        needed: u32,
        is_ahead: bool,
        arrival: Duration,
        is_exact: bool,
    ) -> Duration {
        let fits = |valid: &Duration| f64::from(needed) <= self.max_leasable(*valid);
        if let Some(ahead) = is_ahead.then(|| self.max_validity(is_exact)).filter(fits) {
            return ahead;
        }
        let to_arrive = self.valid_to_arrive(arrival.min(self.max_valid_of(needed)), is_exact);
        if to_arrive >= self.valid_to_arrive(MIN_ARRIVAL, is_exact) { to_arrive } else { Duration::ZERO }
    }

    /// Maximum validity of a lease of this many units.
    fn max_valid_of(&self, units: u32) -> Duration {
        match *self {
            Self::Bucket { interval, burst } => {
                Duration::from_secs_f64(interval * f64::from(burst.saturating_sub(units)) / 1e6)
            }
            _ => Duration::MAX,
        }
    }

    /// Maximum number of units of one grant.
    pub fn capacity(&self) -> u32 {
        match *self {
            Self::Bucket { burst, .. } | Self::Refill { burst, .. } => burst,
            Self::Window { count, .. } | Self::Sliding { count, .. } | Self::Permits { count, .. } => count,
        }
    }

    /// Maximum number of units of a lease with this validity.
    pub(super) fn max_leasable(&self, valid: Duration) -> f64 {
        match *self {
            Self::Bucket { interval, burst } => f64::from(burst) - valid.as_secs_f64() * 1e6 / interval,
            _ => f64::from(self.capacity()),
        }
    }

    /// Time after which nothing matters any more that was spent, in whole microseconds; `None` for permits.
    ///
    /// The store and instances compare it with the same number, so it is computed here only.
    pub fn settle_time(&self) -> Option<Duration> {
        let micros = |micros: f64| Duration::from_micros(micros.ceil() as u64);
        Some(match *self {
            Self::Bucket { interval, burst } => micros(interval * f64::from(burst)),
            // Days of a calendar differ in length.
            Self::Window { quota, .. } => match quota.window().duration() {
                length if length < DAY => length,
                length => length.saturating_mul(9) / 8,
            },
            Self::Sliding { length, sub_windows: parts, .. } => {
                micros((length.saturating_add(length / parts)).as_secs_f64() * 1e6)
            }
            Self::Refill { count, every, burst } => {
                every.saturating_mul(burst.div_ceil(count).saturating_add(1))
            }
            Self::Permits { .. } => return None,
        })
    }

    /// Returns the time in which as many units are admitted under the limit as it has.
    fn period(&self) -> Duration {
        match *self {
            Self::Bucket { interval, burst } => {
                Duration::try_from_secs_f64(interval * f64::from(burst) / 1e6).unwrap_or(Duration::MAX)
            }
            Self::Window { quota, .. } => quota.window().duration(),
            Self::Sliding { length, .. } => length,
            Self::Refill { count, every, burst } => every.mul_f64(f64::from(burst) / f64::from(count)),
            Self::Permits { .. } => Duration::ZERO,
        }
    }

    pub(super) const fn is_permits(&self) -> bool {
        matches!(self, Self::Permits { .. })
    }
}

/// Returns the time after which nothing matters that was spent of a limit with this quota; `None` for permits.
pub fn settle_time(quota: &Quota) -> Option<Duration> {
    StoreCounterKind::from_quota(quota, 0).settle_time()
}

/// Maximum excess of all instances over one instance, in units, in any window.
///
/// The store counts `quota` and no request costs more than `cost`. Units granted to waiting requests are spent up to
/// [`LeasePolicy::max_arrival`] later than they were counted.
pub fn excess(quota: &Quota, cost: u32, policy: &LeasePolicy) -> f64 {
    let kind = StoreCounterKind::from_quota(quota, 0);
    let valid = kind.valid_to_arrive(MIN_ARRIVAL, policy.is_exact);
    if !valid.is_zero() && f64::from(cost.min(kind.capacity())) <= kind.max_leasable(valid) {
        return 0.0;
    }
    match kind {
        StoreCounterKind::Bucket { interval, .. } => policy.max_arrival().as_secs_f64() * 1e6 / interval,
        StoreCounterKind::Window { count, .. } => f64::from(count),
        StoreCounterKind::Sliding { count, length: period, .. }
        | StoreCounterKind::Refill { count, every: period, .. } => {
            f64::from(count) * (policy.max_arrival().as_secs_f64() / period.as_secs_f64()).ceil()
        }
        StoreCounterKind::Permits { .. } => 0.0,
    }
}

impl LeaseRequest {
    /// Time after which nothing matters that was spent under the limit, if parts of it are held back for instances that do
    /// not reach the store.
    pub fn settle_time_of_parts(&self) -> Option<Duration> {
        self.kind.settle_time().filter(|_| self.lease_policy.has_parts)
    }

    /// Demand since the last query, as the time in which the limit admits as much.
    pub fn demanded_time(&self) -> Duration {
        self.kind.period().mul_f64(f64::from(self.demanded) / f64::from(self.kind.capacity().max(1)))
    }

    /// A number from 0 to 1 that differs between instances, so that not all of them query at the same moment.
    pub(super) fn spread_fraction(&self) -> f64 {
        let (name, nanos) = (self.counter.name() as u64, self.elapsed.as_nanos() as u64);
        let mixed = (name ^ nanos).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Number of units below which waiting requests are rejected. For permits it includes those in use.
    pub(super) fn min_units(&self) -> u32 {
        match self.kind {
            StoreCounterKind::Permits { used, .. } => used.saturating_add(self.needed),
            _ => self.needed,
        }
    }

    /// What a grant that arrives at `now` means for the requests that waited for it.
    pub(super) fn response(&self, grant: LeaseGrant, sent: Timestamp, now: Timestamp) -> LeaseResponse {
        match grant.covers_waiting(self) {
            false => LeaseResponse::NoUnits,
            true if self.is_hopelessly_late(grant, sent, now) => LeaseResponse::Unusable,
            true => LeaseResponse::Units,
        }
    }

    /// Whether the lease has expired by `now`, and that of another query would be valid no longer.
    fn is_hopelessly_late(&self, grant: LeaseGrant, sent: Timestamp, now: Timestamp) -> bool {
        if now < sent.saturating_add(grant.spendable(self)) {
            return false;
        }
        let max_arrival = self.lease_policy.max_arrival();
        match self.valid.is_zero() {
            true => self.arrival >= max_arrival,
            false => {
                let is_exact = self.lease_policy.is_exact;
                self.valid >= self.kind.valid_for(self.needed, false, max_arrival, is_exact)
            }
        }
    }

    /// Boundaries of a fixed window: start and end of the window that contains `now`, and the end of the next.
    pub fn window_bounds(quota: &Quota, now: Timestamp) -> [Timestamp; 3] {
        fixed_window::window_bounds(quota, now)
    }
}

impl LeaseGrant {
    /// Whether it covers the requests that waited for it.
    pub fn covers_waiting(&self, request: &LeaseRequest) -> bool {
        self.granted >= request.min_units()
    }

    /// Time for which the lease may be spent by this process's clock: an eighth less than by the store's, because the
    /// clocks may run at different rates (`clock` runs up to six per cent slower while it corrects a lead).
    pub(super) fn spendable(&self, request: &LeaseRequest) -> Duration {
        let valid = if request.valid.is_zero() { request.arrival } else { self.valid };
        valid * 7 / 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leases::StoreLatency;
    use crate::testing::{NOW, limiter};

    /// Returns what waiting requests learn from a grant of `granted` units that arrives after this many milliseconds.
    fn response(granted: u32, millis: u64) -> LeaseResponse {
        let (limiter, check) = limiter();
        limiter.acquire_units(&check, NOW);
        let counter = limiter.shared_counter(&check);
        let request = limiter.lease_request(counter, StoreLatency::default(), NOW).unwrap();
        let grant = LeaseGrant { granted, valid: request.valid, remaining: 50, ..LeaseGrant::default() };
        limiter.apply_grant(&request, grant, NOW, NOW.saturating_add(Duration::from_millis(millis))).response
    }

    #[test]
    fn grant_that_comes_too_late_is_not_an_exhausted_limit() {
        assert_eq!(response(1, 1), LeaseResponse::Units);
        assert_eq!(response(0, 1), LeaseResponse::NoUnits);
        assert_eq!(response(1, 1000), LeaseResponse::Unusable);
        assert_eq!(response(0, 1000), LeaseResponse::NoUnits);
    }
}
