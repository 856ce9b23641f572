//! Decisions that take time: a request is held while its limits delay it, or until a store or a rate limit service
//! responds.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;

use super::connection::DownstreamConnection;
use super::fallback::{Fallbacks, IncomingRequest};
use super::finish;
use super::request_context::{RequestContext, record_decision};
use super::timeouts::RequestTimer;
use weir_http::headers::append_all;
use weir_limiter::timestamp::Timestamp;
use weir_limits::{
    self as limits, AppliedLimits, DecisionSource, HeldDelay, Hold, LimitRejection, NotAdmitted,
    PendingLimits, ServiceQueries,
};
use weir_net::overload::LoadShed;
use weir_policy::response::fallback::CachedResponse;
use weir_policy::response::rate_limit_headers::X_WEIR_OVER_LIMIT;
use weir_policy::rules::RuleIndex;
use weir_policy::rules::cost::RequestEnd;

/// Stored responses for requests that a rate limit service rejects.
#[derive(Debug, Default)]
pub(super) struct CachedFallbacks(Vec<(RuleIndex, Arc<CachedResponse>)>);

impl CachedFallbacks {
    /// Looks up the stored responses for rules whose limits a rate limit service counts. Must be called before the
    /// request is rewritten for the upstream.
    pub(super) fn look_up(
        fallbacks: &Fallbacks,
        pending: &PendingLimits,
        request: IncomingRequest<'_>,
        now: Timestamp,
    ) -> Self {
        let cached = |rule| Some((rule, fallbacks.look_up(rule, request, now)?));
        Self(pending.pending_rules().filter_map(cached).collect())
    }

    /// Looks up the stored response for a rule that has rejected the request.
    pub(super) fn of_rule(
        fallbacks: &Fallbacks,
        rule: RuleIndex,
        request: IncomingRequest<'_>,
        now: Timestamp,
    ) -> Self {
        Self(fallbacks.look_up(rule, request, now).map(|cached| (rule, cached)).into_iter().collect())
    }

    /// Returns the stored response that replaces a rejection by `rule`.
    pub(super) fn take_for_rule(self, rule: RuleIndex) -> Option<Arc<CachedResponse>> {
        self.0.into_iter().find(|(of, _)| *of == rule).map(|(_, cached)| cached)
    }
}

/// Rejection of a request that was held.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldRejection {
    pub(super) rule: RuleIndex,
    /// Time after which the client may retry.
    pub(super) retry_after: Duration,
}

/// Why a request that was held is not admitted.
#[derive(Clone, Copy, Debug)]
pub(super) enum HeldEnd {
    /// A rule rejects it.
    Rejected(HeldRejection),
    /// The configuration does not have one of its limits any more.
    Superseded,
}

impl HeldRejection {
    /// Records the rejection, and returns it with the limits of the request.
    pub(super) fn of<'a>(
        self,
        context: &mut RequestContext,
        pending: &'a mut PendingLimits,
    ) -> LimitRejection<'a> {
        let rejected = pending.rejection(self.rule, self.retry_after);
        record_decision(context, rejected.limits, Some(self.rule), None);
        rejected
    }
}

/// Why a request is not admitted after it was held.
pub(super) enum NotResolved<'a> {
    /// A limit rejects it.
    Rejected(LimitRejection<'a>),
    /// There is no memory for its delay.
    Shed,
}

/// Holds the request for its delay and until all sources of its limits have decided. Adds the headers that the upstream
/// is to receive to `headers`.
///
/// # Errors
/// The reason why the request is rejected; its charges have been refunded.
pub(super) async fn resolve<'a>(
    view: &'a Rc<limits::LimitsView>,
    context: &mut RequestContext,
    pending: &'a mut PendingLimits,
    delay: Option<Duration>,
    headers: &mut HeaderMap,
) -> Result<&'a mut AppliedLimits, NotResolved<'a>> {
    let (mut delay, mut delayed) = (delay, None);
    while pending.is_held() {
        // Boxed, because few requests need this and every request's future would be larger.
        match Box::pin(await_admission(view, context, pending, Some(headers), &mut delayed)).await {
            Ok(admitted) => delay = admitted,
            Err(HeldEnd::Rejected(rejection)) => {
                return Err(NotResolved::Rejected(rejection.of(context, pending)));
            }
            Err(HeldEnd::Superseded) => pending.remove_uninstalled_limits(view),
        }
    }
    drop(delayed);
    if delay.is_some() && !take_delayed_memory(context, pending, headers) {
        return Err(NotResolved::Shed);
    }
    resolve_admitted(view, context, pending, delay, headers).await.map_err(NotResolved::Rejected)
}

/// As [`resolve`], for a request that is not held, or no longer.
///
/// # Errors
/// The reason why the request is rejected; its charges have been refunded.
pub(super) async fn resolve_admitted<'a>(
    view: &'a Rc<limits::LimitsView>,
    context: &mut RequestContext,
    pending: &'a mut PendingLimits,
    delay: Option<Duration>,
    headers: &mut HeaderMap,
) -> Result<&'a mut AppliedLimits, LimitRejection<'a>> {
    let undecided = match pending.decision_source(view) {
        DecisionSource::Remote(undecided) => undecided,
        DecisionSource::Local(limits) => {
            if let Some(delay) = delay {
                delay_request(context, delay).await;
            }
            return Ok(limits);
        }
    };
    // Boxed, because few requests need this and every request's future would be larger.
    Box::pin(async move {
        let hold_until = async |query: ServiceQueries| {
            if let Some(delay) = delay {
                delay_request(context, delay).await;
            }
            hold_request(context, query.send()).await
        };
        match undecided.resolve(hold_until).await {
            Ok((limits, added)) => {
                if !added.is_empty() {
                    // Headers that a service adds for the upstream may depend on this client, so the response must not
                    // be stored.
                    context.recorder = None;
                }
                append_all(headers, &added);
                if let Some(followed) = &mut context.followed {
                    followed.charge_owed(context.forwarded_at);
                }
                record_decision(context, limits, None, None);
                Ok(limits)
            }
            Err(rejected) => {
                finish::settle(context, &RequestEnd::Rejected, rejected.limits);
                record_decision(context, rejected.limits, Some(rejected.rule), None);
                Err(rejected)
            }
        }
    })
    .await
}

