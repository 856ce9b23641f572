//! Errands: which counters to report to the global store, and when.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::time::Duration;

use super::{Region, RegionalLimit};
use crate::protocol;
use weir_limiter::leases::{LeaseRequest, ReturnedUnits, SharedCounter};
use weir_limiter::timestamp::Timestamp;

/// Maximum errands of one call, which bounds how long a call occupies a store.
const MAX_BATCH: usize = 128;
/// Number of queued errands of a group from which on allotments may be reported late.
const MAX_QUEUED: usize = 10_000;
/// Time after which an errand without a deposit is made again. Until then the store sends no other instance.
const RETRY_AFTER: Duration = Duration::from_millis(1100);

/// Errands that this instance makes.
#[derive(Debug)]
pub struct ErrandBook {
    pub(crate) region: Region,
    groups: Vec<ErrandGroup>,
    /// Errands to make again, by time. Those of counters that are not known any more are stale.
    later: BinaryHeap<Reverse<(Timestamp, SharedCounter)>>,
    known: BTreeMap<SharedCounter, KnownErrand>,
}

#[derive(Debug, Default)]
struct ErrandGroup {
    queued: VecDeque<SharedCounter>,
    is_call_in_flight: bool,
}

#[derive(Debug)]
struct KnownErrand {
    errand: Errand,
    /// Time at which it is due, unless it is queued or in flight.
    at: Option<Timestamp>,
    is_queued: bool,
    /// Time of the first failure since the last deposit.
    failing_since: Option<Timestamp>,
}

/// An errand for one counter.
#[derive(Clone, Debug)]
pub struct Errand {
    /// A query for no units about the counter.
    pub query: LeaseRequest,
    pub limit: RegionalLimit,
    /// Whether the store has sent this instance; if not, the errand is made only if no other instance makes it.
    pub is_sent: bool,
}

/// Errands of one call.
#[derive(Debug)]
pub struct ErrandBatch {
    pub group: u16,
    pub errands: Vec<Errand>,
}

/// What became of an errand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrandOutcome {
    /// The region is to report again after this time.
    Again(Duration),
    /// There is nothing more to report, or another instance makes the errand.
    Done,
    /// It got no deposit.
    Failed,
}

impl ErrandBook {
    /// Creates a book without errands, with this number of groups of counters.
    pub fn new(region: Region, groups: u16) -> Self {
        let groups = (0..groups).map(|_| ErrandGroup::default()).collect();
        Self { region, groups, later: BinaryHeap::new(), known: BTreeMap::new() }
    }

    /// Encodes what a query says of regions; `None` for concurrency limits.
    pub fn head_of_query(&self, request: &LeaseRequest) -> Option<String> {
        Some(self.region.head('q', &RegionalLimit::of(request)?))
    }

    /// Sets whether the global store does not respond. No errands are made meanwhile.
    pub fn set_cut_off(&mut self, is_cut_off: bool) {
        self.region.is_cut_off = is_cut_off;
    }

    /// Whether so many errands wait that allotments may be reported late.
    pub fn is_overloaded(&self) -> bool {
        self.groups.iter().any(|group| group.queued.len() > MAX_QUEUED)
    }

    /// Makes an errand for the counter of a query, as its store has replied.
    pub fn send(&mut self, request: &LeaseRequest) {
        let Some(limit) = RegionalLimit::of(request).filter(|_| !self.region.is_cut_off) else { return };
        let (counter, groups) = (request.counter, self.groups.len() as u16);
        let errand = Errand { query: idle_query(request), limit, is_sent: true };
        let known = self.known.get(&counter);
        let (is_queued, failing_since) =
            known.map_or((false, None), |known| (known.is_queued, known.failing_since));
        if !is_queued {
            self.groups[usize::from(protocol::group_index(counter, groups))].queued.push_back(counter);
        }
        self.known.insert(counter, KnownErrand { errand, at: None, is_queued: true, failing_since });
    }

    /// Returns the errands of the next call. Must be called repeatedly until it returns `None`.
    pub fn next_batch(&mut self, now: Timestamp) -> Option<ErrandBatch> {
        if self.region.is_cut_off {
            return None;
        }
        self.queue_due(now);
        let mut groups = self.groups.iter_mut().zip(0..);
        let (group, index) = groups.find(|(it, _)| !it.is_call_in_flight && !it.queued.is_empty())?;
        group.is_call_in_flight = true;
        let count = group.queued.len().min(MAX_BATCH);
        let known = &mut self.known;
        let errand = |counter| {
            let known = known.get_mut(&counter)?;
            known.is_queued = false;
            Some(known.errand.clone())
        };
        let errands = group.queued.drain(..count).filter_map(errand).collect();
        Some(ErrandBatch { group: index, errands })
    }

    fn queue_due(&mut self, now: Timestamp) {
        let groups = self.groups.len() as u16;
        while let Some(Reverse((_, counter))) =
            self.later.peek().copied().filter(|Reverse((at, _))| *at <= now)
        {
            let at = self.later.pop().map(|Reverse((at, _))| at);
            if let Some(known) = self.known.get_mut(&counter).filter(|it| it.at.is_some() && it.at == at) {
                (known.at, known.is_queued) = (None, true);
                self.groups[usize::from(protocol::group_index(counter, groups))].queued.push_back(counter);
            }
        }
    }

    /// Time of the next errand, if it is known.
    pub fn next_due(&self) -> Option<Timestamp> {
        self.later.peek().map(|Reverse((at, _))| *at).filter(|_| !self.region.is_cut_off)
    }

    /// Number of counters with errands.
    pub fn counters(&self) -> usize {
        self.known.len()
    }

    /// Records what became of the errands of a call, in their order.
    pub fn complete(&mut self, batch: &ErrandBatch, outcomes: &[ErrandOutcome], now: Timestamp) {
        self.groups[usize::from(batch.group)].is_call_in_flight = false;
        for (errand, outcome) in batch.errands.iter().zip(outcomes) {
            let counter = errand.query.counter;
            // It may have been queued meanwhile.
            let Some(known) = self.known.get_mut(&counter).filter(|known| !known.is_queued) else { continue };
            let after = match outcome {
                ErrandOutcome::Again(after) => {
                    known.failing_since = None;
                    *after
                }
                // An allotment that is not reported ends.
                ErrandOutcome::Failed if known.has_failed_for(self.region.valid, now) => {
                    self.known.remove(&counter);
                    continue;
                }
                ErrandOutcome::Failed => RETRY_AFTER,
                ErrandOutcome::Done => {
                    self.known.remove(&counter);
                    continue;
                }
            };
            let at = now.saturating_add(after);
            (known.at, known.errand.is_sent) = (Some(at), false);
            self.later.push(Reverse((at, counter)));
        }
    }
}

impl KnownErrand {
    /// Records a failure; returns whether there was no deposit for this long.
    fn has_failed_for(&mut self, long: Duration, now: Timestamp) -> bool {
        now.since(*self.failing_since.get_or_insert(now)) >= long
    }
}

/// Returns the query without units and demand.
fn idle_query(request: &LeaseRequest) -> LeaseRequest {
    LeaseRequest {
        needed: 0,
        least: 0,
        requested: 0,
        demanded: 0,
        elapsed: Duration::ZERO,
        returned: ReturnedUnits { units: 0, granted_at: 0 },
        owed: 0,
        ..request.clone()
    }
}

#[cfg(test)]
mod tests;
