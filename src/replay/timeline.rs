//! Order of arrival: merges the blocks of all logs, whose lines are in the order of their ends.
//!
//! A line is written when its request ends, so requests that took long come late. A request is released when the logs
//! have advanced far enough beyond it. Each block is sorted by itself, and a heap holds the next request of every block.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::time::Duration;

use super::record::{LoggedRequest, ParsedBlock};
use crate::limiter::timestamp::Timestamp;

/// How far the logs must have advanced beyond the arrival of a request before it is decided. Lines are written when
/// requests end, so this is how long a request may take without being out of order.
pub(super) const REORDERING_WINDOW: Duration = Duration::from_secs(60);
/// Maximum number of requests that wait to be decided. More make the window shorter.
pub(super) const MAX_WAITING: usize = 1_000_000;
/// Maximum memory of the blocks of these requests, in bytes. More make the window shorter, too.
pub(super) const MAX_WAITING_BYTES: usize = 512 << 20;

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

/// Next request of a block. Requests that arrived at the same time are ordered as they were read.
type RunHead = Reverse<(Timestamp, u64, usize)>;

/// Requests that have been read, in order of arrival.
#[derive(Default)]
pub(super) struct Timeline {
    runs: Vec<Option<Run>>,
    /// Indices of `runs` that are free.
    free: Vec<usize>,
    heads: BinaryHeap<RunHead>,
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

    /// Passes the first request to `visit` if it arrived at `end` or before; returns whether there was one. A block that is
    /// used up is passed to `done`, with the index of its log.
    #[inline]
    pub(super) fn release_first(
        &mut self,
        end: Timestamp,
        visit: impl FnOnce(&ParsedBlock, &LoggedRequest),
        done: impl FnOnce(ParsedBlock, usize),
    ) -> bool {
        let Some(mut head) = self.heads.peek_mut() else { return false };
        let Reverse((start, _, place)) = *head;
        let Some(run) = self.runs[place].as_mut().filter(|_| start <= end) else { return false };
        let order = &run.block.order;
        if let Some(request) =
            order.get(run.released).and_then(|(_, at)| run.block.requests.get(*at as usize))
        {
            visit(&run.block, request);
        }
        run.released += 1;
        self.waiting -= 1;
        match order.get(run.released) {
            // Writing through `PeekMut` restores the order of the heap, which costs nothing if only one block remains.
            Some((next, _)) if *next == start => {}
            Some((next, _)) => head.0.0 = *next,
            None => {
                PeekMut::pop(head);
                self.free.push(place);
                if let Some(run) = self.runs[place].take() {
                    self.bytes = self.bytes.saturating_sub(run.bytes);
                    done(run.block, run.log);
                }
            }
        }
        true
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
        while timeline.release_first(
            Timestamp::from_secs(end),
            |_, request| released.push(request.start.as_secs()),
            |_, _| {},
        ) {}
        released
    }

    proptest! {
        #[test]
        fn requests_are_released_in_order_of_arrival(
            blocks in proptest::collection::vec(proptest::collection::vec(0_u64..50, 0..8), 0..6)
        ) {
            let mut timeline = Timeline::default();
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
        let is_released =
            |timeline: &mut Timeline| timeline.release_first(Timestamp::END, |_, _| {}, |_, _| {});
        while timeline.is_over_bound() && is_released(&mut timeline) {}
        assert_eq!((timeline.waiting, release_all(&mut timeline, 9).len(), timeline.bytes), (3, 3, 0));
    }

    fn early_count(seconds: &[u64]) -> usize {
        seconds.iter().filter(|second| **second <= 24).count()
    }
}