/// Holds the request until the store has responded about the units that its leases lack, or until it has waited in its
/// queues. Adds the headers that the upstream is to receive to `headers`, unless the request is prepared later. `delayed`
/// counts a request that waits, once if it is decided several times.
///
/// # Errors
/// Why the request is not admitted.
pub(super) async fn await_admission(
    view: &Rc<limits::LimitsView>,
    context: &mut RequestContext,
    pending: &mut PendingLimits,
    headers: Option<&mut HeaderMap>,
    delayed: &mut Option<DelayGuard>,
) -> Result<Option<Duration>, HeldEnd> {
    if pending.waits() && delayed.is_none() {
        *delayed = Some(DelayGuard::start(context));
    }
    let Some(held) = pending.held(view) else { return Ok(None) };
    let hold_until = async |hold: Hold<'_>| {
        // Not through `hold_request`, whose future has room for the held one twice.
        let paused = PausedTimeouts::new(&context.timer);
        let end = hold.wait().await;
        drop(paused);
        context.forwarded_at = context.connection.worker.shared.clock.now();
        (context.forwarded_at, end)
    };
    let resolved = held.resolve(hold_until).await;
    let delay = resolved.map_err(|reason| match reason {
        NotAdmitted::Rejected(rule, retry_after) => HeldEnd::Rejected(HeldRejection { rule, retry_after }),
        NotAdmitted::Superseded => HeldEnd::Superseded,
    })?;
    record_decision(context, pending.limits(), None, None);
    context.settlement = pending.settlement(view);
    context.followed = pending.followed(view);
    if let Some(headers) = headers {
        for mark in pending.limits().mark_values(view) {
            context.recorder = None;
            headers.append(X_WEIR_OVER_LIMIT, mark);
        }
    }
    let Some(HeldDelay { time, memory }) = delay else { return Ok(None) };
    if delayed.is_none() {
        return Ok(Some(time));
    }
    // Charged ahead of its time. Its delay is counted together with its wait, and so is its memory.
    context.delayed_memory = memory;
    hold_request(context, tokio::time::sleep(time)).await;
    context.delayed_memory = None;
    Ok(None)
}

/// Takes memory for a request that a limit delays. Returns false if delayed and waiting requests take as much as they may;
/// the request is then refunded, and has to be shed.
pub(super) fn take_delayed_memory(
    context: &mut RequestContext,
    pending: &mut PendingLimits,
    headers: &HeaderMap,
) -> bool {
    let connection = Rc::clone(&context.connection);
    let (worker, limiter) = (&connection.worker, &connection.worker.shared.limiter);
    context.delayed_memory = limiter.queues().take_memory(limits::waiting_size(headers));
    if context.delayed_memory.is_none() {
        worker.metrics.record_load_shed(LoadShed::Waiting);
        let now = worker.shared.clock.now();
        if let Some(followed) = context.followed.take() {
            followed.refund_owed(now);
        }
        let refunded = pending.refund(limiter, now);
        finish::settle(context, &RequestEnd::Rejected, refunded);
        connection.postpone_shed_call();
    }
    context.delayed_memory.is_some()
}

/// Delays the request, and counts it as delayed meanwhile.
async fn delay_request(context: &mut RequestContext, delay: Duration) {
    let delayed = DelayGuard::start(context);
    hold_request(context, tokio::time::sleep(delay)).await;
    drop(delayed);
    context.delayed_memory = None;
}

/// Holds the request until `done` completes. Its timeouts are paused meanwhile.
pub(super) async fn hold_request<T>(context: &mut RequestContext, done: impl Future<Output = T>) -> T {
    let paused = PausedTimeouts::new(&context.timer);
    let done = done.await;
    drop(paused);
    context.forwarded_at = context.connection.worker.shared.clock.now();
    done
}

/// Guard that pauses the timeouts of a request until it is dropped.
struct PausedTimeouts(Rc<RequestTimer>);

impl PausedTimeouts {
    fn new(timer: &Rc<RequestTimer>) -> Self {
        timer.pause_timeouts();
        Self(Rc::clone(timer))
    }
}

impl Drop for PausedTimeouts {
    fn drop(&mut self) {
        self.0.resume_timeouts();
    }
}

/// Guard that counts a request as delayed by a limit until it is dropped.
pub(super) struct DelayGuard {
    connection: Rc<DownstreamConnection>,
    since: Timestamp,
}

impl DelayGuard {
    fn start(context: &RequestContext) -> Self {
        context.connection.worker.metrics.delay_started();
        Self { connection: Rc::clone(&context.connection), since: context.started_at }
    }
}

impl Drop for DelayGuard {
    fn drop(&mut self) {
        let worker = &self.connection.worker;
        worker.metrics.delay_ended(worker.shared.clock.now().since(self.since));
    }
}
