//! Requests that wait in a queue for room in a limit.
//!
//! A queued request keeps its head as the client has sent it, and is prepared for the upstream when it is admitted. So it
//! can be decided again if a reload removes a limit for which it waits: by the rules that are in force then, as if it
//! had arrived when it did.

use std::rc::Rc;
use std::time::Duration;

use http::request;
use hyper::body::Body as _;

use super::body::DownstreamBody;
use super::decide::{self, CachedFallbacks, HeldEnd, HeldRejection};
use super::fallback::IncomingRequest;
use super::forward_proxy::NextHop;
use super::headers::{HopName, InvalidRequest, RequestHeaderFlags};
use super::held::HeldRequest;
use super::local_reply::{self, DownstreamResponse, PendingBody};
use super::request_context::{RequestContext, propagate_trace};
use super::stages;
use super::view::GenerationView;
use weir_limits::{Admission, PendingLimits};
use weir_net::overload::LoadShed;
use weir_policy::rules::selection::Selection;
use weir_telemetry::metrics::DecisionOutcome;
use weir_telemetry::spans::context::TraceContext;

/// A request that waits for room in a limit.
pub(super) struct QueuedRequest {
    pub(super) view: Rc<GenerationView>,
    pub(super) context: Box<RequestContext>,
    pub(super) pending: PendingLimits,
    pub(super) head: request::Parts,
    pub(super) flags: RequestHeaderFlags,
    pub(super) body: DownstreamBody,
    /// Trace context of a request without a span.
    pub(super) trace: Option<TraceContext>,
}

/// What follows from a new decision.
enum NewDecision {
    /// The request waits again.
    Queued(Box<QueuedRequest>),
    /// It is to be forwarded after this delay.
    Admitted(Box<QueuedRequest>, Option<Duration>),
    /// It is rejected.
    Rejected(Box<DownstreamResponse>),
}

impl QueuedRequest {
    /// Waits until the limits admit the request, and prepares it. Returns it with its delay.
    ///
    /// # Errors
    /// The response to its rejection.
    pub(super) async fn admit(
        mut self: Box<Self>,
    ) -> Result<(HeldRequest, Option<Duration>), DownstreamResponse> {
        self.log_headers();
        let mut delayed = None;
        loop {
            let Self { view, context, pending, .. } = &mut *self;
            match decide::await_admission(&view.limits, context, pending, None, &mut delayed).await {
                Ok(delay) => return self.prepare_with(delay),
                Err(HeldEnd::Rejected(rejection)) => return Err(self.reject(rejection)),
                Err(HeldEnd::Superseded) if Rc::ptr_eq(&self.view, &self.context.connection.view()) => {
                    // By the same rules, it may be superseded at once; others of this thread must continue. Otherwise
                    // it does not yield, so that requests are decided in the order of the queue.
                    tokio::task::yield_now().await;
                }
                Err(HeldEnd::Superseded) => {}
            }
            match self.decide_again() {
                NewDecision::Queued(queued) => self = queued,
                NewDecision::Admitted(mut admitted, delay) => {
                    if let Some(delay) = delay {
                        let Self { context, pending, head, .. } = &mut *admitted;
                        if !decide::take_delayed_memory(context, pending, &head.headers) {
                            return Err(admitted.shed());
                        }
                        // It is counted together with the wait.
                        decide::hold_request(context, tokio::time::sleep(delay)).await;
                        context.delayed_memory = None;
                    }
                    return admitted.prepare_with(None);
                }
                NewDecision::Rejected(response) => return Err(*response),
            }
        }
    }

    /// Records for the log the headers of the request, whose client may disconnect while it waits.
    fn log_headers(&mut self) {
        let Self { view, context, head, flags, .. } = self;
        if context.log.is_none() {
            return;
        }
        let (connection, now) = (Rc::clone(&context.connection), context.started_at);
        if let Ok(attributes) = stages::identify_request(&connection, head, &view.policy.identify, now) {
            let next_hop = NextHop::of_request(&connection, view, head, &attributes);
            let hop = next_hop.hop(&connection, view, head.version, attributes.client, context.request_bits);
            stages::log_headers(context, &mut head.clone(), *flags, &hop);
        }
    }

