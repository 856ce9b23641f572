//! What the limiter answers to one request: a verdict per check, in the order of the checks.

use std::num::NonZeroU32;
use std::time::Duration;

use smallvec::SmallVec;

use super::algorithm::{self, Counts, Outcome, State, Usage, claim};
use super::quota::Quota;
use super::timestamp::Timestamp;

/// Whether a limit refuses or only looks on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Enforcement {
    /// Over the limit is refused.
    #[default]
    Enforced,
    /// Counted and reported, never refused, and never in the way of other limits.
    Shadow,
    /// What is over passes, marked, and is not charged.
    Marking,
}

/// The answer to one check.
#[derive(Clone, Copy, Debug)]
pub struct Verdict {
    /// Within the limit or over it.
    pub outcome: Outcome,
    /// Whether the outcome counts.
    pub enforcement: Enforcement,
    /// What the counter does not say itself. Of one with a history, seconds until it has more left, rounded up; of a claim,
    /// units that are left for all instances beside those in it.
    pub(super) beside: u32,
    /// Nanoseconds.
    pub(super) delay: u64,
    pub(super) counter: Option<(Quota, Option<State>)>,
}

impl Verdict {
    /// The quota that decided; `None` for a meter that has just been removed, which limits nothing.
    pub fn quota(&self) -> Option<&Quota> {
        self.counter.as_ref().map(|(quota, _)| quota)
    }

    /// The counter after this decision: charged if the request passed, as it was if not.
    pub fn usage(&self, now: Timestamp) -> Option<Usage> {
        self.counter.as_ref().map(|(quota, state)| match quota.is_claimed() {
            true => claim::usage_of_all(*state, quota, self.beside, now),
            false => algorithm::usage(*state, quota, now),
        })
    }

    /// How long until more is left than now, in requests that cost so many units each, if nothing else is charged. `None`
    /// where all is left, and of concurrent requests, of which nobody knows.
    pub fn until_more(&self, price: NonZeroU32, now: Timestamp) -> Option<Duration> {
        let (quota, state) = self.counter.as_ref()?;
        let usage = self.usage(now)?;
        if usage.used == 0 || quota.algorithm().counts() != Counts::Rate {
            return None;
        }
        let wanted = (usage.remaining / price).saturating_add(1).saturating_mul(price.get());
        if quota.is_claimed() {
            return claim::until_more(*state, quota, (usage.used, wanted - usage.remaining), now);
        }
        if self.beside > 0 {
            return Some(Duration::from_secs(self.beside.into()));
        }
        match algorithm::evaluate(*state, quota, wanted, now).1 {
            Outcome::Exceed { retry_after } => retry_after,
            Outcome::Conform => None,
        }
    }

    /// Over the limit, enforced or not.
    pub fn exceeds(&self) -> bool {
        matches!(self.outcome, Outcome::Exceed { .. })
    }

    /// Over an enforced limit.
    pub fn refuses(&self) -> bool {
        self.exceeds() && self.enforcement == Enforcement::Enforced
    }

    /// Over a limit that marks what is over.
    pub fn marks(&self) -> bool {
        self.exceeds() && self.enforcement == Enforcement::Marking
    }

    /// How long the request has to be held back before it goes on, should it pass. It is charged already.
    pub const fn delay(&self) -> Duration {
        Duration::from_nanos(self.delay)
    }

    /// How long until the same request would conform: zero if it does. A request that costs more than the
    /// limit can ever give is told to wait a whole refill, since a client must be told something finite.
    pub fn wait(&self) -> Duration {
        match self.outcome {
            Outcome::Conform => Duration::ZERO,
            Outcome::Exceed { retry_after: Some(wait) } => wait,
            Outcome::Exceed { retry_after: None } => self.quota().map_or(Duration::ZERO, Quota::refill),
        }
    }
}

/// All verdicts of one request.
#[derive(Debug, Default)]
pub struct Decision {
    pub(super) verdicts: Verdicts,
    pub(super) overflowed: bool,
}

/// Most requests meet one limit. Its verdict is written straight to where the caller wants it; to fill a
/// list and move that costs as much as to find the counter.
#[derive(Debug)]
pub(super) enum Verdicts {
    One(Verdict),
    Several(SmallVec<[Verdict; 2]>),
}

impl Default for Verdicts {
    fn default() -> Self {
        Self::Several(SmallVec::new())
    }
}

impl Decision {
    /// One verdict per check, in the order of the checks.
    pub fn verdicts(&self) -> &[Verdict] {
        match &self.verdicts {
            Verdicts::One(verdict) => std::slice::from_ref(verdict),
            Verdicts::Several(verdicts) => verdicts,
        }
    }

    pub(super) fn verdicts_mut(&mut self) -> &mut [Verdict] {
        match &mut self.verdicts {
            Verdicts::One(verdict) => std::slice::from_mut(verdict),
            Verdicts::Several(verdicts) => verdicts,
        }
    }

    /// The check at `position` rejects for so long after all. What others had been charged has not been: this one rejected
    /// before.
    pub fn reject(&mut self, position: usize, wait: Duration) {
        if let Some(verdict) = self.verdicts_mut().get_mut(position) {
            verdict.outcome = Outcome::Exceed { retry_after: Some(wait.max(Duration::from_nanos(1))) };
        }
    }

    /// The check at `position`, which is not enforced, was decided again.
    pub fn replace(&mut self, position: usize, verdict: Verdict) {
        if let Some(before) = self.verdicts_mut().get_mut(position) {
            *before = verdict;
        }
    }

    /// The check at `position`, which is not enforced, counts as within its limit.
    pub fn allow(&mut self, position: usize) {
        if let Some(verdict) = self.verdicts_mut().get_mut(position) {
            verdict.outcome = Outcome::Conform;
        }
    }

    /// Adds what was decided later about the same request.
    pub fn extend(&mut self, later: &Self) {
        let all = self.verdicts().iter().chain(later.verdicts()).copied().collect();
        self.verdicts = Verdicts::Several(all);
        self.overflowed |= later.overflowed;
    }

    /// Whether any enforced limit refuses; then no limit has been charged.
    pub fn is_refused(&self) -> bool {
        match &self.verdicts {
            Verdicts::One(verdict) => verdict.refuses(),
            Verdicts::Several(verdicts) => verdicts.iter().any(Verdict::refuses),
        }
    }

    /// How long the request has to be held back before it goes on: the longest of its delays.
    pub fn delay(&self) -> Duration {
        self.verdicts().iter().map(Verdict::delay).max().unwrap_or_default()
    }

    /// Whether a new key had to share the overflow counter because the table is full.
    pub fn overflowed(&self) -> bool {
        self.overflowed
    }
}
