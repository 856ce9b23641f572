//! The bounded queue of encoded spans, in batches as the collector receives them.
//!
//! The exporter's thread wakes at the first span, and takes a batch when it is full or old enough. Without spans nothing
//! wakes.

use std::collections::VecDeque;
use std::time::Duration;

use weir_net::batch_queue::{BatchQueue, Gathering};

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
    queue: BatchQueue<QueuedSpans>,
    metrics: SpanMetrics,
}

#[derive(Debug, Default)]
struct QueuedSpans {
    /// All but the last are full.
    batches: VecDeque<SpanBatch>,
    /// Spans in all batches.
    spans: usize,
}

/// Encoded spans of one request to the collector.
#[derive(Debug, Default)]
pub(super) struct SpanBatch {
    pub(super) bytes: Vec<u8>,
    pub(super) spans: usize,
}

impl Gathering for QueuedSpans {
    fn is_empty(&self) -> bool {
        self.spans == 0
    }

    fn is_full(&self) -> bool {
        self.batches.front().is_some_and(|batch| batch.spans >= MAX_BATCH_SIZE)
    }
}

impl QueuedSpans {
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
        Self { queue: BatchQueue::new(BATCH_INTERVAL), metrics }
    }

    /// Queues an encoded span, or drops and counts it if the queue is full.
    pub(super) fn push(&self, span: &[u8]) {
        let is_queued = self.queue.add(|queued| {
            let has_room = queued.spans < MAX_QUEUED_SPANS;
            if has_room {
                let batch = queued.open_batch();
                otlp::push_span(&mut batch.bytes, span);
                batch.spans += 1;
                queued.spans += 1;
            }
            has_room
        });
        if !is_queued {
            self.metrics.dropped.increment(1);
        }
    }

    /// Waits for the next batch; `None` at the end.
    pub(super) fn next_batch(&self) -> Option<SpanBatch> {
        self.queue.next(|queued| {
            let batch = queued.batches.pop_front()?;
            queued.spans = queued.spans.saturating_sub(batch.spans);
            Some(batch)
        })
    }

    /// Counts a batch of `total` spans, of which `dropped` were lost and the others exported.
    pub(super) fn record_batch(&self, total: u64, dropped: u64) {
        let dropped = dropped.min(total);
        self.metrics.exported.increment(total - dropped);
        self.metrics.dropped.increment(dropped);
    }

    /// Whether no more spans are accepted.
    pub(super) fn is_closed(&self) -> bool {
        self.queue.is_closed()
    }

    /// Accepts no more spans, and waits until the exporter has ended. Returns whether it did so within `timeout`.
    pub(super) fn close(&self, timeout: Duration) -> bool {
        self.queue.finish(timeout)
    }

    /// Records that the exporter has ended.
    pub(super) fn exporter_ended(&self) {
        self.queue.ended();
    }
}
