//! Evaluates one check against its counter.

use std::time::Duration;

use super::Check;
use super::algorithm::history::History;
use super::algorithm::{self, Counter, CounterState, Outcome};
use super::check_options::{CheckOptions, CounterRole, DelayPolicy};
use super::decision::{Enforcement, Override, Verdict};
use super::key::Fingerprint;
use super::quota::Quota;
use super::reservation::{self, ChargeTiming};
use super::table::{Shard, SlotLookup};
use super::timestamp::{Timestamp, saturating_nanos};

/// A counter before a check.
#[derive(Clone, Copy, Debug)]
pub(super) struct CounterView<'a> {
    pub(super) counter: Counter<'a>,
    /// Units reserved on the counter, where they affect the check.
    pub(super) held: u64,
    /// For a shared limit: units left for all instances, in addition to those in the lease.
    remaining_outside_slot: u32,
}

impl<'a> CounterView<'a> {
    pub(super) fn new(
        shard: &'a Shard,
        check: &Check,
        key: Fingerprint,
        slot: SlotLookup,
        now: Timestamp,
    ) -> Self {
        let held = match (check.charge_timing, check.options) {
            // If other requests may hold reservations on the counter, the check has options.
            (ChargeTiming::OnArrival, None) => 0,
            _ => units_held(shard, check, key),
        };
        let is_claimed = shard.quota_of(key, check.handle.id).is_some_and(Quota::is_leased);
        let outside_slot = if is_claimed { shard.remaining_outside_slot(key, now) } else { 0 };
        Self { counter: shard.counter(slot, check.handle.id), held, remaining_outside_slot: outside_slot }
    }
}

/// Units that are reserved on the counter of `check`, and those by which its limit is below the quota.
pub(super) fn units_held(shard: &Shard, check: &Check, key: Fingerprint) -> u64 {
    let held = shard.held_of(key, check.handle.id);
    let Some(limit) = check.adaptive_limit() else { return held };
    let capacity = shard.quota_of(key, check.handle.id).map_or(0, Quota::capacity);
    held.saturating_add(capacity.saturating_sub(limit).into())
}

/// Decides and charges the common case: one check without options, charged on arrival, whose counter exists.
/// Returns `None` for all other checks without options.
// Inline: passing the verdict through memory costs as much as deciding it.
#[inline(always)]
pub(super) fn try_fast_path(
    shard: &mut Shard,
    check: &Check,
    key: Fingerprint,
    now: Timestamp,
) -> Option<Verdict> {
    if check.charge_timing != ChargeTiming::OnArrival {
        return None;
    }
    let (counter, quota) = shard.own_slot(key, check.handle.id)?;
    let (next, outcome) = algorithm::evaluate(Some(counter.state()), quota, check.cost, now);
    // A lease counts the units that it rejects, so that the store learns the demand.
    if outcome == Outcome::Conform || quota.is_leased() {
        counter.set_state(check.handle.id, next);
    }
    let quota = *quota;
    let outside_slot = if quota.is_leased() { shard.remaining_outside_slot(key, now) } else { 0 };
    let counter = Some((quota, Some(next)));
    let (enforcement, overridden) = (check.enforcement, Override::None);
    Some(Verdict { outcome, enforcement, overridden, auxiliary: outside_slot, delay: 0, counter })
}

