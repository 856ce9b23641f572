//! A limiter with a shared limit, for tests.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::algorithm::Algorithm;
use crate::algorithm::conversion::OnChange;
use crate::decision::Enforcement;
use crate::key::KeyHasher;
use crate::leases::LeasePolicy;
use crate::quota::{Limit, Period, Quota, TimeUnit};
use crate::reservation::ChargeTiming;
use crate::timestamp::Timestamp;
use crate::{Check, LimitIdentity, LimitSpec, Limiter, LimiterSettings};

/// Time at which the limit is installed.
pub const NOW: Timestamp = Timestamp::from_nanos(1_700_000_000_000_000_000);

/// A shared limit of 100 an hour for a rule with this name.
pub fn shared_limit(rule: &str) -> LimitSpec {
    let count = NonZeroU32::new(100).expect("not zero");
    let limit = Limit::new(count, Period::one(TimeUnit::Hour));
    let quota = Quota::new(Algorithm::Gcra, limit, Some(count)).expect("valid").leased().expect("valid");
    let lease_policy = Some(LeasePolicy {
        is_exact: false,
        max_wait: Some(Duration::from_millis(5)),
        priority: 0,
        is_max_min: false,
        has_parts: false,
    });
    let identity = LimitIdentity { rule: rule.into(), key: "key".into() };
    LimitSpec { identity, quota, on_change: OnChange::Keep, lease_policy }
}

/// A limiter with one shared limit of 100 an hour, and a check of one unit.
pub fn limiter() -> (Limiter, Check) {
    let limiter = Limiter::new(LimiterSettings { max_keys: 100, secret: [1, 2] });
    let handle = limiter.install(&[shared_limit("shared")], NOW)[0];
    let check = Check {
        handle,
        key: KeyHasher::new([3, 4]).hash(b"a"),
        cost: 1,
        enforcement: Enforcement::Enforced,
        charge_timing: ChargeTiming::OnArrival,
        options: None,
    };
    (limiter, check)
}

/// A limiter with one limit of this quota, installed at `now`, and a check of one unit.
pub fn limiter_of(quota: Quota, now: Timestamp) -> (Limiter, Check) {
    let limiter = Limiter::new(LimiterSettings { max_keys: 1000, secret: [1, 2] });
    let identity = LimitIdentity { rule: "rule".into(), key: "[]".into() };
    let spec = LimitSpec { identity, quota, on_change: OnChange::Keep, lease_policy: None };
    let check = Check {
        handle: limiter.install(&[spec], now)[0],
        key: limiter.hasher().hash(b"a"),
        cost: 1,
        enforcement: Enforcement::Enforced,
        charge_timing: ChargeTiming::OnArrival,
        options: None,
    };
    (limiter, check)
}
