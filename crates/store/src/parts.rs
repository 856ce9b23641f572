//! This instance's parts of the limits: what its requests may spend while it does not reach the store.
//!
//! The task renews the part of each group of counters with the calls that it makes anyway. A part may be spent from when the
//! store counts this instance as absent, until the store grants the part to others. docs/design/053-partitions.md has the
//! protocol.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use weir_limiter::leases::{PartsByGroup, SharedCounter, StorePart};
use weir_limiter::timestamp::Timestamp;

/// Number that stands for all of a limit; `parts.lua` has the same.
const WHOLE: u32 = 1 << 20;
/// Interval between two renewals in a small fleet.
const MIN_INTERVAL: Duration = Duration::from_millis(250);
/// Maximum interval between two renewals.
const MAX_INTERVAL: Duration = Duration::from_secs(4);
/// Renewals per second of a whole fleet, as far as [`MAX_INTERVAL`] permits.
const MAX_FLEET_RENEWALS_PER_SECOND: u32 = 192;
/// Minimum number of renewals in the time for which one is valid.
const MIN_RENEWALS: u32 = 20;
/// Number of missed renewals after which an instance counts as absent.
const MAX_MISSED: u32 = 3;
/// Time constant with which the demand of a group follows.
const DEMAND_OVER: Duration = Duration::from_secs(1);
/// Pause of renewals after a part was given up, because the process ends.
const GIVEN_UP_PAUSE: Duration = Duration::from_secs(5);

/// Number of intervals after which a part may be spent. A renewal is executed within one, if ever, and the instance counts as
/// absent [`MAX_MISSED`] later. One more is for clocks that differ by an eighth.
const SPENT_AFTER: u32 = MAX_MISSED + 2;
/// Maximum age of what is known of the store's clock, in intervals.
const MAX_LEAD_AGE: u32 = 2;

/// Parts of this instance. The task of the store renews them, and requests spend them.
#[derive(Debug, Default)]
pub struct StoreParts {
    state: Mutex<PartsState>,
    /// Whether any limit has parts, so that requests without a part need no lock.
    are_used: AtomicBool,
}

#[derive(Debug, Default)]
struct PartsState {
    groups: Vec<GroupPart>,
    /// Time for which the store holds a part back after its last renewal.
    valid: Duration,
    /// Interval between two renewals.
    interval: Duration,
}

/// Part of the limits of one group of counters.
#[derive(Clone, Debug, Default)]
struct GroupPart {
    /// Units of [`WHOLE`].
    part: u32,
    /// Time from which it may be spent.
    from: Timestamp,
    /// Time until which it may be spent.
    until: Timestamp,
    /// Whether requests may have spent it since the last renewal.
    is_spent: bool,
    /// When the next renewal is due.
    due: Timestamp,
    /// Demand, as a multiple of the limits.
    demand: f64,
    demanded_at: Timestamp,
    is_given_up: bool,
    /// Lead of the clock of the group's server over this process's, in nanoseconds, and when it was measured. Unknown after a
    /// call without a reply, since a further renewal could be lost, too, and would put the start off.
    clock_lead: Option<(i64, Timestamp)>,
}

/// A renewal in a call. Times are in microseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct PartRenewal {
    demand: f64,
    valid: u128,
    absent_after: u128,
    claimed: u32,
    is_spent: bool,
    /// Time of the store until which the renewal may be executed.
    deadline: u64,
    sent: u64,
}

impl StoreParts {
    /// Sets the number of groups, and for how long the store holds a part back.
    pub(super) fn configure(&self, groups: u16, valid: Duration) {
        let mut state = self.state.lock();
        state.groups.resize_with(groups.into(), GroupPart::default);
        (state.valid, state.interval) = (valid, MIN_INTERVAL);
    }

    /// Sets the size of the fleet, which determines the interval of renewals.
    pub(super) fn set_instances(&self, instances: u32) {
        let mut state = self.state.lock();
        state.interval = (Duration::from_secs(1) * instances / MAX_FLEET_RENEWALS_PER_SECOND)
            .clamp(MIN_INTERVAL, MAX_INTERVAL)
            .min((state.valid / MIN_RENEWALS).max(MIN_INTERVAL));
    }

    /// Whether any limit has parts.
    pub fn are_used(&self) -> bool {
        self.are_used.load(Ordering::Relaxed)
    }

    /// Sets whether any limit has parts.
    pub fn set_used(&self, are_used: bool) {
        self.are_used.store(are_used, Ordering::Relaxed);
    }

    /// Returns the part of the limit of `counter` that requests may spend without the store, or may later.
    pub fn part_of(&self, counter: SharedCounter, now: Timestamp) -> Option<StorePart> {
        if !self.are_used() {
            return None;
        }
        let mut state = self.state.lock();
        let (valid, groups) = (state.valid, state.groups.len());
        let group = state.groups.get_mut(PartsByGroup::group_of(counter, groups))?;
        let part = group.spendable(valid, now)?;
        group.is_spent |= now >= group.from;
        Some(part)
    }

    /// Returns the parts that requests may spend without the store, or may later. Nothing is spent of them.
    pub(super) fn by_group(&self, now: Timestamp) -> PartsByGroup {
        let state = self.state.lock();
        PartsByGroup(state.groups.iter().map(|group| group.spendable(state.valid, now)).collect())
    }

