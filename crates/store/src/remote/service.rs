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

use super::channel::{self, ServerAddress};
use super::wire;
use weir_limiter::timestamp::Timestamp;
use weir_net::clock::Clock;
use weir_net::outage::Outage;
use weir_net::tls::client::{self, TlsClient};
use weir_telemetry::metrics::{RemoteMetrics, RemoteOutcome};

/// Maximum requests of one worker in flight, and separately those in the background. Further ones fail.
const MAX_IN_FLIGHT: u32 = 1024;
/// Number of consecutive failures after which no requests are sent for [`FAILURE_PAUSE`].
const MAX_CONSECUTIVE_FAILURES: u32 = 5;
/// Pause after [`MAX_CONSECUTIVE_FAILURES`] failures.
const FAILURE_PAUSE: Duration = Duration::from_secs(1);
/// Maximum time to establish the first connection.
const WARM_UP_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of a response in bytes.
const MAX_RESPONSE_SIZE: usize = 1 << 20;

/// Address and options of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteServiceSettings {
    pub address: ServerAddress,
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
    pub descriptors: Vec<ServiceDescriptor>,
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
pub struct ServiceDescriptor {
    /// Keys and values, in order.
    pub entries: Vec<(String, String)>,
    pub hits: u32,
}

#[derive(Clone, Debug, Default)]
pub struct ServiceResponse {
    /// Whether the request is over a limit.
    pub is_over_limit: bool,
    /// The status of each descriptor of the request, in order.
    pub statuses: Vec<ServiceDescriptorStatus>,
    /// Headers to add to the request to the upstream.
    pub request_headers: HeaderMap,
    /// Headers to add to the response to the client.
    pub response_headers: HeaderMap,
    /// Body of a rejection; empty to use the rule's.
    pub body: Bytes,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceDescriptorStatus {
    /// Whether the limit is exceeded.
    pub is_over_limit: bool,
    /// The limit as a count and a window, if there is one.
    pub limit: Option<(u32, Duration)>,
    /// Remaining hits.
    pub remaining: u32,
    /// Time until the quota is whole; zero if the service does not report it.
    pub reset: Duration,
}

/// Why there is no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceError {
    /// The maximum number of requests is in flight.
    TooManyInFlight,
    /// The service is paused after failures.
    Paused,
    /// The response timed out.
    Timeout,
    /// There is no connection, or it failed.
    Unreachable(Code),
    /// The service returned an error.
    Status(Code),
    /// The response does not match the request.
    InvalidResponse,
    /// No connection is possible, because TLS cannot be set up.
    Misconfigured,
}

impl fmt::Display for ServiceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooManyInFlight => f.write_str("too many requests in flight"),
            Self::Paused => f.write_str("not called after repeated failures"),
            Self::Timeout => f.write_str("no response in time"),
            Self::Unreachable(code) => write!(f, "no connection: {code:?}"),
            Self::Status(code) => write!(f, "error response: {code:?}"),
            Self::InvalidResponse => f.write_str("the response does not match the request"),
            Self::Misconfigured => f.write_str("cannot set up TLS"),
        }
    }
}

/// A service, as one worker uses it.
#[derive(Debug)]
pub struct RemoteService {
    settings: RemoteServiceSettings,
    /// `None` if no connection is possible.
    channel: Option<Channel>,
    in_flight: Cell<u32>,
    in_flight_background: Cell<u32>,
    outage: Outage,
    paused_until: Cell<Timestamp>,
    clock: Arc<Clock>,
    metrics: Arc<RemoteMetrics>,
}

impl RemoteService {
    /// Creates a client for a service. Must be called within a runtime.
    pub fn new(settings: RemoteServiceSettings, clock: Arc<Clock>, metrics: Arc<RemoteMetrics>) -> Self {
        let opened = open_channel(&settings);
        if let Err(error) = &opened {
            tracing::error!(service = %settings.address, %error, "cannot call a rate limit service");
        }
        Self {
            settings,
            channel: opened.ok(),
            in_flight: Cell::default(),
            in_flight_background: Cell::default(),
            outage: Outage::default(),
            paused_until: Cell::default(),
            clock,
            metrics,
        }
    }

    pub fn settings(&self) -> &RemoteServiceSettings {
        &self.settings
    }

    /// Opens a connection in advance, so that the first request need not wait for one.
    pub fn connect(&self) -> impl Future<Output = ()> + use<> {
        let channel = self.channel.clone();
        async move {
            let Some(channel) = channel else { return };
            // The result of the health check does not matter; sending it opens the connection.
            let mut client = HealthClient::new(channel);
            let _ = tokio::time::timeout(WARM_UP_TIMEOUT, client.check(HealthCheckRequest::default())).await;
        }
    }

    /// Sends `request` and waits for the response.
    ///
    /// # Errors
    /// Why there is no response.
    pub async fn should_rate_limit(
        &self,
        request: ServiceRequest,
        urgency: Urgency,
    ) -> Result<ServiceResponse, ServiceError> {
        let started = self.clock.now();
        let mut call = ServiceCall { service: self, started, is_finished: false };
        let result = match self.acquire_permit(started, urgency) {
            Ok((channel, _guard)) => self.call(channel, request).await,
            Err(failure) => Err(failure),
        };
        call.finish(result.as_ref().map(|response| response.is_over_limit).map_err(|failure| *failure));
        result
    }

