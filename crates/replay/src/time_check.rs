//! Times that cannot be right: lines dated far ahead of the lines around them, which would move the virtual clock so that
//! all further requests are late.
//!
//! A line is set aside if its time is more than a day after the latest line before it, and one of the next 100 lines
//! returns to within a day of that line. A gap in a log is no such case, since no line returns. At the beginning of a log,
//! the median of the first 100 lines takes the place of the latest line. Lines that are dated too early need no check:
//! they do not move the clock, and are late.

use std::collections::VecDeque;
use std::time::Duration;

use super::record::{LoggedRequest, ParsedBlock};
use super::stream::MAX_EXAMPLES;
use weir_limiter::timestamp::Timestamp;

/// How far a line may be ahead of the latest line before it without a look at the lines behind it.
const MAX_ADVANCE: Duration = Duration::from_secs(86_400);
/// Number of lines behind a line that decide whether its time can be right.
const LOOKAHEAD: usize = 100;
/// Maximum number of blocks that wait for lines behind them. Only blocks of very long lines have so few.
const MAX_DELAYED_BLOCKS: usize = 32;

/// Checks the times of one log, whose blocks it delays until the lines behind them have been read.
#[derive(Debug, Default)]
pub(super) struct TimeCheck {
    /// Latest end of a request so far.
    latest: Option<Timestamp>,
    delayed: VecDeque<ParsedBlock>,
}

impl TimeCheck {
    /// Adds the next block of the log.
    pub(super) fn add(&mut self, block: ParsedBlock) {
        self.delayed.push_back(block);
    }

    /// Returns the next block, without the lines whose time cannot be right; `None` if more lines must be read before.
    /// `is_end` states that there are no more.
    pub(super) fn next_checked(&mut self, is_end: bool) -> Option<ParsedBlock> {
        let behind: usize = self.delayed.iter().skip(1).map(|block| block.requests.len()).sum();
        if !is_end && behind < LOOKAHEAD && self.delayed.len() <= MAX_DELAYED_BLOCKS {
            return None;
        }
        let mut block = self.delayed.pop_front()?;
        self.check(&mut block);
        Some(block)
    }

    fn check(&mut self, block: &mut ParsedBlock) {
        let end_of = |request: &LoggedRequest| request.end;
        let following = self.delayed.iter().flat_map(|block| &block.requests).take(LOOKAHEAD).map(end_of);
        let Some(mut latest) = self.latest.or_else(|| {
            let ends = block.requests.iter().map(end_of).chain(following.clone());
            median(ends.take(LOOKAHEAD).collect())
        }) else {
            return;
        };
        if block.last_end <= latest.saturating_add(MAX_ADVANCE) {
            self.latest = Some(latest.max(block.last_end));
            return;
        }
        let ends: Vec<Timestamp> = block.requests.iter().map(end_of).chain(following).collect();
        let mut implausible = Vec::new();
        for (index, end) in ends.iter().copied().enumerate().take(block.requests.len()) {
            let usual = latest.saturating_sub(MAX_ADVANCE)..=latest.saturating_add(MAX_ADVANCE);
            let mut behind = ends.iter().skip(index + 1).take(LOOKAHEAD);
            if end > *usual.end() && behind.any(|other| usual.contains(other)) {
                implausible.push(index);
            } else {
                latest = latest.max(end);
            }
        }
        self.latest = Some(latest);
        if !implausible.is_empty() {
            block.set_aside(&implausible, MAX_EXAMPLES);
        }
    }
}

/// Returns the median, the lower one of two; `None` without times.
fn median(mut times: Vec<Timestamp>) -> Option<Timestamp> {
    times.sort_unstable();
    times.get(times.len().saturating_sub(1) / 2).copied()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DAY: u64 = 86_400;

    /// Checks blocks of requests at these seconds; returns what is left of each.
    fn checked(blocks: &[Vec<u64>]) -> Vec<Vec<u64>> {
        let (mut check, mut left) = (TimeCheck::default(), Vec::new());
        let mut take = |check: &mut TimeCheck, is_end| {
            while let Some(block) = check.next_checked(is_end) {
                assert_eq!(block.order.len(), block.requests.len());
                left.push(block.requests.iter().map(|request| request.end.as_secs()).collect());
            }
        };
        for seconds in blocks {
            let at = |second: &u64| {
                let time = Timestamp::from_secs(*second);
                LoggedRequest { start: time, end: time, ..LoggedRequest::EMPTY }
            };
            let mut block =
                ParsedBlock { requests: seconds.iter().map(at).collect(), ..ParsedBlock::default() };
            block.sort();
            check.add(block);
            take(&mut check, false);
        }
        take(&mut check, true);
        left
    }

    fn all_checked(seconds: &[u64]) -> Vec<u64> {
        checked(&[seconds.to_vec()]).concat()
    }

    #[test]
    fn line_far_ahead_of_its_neighbours_is_set_aside() {
        let far = 100 * DAY;
        assert_eq!(all_checked(&[far, 5, 6]), [5, 6], "first");
        assert_eq!(all_checked(&[5, far, far + DAY * 2, 6]), [5, 6]);
        assert_eq!(
            all_checked(&[5, 6, far]),
            [5, 6, far],
            "at the end, it moves the clock for no other line"
        );
        assert_eq!(all_checked(&[5, DAY + 5, 6]), [5, DAY + 5, 6], "one day");
        assert_eq!(checked(&[vec![5], vec![far], vec![], vec![6]]), [vec![5], vec![], vec![], vec![6]]);
    }

    #[test]
    fn gap_in_a_log_is_kept() {
        let weekend = 3 * DAY;
        assert_eq!(all_checked(&[5, 6, weekend, weekend + 1]), [5, 6, weekend, weekend + 1]);
        // The line of the epoch is no return to the lines before the gap.
        assert_eq!(all_checked(&[10 * DAY, 15 * DAY, 0, 15 * DAY]), [10 * DAY, 15 * DAY, 0, 15 * DAY]);
        let sparse: Vec<u64> = (0..300).map(|day| day * 2 * DAY).collect();
        assert_eq!(all_checked(&sparse), sparse);
    }

    #[test]
    fn lines_of_another_day_are_no_single_lines() {
        let two_days: Vec<u64> =
            (3 * DAY..3 * DAY + 200).chain(0..200).chain(9 * DAY..9 * DAY + 200).collect();
        assert_eq!(all_checked(&two_days), two_days);
    }

    proptest! {
        #[test]
        fn times_in_order_are_kept(steps in proptest::collection::vec(0_u64..5 * DAY, 0..400), size in 1_usize..50) {
            let mut now = 0;
            let times: Vec<u64> = steps.iter().map(|step| { now += step; now }).collect();
            let blocks: Vec<Vec<u64>> = times.chunks(size).map(<[u64]>::to_vec).collect();
            prop_assert_eq!(checked(&blocks).concat(), times);
        }
    }
}
