//! One check against what its counter says.

use std::time::Duration;

use super::Check;
use super::algorithm::history::History;
use super::algorithm::{self, Counter, Outcome, State};
use super::decision::{Enforcement, Verdict};
use super::key::Fingerprint;
use super::quota::Quota;
use super::reservation::{self, Charging};
use super::store::{Place, Shard};
use super::terms::{Role, Slack, Terms};
use super::timestamp::{Timestamp, saturating_nanos};

/// What a counter says before a check.
#[derive(Clone, Copy, Debug)]
pub(super) struct Before<'a> {
    pub(super) counter: Counter<'a>,
    /// Units held of it, where that matters.
    pub(super) held: u64,
    /// Of a claim: units that are left for all instances beside those in it.
    beside: u32,
}

impl<'a> Before<'a> {
    pub(super) fn of(
        shard: &'a Shard,
        check: &Check,
        (key, place): (Fingerprint, Place),
        now: Timestamp,
    ) -> Self {
        let held = match (check.charging, check.terms) {
            // Where others may hold units of the counter, the check has terms.
            (Charging::OnArrival, None) => 0,
            _ => shard.held_of(key, check.meter.id),
        };
        let is_claimed = shard.quota(check.meter.id).is_some_and(Quota::is_claimed);
        let beside = if is_claimed { shard.beside(key, now) } else { 0 };
        Self { counter: shard.counter(place, check.meter.id), held, beside }
    }
}

/// Decides and charges what most requests meet: one check without terms, charged on arrival, of a key whose counter is
/// there; `None` for everything else that has no terms.
// Inline: passing the verdict through memory costs as much as deciding it.
#[inline(always)]
pub(super) fn plain(shard: &mut Shard, check: &Check, key: Fingerprint, now: Timestamp) -> Option<Verdict> {
    if check.charging != Charging::OnArrival {
        return None;
    }
    let (counter, quota) = shard.own(key, check.meter.id)?;
    let (next, outcome) = algorithm::evaluate(Some(counter.state()), quota, check.cost, now);
    // A claim notes what it rejects, for the store to know the demand.
    if outcome == Outcome::Conform || quota.is_claimed() {
        counter.keep(check.meter.id, next);
    }
    let quota = *quota;
    let beside = if quota.is_claimed() { shard.beside(key, now) } else { 0 };
    let counter = Some((quota, Some(next)));
    Some(Verdict { outcome, enforcement: check.enforcement, beside, delay: 0, counter })
}

/// The verdict of one check and, if it is to be charged should the request pass, the state to keep.
pub(super) fn evaluate(
    shard: &Shard,
    check: &Check,
    before: Before<'_>,
    now: Timestamp,
) -> (Verdict, Option<State>) {
    let enforcement = check.enforcement;
    let Some(quota) = shard.quota(check.meter.id) else {
        return (
            Verdict { outcome: Outcome::Conform, enforcement, beside: 0, delay: 0, counter: None },
            None,
        );
    };
    let Before { counter, held, beside } = before;
    let (mut next, outcome) = match check.charging {
        Charging::OnArrival if held == 0 => algorithm::evaluate(counter, quota, check.cost, now),
        _ => reservation::evaluate(counter, quota, (check.cost, held), now),
    };
    let beside = if let Counter::Long(history) = counter { until_more(history, quota, now) } else { beside };
    let mut verdict = Verdict { outcome, enforcement, beside, delay: 0, counter: Some((*quota, Some(next))) };
    if held > 0 && check.charging == Charging::OnArrival {
        // Clients see what others hold, and the counter keeps what this request costs.
        next = algorithm::evaluate(counter, quota, check.cost, now).0;
    }
    let kept = match check.terms {
        None => (outcome == Outcome::Conform).then_some(next),
        Some(terms) => on_terms(terms, check, (&mut verdict, next), (before, quota), now),
    };
    (verdict, kept)
}

