//! Client of another rate limit service with Envoy's protocol; one per worker.
//!
//! A request is sent once and waits for its response for at most `timeout`; then the rule's fallback applies. After
//! several consecutive failures, no requests are sent for a while, so an unreachable service delays few requests. The
//! number of requests in flight is bounded.

use std::cell::Cell;
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use http::HeaderMap;
use tonic::Code;
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use super::channel::{self, Place};
use super::wire;
use crate::clock::Clock;
use crate::limiter::timestamp::Timestamp;
use crate::telemetry::metrics::{RemoteMetrics, RemoteOutcome};
use crate::tls::client::{self, TlsClient};

/// Maximum requests of one worker in flight, and separately those in the background. Further ones fail.
const MOST_WAITING: u32 = 1024;
/// Number of consecutive failures after which no requests are sent for [`REST`].
const PATIENCE: u32 = 5;
/// Pause after [`PATIENCE`] failures.
const REST: Duration = Duration::from_secs(1);
/// Maximum time to establish the first connection.
const WARM_UP: Duration = Duration::from_secs(5);
/// Maximum size of a response in bytes.
const LARGEST: usize = 1 << 20;

/// Address and options of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Address of the service.
    pub place: Place,
    /// TLS settings; plain text if `None`.
    pub tls: Option<client::TlsClientSettings>,
    /// Maximum time for a response.
    pub timeout: Duration,
}

/// A request to the service, for one request of a client.
#[derive(Clone, Debug)]
pub struct ServiceRequest {
    /// Domain of the descriptors.
    pub domain: String,
    /// Descriptors; at least one.
    pub descriptors: Vec<Descriptor>,
}

/// Whether a client's request waits for the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// It waits.
    Awaited,
    /// It does not wait, because the rule is in shadow mode.
    Background,
}

/// A descriptor and its hits.
#[derive(Clone, Debug)]
pub struct Descriptor {
    /// Keys and values, in order.
    pub entries: Vec<(String, String)>,
    /// Number of hits.
    pub hits: u32,
}

/// The response of a service.
#[derive(Clone, Debug, Default)]
pub struct ServiceResponse {
    /// Whether the request is over a limit.
    pub is_over: bool,
    /// The status of each descriptor of the request, in order.
    pub statuses: Vec<Status>,
    /// Headers to add to the request to the upstream.
    pub request_headers: HeaderMap,
    /// Headers to add to the response to the client.
    pub response_headers: HeaderMap,
    /// Body of a rejection; empty to use the rule's.
    pub body: Bytes,
}

/// Status of a descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Whether the limit is exceeded.
    pub is_over: bool,
    /// The limit as a count and a window, if there is one.
    pub limit: Option<(u32, Duration)>,
    /// Remaining hits.
    pub remaining: u32,
    /// Time until the quota is whole; zero if the service does not report it.
    pub reset: Duration,
}

/// Why there is no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The maximum number of requests is in flight.
    Crowded,
    /// The service is paused after failures.
    Resting,
    /// The response timed out.
    Late,
    /// There is no connection, or it failed.
    Away(Code),
    /// The service returned an error.
    Call(Code),
    /// The response does not match the request.
    Meaningless,
    /// No connection is possible, because TLS cannot be set up.
    Unusable,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Crowded => f.write_str("too many requests in flight"),
            Self::Resting => f.write_str("not called after repeated failures"),
            Self::Late => f.write_str("no response in time"),
            Self::Away(code) => write!(f, "no connection: {code:?}"),
            Self::Call(code) => write!(f, "error response: {code:?}"),
            Self::Meaningless => f.write_str("the response does not match the request"),
            Self::Unusable => f.write_str("cannot set up TLS"),
        }
    }
}

/// A service, as one worker uses it.
#[derive(Debug)]
pub struct Service {
    settings: Settings,
    /// `None` if no connection is possible.
    channel: Option<Channel>,
    waiting: Cell<u32>,
    waiting_background: Cell<u32>,
    failures: Cell<u32>,
    rests_until: Cell<Timestamp>,
    clock: Arc<Clock>,
    metrics: Arc<RemoteMetrics>,
}

impl Service {
    /// Creates a client for a service. Must be called within a runtime.
    pub fn new(settings: Settings, clock: Arc<Clock>, metrics: Arc<RemoteMetrics>) -> Self {
        let opened = open(&settings);
        if let Err(error) = &opened {
            tracing::error!(service = %settings.place, %error, "cannot call a rate limit service");
        }
        Self {
            settings,
            channel: opened.ok(),
            waiting: Cell::default(),
            waiting_background: Cell::default(),
            failures: Cell::default(),
            rests_until: Cell::default(),
            clock,
            metrics,
        }
    }

    /// Returns the settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Opens a connection in advance, so that the first request need not wait for one.
    pub fn connect(&self) -> impl Future<Output = ()> + use<> {
        let channel = self.channel.clone();
        async move {
            let Some(channel) = channel else { return };
            // The result of the health check does not matter; sending it opens the connection.
            let mut client = HealthClient::new(channel);
            let _ = tokio::time::timeout(WARM_UP, client.check(HealthCheckRequest::default())).await;
        }
    }

