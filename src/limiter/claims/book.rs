//! What one counter has of a shared limit beside the units in its slot.

mod demand;
mod permits;

use std::time::Duration;

use super::question::{Grant, Kind, MAX_VALID, Question};
use super::{Review, SharedCounter, Sharing};
use crate::limiter::algorithm::claim::{Held, MAX_UNITS};
use crate::limiter::quota::Quota;
use crate::limiter::store::MeterId;
use crate::limiter::timestamp::Timestamp;

/// Units are held back for as long as a question may take, so that the next claim is there when this one ends.
const MAX_LEAD: Duration = Duration::from_millis(20);
/// Pauses are spread from this part of them on.
const MIN_OF_PAUSE: f64 = 0.8;
/// The smallest part of what it wants that an instance reckons with.
const MIN_PART: f64 = 0.001;
/// Claims ahead of demand are for as many units at least. For fewer a request asks by itself: most would lapse unspent.
const MIN_AHEAD: f64 = 6.0;
/// A look is worth it when so many units should have been spent.
const MIN_SPENT: f64 = 6.0;
/// Units that are demanded within so many seconds are not worth a question of their own.
const WORTH_A_CALL: f64 = 0.01;
/// How often to look whether the units held are spent, in parts of a claim's validity.
const LOOKS: u32 = 8;
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
    /// Whose counter it is.
    pub(super) meter: MeterId,
    /// How many units the limit has, where its meter does not say.
    pub(super) limit: Option<u32>,
    /// Units that were left for all instances at the last response of the store, beside those granted to this one.
    pub(super) remaining: Option<u32>,
    /// The claim in the slot, whose units are those held back from it.
    current: Claim,
    /// A later one.
    next: Claim,
    /// What has lapsed and was not given back yet.
    lapsed: Claim,
    /// Units that were there when the demand was last counted, or were granted since.
    accounted: u64,
    /// Units demanded since when.
    measured: (u64, Timestamp),
    /// Units that were there at the last look, and when that was.
    looked: (u64, Timestamp),
    /// Requests have stopped: what goes by until the next one is not counted as time without demand.
    is_quiet: bool,
    /// More is held than is going to be spent.
    has_too_much: bool,
    /// It seemed so at the last look.
    seemed_too_much: bool,
    /// Units wanted by requests that wait, since the last question.
    pub(super) needed: u32,
    /// Units rejected, since the last question.
    rejected: u64,
    /// Units spent beyond what was granted.
    owed: u32,
    /// When the last question was.
    pub(super) asked_at: Timestamp,
    /// Whether one is on its way, or is to be.
    is_asking: bool,
    /// Its units are permits of requests in flight.
    is_permits: bool,
    /// What was granted of what was wanted, when that was asked, and when the next share is due at the latest.
    cut: Option<(f64, Timestamp, Timestamp)>,
    /// Before this the store has no more.
    pub(super) pauses_until: Timestamp,
    /// Demand, in units a second: fast up, slow down.
    pub(super) rate: f64,
    /// What the last question was about.
    quota: Option<Quota>,
    /// Nothing is given back before this.
    forfeits_until: Timestamp,
    /// How long before a claim lapses it is time to ask.
    lead: Duration,
    /// How often to look whether the units held are spent.
    look: Duration,
}

impl Book {
    pub(in crate::limiter) fn new(meter: MeterId, now: Timestamp) -> Self {
        Self {
            meter,
            limit: None,
            remaining: None,
            current: Claim::default(),
            next: Claim::default(),
            lapsed: Claim::default(),
            accounted: 0,
            measured: (0, now),
            looked: (0, now),
            is_quiet: false,
            has_too_much: false,
            seemed_too_much: false,
            cut: None,
            needed: 0,
            rejected: 0,
            owed: 0,
            asked_at: now,
            is_asking: false,
            is_permits: false,
            pauses_until: Timestamp::EPOCH,
            rate: 0.0,
            quota: None,
            forfeits_until: Timestamp::EPOCH,
            lead: MAX_LEAD,
            look: MAX_LEAD,
        }
    }