    /// Prepares an admitted request for its upstream.
    #[expect(clippy::result_large_err, reason = "the caller returns the response at once")]
    fn prepare_with(
        self: Box<Self>,
        delay: Option<Duration>,
    ) -> Result<(HeldRequest, Option<Duration>), DownstreamResponse> {
        let Self { view, mut context, pending, mut head, flags, body, trace } = *self;
        let (connection, now) = (Rc::clone(&context.connection), context.started_at);
        let Ok(attributes) = stages::identify_request(&connection, &head, &view.policy.identify, now) else {
            return Err(local_reply::malformed(context, InvalidRequest::Malformed));
        };
        let next_hop = NextHop::of_request(&connection, &view, &head, &attributes);
        let hop = next_hop.hop(&connection, &view, head.version, attributes.client, context.request_bits);
        let has_body = !body.is_end_stream();
        let incoming =
            IncomingRequest::new(&head, has_body, &hop, &attributes, &view.policy, &view.upstreams);
        let upstream = next_hop.upstream(&view, &attributes);
        let cached = CachedFallbacks::look_up(&view.fallbacks, &pending, incoming, now);
        context.recorder = view.fallbacks.record(&pending, incoming, now);
        let (mut request, overrides) =
            stages::prepare(&mut context, &mut head, flags, &hop, &pending, &view, upstream.as_deref());
        propagate_trace(&context, trace.as_ref(), &mut request);
        let expectation = flags.expectation();
        let held =
            HeldRequest { view, context, pending, request, body, upstream, overrides, cached, expectation };
        Ok((held, delay))
    }

    /// Returns the response to a rejected request.
    fn reject(self: Box<Self>, rejection: HeldRejection) -> DownstreamResponse {
        let Self { view, mut context, mut pending, head, flags, body, .. } = *self;
        let (connection, now) = (Rc::clone(&context.connection), context.started_at);
        let mut cached = CachedFallbacks::default();
        if let Ok(attributes) = stages::identify_request(&connection, &head, &view.policy.identify, now) {
            let next_hop = NextHop::of_request(&connection, &view, &head, &attributes);
            let hop = next_hop.hop(&connection, &view, head.version, attributes.client, context.request_bits);
            let has_body = !body.is_end_stream();
            stages::keep_details(&mut context, &view.policy, &head, flags, &hop);
            let incoming =
                IncomingRequest::new(&head, has_body, &hop, &attributes, &view.policy, &view.upstreams);
            cached = CachedFallbacks::of_rule(&view.fallbacks, rejection.rule, incoming, now);
        }
        let rejected = rejection.of(&mut context, &mut pending);
        let unread = PendingBody::new(flags.expectation(), body);
        local_reply::rejected_remotely(context, &view.limits, &rejected, cached, &head.method, unread)
    }

    /// Decides the request by the configuration that is now in force.
    fn decide_again(mut self: Box<Self>) -> NewDecision {
        let connection = Rc::clone(&self.context.connection);
        self.view = connection.view();
        let now = connection.worker.shared.clock.now();
        let Self { view, context, pending, head, flags, .. } = &mut *self;
        let identified = stages::identify_request(&connection, head, &view.policy.identify, now);
        let Ok(attributes) = identified else {
            return self.reply(|context, _| local_reply::malformed(context, InvalidRequest::Malformed));
        };
        if let NextHop::Refused(refusal) = NextHop::of_request(&connection, view, head, &attributes) {
            return self.reply(|context, unread| local_reply::refused(context, refusal, unread));
        }
        // A request that has waited is not stored to be sent later.
        let selection = stages::select(context, view, head, &attributes, &mut None);
        *pending = match selection {
            Selection::Exempt(rule) => {
                let outcome = DecisionOutcome::Exempt;
                stages::record_without_limit(context, view, rule, outcome, &attributes);
                PendingLimits::none(now)
            }
            Selection::Limited(checks, rest) => {
                let arrival = pending.arrival();
                PendingLimits::check_arrived(&view.limits, checks, rest, &attributes, now, arrival)
            }
            Selection::Denied(rule, denial) => {
                let outcome = DecisionOutcome::Denied;
                stages::record_without_limit(context, view, rule, outcome, &attributes);
                let hop = connection.hop(attributes.client, context.request_bits, HopName::default());
                stages::keep_details(context, &view.policy, head, *flags, &hop);
                let policy = std::sync::Arc::clone(&view.policy);
                return self
                    .reply(|context, unread| local_reply::denied(context, &policy, rule, denial, unread));
            }
        };
        let delay = match pending.admission() {
            Admission::Held => return NewDecision::Queued(self),
            Admission::Pass(delay) => delay,
            Admission::Reject(rejected) => {
                let rejection = HeldRejection { rule: rejected.rule, retry_after: rejected.retry_after };
                return NewDecision::Rejected(Box::new(self.reject(rejection)));
            }
        };
        stages::record_admission(context, view, pending, &attributes);
        NewDecision::Admitted(self, delay)
    }

    /// Responds to a request for whose delay there is no memory.
    fn shed(self: Box<Self>) -> DownstreamResponse {
        let unread = PendingBody::new(self.flags.expectation(), self.body);
        local_reply::overloaded(self.context, LoadShed::Waiting, unread)
    }

    /// Responds to a request that no limit rejects.
    fn reply(
        self,
        respond: impl FnOnce(Box<RequestContext>, PendingBody) -> DownstreamResponse,
    ) -> NewDecision {
        let unread = PendingBody::new(self.flags.expectation(), self.body);
        NewDecision::Rejected(Box::new(respond(self.context, unread)))
    }
}
