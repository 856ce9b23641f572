//! Another rate limit service, as one worker asks it by Envoy's protocol.
//!
//! A request is sent once and waits for its response no longer than `timeout`: the rule then decides about the client's
//! request. A service that has not responded several times in a row gets no requests for a while, so that one that is
//! down costs hardly any request its timeout. The number of requests in flight is bounded.

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
use crate::tls::client::{self, Client};

/// Questions of one worker that may wait at once, and as many more that no request waits for; further ones have no
/// answer.
const MOST_WAITING: u32 = 1024;
/// After so many failures in a row a service is left alone.
const PATIENCE: u32 = 5;
/// For so long.
const REST: Duration = Duration::from_secs(1);
/// For the first connection to be of use.
const WARM_UP: Duration = Duration::from_secs(5);
/// The largest answer.
const LARGEST: usize = 1 << 20;

/// Where a service is, and how it is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where it is.
    pub place: Place,
    /// TLS; plain without.
    pub tls: Option<client::Settings>,
    /// How long an answer may take.
    pub timeout: Duration,
}

/// A request to the service, about one request of a client.
#[derive(Clone, Debug)]
pub struct ServiceRequest {
    /// The domain of the descriptors.
    pub domain: String,
    /// At least one.
    pub descriptors: Vec<Descriptor>,
}

/// Whether a client's request waits for the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// It does.
    Awaited,
    /// It does not: the rule is in shadow mode.
    Background,
}

/// Whom a request counts for, and how much.
#[derive(Clone, Debug)]
pub struct Descriptor {
    /// Keys and values, in order.
    pub entries: Vec<(String, String)>,
    /// Hits.
    pub hits: u32,
}

/// The response of a service.
#[derive(Clone, Debug, Default)]
pub struct ServiceResponse {
    /// The request is over a limit.
    pub is_over: bool,
    /// The status of each descriptor of the request, in order.
    pub statuses: Vec<Status>,
    /// For the upstream, beside the request's own.
    pub request_headers: HeaderMap,
    /// For the client, beside the response's own.
    pub response_headers: HeaderMap,
    /// The body of a rejection; empty where the service leaves it to the rule.
    pub body: Bytes,
}

/// What a service says about a descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// It is over its limit.
    pub is_over: bool,
    /// Its limit, if it has one: so many in so long.
    pub limit: Option<(u32, Duration)>,
    /// Hits left.
    pub remaining: u32,
    /// Until all of the limit is there again; nothing where that is not said.
    pub reset: Duration,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// As many questions wait as may.
    Crowded,
    /// The service is left alone for a while.
    Resting,
    /// It took too long.
    Late,
    /// There is no connection, or it broke.
    Away(Code),
    /// The service cannot decide this.
    Call(Code),
    /// The answer does not fit the question.
    Meaningless,
    /// There can be no connection: TLS cannot be set up.
    Unusable,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Crowded => f.write_str("too many questions wait"),
            Self::Resting => f.write_str("left alone after failures"),
            Self::Late => f.write_str("no answer in time"),
            Self::Away(code) => write!(f, "no connection: {code:?}"),
            Self::Call(code) => write!(f, "it answered: {code:?}"),
            Self::Meaningless => f.write_str("the answer does not fit the question"),
            Self::Unusable => f.write_str("cannot be connected to"),
        }
    }
}

/// A service as one worker asks it.
#[derive(Debug)]
pub struct Service {
    settings: Settings,
    /// `None` if there can be no connection.
    channel: Option<Channel>,
    waiting: Cell<u32>,
    waiting_background: Cell<u32>,
    failures: Cell<u32>,
    rests_until: Cell<Timestamp>,
    clock: Arc<Clock>,
    metrics: Arc<RemoteMetrics>,
}

impl Service {
    /// A service with these settings. Needs a runtime to run on.
    pub fn new(settings: Settings, clock: Arc<Clock>, metrics: Arc<RemoteMetrics>) -> Self {
        let opened = open(&settings);
        if let Err(error) = &opened {
            tracing::error!(service = %settings.place, %error, "a rate limit service cannot be asked");
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

    /// What it was made of.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Has a connection opened, so that the first question need not wait for one.
    pub fn connect(&self) -> impl Future<Output = ()> + use<> {
        let channel = self.channel.clone();
        async move {
            let Some(channel) = channel else { return };
            // Whether it is healthy is of no interest: that it has been asked is.
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

    /// A place among those that wait.
    fn begin(&self, now: Timestamp, urgency: Urgency) -> Result<(Channel, Waiting<'_>), Failure> {
        let channel = self.channel.clone().ok_or(Failure::Unusable)?;
        // After a rest one question finds out for all.
        let is_tried = self.failures.get() >= PATIENCE && self.waiting.get() > 0;
        if now < self.rests_until.get() || is_tried {
            return Err(Failure::Resting);
        }
        let waiting = match urgency {
            Urgency::Awaited => &self.waiting,
            // Only a request that waits finds out whether the service responds again.
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
            // The library minds the time as well, and says so as if the call had been cancelled.
            Err(_) => Err(Failure::Late),
            Ok(Err(status)) if matches!(status.code(), Code::Cancelled | Code::DeadlineExceeded) => {
                Err(Failure::Late)
            }
            // What has a cause has gone wrong on this side of the connection.
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
            // It is there: what it makes of one question says nothing about the next.
            Err(Failure::Call(_) | Failure::Meaningless) => {}
            Err(Failure::Resting | Failure::Crowded | Failure::Unusable) => {}
        }
    }

    fn recovered(&self) {
        if self.failures.replace(0) >= PATIENCE {
            tracing::info!(service = %self.settings.place, "the rate limit service answers again");
        }
    }

    fn failed(&self, failure: Failure, now: Timestamp) {
        let failures = self.failures.get().saturating_add(1);
        self.failures.set(failures);
        if failures >= PATIENCE {
            self.rests_until.set(now.saturating_add(REST));
        }
        if failures == PATIENCE {
            tracing::warn!(service = %self.settings.place, %failure, "the rate limit service does not answer");
        }
    }
}

/// A question under way. One that is dropped before its end belonged to a request whose client has left.
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

/// One of the questions that wait, until it is dropped.
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
    let tls = settings.tls.clone().map(|tls| Client::new(tls).map(Arc::new)).transpose()?;
    Ok(channel::open(&settings.place, tls)?)
}
