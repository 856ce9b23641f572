//! Maxima for what costs work without being useful. They close the connection with ENHANCE_YOUR_CALM.
//!
//! A connection of many clients is not closed for the few errors of some of them: a stream that ends as it should takes
//! back one error, and each turn of the connection's task halves the number of premature resets.

use super::error::Reason;

/// Maximum DATA frames without data since the last one with data.
const MAX_EMPTY_FRAMES: u32 = 1000;

/// Maximum changes of the initial window that are more than the streams that have ended as they should.
const MAX_WINDOW_CHANGES: u32 = 1000;
/// Maximum streams beyond the maximum, as a multiple of the maximum. A client may open some before it has received the
/// maximum.
const MAX_REFUSED_FACTOR: u32 = 10;

/// Counters of one connection.
#[derive(Debug, Default)]
pub(super) struct FloodCounters {
    premature_resets: u32,
    error_resets: u32,
    empty_frames: u32,
    refused_streams: u32,
    window_changes: u32,
}

impl FloodCounters {
    /// Begins a turn of the connection's task.
    pub(super) const fn begin_turn(&mut self) {
        self.premature_resets /= 2;
    }

    /// Counts a stream that the peer has reset in the turn in which it was opened.
    pub(super) fn premature_reset(&mut self, max: u32) -> Result<(), Reason> {
        count(&mut self.premature_resets, max)
    }

    /// Counts a stream that is reset for an error of the peer.
    pub(super) fn error_reset(&mut self, max: u32) -> Result<(), Reason> {
        count(&mut self.error_resets, max)
    }

    /// Counts a stream that is rejected because `max_streams` are open.
    pub(super) fn refused_stream(&mut self, max_streams: u32) -> Result<(), Reason> {
        count(&mut self.refused_streams, max_streams.saturating_mul(MAX_REFUSED_FACTOR))
    }

    /// Counts a change of the initial window, which affects each stream.
    pub(super) fn window_change(&mut self) -> Result<(), Reason> {
        count(&mut self.window_changes, MAX_WINDOW_CHANGES)
    }

    /// Counts a DATA frame that neither has data nor ends the stream.
    pub(super) fn empty_frame(&mut self) -> Result<(), Reason> {
        count(&mut self.empty_frames, MAX_EMPTY_FRAMES)
    }

    /// Records a DATA frame with data.
    pub(super) const fn data(&mut self) {
        self.empty_frames = 0;
    }

    /// Records a stream that has ended as it should.
    pub(super) const fn useful_stream(&mut self) {
        self.refused_streams = self.refused_streams.saturating_sub(1);
        self.window_changes = self.window_changes.saturating_sub(1);
        self.error_resets = self.error_resets.saturating_sub(1);
    }
}

fn count(events: &mut u32, max: u32) -> Result<(), Reason> {
    *events = events.saturating_add(1);
    if *events > max { Err(Reason::ENHANCE_YOUR_CALM) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn useful_streams_pay_back() {
        let mut floods = FloodCounters::default();
        for _ in 0..100 {
            assert_eq!((floods.error_reset(2), floods.error_reset(2)), (Ok(()), Ok(())));
            floods.useful_stream();
            floods.useful_stream();
        }
        assert_eq!((floods.error_reset(2), floods.error_reset(2)), (Ok(()), Ok(())));
        assert_eq!(floods.error_reset(2), Err(Reason::ENHANCE_YOUR_CALM));
    }

    #[test]
    fn premature_resets_count_if_there_are_many_in_few_turns() {
        let mut floods = FloodCounters::default();
        for _ in 0..100 {
            floods.begin_turn();
            assert!((0..10).all(|_| floods.premature_reset(20).is_ok()));
        }
        floods.begin_turn();
        assert!((0..10).all(|_| floods.premature_reset(20).is_ok()));
        assert!((0..10).any(|_| floods.premature_reset(20).is_err()));
    }

    #[test]
    fn empty_frames_are_counted_between_those_with_data() {
        let mut floods = FloodCounters::default();
        for _ in 0..3 {
            assert!((0..MAX_EMPTY_FRAMES).all(|_| floods.empty_frame().is_ok()));
            floods.data();
        }
        assert!((0..MAX_EMPTY_FRAMES).all(|_| floods.empty_frame().is_ok()));
        assert_eq!(floods.empty_frame(), Err(Reason::ENHANCE_YOUR_CALM));
    }
}
