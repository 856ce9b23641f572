//! One bucket: the assignments of its clients, and how many tokens may be in force.
//!
//! The protocol has no acknowledgement. A client uses the last assignment that it has received. After a lower
//! assignment is sent, the higher one may be in force until the client reports again or the higher one expires, and it
//! counts until then. So tokens taken from one client are assigned to another only once they have been given up.

use std::collections::HashMap;
use std::time::Duration;

use super::bucket_limit::BucketLimit;
use super::division::{ClientDemand, divide};
use super::{ASSIGNMENT_TIME_TO_LIVE, BucketUsage, StreamId};
use weir_limiter::timestamp::Timestamp;

/// A report within this time after a lower assignment was sent may have crossed it in transit.
const MAX_TRANSIT_TIME: Duration = Duration::from_millis(250);

/// Maximum time that an assignment is in force after it was sent; its validity starts on receipt.
const MAX_TIME_IN_FORCE: Duration = ASSIGNMENT_TIME_TO_LIVE.saturating_add(MAX_TRANSIT_TIME);

/// Share changes of less than 1/16 are ignored: with every new assignment an Envoy starts with a full bucket, so
/// changes are not free.
const MIN_CHANGE_DIVISOR: u64 = 16;

/// Minimum time between two divisions of a bucket, per client. A division among 10 000 clients takes a millisecond.
const MIN_DIVISION_INTERVAL_PER_CLIENT: Duration = Duration::from_micros(20);

/// The clients of a bucket.
#[derive(Debug, Default)]
pub(super) struct QuotaBucket {
    clients: HashMap<StreamId, BucketClient>,
    last_division: Timestamp,
}

#[derive(Clone, Copy, Debug)]
struct BucketClient {
    /// Demand in requests per unit of the limit; `None` before the second report.
    demand: Option<f64>,
    last_report: Timestamp,
    assigned: Option<AssignedTokens>,
    /// The maximum of earlier, higher assignments that may still be in force.
    replaced: Option<ReplacedAssignment>,
    has_left: bool,
}

#[derive(Clone, Copy, Debug)]
struct AssignedTokens {
    tokens: u64,
    expires: Timestamp,
}

#[derive(Clone, Copy, Debug)]
struct ReplacedAssignment {
    replaced_at: Timestamp,
    assignment: AssignedTokens,
}

impl BucketClient {
    /// Returns the tokens that the client may be using.
    fn tokens_in_force(&self, now: Timestamp) -> u64 {
        let unexpired_tokens =
            |assigned: AssignedTokens| if assigned.expires > now { assigned.tokens } else { 0 };
        self.assigned
            .map_or(0, unexpired_tokens)
            .max(self.replaced.map_or(0, |replaced| unexpired_tokens(replaced.assignment)))
    }

    /// Returns the tokens of the last assignment, if it is valid.
    fn assigned_tokens(&self, now: Timestamp) -> u64 {
        self.assigned.filter(|assigned| assigned.expires > now).map_or(0, |assigned| assigned.tokens)
    }

    fn assign(&mut self, tokens: u64, now: Timestamp) {
        if let Some(before) = self.assigned.filter(|before| before.tokens > tokens && before.expires > now) {
            let earlier = self.replaced.map(|replaced| replaced.assignment).filter(|of| of.expires > now);
            let earlier = earlier.unwrap_or(before);
            let assignment = AssignedTokens {
                tokens: before.tokens.max(earlier.tokens),
                expires: before.expires.max(earlier.expires),
            };
            self.replaced = Some(ReplacedAssignment { replaced_at: now, assignment });
        }
        self.assigned = Some(AssignedTokens { tokens, expires: now.saturating_add(MAX_TIME_IN_FORCE) });
    }

    fn record_report(&mut self, usage: &BucketUsage, limit: BucketLimit, now: Timestamp) {
        let is_confirmed = self
            .replaced
            .is_some_and(|replaced| now >= replaced.replaced_at.saturating_add(MAX_TRANSIT_TIME));
        if is_confirmed {
            self.replaced = None;
        }
        let Some(reported) = limit.demand(usage) else { return };
        // For a limit per second, the last report alone is significant. For longer units it is not, because earlier
        // tokens may have been used at once; so the demand moves halfway to the new value.
        let weight = (usage.elapsed.as_secs_f64() / limit.period().as_secs_f64()).clamp(0.5, 1.0);
        self.demand = Some(self.demand.map_or(reported, |before| before + (reported - before) * weight));
    }

    fn is_present(&self, now: Timestamp) -> bool {
        !self.has_left && self.last_report.saturating_add(ASSIGNMENT_TIME_TO_LIVE) > now
    }
}

impl QuotaBucket {
    pub(super) fn client_count(&self) -> usize {
        self.clients.len()
    }

    pub(super) fn has_client(&self, client: StreamId) -> bool {
        self.clients.contains_key(&client)
    }

