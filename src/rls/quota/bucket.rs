//! One bucket: what its clients are assigned, and what of it may be in force.
//!
//! The protocol has no acknowledgement. A client goes by the last assignment that it has received, so after a lower one
//! has been sent the higher one may be in force until the client reports again, or the higher one runs out. Both count
//! until then: tokens that are taken from one client are assigned to another only once they have been given up.

use std::collections::HashMap;
use std::time::Duration;

use super::bound::Bound;
use super::division::{Wish, divide};
use super::{StreamId, TIME_TO_LIVE, Usage};
use crate::limiter::timestamp::Timestamp;

/// A report that comes sooner than this after a lower assignment was sent may have crossed it on its way.
const CROSSING: Duration = Duration::from_millis(250);

/// How long an assignment may be in force after it was sent: its time runs from when the client has it.
const IN_FORCE: Duration = TIME_TO_LIVE.saturating_add(CROSSING);

/// A share that differs by less than one part in so many stays: with every new assignment an Envoy begins with a full
/// bucket, so changes are not free.
const SLIGHT: u64 = 16;

/// How often a bucket is divided anew: every so much for each client. Dividing among ten thousand takes a millisecond.
const PAUSE_PER_CLIENT: Duration = Duration::from_micros(20);

/// The clients of a bucket.
#[derive(Debug, Default)]
pub(super) struct Bucket {
    clients: HashMap<StreamId, Client>,
    divided: Timestamp,
}

/// One client of a bucket.
#[derive(Clone, Copy, Debug)]
struct Client {
    /// What it asks for, in requests per unit of the limit; `None` until it has reported twice.
    demand: Option<f64>,
    last_report: Timestamp,
    assigned: Option<Assigned>,
    /// Higher assignments of before that may still be in force.
    replaced: Option<Replaced>,
    is_gone: bool,
}

#[derive(Clone, Copy, Debug)]
struct Assigned {
    tokens: u64,
    expires: Timestamp,
}

#[derive(Clone, Copy, Debug)]
struct Replaced {
    by: Timestamp,
    of: Assigned,
}

impl Client {
    /// Tokens that it may be using.
    fn in_force(&self, now: Timestamp) -> u64 {
        let of = |assigned: Assigned| if assigned.expires > now { assigned.tokens } else { 0 };
        self.assigned.map_or(0, of).max(self.replaced.map_or(0, |replaced| of(replaced.of)))
    }

    /// Tokens of its last assignment, if that holds.
    fn assigned(&self, now: Timestamp) -> u64 {
        self.assigned.filter(|assigned| assigned.expires > now).map_or(0, |assigned| assigned.tokens)
    }

    fn assign(&mut self, tokens: u64, now: Timestamp) {
        if let Some(before) = self.assigned.filter(|before| before.tokens > tokens && before.expires > now) {
            let earlier = self.replaced.map(|replaced| replaced.of).filter(|of| of.expires > now);
            let earlier = earlier.unwrap_or(before);
            let of = Assigned {
                tokens: before.tokens.max(earlier.tokens),
                expires: before.expires.max(earlier.expires),
            };
            self.replaced = Some(Replaced { by: now, of });
        }
        self.assigned = Some(Assigned { tokens, expires: now.saturating_add(IN_FORCE) });
    }

    fn report(&mut self, usage: &Usage, bound: Bound, now: Timestamp) {
        let is_known = self.replaced.is_some_and(|replaced| now >= replaced.by.saturating_add(CROSSING));
        if is_known {
            self.replaced = None;
        }
        let Some(seen) = bound.demand(usage) else { return };
        // Of a limit per second the last seconds say it all. Of one per hour they do not: what was assigned before may
        // have been used at once, so the share follows by half.
        let weight = (usage.elapsed.as_secs_f64() / bound.unit().as_secs_f64()).clamp(0.5, 1.0);
        self.demand = Some(self.demand.map_or(seen, |before| before + (seen - before) * weight));
    }

    fn is_here(&self, now: Timestamp) -> bool {
        !self.is_gone && self.last_report.saturating_add(TIME_TO_LIVE) > now
    }
}

impl Bucket {
    pub(super) fn clients(&self) -> usize {
        self.clients.len()
    }

    pub(super) fn has(&self, client: StreamId) -> bool {
        self.clients.contains_key(&client)
    }