    /// Records what was demanded of limits of a group, as the time in which the limits admit as much.
    pub fn record_demand(&self, group: u16, demanded: Duration, now: Timestamp) {
        let mut state = self.state.lock();
        let Some(group) = state.groups.get_mut(usize::from(group)) else { return };
        group.decay_demand(now);
        group.demand += demanded.as_secs_f64() / DEMAND_OVER.as_secs_f64();
    }

    /// Records the lead of a server's clock, in nanoseconds, as of a reply about a group that arrives at `now`.
    pub(super) fn record_clock_lead(&self, group: u16, lead: i64, now: Timestamp) {
        if let Some(group) = self.state.lock().groups.get_mut(usize::from(group)) {
            group.clock_lead = Some((lead, now));
        }
    }

    /// Records that a call about a group had no reply.
    pub(super) fn record_failure(&self, group: u16) {
        if let Some(group) = self.state.lock().groups.get_mut(usize::from(group)) {
            group.clock_lead = None;
        }
    }

    /// Time of the next renewal of a group's part.
    pub(super) fn due(&self, group: u16) -> Option<Timestamp> {
        self.state.lock().groups.get(usize::from(group)).map(|group| group.due)
    }

    /// Whether the part of a group has to be renewed.
    pub(super) fn is_due(&self, group: u16, now: Timestamp) -> bool {
        self.due(group).is_some_and(|due| now >= due)
    }

    /// Returns the renewal of a group's part, which may not be spent until the store has counted this instance as absent
    /// again. `None` if the time of the store is not known: then a reply has to arrive first.
    pub(super) fn renew(&self, group: u16, now: Timestamp) -> Option<PartRenewal> {
        let state = &mut *self.state.lock();
        let (interval, valid) = (state.interval, state.valid);
        let group = state.groups.get_mut(usize::from(group))?;
        // A lead that was measured long ago may be wrong by what the clocks have drifted.
        let (lead, _) = group.clock_lead.filter(|(_, at)| now.since(*at) <= interval * MAX_LEAD_AGE)?;
        group.decay_demand(now);
        let is_given_up = std::mem::take(&mut group.is_given_up);
        if now >= group.until {
            group.part = 0;
        }
        let renewal = PartRenewal {
            demand: group.demand,
            valid: if is_given_up { 0 } else { valid.as_micros() },
            absent_after: (interval * MAX_MISSED).as_micros(),
            claimed: if is_given_up { 0 } else { group.part },
            is_spent: group.is_spent,
            deadline: now.as_nanos().saturating_add_signed(lead) / 1000 + interval.as_micros() as u64,
            sent: now.as_nanos() / 1000,
        };
        if is_given_up || group.is_spent {
            group.part = 0;
        }
        group.due = now.saturating_add(if is_given_up { GIVEN_UP_PAUSE } else { interval });
        // An earlier renewal may have stated a longer time, of a fleet that was larger.
        group.from = group.from.max(now.saturating_add(interval * SPENT_AFTER));
        Some(renewal)
    }

    /// Stores the part that the store has renewed by a call that was sent at `sent`. The reply arrives at `now`.
    pub(super) fn apply(&self, group: u16, part: i64, sent: Timestamp, now: Timestamp) {
        let state = &mut *self.state.lock();
        let (Some(group), Ok(part)) = (state.groups.get_mut(usize::from(group)), u32::try_from(part)) else {
            return;
        };
        group.part = part.min(WHOLE);
        // Requests may have spent it since the renewal was sent, if the reply is so late.
        group.is_spent &= now >= group.from;
        group.until = sent.saturating_add(state.valid * 7 / 8);
    }

    /// Returns the least fraction of the limits of a group that may be spent without the store.
    pub(super) fn least_fraction(&self, now: Timestamp) -> f64 {
        let PartsByGroup(parts) = self.by_group(now);
        parts.iter().map(|part| part.map_or(0.0, |part| part.fraction)).reduce(f64::min).unwrap_or(0.0)
    }

    /// Gives the parts up with the next calls; returns whether there are any.
    pub(super) fn give_up(&self, now: Timestamp) -> bool {
        let state = &mut *self.state.lock();
        let mut held = state.groups.iter_mut().filter(|group| group.part > 0).peekable();
        let has_parts = held.peek().is_some();
        held.for_each(|group| (group.is_given_up, group.due) = (true, now));
        has_parts
    }
}

impl GroupPart {
    /// Returns the part, unless it may not be spent any more.
    fn spendable(&self, max_settle_time: Duration, now: Timestamp) -> Option<StorePart> {
        let fraction = f64::from(self.part) / f64::from(WHOLE);
        let is_spendable = self.part > 0 && now < self.until;
        is_spendable.then_some(StorePart { fraction, from: self.from, until: self.until, max_settle_time })
    }

    fn decay_demand(&mut self, now: Timestamp) {
        let elapsed = now.since(self.demanded_at).as_secs_f64();
        self.demand *= (-elapsed / DEMAND_OVER.as_secs_f64()).exp();
        self.demanded_at = self.demanded_at.max(now);
    }
}

impl PartRenewal {
    /// Encodes the renewal of the instance with this number for the script.
    pub(super) fn encode(&self, instance: u32) -> String {
        let Self { demand, valid, absent_after, claimed, is_spent, deadline, sent } = self;
        let is_spent = u8::from(*is_spent);
        format!("{instance} {demand:.9} {valid} {absent_after} {claimed} {is_spent} {deadline} {sent}")
    }
}

#[cfg(test)]
mod tests;
