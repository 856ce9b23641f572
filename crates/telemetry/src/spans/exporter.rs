//! Exporter that sends batches of spans by OTLP over HTTP/1.1, with the retries that the protocol permits.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Method, StatusCode};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use prost::Message as _;
use tokio::time::{sleep, timeout};

use super::TracingSettings;
use super::otlp::BatchHead;
use super::queue::{SpanBatch, SpanQueue};
use crate::metrics::VERSION;
use weir_net::http_client::{HttpClient, read_body};
use weir_net::outage::Outage;

/// Timeout of one request to the collector, including the connection.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Pauses before retries. Meanwhile new spans are queued.
const RETRY_DELAYS: [Duration; 3] =
    [Duration::from_millis(500), Duration::from_secs(1), Duration::from_secs(2)];
/// Maximum size of a collector's response, in bytes.
const MAX_RESPONSE_SIZE: usize = 64 * 1024;

/// Starts the thread that sends the batches of `queue`, until the queue is closed.
pub(super) fn start(settings: &TracingSettings, queue: Arc<SpanQueue>) -> io::Result<()> {
    let client = HttpClient::new(settings.collector.clone(), MAX_RESPONSE_SIZE)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut delivery = SpanDelivery {
        collector: settings.collector.url.without_query(),
        client,
        batch_head: BatchHead::new(&settings.service_name, VERSION),
        queue,
        outage: Outage::default(),
    };
    let export = move || {
        // Waiting blocks the runtime: the thread has no other work.
        while let Some(batch) = delivery.queue.next_batch() {
            runtime.block_on(delivery.export(&batch));
        }
        delivery.queue.exporter_ended();
    };
    thread::Builder::new().name("spans".to_owned()).spawn(export).map(drop)
}

struct SpanDelivery {
    /// URL for the log.
    collector: String,
    client: HttpClient,
    batch_head: BatchHead,
    queue: Arc<SpanQueue>,
    outage: Outage,
}

/// Why a batch was not accepted.
struct ExportError {
    reason: String,
    is_retryable: bool,
}

impl ExportError {
    fn retryable(reason: impl fmt::Display) -> Self {
        Self { reason: reason.to_string(), is_retryable: true }
    }
}

impl SpanDelivery {
    async fn export(&mut self, batch: &SpanBatch) {
        let count = batch.spans as u64;
        let body = Bytes::from(self.batch_head.request(&batch.bytes));
        match self.send_with_retries(&body).await {
            Ok(rejected) => {
                self.queue.record_batch(count, rejected);
                if self.outage.record_success() > 0 {
                    tracing::info!(collector = %self.collector, "the collector accepts spans again");
                }
            }
            Err(failed) => {
                self.queue.record_batch(count, count);
                if self.outage.record_failure() == 1 {
                    tracing::warn!(
                        collector = %self.collector,
                        error = failed.reason,
                        "spans are dropped: the collector does not accept them"
                    );
                }
            }
        }
    }

    /// Sends a batch, retrying if necessary; returns how many of its spans the collector rejected.
    async fn send_with_retries(&mut self, body: &Bytes) -> Result<u64, ExportError> {
        // During an outage each batch is tried once, which is enough to detect the collector's return.
        let is_single_attempt = !self.outage.is_over() || self.queue.is_closed();
        let mut delays = if is_single_attempt { &[][..] } else { &RETRY_DELAYS }.iter();
        loop {
            let attempt = timeout(REQUEST_TIMEOUT, self.send_once(body.clone())).await;
            let failed = match attempt.unwrap_or_else(|_| Err(ExportError::retryable("no response in time")))
            {
                Ok(rejected) => return Ok(rejected),
                Err(failed) => failed,
            };
            self.client.close();
            match delays.next().filter(|_| failed.is_retryable) {
                Some(pause) => sleep(*pause).await,
                None => return Err(failed),
            }
        }
    }

    async fn send_once(&mut self, body: Bytes) -> Result<u64, ExportError> {
        let request = self.client.request(Method::POST).header(CONTENT_TYPE, "application/x-protobuf");
        let request = request
            .body(body.into())
            .map_err(|error| ExportError { reason: error.to_string(), is_retryable: false })?;
        let (head, body) = self.client.send(request).await.map_err(ExportError::retryable)?.into_parts();
        let body = read_body(body, MAX_RESPONSE_SIZE).await.map_err(ExportError::retryable)?;
        if head.status.is_success() {
            return Ok(rejected_span_count(body));
        }
        // OTLP over HTTP, "Retryable Response Codes".
        let is_retryable = matches!(
            head.status,
            StatusCode::TOO_MANY_REQUESTS
                | StatusCode::BAD_GATEWAY
                | StatusCode::SERVICE_UNAVAILABLE
                | StatusCode::GATEWAY_TIMEOUT
        );
        Err(ExportError { reason: format!("status {}", head.status.as_u16()), is_retryable })
    }
}

/// Returns how many spans of an accepted batch the collector rejected (OTLP, "Partial Success").
fn rejected_span_count(response: Bytes) -> u64 {
    let response = ExportTraceServiceResponse::decode(response);
    let rejected = response
        .ok()
        .and_then(|response| response.partial_success)
        .map_or(0, |partial| partial.rejected_spans);
    u64::try_from(rejected).unwrap_or(0)
}