    /// Notes what `from` reports; returns who is to be assigned how many tokens, in the order in which it must be sent.
    pub(super) fn report(
        &mut self,
        from: StreamId,
        usage: &Usage,
        bound: Bound,
        now: Timestamp,
    ) -> Vec<(StreamId, u64)> {
        let new = Client { demand: None, last_report: now, assigned: None, replaced: None, is_gone: false };
        let client = self.clients.entry(from).or_insert(new);
        (client.last_report, client.is_gone) = (now, false);
        client.report(usage, bound, now);
        let has_none = client.assigned.is_none_or(|assigned| assigned.expires <= now);
        let mut changes = Vec::new();
        let pause = PAUSE_PER_CLIENT.saturating_mul(u32::try_from(self.clients.len()).unwrap_or(u32::MAX));
        if bound == Bound::Everything {
            self.assign(from, bound.tokens(), now);
        } else if has_none || now.since(self.divided) >= pause {
            self.divided = now;
            self.rebalance(from, bound.tokens(), now, &mut changes);
        }
        if !changes.iter().any(|(client, _)| *client == from) {
            // Unchanged, for another while.
            let tokens = self.clients.get(&from).map_or(0, |client| client.assigned(now));
            self.assign(from, tokens, now);
            changes.push((from, tokens));
        }
        changes
    }

    fn assign(&mut self, client: StreamId, tokens: u64, now: Timestamp) {
        if let Some(client) = self.clients.get_mut(&client) {
            client.assign(tokens, now);
        }
    }

    /// Brings assignments nearer to what they should be: first down, then up by what nobody can be using.
    fn rebalance(&mut self, from: StreamId, tokens: u64, now: Timestamp, changes: &mut Vec<(StreamId, u64)>) {
        let shares = self.shares(tokens, now);
        let is_short = |&(client, share): &(StreamId, u64)| {
            let has = self.clients[&client].assigned(now);
            share > has.saturating_add(has / SLIGHT)
        };
        let mut short: Vec<_> = shares.iter().copied().filter(is_short).collect();
        for (client, share) in shares {
            let has = self.clients[&client].assigned(now);
            // Without anybody who needs it there is no hurry; a client is told when it reports.
            let is_due = !short.is_empty() || client == from && has - share.min(has) > has / SLIGHT;
            if share < has && is_due {
                self.assign(client, share, now);
                changes.push((client, share));
            }
        }
        let in_force: u64 =
            self.clients.values().fold(0, |sum, client| sum.saturating_add(client.in_force(now)));
        let mut free = tokens.saturating_sub(in_force);
        // Those that have the least first, and of equals the one that is here.
        short.sort_by_key(|(client, _)| (self.clients[client].assigned(now), *client != from));
        for (client, share) in short {
            let (has, in_force) = (self.clients[&client].assigned(now), self.clients[&client].in_force(now));
            let granted = share.min(in_force.saturating_add(free));
            if granted > has.saturating_add(has / SLIGHT) {
                free -= granted.saturating_sub(in_force);
                self.assign(client, granted, now);
                changes.push((client, granted));
            }
        }
    }

    /// What each client that is here should have; what others may be using is not divided.
    fn shares(&self, tokens: u64, now: Timestamp) -> Vec<(StreamId, u64)> {
        let away = self.clients.values().filter(|client| !client.is_here(now));
        let held = away.fold(0, |sum: u64, client| sum.saturating_add(client.in_force(now)));
        let here = self.clients.iter().filter(|(_, client)| client.is_here(now));
        let wishes: Vec<_> =
            here.map(|(client, known)| Wish { client: *client, demand: known.demand }).collect();
        divide(tokens.saturating_sub(held), &wishes)
    }

    /// A client has gone.
    pub(super) fn leave(&mut self, client: StreamId) {
        if let Some(client) = self.clients.get_mut(&client) {
            client.is_gone = true;
        }
    }

    /// Forgets a client at once; whether there was one.
    pub(super) fn forget(&mut self, client: StreamId) -> bool {
        self.clients.remove(&client).is_some()
    }

    /// Forgets clients that have gone, or report on other buckets alone, and whose assignments have run out; says which.
    pub(super) fn sweep(&mut self, now: Timestamp) -> Vec<StreamId> {
        let is_over = |client: &Client| !client.is_here(now) && client.in_force(now) == 0;
        self.clients.extract_if(|_, client| is_over(client)).map(|(id, _)| id).collect()
    }

    /// Tokens that may be in use.
    #[cfg(test)]
    pub(super) fn in_force(&self, now: Timestamp) -> u64 {
        self.clients.values().map(|client| client.in_force(now)).sum()
    }
}