    /// Processes a report of `reporter`. Returns the clients to which to assign tokens and how many, in
    /// sending order.
    pub(super) fn record_report(
        &mut self,
        reporter: StreamId,
        usage: &BucketUsage,
        limit: BucketLimit,
        now: Timestamp,
    ) -> Vec<(StreamId, u64)> {
        let new_client =
            BucketClient { demand: None, last_report: now, assigned: None, replaced: None, has_left: false };
        let client = self.clients.entry(reporter).or_insert(new_client);
        (client.last_report, client.has_left) = (now, false);
        client.record_report(usage, limit, now);
        let has_no_assignment = client.assigned.is_none_or(|assigned| assigned.expires <= now);
        let mut changes = Vec::new();
        let pause = MIN_DIVISION_INTERVAL_PER_CLIENT
            .saturating_mul(u32::try_from(self.clients.len()).unwrap_or(u32::MAX));
        if limit == BucketLimit::Unlimited {
            self.assign(reporter, limit.tokens(), now);
        } else if has_no_assignment || now.since(self.last_division) >= pause {
            self.last_division = now;
            self.rebalance(reporter, limit.tokens(), now, &mut changes);
        }
        if !changes.iter().any(|(client, _)| *client == reporter) {
            // Renews the unchanged assignment.
            let tokens = self.clients.get(&reporter).map_or(0, |client| client.assigned_tokens(now));
            self.assign(reporter, tokens, now);
            changes.push((reporter, tokens));
        }
        changes
    }

    fn assign(&mut self, client: StreamId, tokens: u64, now: Timestamp) {
        if let Some(client) = self.clients.get_mut(&client) {
            client.assign(tokens, now);
        }
    }

    /// Moves assignments towards their targets: reductions first, then increases by tokens that are not in force.
    fn rebalance(
        &mut self,
        reporter: StreamId,
        tokens: u64,
        now: Timestamp,
        changes: &mut Vec<(StreamId, u64)>,
    ) {
        let shares = self.target_shares(tokens, now);
        let is_below_share = |&(client, share): &(StreamId, u64)| {
            let assigned = self.clients[&client].assigned_tokens(now);
            share > assigned.saturating_add(assigned / MIN_CHANGE_DIVISOR)
        };
        let mut below_share: Vec<_> = shares.iter().copied().filter(is_below_share).collect();
        for (client, share) in shares {
            let assigned = self.clients[&client].assigned_tokens(now);
            // Without a client that needs tokens, a reduction waits until its client reports.
            let is_due = !below_share.is_empty()
                || client == reporter && assigned - share.min(assigned) > assigned / MIN_CHANGE_DIVISOR;
            if share < assigned && is_due {
                self.assign(client, share, now);
                changes.push((client, share));
            }
        }
        let in_force: u64 =
            self.clients.values().fold(0, |sum, client| sum.saturating_add(client.tokens_in_force(now)));
        let mut free = tokens.saturating_sub(in_force);
        // Clients with the fewest tokens first, and among equals the reporter.
        below_share
            .sort_by_key(|(client, _)| (self.clients[client].assigned_tokens(now), *client != reporter));
        for (client, share) in below_share {
            let (assigned, in_force) =
                (self.clients[&client].assigned_tokens(now), self.clients[&client].tokens_in_force(now));
            let granted = share.min(in_force.saturating_add(free));
            if granted > assigned.saturating_add(assigned / MIN_CHANGE_DIVISOR) {
                free -= granted.saturating_sub(in_force);
                self.assign(client, granted, now);
                changes.push((client, granted));
            }
        }
    }

    /// Returns the target share of each present client. Tokens that absent clients may be using are not divided.
    fn target_shares(&self, tokens: u64, now: Timestamp) -> Vec<(StreamId, u64)> {
        let absent = self.clients.values().filter(|client| !client.is_present(now));
        let reserved = absent.fold(0, |sum: u64, client| sum.saturating_add(client.tokens_in_force(now)));
        let present = self.clients.iter().filter(|(_, client)| client.is_present(now));
        let demands: Vec<_> =
            present.map(|(client, known)| ClientDemand { client: *client, demand: known.demand }).collect();
        divide(tokens.saturating_sub(reserved), &demands)
    }

    /// Records that a client has disconnected.
    pub(super) fn mark_as_left(&mut self, client: StreamId) {
        if let Some(client) = self.clients.get_mut(&client) {
            client.has_left = true;
        }
    }

    /// Removes a client at once; returns whether it was there.
    pub(super) fn remove_client(&mut self, client: StreamId) -> bool {
        self.clients.remove(&client).is_some()
    }

    /// Removes clients that have left or stopped reporting on this bucket, once their assignments have expired; returns
    /// them.
    pub(super) fn sweep(&mut self, now: Timestamp) -> Vec<StreamId> {
        let is_expired = |client: &BucketClient| !client.is_present(now) && client.tokens_in_force(now) == 0;
        self.clients.extract_if(|_, client| is_expired(client)).map(|(id, _)| id).collect()
    }

    /// Returns the number of tokens that may be in use.
    #[cfg(test)]
    pub(super) fn tokens_in_force(&self, now: Timestamp) -> u64 {
        self.clients.values().map(|client| client.tokens_in_force(now)).sum()
    }
}