    /// Whether the last question was about another limit than this.
    pub(super) fn is_of_other(&self, quota: &Quota) -> bool {
        self.quota.is_some_and(|asked| asked != *quota)
    }

    /// Forgets from when on the store has more.
    pub(super) fn unpause(&mut self) {
        (self.pauses_until, self.cut) = (Timestamp::EPOCH, None);
    }

    /// Puts aside what has lapsed; returns what is left in the slot and may be spent. The slot is to be written after that.
    pub(super) fn expire(&mut self, held: Held, now: Timestamp) -> u32 {
        let mut left = match held {
            Held::Units(units, _) => units,
            Held::Nothing { rejected, .. } => {
                self.rejected += u64::from(rejected);
                0
            }
        };
        if now >= self.current.until {
            let units = std::mem::take(&mut self.current.units).saturating_add(std::mem::take(&mut left));
            self.lapsed.add(Claim { units, ..self.current });
        }
        if now >= self.next.until {
            self.lapsed.add(std::mem::take(&mut self.next));
        }
        left
    }

    /// What the slot is to hold, which has `left` units: those and what was held back, or the next claim.
    pub(super) fn replenish(&mut self, left: u32, needed: u64, now: Timestamp) -> Held {
        let left = left.saturating_add(std::mem::take(&mut self.current.units));
        if u64::from(left) >= needed || self.next.units == 0 {
            return Held::Units(left, self.current.until);
        }
        let mut next = std::mem::take(&mut self.next);
        let rest = Claim { units: left, ..self.current };
        if u64::from(next.units) < needed {
            next.add(rest);
        } else {
            // They are given back: two claims in one slot would end with the first of them.
            self.lapsed.add(Claim { until: now, ..rest });
        }
        let reserve = self.reserve(next.units, needed);
        self.current = Claim { units: reserve, ..next };
        Held::Units(next.units - reserve, next.until)
    }

    /// Units of a claim that are held back, so that the next one is asked for in time.
    fn reserve(&self, units: u32, needed: u64) -> u32 {
        if self.cut.is_some() {
            return 0;
        }
        let lead = (self.rate * self.lead.as_secs_f64()) as u32;
        let spare = u64::from(units).saturating_sub(needed);
        lead.min(units / 2).min(u32::try_from(spare).unwrap_or(u32::MAX))
    }

    /// Whether the store is to be asked while there are still units; then that is on its way.
    pub(super) fn wants_more(&mut self, now: Timestamp) -> bool {
        if self.current.units > 0 || self.next.units > 0 {
            return false;
        }
        self.pause(now);
        now >= self.pauses_until && self.begins_to_ask(now)
    }

    /// The share is spent. The next one is due when all that was wanted would have been: an instance whose demand has grown
    /// spends its share sooner, and asks sooner.
    pub(super) fn pause(&mut self, now: Timestamp) {
        if let Some((part, asked, latest)) = self.cut.take() {
            let due = asked.saturating_add(now.since(asked).mul_f64(1.0 / part.clamp(MIN_PART, 1.0)));
            self.pauses_until = self.pauses_until.max(due.min(latest));
        }
    }

