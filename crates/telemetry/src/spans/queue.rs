//! The bounded queue of encoded spans, in batches as the collector receives them.
//!
//! The exporter's thread wakes at the first span, and takes a batch when it is full or old enough. Without spans nothing
//! wakes.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::otlp;
use crate::metrics::SpanMetrics;

/// Maximum number of queued spans. They take at most 16 MB, with all texts at their maximum, and usually 1 MB.
const MAX_QUEUED_SPANS: usize = 2048;
/// Maximum number of spans in one request to the collector.
const MAX_BATCH_SIZE: usize = 512;
/// Maximum time a span waits for its batch to fill.
const BATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Queue of spans, and counters of exported and dropped ones.
#[derive(Debug)]
pub(super) struct SpanQueue {
    state: Mutex<SpanQueueState>,
    /// Wakes the exporter, and at its end those that wait for that.
    changed: Condvar,
    metrics: SpanMetrics,
}

#[derive(Debug, Default)]
struct SpanQueueState {
    /// All but the last are full.
    batches: VecDeque<SpanBatch>,
    /// Spans in all batches.
    spans: usize,
    /// No more spans are accepted.
    is_closed: bool,
    /// The exporter has ended.
    has_ended: bool,
}

/// Encoded spans of one request to the collector.
#[derive(Debug, Default)]
pub(super) struct SpanBatch {
    pub(super) bytes: Vec<u8>,
    pub(super) spans: usize,
}

impl SpanQueueState {
    fn has_full_batch(&self) -> bool {
        self.batches.front().is_some_and(|batch| batch.spans >= MAX_BATCH_SIZE)
    }

    /// Returns the batch that the next span belongs to.
    fn open_batch(&mut self) -> &mut SpanBatch {
        match self.batches.back() {
            Some(last) if last.spans < MAX_BATCH_SIZE => {}
            _ => self.batches.push_back(SpanBatch::default()),
        }
        let last = self.batches.len().saturating_sub(1);
        &mut self.batches[last]
    }
}

impl SpanQueue {
    pub(super) fn new(metrics: SpanMetrics) -> Self {
        Self { state: Mutex::default(), changed: Condvar::new(), metrics }
    }

    /// Queues an encoded span, or drops and counts it if the queue is full.
    pub(super) fn push(&self, span: &[u8]) {
        let mut state = self.state.lock();
        if state.is_closed || state.spans >= MAX_QUEUED_SPANS {
            drop(state);
            return self.metrics.dropped.increment(1);
        }
        let (was_empty, had_full) = (state.spans == 0, state.has_full_batch());
        let batch = state.open_batch();
        otlp::push_span(&mut batch.bytes, span);
        batch.spans += 1;
        state.spans += 1;
        let wakes = was_empty || (!had_full && state.has_full_batch());
        drop(state);
        if wakes {
            self.changed.notify_all();
        }
    }

    /// Waits for the next batch; `None` at the end.
    pub(super) fn next_batch(&self) -> Option<SpanBatch> {
        let mut state = self.state.lock();
        self.changed.wait_while(&mut state, |state| state.spans == 0 && !state.is_closed);
        let is_gathering = |state: &mut SpanQueueState| !state.has_full_batch() && !state.is_closed;
        self.changed.wait_while_for(&mut state, is_gathering, BATCH_INTERVAL);
        let batch = state.batches.pop_front()?;
        state.spans = state.spans.saturating_sub(batch.spans);
        Some(batch)
    }

    /// Counts a batch of `total` spans, of which `dropped` were lost and the others exported.
    pub(super) fn record_batch(&self, total: u64, dropped: u64) {
        let dropped = dropped.min(total);
        self.metrics.exported.increment(total - dropped);
        self.metrics.dropped.increment(dropped);
    }

    /// Whether no more spans are accepted.
    pub(super) fn is_closed(&self) -> bool {
        self.state.lock().is_closed
    }

    /// Accepts no more spans, and waits until the exporter has ended. Returns whether it did so within `timeout`.
    pub(super) fn close(&self, timeout: Duration) -> bool {
        let mut state = self.state.lock();
        state.is_closed = true;
        self.changed.notify_all();
        !self.changed.wait_while_for(&mut state, |state| !state.has_ended, timeout).timed_out()
    }

    /// Records that the exporter has ended.
    pub(super) fn exporter_ended(&self) {
        self.state.lock().has_ended = true;
        self.changed.notify_all();
    }
}
