//! What one counter has of a shared limit beside the units in its slot.

use std::time::Duration;

use super::question::{Grant, Kind, Question};
use super::{Review, SharedCounter, Sharing};
use crate::limiter::algorithm::claim::{Held, MAX_UNITS};
use crate::limiter::quota::Quota;
use crate::limiter::timestamp::Timestamp;

/// Units are held back for as long as a question may take, so that the next claim is there when this one ends.
const MAX_LEAD: Duration = Duration::from_millis(20);
/// How long the demand of a counter without requests is remembered.
const MEMORY: Duration = Duration::from_secs(10);
/// Demand that is worth remembering, in units a second.
const WORTH_REMEMBERING: f64 = 100.0;

/// Units granted at one time.
#[derive(Clone, Copy, Debug, Default)]
struct Claim {
    units: u32,
    /// Until when they may be spent.
    until: Timestamp,
    /// The store's time of the grant, in microseconds.
    granted_at: u64,
}

/// The book of one counter.
#[derive(Debug)]
pub(in crate::limiter) struct Book {
    /// The claim in the slot, whose units are those held back from it.
    current: Claim,
    /// A later one.
    next: Claim,
    /// What has lapsed and was not given back yet.
    lapsed: Claim,
    /// Units that were there when the demand was last counted, or were granted since.
    accounted: u64,
    /// Units wanted by requests that wait, since the last question.
    pub(super) needed: u32,
    /// Units spent beyond what was granted.
    owed: u32,
    /// When the last question was.
    asked_at: Timestamp,
    /// Whether one is on its way, or is to be.
    is_asking: bool,
    /// Before this the store has no more.
    pub(super) pauses_until: Timestamp,
    /// Demand, in units a second: fast up, slow down.
    rate: f64,
    /// How long before a claim lapses it is time to ask.
    lead: Duration,
}

impl Book {
    pub(in crate::limiter) fn new(now: Timestamp) -> Self {
        Self {
            current: Claim::default(),
            next: Claim::default(),
            lapsed: Claim::default(),
            accounted: 0,
            needed: 0,
            owed: 0,
            asked_at: now,
            is_asking: false,
            pauses_until: Timestamp::EPOCH,
            rate: 0.0,
            lead: MAX_LEAD,
        }
    }

    /// Puts aside what has lapsed; returns what is left in the slot and may be spent.
    pub(super) fn expire(&mut self, held: Held, now: Timestamp) -> u32 {
        let in_slot = match held {
            Held::Units(units, _) => units,
            Held::Nothing { .. } => 0,
        };
        let mut left = in_slot;
        if now >= self.current.until {
            let units = std::mem::take(&mut self.current.units).saturating_add(std::mem::take(&mut left));
            self.lapsed.add(Claim { units, ..self.current });
        }
        if now >= self.next.until {
            self.lapsed.add(std::mem::take(&mut self.next));
        }
        left
    }

    /// What the slot is to hold, which has `left` units: those, what was held back, and the next claim.
    pub(super) fn replenish(&mut self, left: u32) -> Held {
        let left = left.saturating_add(std::mem::take(&mut self.current.units));
        let next = std::mem::take(&mut self.next);
        if next.units > 0 {
            // Two claims in one slot end with the first of them.
            let (until, granted_at) = match left {
                0 => (next.until, next.granted_at),
                _ => (next.until.min(self.current.until), next.granted_at.min(self.current.granted_at)),
            };
            self.current = Claim { units: 0, until, granted_at };
        }
        Held::Units(left.saturating_add(next.units).min(MAX_UNITS), self.current.until)
    }

    /// Whether the store is to be asked while there are still units; then that is on its way.
    pub(super) fn wants_more(&mut self, now: Timestamp) -> bool {
        now >= self.pauses_until && self.begins_to_ask()
    }

    /// Whether nothing is asked yet; then that is on its way.
    pub(super) fn begins_to_ask(&mut self) -> bool {
        !std::mem::replace(&mut self.is_asking, true)
    }

