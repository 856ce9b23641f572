//! OpenTelemetry spans of requests, exported by OTLP over HTTP, with or without TLS.
//!
//! Tracing is off unless configured; then nothing here is called. When a request has ended, a span is built from its
//! access-log entry and passed to the SDK's batch processor through a bounded queue. Spans are dropped and counted if
//! the queue is full or the collector fails; requests never wait. `context` reads and writes the headers that propagate
//! traces, `span` builds spans, `exporter` sends batches.

pub mod context;

mod exporter;
mod span;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use http::HeaderMap;
use opentelemetry::InstrumentationScope;
use opentelemetry_sdk::error::OTelSdkError;
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, SpanProcessor as _};

use self::context::{IncomingTrace, TraceContext};
use self::exporter::OtlpExporter;
pub use self::span::{SpanDecision, SpanDetails};
use super::access_log::AccessLogEntry;
use super::metrics::{SpanMetrics, VERSION};
use crate::limiter::percent::Percent;
use crate::tls::client;

/// Maximum number of queued spans. They take at most 16 MB, with all texts at their maximum, and usually 2 MB.
const MAX_QUEUED_SPANS: usize = 2048;
/// Maximum number of spans in one request to the collector.
const MAX_BATCH_SIZE: usize = 512;
/// Maximum time a span waits for its batch to fill.
const BATCH_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum time that shutdown waits for the last spans.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Settings of the span export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracingSettings {
    /// Collector that receives the spans.
    pub collector: Collector,
    /// TLS to the collector, if its address requires it.
    pub tls: Option<client::TlsClientSettings>,
    /// Headers sent with every batch, usually for authentication.
    pub headers: HeaderMap,
    /// Share of requests that get a span, unless an earlier hop has decided.
    pub sampling_ratio: Percent,
    /// Service name of the spans.
    pub service_name: Box<str>,
}

impl TracingSettings {
    /// Whether the other settings differ at most in what can change without a restart.
    pub fn is_same_except_sampling_ratio(&self, other: &Self) -> bool {
        let Self { collector, tls, headers, service_name, sampling_ratio: _ } = self;
        (collector, tls, headers, service_name)
            == (&other.collector, &other.tls, &other.headers, &other.service_name)
    }
}

/// Address of a collector that accepts OTLP over HTTP/1.1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collector {
    /// Name or address; an IPv6 address is without brackets.
    pub host: Box<str>,
    /// The port.
    pub port: u16,
    /// Path of requests, ending in `/v1/traces`.
    pub path: Box<str>,
    /// Whether it is reached over TLS.
    pub is_secure: bool,
}

/// Starts spans, and passes completed ones to the batch processor.
#[derive(Debug)]
pub struct Tracer {
    /// Share of sampled requests, in hundredths of a percent.
    sampling_ratio: AtomicU32,
    processor: BatchSpanProcessor,
    scope: InstrumentationScope,
    export_state: Arc<SpanExportState>,
}

/// Number of queued spans, and counters of exported and dropped ones.
#[derive(Debug)]
struct SpanExportState {
    queued: AtomicUsize,
    metrics: SpanMetrics,
    is_shutting_down: AtomicBool,
}

impl SpanExportState {
    /// Reserves a slot of the queue; returns `false` and counts a dropped span if the queue is full.
    fn enqueue(&self) -> bool {
        let increment = |queued| (queued < MAX_QUEUED_SPANS).then_some(queued + 1);
        let is_queued = self.queued.fetch_update(Ordering::Relaxed, Ordering::Relaxed, increment).is_ok();
        if !is_queued {
            self.metrics.dropped.increment(1);
        }
        is_queued
    }

    fn dequeue(&self, spans: usize) {
        self.queued.fetch_sub(spans, Ordering::Relaxed);
    }

    /// Counts a batch of `total` spans, of which `dropped` were lost and the others exported.
    fn record_batch(&self, total: u64, dropped: u64) {
        let dropped = dropped.min(total);
        self.metrics.exported.increment(total - dropped);
        self.metrics.dropped.increment(dropped);
    }

    fn is_shutting_down(&self) -> bool {
        self.is_shutting_down.load(Ordering::Relaxed)
    }
}

impl Tracer {
    /// Starts the batch processor's thread.
    ///
    /// # Errors
    /// If no runtime can be created, or TLS cannot be set up.
    pub fn start(settings: &TracingSettings, metrics: SpanMetrics) -> io::Result<(Arc<Self>, TracerGuard)> {
        let export_state = Arc::new(SpanExportState {
            queued: AtomicUsize::new(0),
            metrics,
            is_shutting_down: AtomicBool::new(false),
        });
        let exporter = OtlpExporter::new(settings, Arc::clone(&export_state))?;
        let batches = BatchConfigBuilder::default()
            .with_max_queue_size(MAX_QUEUED_SPANS)
            .with_max_export_batch_size(MAX_BATCH_SIZE)
            .with_scheduled_delay(BATCH_INTERVAL)
            .build();
        let tracer = Arc::new(Self {
            sampling_ratio: AtomicU32::new(settings.sampling_ratio.hundredths()),
            processor: BatchSpanProcessor::builder(exporter).with_batch_config(batches).build(),
            scope: InstrumentationScope::builder("weir").with_version(VERSION).build(),
            export_state,
        });
        let guard = TracerGuard(Arc::clone(&tracer));
        Ok((tracer, guard))
    }

    /// Sets the share of requests that get a span.
    pub fn set_sampling_ratio(&self, ratio: Percent) {
        self.sampling_ratio.store(ratio.hundredths(), Ordering::Relaxed);
    }

    /// Returns the trace context of a request with these headers, with IDs from `random` where they have none. `None`
    /// if an earlier hop decided against sampling: then the headers are forwarded unchanged.
    pub fn start_trace(&self, headers: &HeaderMap, random: impl Fn() -> u128) -> Option<TraceContext> {
        let ratio = Percent::from_hundredths(self.sampling_ratio.load(Ordering::Relaxed));
        let (incoming, tracestate) = IncomingTrace::from_headers(headers);
        TraceContext::new(incoming, tracestate, ratio, random(), random() as u64)
    }

    /// Queues the span of a completed request, or drops it if the queue is full; never waits.
    pub fn end_span(&self, context: &TraceContext, entry: &AccessLogEntry<'_>, details: &SpanDetails<'_>) {
        // The processor has the same bound, but does not report how many spans it drops.
        if context.is_sampled && self.export_state.enqueue() {
            self.processor.on_end(span::build_span(context, entry, details, &self.scope));
        }
    }
}

/// Exports the queued spans when dropped, for at most `SHUTDOWN_TIMEOUT`.
#[must_use = "the export of spans stops when this is dropped"]
#[derive(Debug)]
pub struct TracerGuard(Arc<Tracer>);

impl Drop for TracerGuard {
    fn drop(&mut self) {
        self.0.export_state.is_shutting_down.store(true, Ordering::Relaxed);
        if let Err(OTelSdkError::Timeout(_)) = self.0.processor.shutdown_with_timeout(SHUTDOWN_TIMEOUT) {
            tracing::warn!("the last spans were not exported in time");
        }
    }
}
