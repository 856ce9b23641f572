//! Delays of requests. A request's timeouts are paused while it is held, and its memory is counted.

use std::rc::Rc;
use std::time::Duration;

use http::HeaderMap;

use super::connection::DownstreamConnection;
use super::finish;
use super::request_context::RequestContext;
use super::timeouts::RequestTimer;
use weir_limiter::timestamp::Timestamp;
use weir_limits::{PendingLimits, waiting_size};
use weir_net::overload::LoadShed;

/// Takes memory for a request that a limit delays. Returns false if delayed and waiting requests take as much as they may;
/// the request is then refunded, and has to be shed.
pub(super) fn take_delayed_memory(
    context: &mut RequestContext,
    pending: &mut PendingLimits,
    headers: &HeaderMap,
) -> bool {
    let connection = Rc::clone(&context.connection);
    let (worker, limiter) = (&connection.worker, &connection.worker.shared.limiter);
    context.delayed_memory = limiter.queues().take_memory(waiting_size(headers));
    if context.delayed_memory.is_none() {
        worker.metrics.record_load_shed(LoadShed::Waiting);
        finish::refund_shed(context, pending.limits_mut());
    }
    context.delayed_memory.is_some()
}

/// Delays the request, and counts it as delayed meanwhile.
pub(super) async fn delay_request(context: &mut RequestContext, delay: Duration) {
    let delayed = DelayGuard::start(context);
    hold_request(context, tokio::time::sleep(delay)).await;
    drop(delayed);
    context.delayed_memory = None;
}

/// Holds the request until `event` completes. Its timeouts are paused meanwhile.
pub(super) async fn hold_request<T>(context: &mut RequestContext, event: impl Future<Output = T>) -> T {
    let paused = PausedTimeouts::new(&context.timer);
    let output = event.await;
    drop(paused);
    context.forwarded_at = context.connection.worker.shared.clock.now();
    output
}

/// Guard that pauses the timeouts of a request until it is dropped.
pub(super) struct PausedTimeouts(Rc<RequestTimer>);

impl PausedTimeouts {
    pub(super) fn new(timer: &Rc<RequestTimer>) -> Self {
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
    pub(super) fn start(context: &RequestContext) -> Self {
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