    /// What to ask, and what the slot holds meanwhile.
    pub(super) fn question(
        &mut self,
        counter: SharedCounter,
        held: Held,
        (quota, sharing): (Quota, Sharing),
        in_use: u64,
        now: Timestamp,
    ) -> (Question, Held) {
        let kind = Kind::of(&quota, in_use);
        let elapsed = now.since(self.asked_at);
        let demanded = self.count_demand(held, elapsed);
        let left = self.expire(held, now);
        let needed = std::mem::take(&mut self.needed).min(kind.capacity());
        let mut valid = if sharing.is_exact { Duration::ZERO } else { kind.max_valid() };
        if f64::from(needed) > kind.claimable(valid) {
            valid = Duration::ZERO;
        }
        self.lead = if kind.is_permits() { valid / 2 } else { MAX_LEAD.min(valid / 4) };
        let period = valid * 3 / 4;
        let (returned, left) =
            if kind.is_permits() { (Claim::default(), left) } else { self.take_back(left, now) };
        let wanted = if kind.is_permits() {
            let used = u32::try_from(in_use).unwrap_or(u32::MAX);
            let ahead = if used > 0 || needed > 0 { used / 4 + 1 } else { 0 };
            used.saturating_add(needed).saturating_add(ahead)
        } else {
            let ahead = (self.rate * period.as_secs_f64()).min(kind.claimable(valid));
            let there = left.saturating_add(self.current.units).saturating_add(self.next.units);
            (ahead as u32).saturating_sub(there).saturating_add(needed)
        };
        self.asked_at = now;
        self.is_asking = true;
        let question = Question {
            counter,
            kind,
            sharing,
            valid,
            needed,
            wanted,
            demanded,
            elapsed,
            returned: (returned.units, returned.granted_at),
            owed: std::mem::take(&mut self.owed),
            period,
        };
        (question, self.slot(held, left, now))
    }

    /// What the slot holds with what was granted.
    pub(super) fn grant(
        &mut self,
        question: &Question,
        grant: Grant,
        held: Held,
        (sent, now): (Timestamp, Timestamp),
    ) -> Held {
        self.is_asking = false;
        let left = self.expire(held, now);
        if grant.granted < question.needed {
            let spread = grant.spread.mul_f64(part_of(question));
            self.pauses_until = now.saturating_add(grant.wait).saturating_add(spread);
        } else if !grant.pause.is_zero() {
            self.pauses_until = sent.saturating_add(grant.pause);
        }
        let claim = Claim {
            units: grant.granted,
            until: sent.saturating_add(grant.spendable()),
            granted_at: grant.at,
        };
        if question.kind.is_permits() {
            self.current = Claim { units: 0, ..claim };
            return Held::Units(grant.granted, claim.until);
        }
        self.accounted = self.accounted.saturating_add(claim.units.into());
        if claim.units == 0 {
            return self.slot(held, left, now);
        }
        if claim.until <= now {
            self.lapsed.add(claim);
            return self.slot(held, left, now);
        }
        if left > 0 || self.current.units > 0 {
            self.next.add(claim);
            return Held::Units(left, self.current.until);
        }
        let lead = (self.rate * self.lead.as_secs_f64()) as u32;
        let reserve = lead.min(claim.units / 2).min(question.wanted - question.needed);
        self.current = Claim { units: reserve, ..claim };
        Held::Units(claim.units - reserve, claim.until)
    }

    pub(super) fn is_not_asking(&mut self) {
        self.is_asking = false;
    }

    pub(super) fn abandon(&mut self, question: &Question) {
        self.is_asking = false;
        self.owed = self.owed.saturating_add(question.owed);
    }

    /// When to look whether units are about to lapse.
    pub(super) fn review_at(&self, now: Timestamp) -> Option<Timestamp> {
        let last = self.next.until.max(self.current.until);
        (last > now).then(|| last.saturating_sub(self.lead).max(now))
    }