/// Seconds until the first units of a history that is in use leave, or enough of a debt for one to be left.
fn until_more(history: &History, quota: &Quota, now: Timestamp) -> u32 {
    let used = history.in_short(quota, now).extra;
    let wanted = quota.capacity().saturating_sub(used.saturating_sub(1)).max(1);
    match algorithm::evaluate(history, quota, wanted, now).1 {
        Outcome::Exceed { retry_after: Some(wait) } if used > 0 => {
            u32::try_from(wait.as_nanos().div_ceil(1_000_000_000)).unwrap_or(u32::MAX)
        }
        _ => 0,
    }
}

/// The same for a check that asks more than whether there is room.
fn on_terms(
    terms: Terms,
    check: &Check,
    (verdict, next): (&mut Verdict, State),
    (before, quota): (Before<'_>, &Quota),
    now: Timestamp,
) -> Option<State> {
    match (terms.role, verdict.outcome) {
        // A request that passes does not change it.
        (Role::Ban, _) => None,
        (Role::Limit | Role::Delay(_), Outcome::Conform) => Some(next),
        (Role::Delay(slack), Outcome::Exceed { .. }) => match verdict.enforcement {
            Enforcement::Enforced => delayed(slack, check, verdict, (before, quota), now),
            Enforcement::Marking => {
                verdict.delay = saturating_nanos(slack.most());
                None
            }
            Enforcement::Shadow => None,
        },
        (Role::Limit, Outcome::Exceed { .. }) => None,
    }
}

/// Charges now what will have room after a wait, if it is short and the queue is not full: whoever comes next
/// waits behind it. So the order of arrival is the order of departure, and nobody asks again.
fn delayed(
    slack: Slack,
    check: &Check,
    verdict: &mut Verdict,
    (Before { counter, held, .. }, quota): (Before<'_>, &Quota),
    now: Timestamp,
) -> Option<State> {
    let Outcome::Exceed { retry_after: Some(wait) } = verdict.outcome else { return None };
    // Nobody knows when what is held comes back.
    if check.charging != Charging::OnArrival || held > 0 {
        return None;
    }
    let state = counter.in_short(quota, now);
    let place = until_place((slack, wait), check.cost, (state, quota), now);
    if !place.is_zero() {
        verdict.outcome = Outcome::Exceed { retry_after: Some(place) };
        return None;
    }
    let next = algorithm::charge(state, quota, check.cost.into(), now);
    verdict.outcome = Outcome::Conform;
    verdict.delay = saturating_nanos(wait);
    verdict.counter = Some((*quota, Some(next)));
    Some(next)
}

/// How long until a request that has to wait so long now has a place in the queue: its wait is short enough and few
/// enough wait before it. Nothing where it has one.
fn until_place(
    (slack, wait): (Slack, Duration),
    cost: u32,
    (state, quota): (Option<State>, &Quota),
    now: Timestamp,
) -> Duration {
    let shorter = wait.saturating_sub(slack.most());
    let fewer = algorithm::until_owed(state, quota, (cost, slack.most_owed(cost)), now);
    match shorter.max(fewer) {
        Duration::ZERO => Duration::ZERO,
        place => place.saturating_add(algorithm::rounding(quota)),
    }
}

/// What a check would say to the same request again, when its counter says `counter`.
pub(super) fn again(check: &Check, (counter, quota): (Counter<'_>, &Quota), now: Timestamp) -> Outcome {
    let (_, outcome) = algorithm::evaluate(counter, quota, check.cost, now);
    match (outcome, check.terms.map(|terms| terms.role)) {
        (Outcome::Exceed { retry_after: Some(wait) }, Some(Role::Delay(slack))) => {
            let state = counter.in_short(quota, now);
            let place = until_place((slack, wait), check.cost, (state, quota), now);
            Outcome::Exceed { retry_after: Some(place) }
        }
        (outcome, _) => outcome,
    }
}
