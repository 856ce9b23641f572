//! Waits until all sources of a request's limits have decided: queues, the store, and rate limit services.

use std::rc::Rc;
use std::time::Duration;

use http::{HeaderMap, Method};

use super::decide::record_rejection;
use super::delay::{self, DelayGuard, PausedTimeouts};
use super::fallback::CachedFallbacks;
use super::finish;
use super::local_reply::LocalReply;
use super::request_context::{RequestContext, record_decision};
use weir_http::headers::append_all;
use weir_limits::{
    AppliedLimits, DecisionSource, HeldDelay, HeldProgress, LimitRejection, LimitsView, NotAdmitted,
    PendingLimits, PendingRemote, ServiceQueries, Woken,
};
use weir_net::overload::LoadShed;
use weir_policy::response::rate_limit_headers::X_WEIR_OVER_LIMIT;
use weir_policy::rules::cost::RequestEnd;

/// Why a request is not admitted after it was held.
pub(super) enum NotResolved<'a> {
    /// A limit rejects it.
    Rejected(LimitRejection<'a>),
    /// There is no memory for its delay.
    Shed,
}

impl NotResolved<'_> {
    /// Returns the local reply to a request with this method. The memory of its `headers` is reused.
    pub(super) fn reply<'v>(
        &self,
        limits: &'v LimitsView,
        cached: CachedFallbacks,
        method: &Method,
        headers: &mut HeaderMap,
    ) -> LocalReply<'v> {
        match self {
            Self::Shed => LocalReply::overloaded(LoadShed::Waiting),
            Self::Rejected(rejected) => {
                let cached = cached.take_for_rule(rejected.rule);
                LocalReply::rate_limited(limits, rejected, cached, method, headers)
            }
        }
    }
}

/// Holds the request for its delay and until all sources of its limits have decided. Adds the headers that the upstream
/// is to receive to `headers`.
///
/// # Errors
/// The reason why the request is rejected; its charges have been refunded.
pub(super) async fn resolve<'a>(
    view: &'a Rc<LimitsView>,
    context: &mut RequestContext,
    pending: &'a mut PendingLimits,
    delay: Option<Duration>,
    headers: &mut HeaderMap,
) -> Result<&'a mut AppliedLimits, NotResolved<'a>> {
    let (mut delay, mut delayed) = (delay, None);
    while pending.is_held() {
        // Boxed, because few requests need this and every request's future would be larger.
        match Box::pin(await_admission(view, context, pending, &mut delayed)).await {
            Ok(admitted) => {
                for mark in pending.limits().mark_values(view) {
                    headers.append(X_WEIR_OVER_LIMIT, mark);
                }
                delay = admitted;
            }
            Err(NotAdmitted::Rejected(rule, retry_after)) => {
                let rejected = pending.rejection(rule, retry_after);
                record_rejection(context, &rejected, None);
                return Err(NotResolved::Rejected(rejected));
            }
            Err(NotAdmitted::Superseded) => pending.remove_uninstalled_limits(view),
        }
    }
    drop(delayed);
    resolve_admitted(view, context, pending, delay, headers).await
}

/// As [`resolve`], for a request that is not held, or no longer.
///
/// # Errors
/// The reason why the request is rejected; its charges have been refunded.
pub(super) async fn resolve_admitted<'a>(
    view: &'a Rc<LimitsView>,
    context: &mut RequestContext,
    pending: &'a mut PendingLimits,
    delay: Option<Duration>,
    headers: &mut HeaderMap,
) -> Result<&'a mut AppliedLimits, NotResolved<'a>> {
    if delay.is_some() && !delay::take_delayed_memory(context, pending, headers) {
        return Err(NotResolved::Shed);
    }
    match pending.decision_source(view) {
        // Boxed, because few requests need this and every request's future would be larger.
        DecisionSource::Remote(undecided) => Box::pin(resolve_remotely(undecided, context, delay, headers))
            .await
            .map_err(NotResolved::Rejected),
        DecisionSource::Local(limits) => {
            if let Some(delay) = delay {
                delay::delay_request(context, delay).await;
            }
            Ok(limits)
        }
    }
}

/// Holds the request for its delay and until the rate limit services have decided.
async fn resolve_remotely<'a>(
    undecided: PendingRemote<'a>,
    context: &mut RequestContext,
    delay: Option<Duration>,
    headers: &mut HeaderMap,
) -> Result<&'a mut AppliedLimits, LimitRejection<'a>> {
    let hold_until = async |query: ServiceQueries| {
        if let Some(delay) = delay {
            delay::delay_request(context, delay).await;
        }
        delay::hold_request(context, query.send()).await
    };
    match undecided.resolve(hold_until).await {
        Ok((limits, added)) => {
            if !added.is_empty() {
                // Headers that a service adds for the upstream may depend on this client, so the response must not be
                // stored.
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
            record_rejection(context, &rejected, None);
            Err(rejected)
        }
    }
}

/// Holds the request until the store has responded about the units that its leases lack, or until it has waited in its
/// queues. `delayed` counts a request that waits, once if it is decided several times.
///
/// # Errors
/// Why the request is not admitted.
pub(super) async fn await_admission(
    view: &Rc<LimitsView>,
    context: &mut RequestContext,
    pending: &mut PendingLimits,
    delayed: &mut Option<DelayGuard>,
) -> Result<Option<Duration>, NotAdmitted> {
    if pending.waits() && delayed.is_none() {
        *delayed = Some(DelayGuard::start(context));
    }
    let mut woken = None;
    let delay = loop {
        let wait = match pending.progress(view, woken) {
            HeldProgress::Wait(wait) => wait,
            HeldProgress::Admitted(delay) => break delay,
            HeldProgress::NotAdmitted(reason) => return Err(reason),
        };
        // Not through `hold_request`, whose future has room for the held one twice.
        let paused = PausedTimeouts::new(&context.timer);
        let place = pending.until_woken(wait).await;
        drop(paused);
        context.forwarded_at = context.connection.worker.shared.clock.now();
        woken = Some(Woken { at: context.forwarded_at, place });
    };
    record_decision(context, pending.limits(), None, None);
    context.settlement = pending.settlement(view);
    context.followed = pending.followed(view);
    let Some(HeldDelay { time, memory }) = delay else { return Ok(None) };
    if delayed.is_none() {
        return Ok(Some(time));
    }
    // Charged ahead of its time. Its delay is counted together with its wait, and so is its memory.
    context.delayed_memory = memory;
    delay::hold_request(context, tokio::time::sleep(time)).await;
    context.delayed_memory = None;
    Ok(None)
}
