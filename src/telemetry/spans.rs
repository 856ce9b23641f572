//! Spans of requests for whoever follows them through several services: OpenTelemetry, sent by OTLP over HTTP, with TLS or
//! without.
//!
//! Off unless configured, and then nothing here is called. A span is made of what the access log would say, when the
//! request has ended, and handed to a thread of its own through a bounded queue: where that is full, or the
//! collector takes nothing, spans are dropped and counted, and no request waits. `context` reads and writes the
//! fields that lead from service to service, `otlp` makes messages of spans, `exporter` sends them.

pub mod context;

mod exporter;
mod otlp;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use http::HeaderMap;
use tokio::sync::mpsc::{Sender, channel};

use self::context::{Context, Incoming};
pub use self::exporter::Guard;
pub use self::otlp::{Decision, Notes};
use super::access_log::Entry;
use crate::limiter::percent::Percent;
use crate::tls::client;

/// Spans that may wait to be sent. With the longest texts that are kept that is 16 MB; with usual ones, 2 MB.
const QUEUED_SPANS: usize = 2048;

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

/// Begins spans and takes those that have ended.
#[derive(Debug)]
pub struct Tracer {
    /// Hundredths of a percent.
    sample: AtomicU32,
    queue: Sender<otlp::Span>,
    counts: Arc<Counts>,
}

/// What became of spans.
#[derive(Debug, Default)]
struct Counts {
    exported: AtomicU64,
    dropped: AtomicU64,
}

/// What became of spans, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Taken by the collector.
    pub exported: u64,
    /// Lost: the queue was full, or the collector did not take them.
    pub dropped: u64,
}

impl Tracer {
    /// Begins to send spans. The guard is to be kept until the last request has ended.
    ///
    /// # Errors
    /// If no thread or runtime can be had.
    pub fn start(settings: &Settings) -> io::Result<(Self, Guard)> {
        let (queue, spans) = channel(QUEUED_SPANS);
        let counts = Arc::<Counts>::default();
        let guard = exporter::start(settings, spans, Arc::clone(&counts))?;
        Ok((Self { sample: AtomicU32::new(settings.sample.hundredths()), queue, counts }, guard))
    }

    /// From now on this share of requests.
    pub fn set_sample(&self, sample: Percent) {
        self.sample.store(sample.hundredths(), Ordering::Relaxed);
    }

    /// The place of a request with these fields in a trace; `random` are the numbers of
    /// a trace and of a span, should it need them. `None` where somebody
    /// before us has decided against a span: then what the fields say goes on as it is.
    pub fn begin(&self, headers: &HeaderMap, random: (u128, u64)) -> Option<Box<Context>> {
        let share = Percent::from_hundredths(self.sample.load(Ordering::Relaxed));
        Context::new(Incoming::of(headers), share, random).map(Box::new)
    }

    /// Takes the span of a request that has ended; never waits.
    pub fn end(&self, context: &Context, entry: &Entry<'_>, notes: &Notes<'_>) {
        if context.is_sampled() && self.queue.try_send(otlp::Span::new(context, entry, notes)).is_err() {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What became of spans so far.
    pub fn counted(&self) -> Counted {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counted { exported: load(&self.counts.exported), dropped: load(&self.counts.dropped) }
    }
}
