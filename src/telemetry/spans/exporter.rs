//! Sends spans to the collector: in batches, from a thread of its own, trying again for a while where that may help.

use std::fmt;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver as Ended, sync_channel};
use std::thread;
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use http::header::{CONTENT_TYPE, HOST, USER_AGENT};
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use prost::Message as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::mpsc::Receiver;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::{Collector, Counts, Settings, otlp};
use crate::telemetry::metrics::VERSION;
use crate::tls::Protocol;
use crate::tls::client::Client;

/// Spans sent at once.
const BATCH: usize = 512;
/// How long a batch waits for more.
const INTERVAL: Duration = Duration::from_secs(1);
/// For one request to the collector, connecting included.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pauses before further attempts: while one lasts, the queue takes what comes.
const PAUSES: [Duration; 3] = [Duration::from_millis(500), Duration::from_secs(1), Duration::from_secs(2)];
/// How long the end of the process waits for the last spans.
const LAST_SPANS: Duration = Duration::from_secs(2);
/// More than any collector has to say.
const LARGEST_ANSWER: usize = 64 * 1024;

/// Sends what is still queued when it is dropped, unless that takes too long.
#[must_use = "spans are lost unless this lives as long as requests do"]
#[derive(Debug)]
pub struct Guard {
    end: Option<oneshot::Sender<()>>,
    ended: parking_lot::Mutex<Ended<()>>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.end.take());
        if self.ended.lock().recv_timeout(LAST_SPANS).is_err() {
            tracing::warn!("the last spans could not be sent in time");
        }
    }
}

/// Sends what comes through `spans` from now on.
pub(super) fn start(
    settings: &Settings,
    spans: Receiver<otlp::Span>,
    counts: Arc<Counts>,
) -> io::Result<Guard> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (end, ending) = oneshot::channel();
    let (done, ended) = sync_channel(1);
    let tls = settings.tls.clone().map(Client::new).transpose().map_err(io::Error::other)?;
    let mut exporter = Exporter {
        collector: settings.collector.clone(),
        tls,
        headers: settings.headers.clone(),
        service_name: settings.service_name.clone(),
        counts,
        connection: None,
        failing: false,
        ending: false,
    };
    let export = move || {
        runtime.block_on(exporter.run(spans, ending));
        let _ = done.send(());
    };
    thread::Builder::new().name("spans".to_owned()).spawn(export)?;
    Ok(Guard { end: Some(end), ended: parking_lot::Mutex::new(ended) })
}

struct Exporter {
    collector: Collector,
    tls: Option<Client>,
    headers: HeaderMap,
    service_name: Box<str>,
    counts: Arc<Counts>,
    connection: Option<SendRequest<Full<Bytes>>>,
    /// The last batch was lost, and that has been said.
    failing: bool,
    ending: bool,
}

/// Why a batch was not taken.
struct Refused {
    why: String,
    /// Whether it may be taken later.
    may_pass: bool,
}

impl Refused {
    fn passing(why: impl fmt::Display) -> Self {
        Self { why: why.to_string(), may_pass: true }
    }
}

