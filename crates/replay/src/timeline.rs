//! Order of arrival: merges the blocks of all logs, whose lines are in the order of their ends.
//!
//! A line is written when its request ends, so requests that took long come late. A request is released when the logs
//! have advanced far enough beyond it. Each block is sorted by itself, and a heap holds the next request of every block.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use super::record::{LoggedRequest, ParsedBlock};
use weir_limiter::timestamp::Timestamp;

/// How far the logs must have advanced beyond the arrival of a request before it is decided. Lines are written when
/// requests end, so this is how long a request may take without being out of order.
pub(super) const REORDERING_WINDOW: Duration = Duration::from_secs(60);
/// Maximum number of requests that wait to be decided. More make the window shorter.
pub(super) const MAX_WAITING: usize = 1_000_000;
/// Maximum memory of the blocks of these requests, in bytes. More make the window shorter, too.
pub(super) const MAX_WAITING_BYTES: usize = 512 << 20;

/// Requests that are released together: enough for the memory accesses of their decisions to overlap.
pub(super) const BATCH_SIZE: usize = 32;

/// A block of which some requests have not been released.
struct Run {
    block: ParsedBlock,
    /// Number of requests that have been released.
    released: usize,
    /// Index of the log.
    log: usize,
    /// Memory of the block, in bytes.
    bytes: usize,
}

/// Next request of a block: its arrival, the number of the block, and the index of its run. Requests that arrived at the
/// same time are ordered as they were read.
type RunHead = (Timestamp, u64, usize);

/// A request of the batch.
struct ReleasedRequest {
    /// Index of the run.
    place: usize,
    /// Index in the run's block.
    index: u32,
}

/// Requests that have been read, in order of arrival.
#[derive(Default)]
pub(super) struct Timeline {
    runs: Vec<Option<Run>>,
    /// Indices of `runs` that are free.
    free: Vec<usize>,
    heads: BinaryHeap<Reverse<RunHead>>,
    /// The requests that were released last.
    batch: Vec<ReleasedRequest>,
    /// Indices of runs that have no further requests, and are kept for the batch.
    used: Vec<usize>,
    blocks: u64,
    waiting: usize,
    /// Memory of all blocks, in bytes.
    bytes: usize,
}

impl Timeline {
    /// Adds a block of the log with this index; returns it if it has no requests.
    pub(super) fn add(&mut self, block: ParsedBlock, log: usize) -> Option<ParsedBlock> {
        let Some((start, _)) = block.order.first().copied() else { return Some(block) };
        self.waiting += block.order.len();
        let bytes = block.memory();
        self.bytes = self.bytes.saturating_add(bytes);
        let run = Some(Run { block, released: 0, log, bytes });
        let place = match self.free.pop() {
            Some(place) => {
                self.runs[place] = run;
                place
            }
            None => {
                self.runs.push(run);
                self.runs.len() - 1
            }
        };
        self.blocks += 1;
        self.heads.push(Reverse((start, self.blocks, place)));
        None
    }

    /// Whether more requests wait than may, or in more memory.
    pub(super) const fn is_over_bound(&self) -> bool {
        self.waiting > MAX_WAITING || self.bytes > MAX_WAITING_BYTES
    }

    /// Releases the first requests that arrived at `end` or before, up to a batch, and more while too many wait; returns
    /// whether there was one. The batch before must have been [cleared](Self::clear_batch).
    pub(super) fn release_batch(&mut self, end: Timestamp) -> bool {
        while self.batch.len() < BATCH_SIZE
            && let Some(Reverse(head)) = self.heads.pop()
        {
            let rest = self.release_run(head, end);
            self.heads.extend(rest.map(Reverse));
            if rest == Some(head) {
                break;
            }
        }
        !self.batch.is_empty()
    }

