//! OpenTelemetry spans of requests, exported by OTLP over HTTP, with TLS or without.
//!
//! Off unless configured, and then nothing here is called. A span is made from the access-log entry when the request
//! has ended, and passed to the SDK's batch processor through a bounded queue: where that is full, or the
//! collector fails, spans are dropped and counted, and no request waits. `context` reads and writes the
//! headers that propagate traces, `span` builds spans, `exporter` sends batches.

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

use self::context::{Context, Incoming};
use self::exporter::Exporter;
pub use self::span::{Decision, Notes};
use super::access_log::Entry;
use super::metrics::{SpanMetrics, VERSION};
use crate::limiter::percent::Percent;
use crate::tls::client;

/// Spans that wait to be exported at most. With the longest texts that are kept that is 16 MB; with usual ones, 2 MB.
const MAX_QUEUED_SPANS: usize = 2048;
/// Spans of one request to the collector at most.
const MAX_BATCH: usize = 512;
/// How long a span waits for others to fill its batch.
const BATCH_INTERVAL: Duration = Duration::from_secs(1);
/// How long the end of the process waits for the last spans.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Where spans go, and of which requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Who takes them.
    pub collector: Collector,
    /// TLS towards the collector, where its address says so.
    pub tls: Option<client::Settings>,
    /// Fields sent along with every batch: most often who we are to the collector.
    pub headers: HeaderMap,
    /// The share of requests that have a span, of those for which nobody before us has decided that.
    pub sample: Percent,
    /// Under which name.
    pub service_name: Box<str>,
}

impl Settings {
    /// Whether the other differs in nothing but what can change while we run.
    pub fn is_same_but_for_sample(&self, other: &Self) -> bool {
        let Self { collector, tls, headers, service_name, sample: _ } = self;
        (collector, tls, headers, service_name)
            == (&other.collector, &other.tls, &other.headers, &other.service_name)
    }
}

/// Whoever takes spans by OTLP over HTTP/1.1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collector {
    /// A name or an address, the latter without brackets.
    pub host: Box<str>,
    /// The port.
    pub port: u16,
    /// The path of requests, `/v1/traces` at its end.
    pub path: Box<str>,
    /// Whether it speaks TLS.
    pub is_secure: bool,
}

/// Starts spans, and passes those that have ended to the batch processor.
#[derive(Debug)]
pub struct Tracer {
    /// Hundredths of a percent.
    sample: AtomicU32,
    processor: BatchSpanProcessor,
    scope: InstrumentationScope,
    counts: Arc<Counts>,
}

/// What became of spans, and how many are queued.
#[derive(Debug)]
struct Counts {
    queued: AtomicUsize,
    metrics: SpanMetrics,
    shutting_down: AtomicBool,
}

impl Counts {
    /// Takes a place in the queue; false if it is full, which counts as dropped.
    fn enqueue(&self) -> bool {
        let more = |queued| (queued < MAX_QUEUED_SPANS).then_some(queued + 1);
        let is_queued = self.queued.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok();
        if !is_queued {
            self.metrics.dropped.increment(1);
        }
        is_queued
    }

    fn dequeue(&self, spans: usize) {
        self.queued.fetch_sub(spans, Ordering::Relaxed);
    }

    /// `dropped` of `all` spans of a batch were lost, the others exported.
    fn record(&self, all: u64, dropped: u64) {
        let dropped = dropped.min(all);
        self.metrics.exported.increment(all - dropped);
        self.metrics.dropped.increment(dropped);
    }

    fn is_shutting_down(&self) -> bool {
        self.shutting_down.load(Ordering::Relaxed)
    }
}

impl Tracer {
    /// Starts the batch processor's thread.
    ///
    /// # Errors
    /// If no runtime can be had, or TLS cannot be set up.
    pub fn start(settings: &Settings, metrics: SpanMetrics) -> io::Result<(Arc<Self>, Guard)> {
        let counts =
            Arc::new(Counts { queued: AtomicUsize::new(0), metrics, shutting_down: AtomicBool::new(false) });
        let exporter = Exporter::new(settings, Arc::clone(&counts))?;
        let batches = BatchConfigBuilder::default()
            .with_max_queue_size(MAX_QUEUED_SPANS)
            .with_max_export_batch_size(MAX_BATCH)
            .with_scheduled_delay(BATCH_INTERVAL)
            .build();
        let tracer = Arc::new(Self {
            sample: AtomicU32::new(settings.sample.hundredths()),
            processor: BatchSpanProcessor::builder(exporter).with_batch_config(batches).build(),
            scope: InstrumentationScope::builder("weir").with_version(VERSION).build(),
            counts,
        });
        let guard = Guard(Arc::clone(&tracer));
        Ok((tracer, guard))
    }

    /// Changes the share of requests that have a span.
    pub fn set_sample(&self, sample: Percent) {
        self.sample.store(sample.hundredths(), Ordering::Relaxed);
    }

    /// The place of a request with these headers in a trace; `random` is used for the identifiers of
    /// a trace and of a span, should it need them. `None` where an earlier hop
    /// has decided against a span: then the headers pass unchanged.
    pub fn begin(&self, headers: &HeaderMap, random: (u128, u64)) -> Option<Box<Context>> {
        let share = Percent::from_hundredths(self.sample.load(Ordering::Relaxed));
        Context::new(Incoming::of(headers), share, random).map(Box::new)
    }

    /// Queues the span of a request that has ended, or drops it where the queue is full; never waits.
    pub fn end(&self, context: &Context, entry: &Entry<'_>, notes: &Notes<'_>) {
        // The processor has the same bound, but does not tell how many spans it drops.
        if context.sampled && self.counts.enqueue() {
            self.processor.on_end(span::span(context, entry, notes, &self.scope));
        }
    }
}

/// Exports what is still queued when it is dropped, unless that takes longer than [`SHUTDOWN_TIMEOUT`].
#[must_use = "spans are lost unless this lives as long as requests do"]
#[derive(Debug)]
pub struct Guard(Arc<Tracer>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.counts.shutting_down.store(true, Ordering::Relaxed);
        if let Err(OTelSdkError::Timeout(_)) = self.0.processor.shutdown_with_timeout(SHUTDOWN_TIMEOUT) {
            tracing::warn!("the last spans could not be sent in time");
        }
    }
}