/// Returns the verdict of one check and the state to keep if the request passes, if the check is to be charged.
pub(super) fn evaluate(
    shard: &Shard,
    check: &Check,
    key: Fingerprint,
    before: CounterView<'_>,
    now: Timestamp,
) -> (Verdict, Option<CounterState>) {
    let enforcement = check.enforcement;
    let overridden = if shard.is_boosted(key) { Override::Boosted } else { Override::None };
    let Some(quota) = shard.quota_of(key, check.handle.id) else {
        let outcome = Outcome::Conform;
        return (Verdict { outcome, enforcement, overridden, auxiliary: 0, delay: 0, counter: None }, None);
    };
    if let Some(left) = shard.time_banned(key, now) {
        let state = before.counter.compact_state(quota, now);
        return (unavailable(check, Override::Banned, left, quota, state), None);
    }
    if let Some(left) = shard.time_paused(key, now) {
        return paused(check, left, quota, before, now);
    }
    let CounterView { counter, held, remaining_outside_slot: outside_slot } = before;
    let (mut next, outcome) = match check.charge_timing {
        ChargeTiming::OnArrival if held == 0 => algorithm::evaluate(counter, quota, check.cost, now),
        _ => reservation::evaluate(counter, quota, check.cost, held, now),
    };
    let outside_slot = if let Counter::WithHistory(history) = counter {
        seconds_until_more(history, quota, now)
    } else {
        outside_slot
    };
    let counter_after = Some((*quota, Some(next)));
    let mut verdict = Verdict {
        outcome,
        enforcement,
        overridden,
        auxiliary: outside_slot,
        delay: 0,
        counter: counter_after,
    };
    if held > 0 && check.charge_timing == ChargeTiming::OnArrival {
        // The verdict shows clients the reservations of other requests; the counter keeps only what this request costs.
        next = algorithm::evaluate(counter, quota, check.cost, now).0;
    }
    let kept = match check.options {
        None => (outcome == Outcome::Conform).then_some(next),
        Some(options) => apply_options(options, check, &mut verdict, next, before, quota, now),
    };
    (verdict, kept)
}

/// Returns the verdict during a ban or a pause, which ends after `left`. The counter is not charged.
#[cold]
fn unavailable(
    check: &Check,
    overridden: Override,
    left: Duration,
    quota: &Quota,
    state: Option<CounterState>,
) -> Verdict {
    Verdict {
        outcome: Outcome::Exceed { retry_after: Some(left) },
        enforcement: check.enforcement,
        overridden,
        auxiliary: 0,
        delay: 0,
        counter: Some((*quota, state)),
    }
}

/// Returns the verdict during a pause, which ends after `left`. A limit that delays decides as of the end of the pause
/// if that is within its maximum delay.
#[cold]
fn paused(
    check: &Check,
    left: Duration,
    quota: &Quota,
    before: CounterView<'_>,
    now: Timestamp,
) -> (Verdict, Option<CounterState>) {
    let end = now.saturating_add(left);
    let mut verdict =
        unavailable(check, Override::Paused, left, quota, before.counter.compact_state(quota, end));
    let (next, outcome) = algorithm::evaluate(before.counter, quota, check.cost, end);
    verdict.outcome = outcome;
    let kept = match (delay_after_pause(check, before, left), outcome) {
        (None, _) => None,
        (Some(_), Outcome::Conform) => {
            verdict.counter = Some((*quota, Some(next)));
            Some(next)
        }
        (Some(policy), Outcome::Exceed { .. }) => delayed(policy, check, &mut verdict, before, quota, end),
    };
    match verdict.outcome {
        _ if kept.is_some() => verdict.delay = verdict.delay.saturating_add(saturating_nanos(left)),
        Outcome::Conform => verdict.outcome = Outcome::Exceed { retry_after: Some(left) },
        Outcome::Exceed { retry_after: Some(more) } => {
            verdict.outcome = Outcome::Exceed { retry_after: Some(left.saturating_add(more)) };
        }
        Outcome::Exceed { retry_after: None } => {}
    }
    (verdict, kept)
}

/// Returns how long a request may still be delayed after a pause of `left`; `None` if it must not wait for its end.
fn delay_after_pause(check: &Check, before: CounterView<'_>, left: Duration) -> Option<DelayPolicy> {
    let Some(CheckOptions { role: CounterRole::Delay(policy), .. }) = check.options else { return None };
    let is_charged = check.charge_timing == ChargeTiming::OnArrival && before.held == 0;
    let may_wait = is_charged && check.enforcement == Enforcement::Enforced && left <= policy.max_delay();
    may_wait.then(|| policy.reduced_by(left))
}

