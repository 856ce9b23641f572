//! Partitions: instances that do not reach the store for a while, in one direction or both. They spend their parts.

use std::sync::Arc;

use weir_limiter::Check;
use weir_limiter::leases::{LeaseOutcome, StorePart, UnitSource};
use weir_limiter::timestamp::Timestamp;
use weir_store::parts::StoreParts;

use super::{FleetSimulation, Instance, START};
use crate::instance;
use crate::plan::{PartBreach, Partitions, Schedule};

/// Interval of the attempts to reach the store again, in milliseconds.
const PROBE_INTERVAL: u64 = 100;

/// What an instance has of the store.
#[derive(Debug, Default)]
pub(super) struct Connection {
    pub(super) parts: Arc<StoreParts>,
    is_unreachable: bool,
    /// Millisecond at which the partition ends, and whether calls and replies are lost until then.
    cut_until: u64,
    loses_calls: bool,
    loses_replies: bool,
    /// The part of the last request.
    last: Option<StorePart>,
}

impl Instance {
    /// Returns the part that requests may spend, as the breach would have it.
    fn part(&mut self, breach: Option<PartBreach>, key: u64, now: Timestamp) -> Option<StorePart> {
        let counter = self.limiter.shared_counter(&self.check(key));
        let held = self.connection.parts.part_of(counter, now);
        let forgets = breach != Some(PartBreach::SpentForever);
        let part = held.or_else(|| self.connection.last.filter(|_| !forgets))?;
        self.connection.last = Some(part);
        Some(match breach {
            Some(PartBreach::SpentAtOnce) => StorePart { from: Timestamp::EPOCH, ..part },
            Some(PartBreach::SpentForever) => StorePart { until: Timestamp::END, ..part },
            Some(PartBreach::Whole) => StorePart { fraction: 1.0, ..part },
            None => part,
        })
    }

    /// Decides a request, by the part if the store is not reached. Returns `None` if it waits for the store.
    pub(super) fn decide(&mut self, breach: Option<PartBreach>, key: u64, now: Timestamp) -> Option<bool> {
        let check = self.check(key);
        if !self.connection.is_unreachable {
            return instance::decide(&self.limiter, &mut self.scheduler, &check, now);
        }
        if self.is_admitted(check, now) {
            return Some(true);
        }
        let Some(part) = self.part(breach, key, now) else { return Some(false) };
        let outcome = self.limiter.acquire_units_from(UnitSource::Part(part), &check, now);
        Some(matches!(outcome, LeaseOutcome::Ready(_)) && self.is_admitted(check, now))
    }

    fn is_admitted(&self, check: Check, now: Timestamp) -> bool {
        !self.limiter.check(&[check], now).verdicts()[0].exceeds()
    }

    pub(super) fn lose_store(&mut self) {
        self.connection.is_unreachable = true;
    }

    pub(super) fn renews_parts(&self) -> bool {
        self.connection.parts.are_used() && !self.connection.is_unreachable
    }
}

impl FleetSimulation {
    /// Whether a message between an instance and the store is lost now: a call, or a reply.
    pub(super) fn is_cut(&self, number: usize, is_call: bool) -> bool {
        let connection = &self.instances[number].connection;
        let is_lost = if is_call { connection.loses_calls } else { connection.loses_replies };
        is_lost && self.now < START + connection.cut_until * 1000
    }

    /// Begins and ends partitions at this millisecond. Instances that do not reach the store try again at intervals.
    pub(super) fn partition(&mut self, milli: u64) {
        let Some(partitions) = self.plan.partitions else { return };
        self.begin_partitions(partitions, milli);
        for number in 0..self.plan.instances {
            let is_cut = self.is_cut(number, true) || self.is_cut(number, false);
            let instance = &mut self.instances[number];
            if !is_cut && (milli + number as u64 * 37).is_multiple_of(PROBE_INTERVAL) {
                instance.connection.is_unreachable = false;
            }
        }
    }

    fn begin_partitions(&mut self, partitions: Partitions, milli: u64) {
        if let Schedule::Once { from, until, every } = partitions.schedule {
            for number in (0..self.plan.instances).filter(|number| milli == from && number % every == 0) {
                let connection = &mut self.instances[number].connection;
                (connection.cut_until, connection.loses_calls, connection.loses_replies) =
                    (until, true, true);
            }
            return;
        }
        for number in 0..self.plan.instances {
            let is_apart = milli < self.instances[number].connection.cut_until;
            if is_apart || self.rng.u32(0..6000) > 0 {
                continue;
            }
            let longest = [700, 4000, 14_000][self.rng.usize(0..3)];
            let connection = &mut self.instances[number].connection;
            connection.cut_until = milli + self.rng.u64(50..longest);
            let direction = self.rng.u8(0..4);
            (connection.loses_calls, connection.loses_replies) = (direction != 0, direction != 1);
        }
    }
}