    pub(super) fn review(&mut self, held: Held, now: Timestamp) -> Review {
        if self.is_asking {
            return Review::Later(now.saturating_add(MAX_LEAD));
        }
        let left = self.expire(held, now);
        if left > 0 || self.current.units > 0 || self.next.units > 0 || self.lapsed.units > 0 {
            if let Some(at) = self.review_at(now).filter(|at| *at > now) {
                return Review::Later(at);
            }
            self.is_asking = true;
            return Review::Ask;
        }
        if self.is_idle(now) { Review::Done } else { Review::Later(now.saturating_add(MEMORY)) }
    }

    /// Whether there is nothing in it worth keeping.
    pub(super) fn is_idle(&self, now: Timestamp) -> bool {
        let remembers = self.rate > WORTH_REMEMBERING && now.since(self.asked_at) < MEMORY;
        let holds = self.next.units > 0 || self.lapsed.units > 0 || now < self.current.until || self.owed > 0;
        !holds && !remembers && !self.is_asking && self.needed == 0 && now >= self.pauses_until
    }

    /// Units demanded since the last question, and the rate that makes.
    fn count_demand(&mut self, held: Held, elapsed: Duration) -> u32 {
        let (in_slot, rejected) = match held {
            Held::Units(units, _) => (units, 0),
            Held::Nothing { rejected, .. } => (0, rejected),
        };
        let there = u64::from(in_slot)
            + u64::from(self.current.units)
            + u64::from(self.next.units)
            + u64::from(self.lapsed.units);
        let spent = self.accounted.saturating_sub(there);
        self.accounted = there;
        let demanded = spent.saturating_add(rejected.into()).saturating_add(self.needed.into());
        // Of few requests no rate can be told: as much as is nearly certain.
        let certain = (demanded as f64 - (demanded as f64).sqrt()).max(0.0);
        let seconds = elapsed.as_secs_f64().max(0.000_1);
        let seen = certain / seconds;
        let fading = (-2.0 * seconds).exp();
        self.rate = if seen > self.rate { seen } else { seen + (self.rate - seen) * fading };
        u32::try_from(demanded).unwrap_or(u32::MAX)
    }

    /// What is given back: what has lapsed, and what would before it is spent. Returns what is left beside it.
    fn take_back(&mut self, left: u32, now: Timestamp) -> (Claim, u32) {
        let mut returned = std::mem::take(&mut self.lapsed);
        let mut kept = left;
        if now.saturating_add(self.lead) >= self.current.until && left > 0 {
            kept = ((self.rate * self.lead.as_secs_f64()) as u32).min(left);
            let units = (left - kept).saturating_add(std::mem::take(&mut self.current.units));
            returned.add(Claim { units, ..self.current });
        }
        self.accounted = self.accounted.saturating_sub(returned.units.into());
        (returned, kept)
    }

    /// The slot with `left` units; with none, the pause that the store has asked for.
    fn slot(&self, held: Held, left: u32, now: Timestamp) -> Held {
        match held {
            _ if left > 0 => Held::Units(left, self.current.until),
            Held::Nothing { until, .. } if until > now => held,
            _ if self.current.units == 0 && self.next.units == 0 && self.pauses_until > now => {
                Held::Nothing { until: self.pauses_until, rejected: 0 }
            }
            _ => Held::Units(0, self.current.until),
        }
    }
}

/// A number from 0 to 1 that differs from instance to instance, so that not all of them ask at one moment.
fn part_of(question: &Question) -> f64 {
    let (name, nanos) = (question.counter.name() as u64, question.elapsed.as_nanos() as u64);
    let mixed = (name ^ nanos).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 11) as f64 / (1_u64 << 53) as f64
}

impl Claim {
    /// Both together: they lapse with the first, and are as old as the older.
    fn add(&mut self, other: Self) {
        if self.units == 0 {
            *self = other;
        } else if other.units > 0 {
            self.units = self.units.saturating_add(other.units).min(MAX_UNITS);
            self.until = self.until.min(other.until);
            self.granted_at = self.granted_at.min(other.granted_at);
        }
    }
}