/// Seconds until the first units of a history in use expire, or until enough of a debt is paid for one unit to be left.
fn seconds_until_more(history: &History, quota: &Quota, now: Timestamp) -> u32 {
    let used = history.compact_state(quota, now).extra;
    let wanted = quota.capacity().saturating_sub(used.saturating_sub(1)).max(1);
    match algorithm::evaluate(history, quota, wanted, now).1 {
        Outcome::Exceed { retry_after: Some(wait) } if used > 0 => {
            u32::try_from(wait.as_nanos().div_ceil(1_000_000_000)).unwrap_or(u32::MAX)
        }
        _ => 0,
    }
}

/// Applies the options of a check: returns the state to keep if the request passes.
fn apply_options(
    options: CheckOptions,
    check: &Check,
    verdict: &mut Verdict,
    next: CounterState,
    before: CounterView<'_>,
    quota: &Quota,
    now: Timestamp,
) -> Option<CounterState> {
    match (options.role, verdict.outcome) {
        // A request that passes does not change a ban.
        (CounterRole::Ban, _) => None,
        (
            CounterRole::Limit | CounterRole::Adaptive(_) | CounterRole::Delay(_) | CounterRole::Seen,
            Outcome::Conform,
        ) => Some(next),
        (CounterRole::Delay(policy), Outcome::Exceed { .. }) => match verdict.enforcement {
            Enforcement::Enforced => delayed(policy, check, verdict, before, quota, now),
            Enforcement::Marking => {
                verdict.delay = saturating_nanos(policy.max_delay());
                None
            }
            Enforcement::Shadow | Enforcement::Diverting | Enforcement::PassedOver => None,
        },
        (CounterRole::Limit | CounterRole::Adaptive(_) | CounterRole::Seen, Outcome::Exceed { .. }) => None,
    }
}

/// Charges a request now that conforms only after a wait, if the wait is short enough and the queue is not full. The
/// next request then waits behind it, so requests leave in the order of arrival and are not evaluated again.
fn delayed(
    policy: DelayPolicy,
    check: &Check,
    verdict: &mut Verdict,
    CounterView { counter, held, .. }: CounterView<'_>,
    quota: &Quota,
    now: Timestamp,
) -> Option<CounterState> {
    let Outcome::Exceed { retry_after: Some(wait) } = verdict.outcome else { return None };
    // It is not known when reserved units are released.
    if check.charge_timing != ChargeTiming::OnArrival || held > 0 {
        return None;
    }
    let state = counter.compact_state(quota, now);
    let time = time_until_queued(policy, wait, check.cost, state, quota, now);
    if !time.is_zero() {
        verdict.outcome = Outcome::Exceed { retry_after: Some(time) };
        return None;
    }
    let next = algorithm::charge(state, quota, check.cost.into(), now);
    verdict.outcome = Outcome::Conform;
    verdict.delay = saturating_nanos(wait);
    verdict.counter = Some((*quota, Some(next)));
    Some(next)
}

/// Time until a request that would have to wait for `wait` is admitted to the queue: its wait is short enough and the
/// queue has room. Zero if it is admitted now.
fn time_until_queued(
    policy: DelayPolicy,
    wait: Duration,
    cost: u32,
    state: Option<CounterState>,
    quota: &Quota,
    now: Timestamp,
) -> Duration {
    let shorter = wait.saturating_sub(policy.max_delay());
    let fewer = algorithm::time_until_debt(state, quota, cost, policy.max_debt(cost), now);
    match shorter.max(fewer) {
        Duration::ZERO => Duration::ZERO,
        time => time.saturating_add(algorithm::rounding(quota)),
    }
}

/// Returns the outcome of the same check for a second request, if the counter is `counter`.
pub(super) fn reevaluate(check: &Check, counter: Counter<'_>, quota: &Quota, now: Timestamp) -> Outcome {
    let (_, outcome) = algorithm::evaluate(counter, quota, check.cost, now);
    match (outcome, check.options.map(|options| options.role)) {
        (Outcome::Exceed { retry_after: Some(wait) }, Some(CounterRole::Delay(policy))) => {
            let state = counter.compact_state(quota, now);
            let time = time_until_queued(policy, wait, check.cost, state, quota, now);
            Outcome::Exceed { retry_after: Some(time) }
        }
        (outcome, _) => outcome,
    }
}
