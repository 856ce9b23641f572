//! Requests that are decided on behalf of others.
//!
//! A request that waits for its turn, or for room, leaves an [`Offer`] in its queue. Each request that is admitted decides
//! the first ones that have an offer, in their order and under the lock of the queue, until the limit has no room. So a
//! limit can be used faster than requests wake up one after the other, or than the timer of the first one fires. A request
//! takes its offer back before it is decided otherwise, so none is decided twice.

use std::task::Waker;
use std::time::Duration;

use smallvec::SmallVec;

use super::WaitQueues;
use super::counter_queue::CounterQueue;
use super::pace::{Pace, PaceSlot, Pacer};
use crate::Check;
use crate::check_options::{CheckOptions, CounterRole, DelayPolicy};
use crate::decision::{Decision, Verdict};
use crate::key::CounterId;
use crate::quota::Quota;
use crate::timestamp::Timestamp;

/// Maximum number of requests that one request decides for others.
pub(super) const MAX_BATCH: usize = 32;
/// Maximum number of requests of a queue that others have admitted and that have not continued. More would be charged
/// long before a busy thread forwards them.
pub(super) const MAX_GRANTED: usize = 512;

/// What is needed to decide a waiting request.
#[derive(Clone, Debug)]
pub struct Offer {
    /// Its checks, which are charged all or none.
    pub checks: SmallVec<[Check; 1]>,
    /// Position of the check in whose queue it waits.
    pub position: usize,
    /// Pace of that check.
    pub pace: Option<Pace>,
    /// Counters of its other checks for which requests wait. It may not be admitted before those.
    pub others: SmallVec<[CounterId; 1]>,
    /// When it stops waiting.
    pub until: Timestamp,
}

/// Decision on a request that another one has made. The request is admitted.
#[derive(Debug)]
pub struct Grant {
    /// The decision, with a verdict for each check of the offer.
    pub decision: Decision,
    /// When it was made.
    pub at: Timestamp,
}

impl Offer {
    /// Decides the request.
    ///
    /// # Errors
    /// It is not admitted, and will not be before this time unless units come back.
    pub(super) fn decide(
        &self,
        pacer: &mut Option<Pacer>,
        queues: &WaitQueues,
        now: Timestamp,
        decide: &mut impl FnMut(&[Check]) -> Decision,
    ) -> Result<Grant, Timestamp> {
        let left = self.until.since(now);
        if left.is_zero() || !self.others.iter().all(|other| queues.is_surely_empty(*other)) {
            return Err(now);
        }
        let mut pacer = self.pace.as_ref().map(|pace| pacer.get_or_insert_with(|| Pacer::new(pace, now)));
        let mut spacing = Duration::ZERO;
        if let Some((pacer, pace)) = pacer.as_mut().zip(self.pace.as_ref()) {
            match pacer.reserve(pace, now) {
                PaceSlot::Taken(delay) => spacing = delay,
                PaceSlot::After(_) => return Err(now),
            }
        }
        let mut decision = decide(&self.checks_within(left));
        let verdict = decision.verdicts().get(self.position);
        if decision.is_rejected() {
            let is_reached = verdict.is_some_and(|verdict| verdict.exceeds() && !verdict.awaits_lease());
            pacer.into_iter().for_each(|pacer| pacer.cancel(is_reached, now));
            // Units come back to a lease, or to another limit, without a notification.
            let is_known = |verdict: &&Verdict| is_reached && !verdict.quota().is_some_and(Quota::is_leased);
            let retry = verdict.filter(is_known).map_or(Duration::ZERO, Verdict::retry_after);
            return Err(now.saturating_add(retry));
        }
        if spacing > verdict.map_or(Duration::ZERO, Verdict::delay) {
            decision.set_delay(self.position, spacing);
        }
        Ok(Grant { decision, at: now })
    }

    /// Returns the checks, which delay the request at most until it stops waiting.
    fn checks_within(&self, left: Duration) -> SmallVec<[Check; 1]> {
        let mut checks = self.checks.clone();
        for options in checks.iter_mut().filter_map(|check| check.options.as_mut()) {
            if let CounterRole::Delay(policy) = options.role {
                let role = CounterRole::Delay(DelayPolicy::new(policy.max_delay().min(left), None));
                *options = CheckOptions { role, ..*options };
            }
        }
        checks
    }
}

impl CounterQueue {
    /// Admits the first requests, as far as they have offers and the limit has room. Adds their wakers, and returns their
    /// number.
    pub(super) fn admit_first(
        &mut self,
        queues: &WaitQueues,
        now: Timestamp,
        mut decide: impl FnMut(&[Check]) -> Decision,
        wakers: &mut impl Extend<Waker>,
    ) -> usize {
        let room = MAX_BATCH.min(MAX_GRANTED.saturating_sub(self.granted.len()));
        let mut admitted = 0;
        while admitted < room {
            let Some((rank, offer)) = self.take_first_offer(now) else { break };
            match offer.decide(&mut self.pacer, queues, now, &mut decide) {
                Ok(grant) => wakers.extend(self.grant(rank, grant)),
                Err(no_room_until) => {
                    self.return_offer(rank, offer, no_room_until);
                    break;
                }
            }
            admitted += 1;
        }
        admitted
    }
}

#[cfg(test)]
mod tests;
