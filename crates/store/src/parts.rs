//! This instance's parts of the limits: what its requests may spend while it does not reach the store.
//!
//! The task renews the part of each group of counters with the calls that it makes anyway. A part may be spent from when the
//! store counts this instance as absent, until the store grants the part to others. docs/design/053-partitions.md has the
//! protocol.

use std::time::Duration;

use parking_lot::Mutex;

use super::protocol;
use weir_limiter::leases::{SharedCounter, StorePart};
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

/// Parts of this instance. The task of the store renews them, and requests spend them.
#[derive(Debug, Default)]
pub struct StoreParts(Mutex<PartsState>);

#[derive(Debug, Default)]
struct PartsState {
    groups: Vec<GroupPart>,
    /// Time for which the store holds a part back after its last renewal.
    valid: Duration,
    /// Interval between two renewals.
    interval: Duration,
    /// Lead of the store's clock over this process's, in nanoseconds, and when it was measured.
    clock_lead: Option<(i64, Timestamp)>,
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
        let mut state = self.0.lock();
        state.groups.resize_with(groups.into(), GroupPart::default);
        (state.valid, state.interval) = (valid, MIN_INTERVAL);
    }

    /// Sets the size of the fleet, which determines the interval of renewals.
    pub(super) fn set_instances(&self, instances: u32) {
        let mut state = self.0.lock();
        state.interval = (Duration::from_secs(1) * instances / MAX_FLEET_RENEWALS_PER_SECOND)
            .clamp(MIN_INTERVAL, MAX_INTERVAL)
            .min((state.valid / MIN_RENEWALS).max(MIN_INTERVAL));
    }

    /// Returns the part of the limit of `counter` that requests may spend without the store, or may later.
    pub fn part_of(&self, counter: SharedCounter, now: Timestamp) -> Option<StorePart> {
        let mut state = self.0.lock();
        let max_settle_time = state.valid;
        let groups = u16::try_from(state.groups.len()).ok().filter(|groups| *groups > 0)?;
        let group = &mut state.groups[usize::from(protocol::group_index(counter, groups))];
        if group.part == 0 || now >= group.until {
            return None;
        }
        group.is_spent |= now >= group.from;
        let fraction = f64::from(group.part) / f64::from(WHOLE);
        Some(StorePart { fraction, from: group.from, until: group.until, max_settle_time })
    }

    /// Records what was demanded of limits of a group, as the time in which the limits admit as much.
    pub fn record_demand(&self, group: u16, demanded: Duration, now: Timestamp) {
        let mut state = self.0.lock();
        let Some(group) = state.groups.get_mut(usize::from(group)) else { return };
        group.decay_demand(now);
        group.demand += demanded.as_secs_f64() / DEMAND_OVER.as_secs_f64();
    }

    /// Records the store's time, in nanoseconds, as of a reply that arrives at `now`.
    pub(super) fn record_clock_lead(&self, lead: i64, now: Timestamp) {
        self.0.lock().clock_lead = Some((lead, now));
    }

    /// Time of the next renewal of a group's part.
    pub(super) fn due(&self, group: u16) -> Option<Timestamp> {
        self.0.lock().groups.get(usize::from(group)).map(|group| group.due)
    }

    /// Whether the part of a group has to be renewed.
    pub(super) fn is_due(&self, group: u16, now: Timestamp) -> bool {
        self.due(group).is_some_and(|due| now >= due)
    }

    /// Returns the renewal of a group's part, which may not be spent until the store has counted this instance as absent
    /// again. `None` if the time of the store is not known: then a reply has to arrive first.
    pub(super) fn renew(&self, group: u16, now: Timestamp) -> Option<PartRenewal> {
        let state = &mut *self.0.lock();
        let (interval, valid) = (state.interval, state.valid);
        // A lead that was measured long ago may be wrong by what the clocks have drifted.
        let (lead, _) = state.clock_lead.filter(|(_, at)| now.since(*at) <= interval * (MAX_MISSED + 1))?;
        let group = state.groups.get_mut(usize::from(group))?;
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
        // The renewal is executed within an interval, if ever. Clocks may differ by an eighth.
        group.from = now.saturating_add(interval * (MAX_MISSED + 1) * 9 / 8);
        Some(renewal)
    }

    /// Stores the part that the store has renewed by a call that was sent at `sent`.
    pub(super) fn apply(&self, group: u16, part: i64, sent: Timestamp) {
        let state = &mut *self.0.lock();
        let (Some(group), Ok(part)) = (state.groups.get_mut(usize::from(group)), u32::try_from(part)) else {
            return;
        };
        (group.part, group.is_spent) = (part.min(WHOLE), false);
        group.until = sent.saturating_add(state.valid * 7 / 8);
    }

    /// Returns the least fraction of the limits of a group that may be spent without the store.
    pub(super) fn least_fraction(&self, now: Timestamp) -> f64 {
        let state = self.0.lock();
        let parts = state.groups.iter().map(|group| if now < group.until { group.part } else { 0 });
        f64::from(parts.min().unwrap_or(0)) / f64::from(WHOLE)
    }

    /// Gives the parts up with the next calls; returns whether there are any.
    pub(super) fn give_up(&self, now: Timestamp) -> bool {
        let state = &mut *self.0.lock();
        let mut held = state.groups.iter_mut().filter(|group| group.part > 0).peekable();
        let has_parts = held.peek().is_some();
        held.for_each(|group| (group.is_given_up, group.due) = (true, now));
        has_parts
    }
}

impl GroupPart {
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