    /// Sends `request` and waits for the response.
    ///
    /// # Errors
    /// Why there is no response.
    pub async fn ask(&self, request: ServiceRequest, urgency: Urgency) -> Result<ServiceResponse, Failure> {
        let began = self.clock.now();
        let mut asking = Asking { service: self, began, has_ended: false };
        let asked = match self.begin(began, urgency) {
            Ok((channel, _waiting)) => self.call(channel, request).await,
            Err(failure) => Err(failure),
        };
        asking.end(asked.as_ref().map(|response| response.is_over).map_err(|failure| *failure));
        asked
    }

    /// Reserves a place among the requests in flight.
    fn begin(&self, now: Timestamp, urgency: Urgency) -> Result<(Channel, Waiting<'_>), Failure> {
        let channel = self.channel.clone().ok_or(Failure::Unusable)?;
        // After a pause, a single request probes the service.
        let is_tried = self.failures.get() >= PATIENCE && self.waiting.get() > 0;
        if now < self.rests_until.get() || is_tried {
            return Err(Failure::Resting);
        }
        let waiting = match urgency {
            Urgency::Awaited => &self.waiting,
            // Only a request that waits probes the service.
            Urgency::Background if self.failures.get() >= PATIENCE => return Err(Failure::Resting),
            Urgency::Background => &self.waiting_background,
        };
        Waiting::begin(waiting).map(|waiting| (channel, waiting)).ok_or(Failure::Crowded)
    }

    async fn call(&self, channel: Channel, request: ServiceRequest) -> Result<ServiceResponse, Failure> {
        let descriptors = request.descriptors.len();
        let mut request = tonic::Request::new(wire::request(request));
        request.set_timeout(self.settings.timeout);
        let mut client = RateLimitServiceClient::new(channel).max_decoding_message_size(LARGEST);
        match tokio::time::timeout(self.settings.timeout, client.should_rate_limit(request)).await {
            // tonic enforces the timeout, too, and reports it as a cancelled call.
            Err(_) => Err(Failure::Late),
            Ok(Err(status)) if matches!(status.code(), Code::Cancelled | Code::DeadlineExceeded) => {
                Err(Failure::Late)
            }
            // An error with a source occurred on this side of the connection.
            Ok(Err(status)) if status.code() == Code::Unavailable || status.source().is_some() => {
                Err(Failure::Away(status.code()))
            }
            Ok(Err(status)) => Err(Failure::Call(status.code())),
            Ok(Ok(response)) => {
                wire::response(response.into_inner(), descriptors).ok_or(Failure::Meaningless)
            }
        }
    }

    fn note(&self, asked: Result<bool, Failure>, now: Timestamp, took: Duration) {
        let outcome = match asked {
            Ok(false) => RemoteOutcome::Ok,
            Ok(true) => RemoteOutcome::OverLimit,
            Err(Failure::Late) => RemoteOutcome::Late,
            Err(Failure::Resting | Failure::Crowded | Failure::Unusable) => RemoteOutcome::Skipped,
            Err(Failure::Away(_) | Failure::Call(_) | Failure::Meaningless) => RemoteOutcome::Failed,
        };
        self.metrics.asked(outcome, (outcome != RemoteOutcome::Skipped).then_some(took));
        match asked {
            Ok(_) => self.recovered(),
            Err(failure @ (Failure::Late | Failure::Away(_))) => {
                self.failed(failure, now.saturating_add(took))
            }
            // The service is reachable; an error for one request implies nothing about the next.
            Err(Failure::Call(_) | Failure::Meaningless) => {}
            Err(Failure::Resting | Failure::Crowded | Failure::Unusable) => {}
        }
    }

    fn recovered(&self) {
        if self.failures.replace(0) >= PATIENCE {
            tracing::info!(service = %self.settings.place, "the rate limit service responds again");
        }
    }

    fn failed(&self, failure: Failure, now: Timestamp) {
        let failures = self.failures.get().saturating_add(1);
        self.failures.set(failures);
        if failures >= PATIENCE {
            self.rests_until.set(now.saturating_add(REST));
        }
        if failures == PATIENCE {
            tracing::warn!(
                service = %self.settings.place,
                %failure,
                "the rate limit service does not respond"
            );
        }
    }
}

/// A request in flight. If it is dropped before it has ended, the client has disconnected.
struct Asking<'s> {
    service: &'s Service,
    began: Timestamp,
    has_ended: bool,
}

impl Asking<'_> {
    fn end(&mut self, asked: Result<bool, Failure>) {
        let took = self.service.clock.now().since(self.began);
        self.service.note(asked, self.began, took);
        self.has_ended = true;
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.service.metrics.asked(RemoteOutcome::Abandoned, None);
        }
    }
}

/// A place among the requests in flight, released on drop.
struct Waiting<'s>(&'s Cell<u32>);

impl<'s> Waiting<'s> {
    fn begin(all: &'s Cell<u32>) -> Option<Self> {
        let now = all.get();
        all.set(if now < MOST_WAITING { now + 1 } else { return None });
        Some(Self(all))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get().saturating_sub(1));
    }
}

fn open(settings: &Settings) -> Result<Channel, Box<dyn Error>> {
    let tls = settings.tls.clone().map(|tls| TlsClient::new(tls).map(Arc::new)).transpose()?;
    Ok(channel::open(&settings.place, tls)?)
}
