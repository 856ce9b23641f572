//! One bucket: the assignments of its clients, and how many tokens may be in force.
//!
//! The protocol has no acknowledgement. A client uses the last assignment that it has received. After a lower
//! assignment is sent, the higher one may be in force until the client reports again or the higher one expires, and it
//! counts until then. So tokens taken from one client are assigned to another only once they have been given up.

use std::collections::HashMap;
use std::time::Duration;

use super::bound::Bound;
use super::division::{Wish, divide};
use super::{StreamId, TIME_TO_LIVE, Usage};
use crate::limiter::timestamp::Timestamp;

/// A report within this time after a lower assignment was sent may have crossed it in transit.
const CROSSING: Duration = Duration::from_millis(250);

/// Maximum time that an assignment is in force after it was sent; its validity starts on receipt.
const IN_FORCE: Duration = TIME_TO_LIVE.saturating_add(CROSSING);

/// Share changes of less than 1/16 are ignored: with every new assignment an Envoy starts with a full bucket, so
/// changes are not free.
const SLIGHT: u64 = 16;

/// Minimum time between two divisions of a bucket, per client. A division among 10 000 clients takes a millisecond.
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
    /// Demand in requests per unit of the limit; `None` before the second report.
    demand: Option<f64>,
    last_report: Timestamp,
    assigned: Option<Assigned>,
    /// The maximum of earlier, higher assignments that may still be in force.
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
    /// Returns the tokens that the client may be using.
    fn in_force(&self, now: Timestamp) -> u64 {
        let of = |assigned: Assigned| if assigned.expires > now { assigned.tokens } else { 0 };
        self.assigned.map_or(0, of).max(self.replaced.map_or(0, |replaced| of(replaced.of)))
    }

    /// Returns the tokens of the last assignment, if it is valid.
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
        // For a limit per second, the last report alone is significant. For longer units it is not, because earlier
        // tokens may have been used at once; so the demand moves halfway to the new value.
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

    /// Processes a report of `from`. Returns the clients to which to assign tokens and how many, in sending order.
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
            // Renews the unchanged assignment.
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

    /// Moves assignments towards their targets: reductions first, then increases by tokens that are not in force.
    fn rebalance(&mut self, from: StreamId, tokens: u64, now: Timestamp, changes: &mut Vec<(StreamId, u64)>) {
        let shares = self.shares(tokens, now);
        let is_short = |&(client, share): &(StreamId, u64)| {
            let has = self.clients[&client].assigned(now);
            share > has.saturating_add(has / SLIGHT)
        };
        let mut short: Vec<_> = shares.iter().copied().filter(is_short).collect();
        for (client, share) in shares {
            let has = self.clients[&client].assigned(now);
            // Without a client that needs tokens, a reduction waits until its client reports.
            let is_due = !short.is_empty() || client == from && has - share.min(has) > has / SLIGHT;
            if share < has && is_due {
                self.assign(client, share, now);
                changes.push((client, share));
            }
        }
        let in_force: u64 =
            self.clients.values().fold(0, |sum, client| sum.saturating_add(client.in_force(now)));
        let mut free = tokens.saturating_sub(in_force);
        // Clients with the fewest tokens first, and among equals the reporter.
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

    /// Returns the target share of each present client. Tokens that absent clients may be using are not divided.
    fn shares(&self, tokens: u64, now: Timestamp) -> Vec<(StreamId, u64)> {
        let away = self.clients.values().filter(|client| !client.is_here(now));
        let held = away.fold(0, |sum: u64, client| sum.saturating_add(client.in_force(now)));
        let here = self.clients.iter().filter(|(_, client)| client.is_here(now));
        let wishes: Vec<_> =
            here.map(|(client, known)| Wish { client: *client, demand: known.demand }).collect();
        divide(tokens.saturating_sub(held), &wishes)
    }

    /// Marks a client as gone.
    pub(super) fn leave(&mut self, client: StreamId) {
        if let Some(client) = self.clients.get_mut(&client) {
            client.is_gone = true;
        }
    }

    /// Removes a client at once; returns whether it was there.
    pub(super) fn forget(&mut self, client: StreamId) -> bool {
        self.clients.remove(&client).is_some()
    }

    /// Removes clients that have left or stopped reporting on this bucket, once their assignments have expired; returns
    /// them.
    pub(super) fn sweep(&mut self, now: Timestamp) -> Vec<StreamId> {
        let is_over = |client: &Client| !client.is_here(now) && client.in_force(now) == 0;
        self.clients.extract_if(|_, client| is_over(client)).map(|(id, _)| id).collect()
    }

    /// Returns the number of tokens that may be in use.
    #[cfg(test)]
    pub(super) fn in_force(&self, now: Timestamp) -> u64 {
        self.clients.values().map(|client| client.in_force(now)).sum()
    }
}