impl Exporter {
    /// Sends until the end is asked for, and what is queued then.
    async fn run(&mut self, mut spans: Receiver<otlp::Span>, ending: oneshot::Receiver<()>) {
        let mut ending = pin!(ending);
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            if !self.ending {
                tokio::select! {
                    _ = &mut ending => self.ending = true,
                    _ = gather(&mut spans, &mut batch) => {}
                }
            }
            if self.ending {
                spans.close();
                while batch.len() < BATCH
                    && let Ok(span) = spans.try_recv()
                {
                    batch.push(span);
                }
                if batch.is_empty() {
                    return;
                }
            }
            let sending = self.export(std::mem::take(&mut batch));
            sending.await;
        }
    }

    async fn export(&mut self, spans: Vec<otlp::Span>) {
        let count = spans.len() as u64;
        if count == 0 {
            return;
        }
        let body = Bytes::from(otlp::request(&self.service_name, spans).encode_to_vec());
        match self.deliver(&body).await {
            Ok(rejected) => {
                let rejected = rejected.min(count);
                add(&self.counts.exported, count - rejected);
                add(&self.counts.dropped, rejected);
                if std::mem::take(&mut self.failing) {
                    tracing::info!(collector = %self.collector, "spans are taken again");
                }
            }
            Err(refused) => {
                add(&self.counts.dropped, count);
                // Once, however long it lasts: the numbers go on to say it.
                if !std::mem::replace(&mut self.failing, true) {
                    tracing::warn!(collector = %self.collector, error = refused.why, "spans are lost: the collector does not take them");
                }
            }
        }
    }

    /// Sends a batch, several times if need be; answers how many of its spans the collector will not have.
    async fn deliver(&mut self, body: &Bytes) -> Result<u64, Refused> {
        // While the collector is away each batch is tried once: the next will find out whether it is back.
        let pauses = if self.failing || self.ending { &[][..] } else { &PAUSES };
        let mut pauses = pauses.iter();
        loop {
            let attempt = timeout(PATIENCE, self.attempt(body.clone())).await;
            let refused = match attempt.unwrap_or_else(|_| Err(Refused::passing("no answer in time"))) {
                Ok(rejected) => return Ok(rejected),
                Err(refused) => refused,
            };
            self.connection = None;
            match pauses.next().filter(|_| refused.may_pass) {
                Some(pause) => sleep(*pause).await,
                None => return Err(refused),
            }
        }
    }

    async fn attempt(&mut self, body: Bytes) -> Result<u64, Refused> {
        let kept = self.connection.take().filter(|kept| !kept.is_closed());
        let mut connection = match kept {
            Some(kept) => kept,
            None => self.connect().await?,
        };
        connection.ready().await.map_err(Refused::passing)?;
        let mut request = Request::post(&*self.collector.path)
            .header(HOST, self.collector.authority())
            .header(CONTENT_TYPE, "application/x-protobuf")
            .header(USER_AGENT, format!("weir/{VERSION}"))
            .body(Full::new(body))
            .map_err(|error| Refused { why: error.to_string(), may_pass: false })?;
        request.headers_mut().extend(self.headers.clone());
        let (head, body) = connection.send_request(request).await.map_err(Refused::passing)?.into_parts();
        let body = Limited::new(body, LARGEST_ANSWER).collect().await.map_err(Refused::passing)?.to_bytes();
        self.connection = Some(connection);
        if head.status.is_success() {
            return Ok(rejected(body));
        }
        // OTLP over HTTP, "Retryable Response Codes".
        let may_pass = matches!(
            head.status,
            StatusCode::TOO_MANY_REQUESTS
                | StatusCode::BAD_GATEWAY
                | StatusCode::SERVICE_UNAVAILABLE
                | StatusCode::GATEWAY_TIMEOUT
        );
        Err(Refused { why: format!("status {}", head.status.as_u16()), may_pass })
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, Refused> {
        let Collector { host, port, .. } = &self.collector;
        let stream = TcpStream::connect((&**host, *port)).await.map_err(Refused::passing)?;
        match &self.tls {
            None => begin(stream).await,
            Some(tls) => {
                let secured = tls.connect(stream, host, Protocol::Http1).await;
                begin(secured.map_err(Refused::passing)?.0).await
            }
        }
    }
}

async fn begin(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<SendRequest<Full<Bytes>>, Refused> {
    let (connection, driver) = handshake(TokioIo::new(stream)).await.map_err(Refused::passing)?;
    drop(tokio::spawn(driver));
    Ok(connection)
}

/// Waits for a first span, and then for a while for more.
async fn gather(spans: &mut Receiver<otlp::Span>, batch: &mut Vec<otlp::Span>) {
    if batch.is_empty() && spans.recv_many(batch, 1).await == 0 {
        // Nobody is left who could send one; the end is near.
        return std::future::pending().await;
    }
    let more =
        async { while batch.len() < BATCH && spans.recv_many(batch, BATCH - batch.len()).await > 0 {} };
    let _ = timeout(INTERVAL, more).await;
}

/// How many spans a collector that took a batch will not have (OTLP, "Partial Success").
fn rejected(mut answer: Bytes) -> u64 {
    let answer = ExportTraceServiceResponse::decode(answer.copy_to_bytes(answer.len()));
    let rejected =
        answer.ok().and_then(|answer| answer.partial_success).map_or(0, |partial| partial.rejected_spans);
    u64::try_from(rejected).unwrap_or(0)
}

fn add(count: &AtomicU64, more: u64) {
    count.fetch_add(more, Ordering::Relaxed);
}

impl Collector {
    fn authority(&self) -> String {
        let Self { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

impl fmt::Display for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_secure { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority(), self.path)
    }
}
