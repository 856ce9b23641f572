//! One request to the upstream, up to the head of its answer.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use http::{Request, Response, StatusCode};

use super::View;
use super::activity::Overdue;
use super::body::RequestBody;
use super::exchange::Exchange;
use crate::telemetry::metrics::{EndpointMetrics, UpstreamOutcome};
use crate::upstream::Upstream;
use crate::upstream::answer::Answer;
use crate::upstream::error::Error as UpstreamError;

/// Why a request got no answer from the upstream.
#[derive(Debug)]
pub(super) enum Failure {
    /// No upstream takes such a request.
    NoRoute,
    /// The upstream is nowhere.
    NoEndpoint,
    /// Between us and the upstream.
    Upstream(UpstreamError),
    /// The answer is the beginning of a protocol that we cannot follow.
    Unreadable,
    /// The answer's head did not come in time.
    Late,
    /// The client stopped sending in the middle of its request.
    Stalled,
    /// What the client sent is no body.
    BrokenRequest,
}

/// Sends a request and waits for the head of the answer.
pub(super) async fn forward(
    view: &View,
    upstream: Option<&Upstream>,
    exchange: &mut Exchange,
    request: Request<RequestBody>,
) -> Result<Response<Answer<RequestBody>>, Failure> {
    let upstream = upstream.ok_or(Failure::NoRoute)?;
    let endpoint = match upstream.pick(&[]) {
        Some(endpoint) => endpoint,
        None => Box::pin(upstream.find()).await.ok_or(Failure::NoEndpoint)?,
    };
    exchange.note_upstream(endpoint.name());
    let attempt = Attempt::begin(endpoint.metrics());
    let mut sending = pin!(endpoint.send(request, exchange.is_grpc()));
    let activity = exchange.activity();
    let answered = poll_fn(|cx| {
        if let Poll::Ready(answered) = sending.as_mut().poll(cx) {
            return Poll::Ready(answered.map_err(Failure::Upstream));
        }
        // Whatever is overdue has woken this connection's task.
        match activity.overdue() {
            Some(Overdue::Answer) => Poll::Ready(Err(Failure::Late)),
            Some(Overdue::Stalled) => Poll::Ready(Err(Failure::Stalled)),
            _ => Poll::Pending,
        }
    })
    .await;
    let answered = match answered {
        // A body that broke off breaks the upstream's connection too; the fault is the client's.
        Err(Failure::Upstream(_)) if exchange.request_is_broken() => Err(Failure::BrokenRequest),
        // A 101 would end HTTP on a connection whose client has not asked for anything else.
        Ok(response)
            if response.status() == StatusCode::SWITCHING_PROTOCOLS && !exchange.asks_for_tunnel() =>
        {
            Err(Failure::Unreadable)
        }
        answered => answered,
    };
    activity.answered();
    attempt.end(&answered);
    if let Some(is_good) = is_good(&answered) {
        endpoint.note(is_good);
    }
    if let Ok(response) = &answered {
        let took = exchange.upstream_answered();
        endpoint.metrics().answered_after(took);
        if view.policy.rules.is_elastic() {
            exchange.load().answered(took, response.status(), response.headers());
        }
    }
    answered
}

/// Whether an attempt speaks for its endpoint or against it; `None` for what is the client's doing.
fn is_good(answered: &Result<Response<Answer<RequestBody>>, Failure>) -> Option<bool> {
    match answered {
        Ok(response) => Some(!response.status().is_server_error()),
        Err(Failure::Upstream(_) | Failure::Unreadable | Failure::Late) => Some(false),
        Err(Failure::Stalled | Failure::BrokenRequest | Failure::NoRoute | Failure::NoEndpoint) => None,
    }
}

/// One attempt at an answer, for the numbers: one that is dropped before its end was the client's to give up.
struct Attempt<'a> {
    metrics: &'a EndpointMetrics,
    ended: bool,
}

impl<'a> Attempt<'a> {
    fn begin(metrics: &'a EndpointMetrics) -> Self {
        metrics.request_started();
        Self { metrics, ended: false }
    }

    fn end(mut self, answered: &Result<Response<Answer<RequestBody>>, Failure>) {
        self.ended = true;
        self.metrics.request_ended(match answered {
            Ok(response) => UpstreamOutcome::Answered(response.status()),
            Err(Failure::Upstream(UpstreamError::Connect(_) | UpstreamError::ConnectTimeout)) => {
                UpstreamOutcome::ConnectFailed
            }
            Err(Failure::Upstream(UpstreamError::Malformed(_)) | Failure::Unreadable) => {
                UpstreamOutcome::Malformed
            }
            Err(Failure::Late) => UpstreamOutcome::TimedOut,
            Err(Failure::Upstream(UpstreamError::Reset(_))) => UpstreamOutcome::Reset,
            Err(Failure::Stalled | Failure::BrokenRequest | Failure::NoRoute | Failure::NoEndpoint) => {
                UpstreamOutcome::Abandoned
            }
        });
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.metrics.request_ended(UpstreamOutcome::Abandoned);
        }
    }
}
