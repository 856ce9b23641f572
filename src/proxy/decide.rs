//! The decision about a request that its limits delay or that another service limits: the request is held meanwhile.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;

use super::connection::Connection;
use super::fallback::{Fallbacks, IncomingRequest};
use super::finish;
use super::request_context::RequestContext;
use super::timeouts::RequestTimer;
use crate::headers::append_all;
use crate::limiter::timestamp::Timestamp;
use crate::limits::{self, Limits, Pending, Query, Rejected, Sources};
use crate::response::fallback::Kept;
use crate::rules::RuleIndex;
use crate::rules::tariff::Ending;

/// Responses that are stored for the requests that other services reject.
#[derive(Debug, Default)]
pub(super) struct CachedFallbacks(Vec<(RuleIndex, Arc<Kept>)>);

impl CachedFallbacks {
    /// What is stored for a request, in place of the rejections of the rules whose limits other services count. Looked
    /// up before its head is made into what the upstream sees.
    pub(super) fn look_up(
        fallbacks: &Fallbacks,
        pending: &Pending,
        request: IncomingRequest<'_>,
        now: Timestamp,
    ) -> Self {
        let cached = |rule| Some((rule, fallbacks.look_up(rule, request, now)?));
        Self(pending.remote_rules().filter_map(cached).collect())
    }

    /// What is stored in place of a rejection by `rule`.
    pub(super) fn take(self, rule: RuleIndex) -> Option<Arc<Kept>> {
        self.0.into_iter().find(|(of, _)| *of == rule).map(|(_, cached)| cached)
    }
}

/// Holds the request back for its delay and until every source of its limits has decided; what the upstream is to be
/// told is added to `headers`.
///
/// # Errors
/// Why the request does not go on; what it was charged is given back.
pub(super) async fn resolve<'a>(
    view: &'a Rc<limits::View>,
    context: &mut RequestContext,
    pending: &'a mut Pending,
    delay: Option<Duration>,
    headers: &mut HeaderMap,
) -> Result<&'a mut Limits, Rejected<'a>> {
    let undecided = match pending.sources(view) {
        Sources::Remote(undecided) => undecided,
        Sources::Local(limits) => {
            if let Some(delay) = delay {
                wait(context, delay).await;
            }
            return Ok(limits);
        }
    };
    // In memory of its own: few requests have it, and all would carry it.
    Box::pin(async move {
        let hold_until = async |query: Query| {
            if let Some(delay) = delay {
                wait(context, delay).await;
            }
            hold(context, query.send()).await
        };
        match undecided.resolve(hold_until).await {
            Ok((limits, added)) => {
                if !added.is_empty() {
                    // What the upstream learns from a service may be about this client.
                    context.recorder = None;
                }
                append_all(headers, &added);
                Ok(limits)
            }
            Err(rejected) => {
                finish::settle(context, &Ending::Refused, rejected.limits);
                if let Some(log) = &mut context.log {
                    log.rule = Some(view.rule_name(rejected.rule).into());
                }
                Err(rejected)
            }
        }
    })
    .await
}

/// Delays the request; it is counted as delayed meanwhile.
async fn wait(context: &mut RequestContext, delay: Duration) {
    let delayed = Delayed::start(context);
    hold(context, tokio::time::sleep(delay)).await;
    drop(delayed);
}

/// Holds the request back until `done` is; no timeout of it runs meanwhile.
async fn hold<T>(context: &mut RequestContext, done: impl Future<Output = T>) -> T {
    let paused = PausedTimeouts::new(&context.timer);
    let done = done.await;
    drop(paused);
    context.forwarded = context.connection.worker.shared.clock.now();
    done
}

/// The timeouts of a request, paused until this is dropped.
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

/// A request that is delayed by a limit, until this is dropped.
struct Delayed {
    connection: Rc<Connection>,
    since: Timestamp,
}

impl Delayed {
    fn start(context: &RequestContext) -> Self {
        context.connection.worker.metrics.delay_started();
        Self { connection: Rc::clone(&context.connection), since: context.started }
    }
}

impl Drop for Delayed {
    fn drop(&mut self) {
        let worker = &self.connection.worker;
        worker.metrics.delay_ended(worker.shared.clock.now().since(self.since));
    }
}
