//! Clients whose requests were rejected, under one set of rules or under two that are compared.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;

use foldhash::fast::FixedState;

use super::tally::Fate;
use weir_limiter::timestamp::Timestamp;
use weir_policy::rules::RuleIndex;

/// Maximum number of clients that are counted.
const MAX_CLIENTS: usize = 200_000;

/// What was rejected of one client.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClientCount {
    /// Requests that the rules rejected.
    pub(super) rejected: u64,
    /// Requests that the rules to compare with rejected.
    pub(super) rejected_before: u64,
    /// Requests that only the rules rejected, and those that only the others did.
    pub(super) newly: u64,
    pub(super) no_longer: u64,
    /// The rule that rejected first.
    pub(super) rule: Option<RuleIndex>,
    /// First and last of all these requests.
    pub(super) first: Timestamp,
    pub(super) last: Timestamp,
}

/// The clients, and how the decisions differ over all requests.
#[derive(Debug, Default)]
pub(super) struct ClientTable {
    counts: HashMap<Option<IpAddr>, ClientCount, FixedState>,
    /// Rejected requests of clients that were not counted, because there were too many.
    pub(super) uncounted: u64,
    pub(super) newly: u64,
    pub(super) no_longer: u64,
    /// Requests that both reject.
    pub(super) both: u64,
}

impl ClientTable {
    /// Counts a request that either set of rules rejected. `before` is the decision of the rules to compare with.
    pub(super) fn count(&mut self, client: Option<IpAddr>, fate: Fate, before: Option<Fate>, now: Timestamp) {
        let rejected = |fate: Fate| matches!(fate, Fate::Rejected(_));
        let (is_rejected, was_rejected) = (rejected(fate), before.is_some_and(rejected));
        let is_compared = before.is_some();
        let newly = u64::from(is_compared && is_rejected && !was_rejected);
        let no_longer = u64::from(was_rejected && !is_rejected);
        self.newly += newly;
        self.no_longer += no_longer;
        self.both += u64::from(is_rejected && was_rejected);
        let is_full = self.counts.len() >= MAX_CLIENTS;
        let empty = ClientCount {
            rejected: 0,
            rejected_before: 0,
            newly: 0,
            no_longer: 0,
            rule: None,
            first: now,
            last: now,
        };
        let count = match self.counts.entry(client) {
            Entry::Occupied(count) => count.into_mut(),
            Entry::Vacant(_) if is_full => {
                self.uncounted += 1;
                return;
            }
            Entry::Vacant(free) => free.insert(empty),
        };
        count.rejected += u64::from(is_rejected);
        count.rejected_before += u64::from(was_rejected);
        count.newly += newly;
        count.no_longer += no_longer;
        if let Fate::Rejected(rule) = fate {
            count.rule.get_or_insert(rule);
        }
        count.last = now;
    }

    /// Returns the `number` clients with the highest `rank`, without those whose rank is 0.
    pub(super) fn top(
        &self,
        number: usize,
        rank: impl Fn(&ClientCount) -> u64,
    ) -> Vec<(Option<IpAddr>, ClientCount)> {
        let ranked = self.counts.iter().filter(|(_, count)| rank(count) > 0);
        let mut ranked: Vec<_> = ranked.map(|(client, count)| (*client, *count)).collect();
        ranked.sort_unstable_by_key(|(client, count)| (std::cmp::Reverse(rank(count)), count.first, *client));
        ranked.truncate(number);
        ranked
    }

    /// Number of clients that `is_counted` selects.
    pub(super) fn number(&self, is_counted: impl Fn(&ClientCount) -> bool) -> u64 {
        self.counts.values().filter(|count| is_counted(count)).count() as u64
    }
}