    /// Acquires a permit for a request in flight.
    fn acquire_permit(
        &self,
        now: Timestamp,
        urgency: Urgency,
    ) -> Result<(Channel, InFlightGuard<'_>), ServiceError> {
        let channel = self.channel.clone().ok_or(ServiceError::Misconfigured)?;
        // After a pause, a single request probes the service.
        let is_probing = self.outage.failures() >= MAX_CONSECUTIVE_FAILURES && self.in_flight.get() > 0;
        if now < self.paused_until.get() || is_probing {
            return Err(ServiceError::Paused);
        }
        let in_flight = match urgency {
            Urgency::Awaited => &self.in_flight,
            // Only a request that waits probes the service.
            Urgency::Background if self.outage.failures() >= MAX_CONSECUTIVE_FAILURES => {
                return Err(ServiceError::Paused);
            }
            Urgency::Background => &self.in_flight_background,
        };
        InFlightGuard::acquire(in_flight)
            .map(|waiting| (channel, waiting))
            .ok_or(ServiceError::TooManyInFlight)
    }

    async fn call(&self, channel: Channel, request: ServiceRequest) -> Result<ServiceResponse, ServiceError> {
        let descriptors = request.descriptors.len();
        let mut request = tonic::Request::new(wire::request_to_proto(request));
        request.set_timeout(self.settings.timeout);
        let mut client = RateLimitServiceClient::new(channel).max_decoding_message_size(MAX_RESPONSE_SIZE);
        match tokio::time::timeout(self.settings.timeout, client.should_rate_limit(request)).await {
            // tonic enforces the timeout, too, and reports it as a cancelled call.
            Err(_) => Err(ServiceError::Timeout),
            Ok(Err(status)) if matches!(status.code(), Code::Cancelled | Code::DeadlineExceeded) => {
                Err(ServiceError::Timeout)
            }
            // An error with a source occurred on this side of the connection.
            Ok(Err(status)) if status.code() == Code::Unavailable || status.source().is_some() => {
                Err(ServiceError::Unreachable(status.code()))
            }
            Ok(Err(status)) => Err(ServiceError::Status(status.code())),
            Ok(Ok(response)) => wire::response_from_proto(response.into_inner(), descriptors)
                .ok_or(ServiceError::InvalidResponse),
        }
    }

    fn record_outcome(&self, result: Result<bool, ServiceError>, now: Timestamp, took: Duration) {
        let outcome = match result {
            Ok(false) => RemoteOutcome::Ok,
            Ok(true) => RemoteOutcome::OverLimit,
            Err(ServiceError::Timeout) => RemoteOutcome::TimedOut,
            Err(ServiceError::Paused | ServiceError::TooManyInFlight | ServiceError::Misconfigured) => {
                RemoteOutcome::Skipped
            }
            Err(ServiceError::Unreachable(_) | ServiceError::Status(_) | ServiceError::InvalidResponse) => {
                RemoteOutcome::Failed
            }
        };
        self.metrics.record_call(outcome, (outcome != RemoteOutcome::Skipped).then_some(took));
        match result {
            Ok(_) => self.record_success(),
            Err(failure @ (ServiceError::Timeout | ServiceError::Unreachable(_))) => {
                self.record_failure(failure, now.saturating_add(took))
            }
            // The service is reachable; an error for one request implies nothing about the next.
            Err(ServiceError::Status(_) | ServiceError::InvalidResponse) => {}
            Err(ServiceError::Paused | ServiceError::TooManyInFlight | ServiceError::Misconfigured) => {}
        }
    }

    fn record_success(&self) {
        if self.outage.record_success() >= MAX_CONSECUTIVE_FAILURES {
            tracing::info!(service = %self.settings.address, "the rate limit service responds again");
        }
    }

    fn record_failure(&self, failure: ServiceError, now: Timestamp) {
        let failures = self.outage.record_failure();
        if failures >= MAX_CONSECUTIVE_FAILURES {
            self.paused_until.set(now.saturating_add(FAILURE_PAUSE));
        }
        if failures == MAX_CONSECUTIVE_FAILURES {
            tracing::warn!(
                service = %self.settings.address,
                %failure,
                "the rate limit service does not respond"
            );
        }
    }
}

/// A request in flight. If it is dropped before it has ended, the client has disconnected.
struct ServiceCall<'s> {
    service: &'s RemoteService,
    started: Timestamp,
    is_finished: bool,
}

impl ServiceCall<'_> {
    fn finish(&mut self, result: Result<bool, ServiceError>) {
        let took = self.service.clock.now().since(self.started);
        self.service.record_outcome(result, self.started, took);
        self.is_finished = true;
    }
}

impl Drop for ServiceCall<'_> {
    fn drop(&mut self) {
        if !self.is_finished {
            self.service.metrics.record_call(RemoteOutcome::Abandoned, None);
        }
    }
}

/// Permit of a request in flight, returned on drop.
struct InFlightGuard<'s>(&'s Cell<u32>);

impl<'s> InFlightGuard<'s> {
    fn acquire(in_flight: &'s Cell<u32>) -> Option<Self> {
        let now = in_flight.get();
        in_flight.set(if now < MAX_IN_FLIGHT { now + 1 } else { return None });
        Some(Self(in_flight))
    }
}

impl Drop for InFlightGuard<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get().saturating_sub(1));
    }
}

fn open_channel(settings: &RemoteServiceSettings) -> Result<Channel, Box<dyn Error>> {
    let tls = settings.tls.clone().map(|tls| TlsClient::new(tls).map(Arc::new)).transpose()?;
    Ok(channel::connect_lazy(&settings.address, tls)?)
}
