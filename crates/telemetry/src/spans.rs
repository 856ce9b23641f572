//! OpenTelemetry spans of requests, exported by OTLP over HTTP, with or without TLS.
//!
//! Tracing is off unless configured; then nothing here is called. When a request has ended, its span is encoded from its
//! access-log entry, as the collector receives it, and appended to a bounded batch. Spans are dropped and counted if
//! the queue is full or the collector fails; requests never wait. `context` reads and writes the headers that propagate
//! traces, `span` writes spans in the format of `otlp`, `queue` gathers batches, `exporter` sends them.

pub mod context;

mod exporter;
mod otlp;
mod queue;
mod span;

use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use http::HeaderMap;

use self::context::{IncomingTrace, TraceContext};
use self::queue::SpanQueue;
pub use self::span::{SpanDecision, SpanDetails};
use super::access_log::AccessLogEntry;
use super::metrics::SpanMetrics;
use weir_limiter::percent::Percent;
use weir_net::http_client::HttpTarget;

/// Maximum time that shutdown waits for the last spans.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);
/// Capacity of the memory for a span that is kept for the next one, enough for most spans.
const KEPT_SPAN_CAPACITY: usize = 4096;

thread_local! {
    /// Memory for the span that is being encoded.
    static SPAN: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Settings of the span export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracingSettings {
    /// Collector that receives the spans, with the headers of every batch, usually for authentication. The path ends in
    /// `/v1/traces`.
    pub collector: HttpTarget,
    /// Share of requests that get a span, unless an earlier hop has decided.
    pub sampling_ratio: Percent,
    /// Service name of the spans.
    pub service_name: Box<str>,
}

/// Starts traces, and queues completed spans for the exporter.
#[derive(Debug)]
pub struct Tracer {
    settings: TracingSettings,
    /// Share of sampled requests, in hundredths of a percent.
    sampling_ratio: AtomicU32,
    queue: Arc<SpanQueue>,
}

impl Tracer {
    /// Starts the exporter's thread.
    ///
    /// # Errors
    /// If no thread or runtime can be created, or TLS cannot be set up.
    pub fn start(settings: &TracingSettings, metrics: SpanMetrics) -> io::Result<Self> {
        let queue = Arc::new(SpanQueue::new(metrics));
        exporter::start(settings, Arc::clone(&queue))?;
        let sampling_ratio = AtomicU32::new(settings.sampling_ratio.hundredths());
        Ok(Self { settings: settings.clone(), sampling_ratio, queue })
    }

    /// Whether spans go where `settings` say; the share of sampled requests may differ.
    pub fn exports_as(&self, settings: &TracingSettings) -> bool {
        let TracingSettings { collector, service_name, sampling_ratio: _ } = settings;
        (collector, service_name) == (&self.settings.collector, &self.settings.service_name)
    }

    /// Sets the share of requests that get a span.
    pub fn set_sampling_ratio(&self, ratio: Percent) {
        self.sampling_ratio.store(ratio.hundredths(), Ordering::Relaxed);
    }

    /// Exports the queued spans, and accepts no others. Returns after a limited time.
    pub fn finish(&self) {
        if !self.queue.close(SHUTDOWN_TIMEOUT) {
            tracing::warn!("the last spans were not exported in time");
        }
    }

    /// Returns the trace context of a request with these headers, with IDs from `random` where they have none. `None`
    /// if an earlier hop decided against sampling: then the headers are forwarded unchanged.
    pub fn start_trace(&self, headers: &HeaderMap, random: impl Fn() -> u128) -> Option<TraceContext> {
        let ratio = Percent::from_hundredths(self.sampling_ratio.load(Ordering::Relaxed));
        if !context::has_trace_headers(headers) {
            return Some(TraceContext::start(ratio, random(), random() as u64));
        }
        let (incoming, tracestate) = IncomingTrace::from_headers(headers);
        TraceContext::new(incoming, tracestate, ratio, random(), random() as u64)
    }

    /// Queues the span of a completed request, or drops it if the queue is full; never waits.
    pub fn end_span(&self, context: &TraceContext, entry: &AccessLogEntry<'_>, details: &SpanDetails<'_>) {
        SPAN.with_borrow_mut(|span| {
            span::write_span(context, entry, details, span);
            self.queue.push(span);
            span.clear();
            span.shrink_to(KEPT_SPAN_CAPACITY);
        });
    }
}

impl Drop for Tracer {
    /// Ends the exporter once it has sent what is queued. Another tracer has replaced this one, or none.
    fn drop(&mut self) {
        self.queue.close(Duration::ZERO);
    }
}