    /// Whether nothing is asked yet; then that is on its way.
    pub(super) fn begins_to_ask(&mut self, now: Timestamp) -> bool {
        if std::mem::take(&mut self.is_quiet) {
            self.measured = (0, now);
        }
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
        let mut kind = Kind::of(&quota, in_use);
        if self.quota.replace(quota).is_some_and(|before| before != quota) {
            // A unit of the limit before is not worth one of this.
            self.forfeits_until = now.saturating_add(2 * MAX_VALID);
        }
        let elapsed = now.since(self.asked_at);
        let most = kind.longest(sharing.is_exact);
        let period = most * 13 / 16;
        let left = self.expire(held, now);
        let demanded = self.count_demand(left, now, period);
        let needed = std::mem::take(&mut self.needed).min(kind.capacity());
        let ahead = (self.rate * period.as_secs_f64()).min(kind.claimable(most));
        let has_too_much = std::mem::take(&mut self.has_too_much) || self.is_quiet;
        let few = if sharing.waits { MIN_AHEAD } else { 0.0 };
        let ahead = if ahead < few || has_too_much || sharing.is_exact { 0.0 } else { ahead };
        let is_ahead = ahead > 0.0 || kind.is_permits() || !sharing.waits && !sharing.is_exact;
        let mut valid = if is_ahead { most } else { kind.valid_to_arrive(sharing.is_exact) };
        if f64::from(needed) > kind.claimable(valid) {
            let short = kind.valid_to_arrive(sharing.is_exact);
            valid = if f64::from(needed) > kind.claimable(short) { Duration::ZERO } else { short };
        }
        self.lead = if kind.is_permits() { valid / 2 } else { MAX_LEAD.min(valid / 4) };
        self.seemed_too_much = false;
        let (returned, left) = if kind.is_permits() {
            // What goes beyond it is not used from now on, since the store may give it to others.
            (Claim::default(), left.min(permits::wanted(in_use, needed)))
        } else {
            self.take_back(left, now)
        };
        if let Kind::Permits { held, .. } = &mut kind {
            *held = left;
        }
        let there = left.saturating_add(self.current.units).saturating_add(self.next.units);
        let wanted = if kind.is_permits() {
            permits::wanted(in_use, needed)
        } else {
            (ahead as u32).saturating_sub(there).saturating_add(needed)
        };
        self.looked = (there.into(), now);
        self.look = (most / LOOKS).max(MAX_LEAD).max(Duration::from_secs_f64(MIN_SPENT / self.rate.max(1.0)));
        self.asked_at = now;
        self.is_asking = true;
        self.is_permits = kind.is_permits();
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
        self.remaining = Some(grant.remaining);
        let left = self.expire(held, now);
        if grant.granted < question.fewest() {
            let spread = grant.spread.mul_f64(question.part());
            self.pauses_until = now.saturating_add(grant.wait).saturating_add(spread);
        } else if !grant.pause.is_zero() && grant.granted < question.wanted {
            let of_period = grant.pause.as_secs_f64() / question.period.as_secs_f64();
            let part = f64::from(grant.granted) / (f64::from(question.wanted) * of_period);
            // Not all at one moment.
            let spread = MIN_OF_PAUSE + (1.0 - MIN_OF_PAUSE) * question.part();
            let latest = sent.saturating_add(grant.pause.mul_f64(spread));
            if grant.granted == 0 {
                self.pauses_until = latest;
            } else {
                self.cut = Some((part / spread, sent, latest));
            }
        }
        let claim = Claim {
            units: grant.granted,
            until: sent.saturating_add(grant.spendable(question)),
            granted_at: grant.at,
        };
        if question.kind.is_permits() {
            self.current = Claim { units: 0, ..claim };
            return Held::Units(grant.granted, claim.until);
        }
        self.accounted = self.accounted.saturating_add(claim.units.into());
        self.looked.0 += u64::from(claim.units);
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
        let reserve = self.reserve(claim.units, question.needed.into());
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

    /// When to look at the units held.
    pub(super) fn review_at(&self, now: Timestamp) -> Option<Timestamp> {
        let last = self.next.until.max(self.current.until);
        if self.is_permits {
            return Some(self.permits_due(now));
        }
        (last > now).then(|| last.saturating_sub(self.lead).min(now.saturating_add(self.look)).max(now))
    }

    /// Whether units held are about to lapse, or are more than are going to be spent; and what the slot is to hold.
    pub(super) fn review(&mut self, held: Held, in_use: u64, now: Timestamp) -> (Review, Held) {
        let left = self.expire(held, now);
        let slot = self.slot(held, left, now);
        if self.is_permits {
            return (self.review_permits(left, in_use, now), slot);
        }
        let there = left.saturating_add(self.current.units);
        if self.is_asking {
            return (Review::Later(now.saturating_add(MAX_LEAD)), slot);
        }
        let holds = there > 0 || self.next.units > 0;
        if !holds && self.lapsed.units == 0 {
            let review =
                if self.is_idle(now) { Review::Done } else { Review::Later(now.saturating_add(MEMORY)) };
            return (review, slot);
        }
        let is_look = now.since(self.looked.1) >= self.look;
        let spent = self.spent_since_look(there);
        self.is_quiet = spent == 0;
        let all = there.saturating_add(self.next.units);
        let is_little = f64::from(all.saturating_add(self.lapsed.units)) <= self.rate * WORTH_A_CALL;
        // One look may have seen the end of what was going on.
        let seems_too_much = !is_little && f64::from(there) > 2.0 * self.spendable(there, now);
        self.has_too_much = seems_too_much && (self.is_quiet || self.seemed_too_much);
        if is_look {
            self.seemed_too_much = seems_too_much;
        }
        if self.is_quiet && is_little {
            let at = self.next.until.max(self.current.until);
            return (Review::Later(if at > now { at } else { now.saturating_add(MEMORY) }), slot);
        }
        let at = self.review_at(now).filter(|at| holds && *at > now && !self.has_too_much);
        self.is_asking = at.is_none();
        if self.has_too_much && spent > 0 {
            self.rate = self.rate.min(1.25 * spent as f64 / now.since(self.looked.1).as_secs_f64());
        }
        if is_look && !self.is_asking {
            self.looked = (all.into(), now);
        }
        (at.map_or(Review::Ask, Review::Later), slot)
    }

    /// Whether there is nothing in it worth keeping.
    pub(super) fn is_idle(&self, now: Timestamp) -> bool {
        let remembers = self.rate > WORTH_REMEMBERING && now.since(self.asked_at) < MEMORY;
        let holds = self.next.units > 0 || self.lapsed.units > 0 || now < self.current.until || self.owed > 0;
        !holds && !remembers && !self.is_asking && self.needed == 0 && now >= self.pauses_until
    }

    /// Units that may be spent beside those in the slot.
    pub(super) fn held_back(&self, now: Timestamp) -> u32 {
        let units = |claim: &Claim| if now < claim.until { claim.units } else { 0 };
        units(&self.current).saturating_add(units(&self.next))
    }

    /// What is given back: what has lapsed, and what would before it is spent. Returns what is left beside it.
    fn take_back(&mut self, left: u32, now: Timestamp) -> (Claim, u32) {
        let mut returned = Claim::default();
        let mut kept = left;
        let there = left.saturating_add(self.current.units);
        let ends = self.current.until.since(now);
        let spendable =
            if ends <= self.lead { self.rate * self.lead.as_secs_f64() } else { self.spendable(there, now) };
        if f64::from(there) > spendable && there > 0 {
            kept = (spendable as u32).min(left);
            self.current.units = 0;
            returned.add(Claim { units: there - kept, ..self.current });
            returned.add(std::mem::take(&mut self.next));
        } else if self.next.until.since(now) <= self.lead || there == 0 && self.is_quiet {
            returned.add(std::mem::take(&mut self.next));
        }
        let mut lapsed = std::mem::take(&mut self.lapsed);
        self.accounted = self.accounted.saturating_sub(u64::from(returned.units) + u64::from(lapsed.units));
        if now < self.forfeits_until {
            (returned.units, lapsed.units) = (0, 0);
        }
        // Units of an older claim might make those of a later one count as old.
        let (few, many) = if lapsed.units < returned.units { (lapsed, returned) } else { (returned, lapsed) };
        returned = many;
        if few.units >= many.units / 8 {
            returned.add(few);
        }
        (returned, kept)
    }

    /// The slot with `left` units; with none, the pause that the store has asked for.
    fn slot(&self, held: Held, left: u32, now: Timestamp) -> Held {
        match held {
            _ if left > 0 => Held::Units(left, self.current.until),
            Held::Nothing { until, .. } if until > now => Held::Nothing { until, rejected: 0 },
            _ if self.current.units == 0 && self.next.units == 0 && self.pauses_until > now => {
                Held::Nothing { until: self.pauses_until, rejected: 0 }
            }
            _ => Held::Units(0, self.current.until),
        }
    }
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