    /// Releases the requests of the block with this head that come before those of other blocks; returns its next head.
    #[inline]
    fn release_run(&mut self, head: RunHead, end: Timestamp) -> Option<RunHead> {
        let (mut start, number, place) = head;
        let other = self.heads.peek().map(|Reverse(other)| *other);
        loop {
            let is_due = start <= end || self.is_over_bound();
            let next = (start, number, place);
            if !is_due || self.batch.len() >= BATCH_SIZE || other.is_some_and(|other| other < next) {
                return Some(next);
            }
            let run = self.runs[place].as_mut()?;
            let index = run.block.order.get(run.released).map_or(0, |(_, index)| *index);
            self.batch.push(ReleasedRequest { place, index });
            self.waiting -= 1;
            run.released += 1;
            let Some((following, _)) = run.block.order.get(run.released) else {
                self.bytes = self.bytes.saturating_sub(run.bytes);
                self.used.push(place);
                return None;
            };
            start = *following;
        }
    }

    /// Returns the requests of the batch, in order of arrival.
    pub(super) fn batch(&self) -> impl Iterator<Item = (&ParsedBlock, &LoggedRequest)> {
        self.batch.iter().filter_map(|released| {
            let block = &self.runs[released.place].as_ref()?.block;
            Some((block, block.requests.get(released.index as usize)?))
        })
    }

    /// Removes the batch, and passes the blocks that are used up to `recycle`, with the indices of their logs.
    pub(super) fn clear_batch(&mut self, mut recycle: impl FnMut(ParsedBlock, usize)) {
        self.batch.clear();
        for place in self.used.drain(..) {
            self.free.push(place);
            if let Some(run) = self.runs[place].take() {
                recycle(run.block, run.log);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn block(seconds: &[u64]) -> ParsedBlock {
        let at = |second: &u64| {
            let time = Timestamp::from_secs(*second);
            LoggedRequest { start: time, end: time, ..LoggedRequest::EMPTY }
        };
        let mut block = ParsedBlock { requests: seconds.iter().map(at).collect(), ..ParsedBlock::default() };
        block.sort();
        block
    }

    fn release_all(timeline: &mut Timeline, end: u64) -> Vec<u64> {
        let mut released = Vec::new();
        while timeline.release_batch(Timestamp::from_secs(end)) {
            released.extend(timeline.batch().map(|(_, request)| request.start.as_secs()));
            timeline.clear_batch(|_, _| {});
        }
        released
    }

    proptest! {
        #[test]
        fn requests_are_released_in_order_of_arrival(
            blocks in proptest::collection::vec(proptest::collection::vec(0_u64..50, 0..8), 0..6)
        ) {
            let mut timeline = Timeline::default();
            let blocks: Vec<Vec<u64>> = blocks.into_iter().map(|block| block.repeat(9)).collect();
            for (log, seconds) in blocks.iter().enumerate() {
                prop_assert_eq!(timeline.add(block(seconds), log).is_some(), seconds.is_empty());
            }
            let mut all: Vec<u64> = blocks.concat();
            all.sort_unstable();
            let early: Vec<u64> = all.iter().copied().filter(|second| *second <= 24).collect();
            prop_assert_eq!(release_all(&mut timeline, 24), early);
            prop_assert_eq!(timeline.waiting, all.iter().filter(|second| **second > 24).count());
            prop_assert_eq!(release_all(&mut timeline, 50).len(), all.len() - early_count(&all));
            prop_assert_eq!(timeline.free.len(), timeline.runs.len());
        }
    }

    #[test]
    fn waiting_blocks_are_bounded_in_bytes() {
        let mut timeline = Timeline::default();
        let large = || ParsedBlock { data: Vec::with_capacity(MAX_WAITING_BYTES / 4), ..block(&[1, 3]) };
        for _ in 0..3 {
            let _ = timeline.add(large(), 0);
        }
        assert!(!timeline.is_over_bound());
        let _ = timeline.add(large(), 0);
        assert!(timeline.is_over_bound());
        // Only what is above the bound is released before its time.
        assert_eq!(release_all(&mut timeline, 0), [1, 1, 1, 1, 3]);
        assert!(!timeline.is_over_bound());
        assert_eq!((timeline.waiting, release_all(&mut timeline, 9).len(), timeline.bytes), (3, 3, 0));
    }

    fn early_count(seconds: &[u64]) -> usize {
        seconds.iter().filter(|second| **second <= 24).count()
    }
}
