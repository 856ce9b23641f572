//! Requests that are held before they are forwarded: in a queue for room in a limit, or until the store responds.
//!
//! A held request keeps its head as the client has sent it, and is prepared for the upstream when it is admitted. So it
//! can be decided again if a reload removes a limit for which it waits: by the rules that are in force then, as if it
//! had arrived when it did. Thousands of requests may wait, so they have no room for the future that forwards them.

use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use http::request;

use super::admitted::AdmittedRequest;
use super::body_fields::{self, NotRead};
use super::decide::{
    IdentifiedRequest, decide_selection, identify_request, keep_details, log_headers, record_admission,
    record_rejection, select, select_by_fields, set_route,
};
use super::deferred::accept::{self, PendingCall};
use super::delay;
use super::forward_proxy::NextHop;
use super::headers::{InvalidRequest, RequestHeaderFlags};
use super::local_reply::{DownstreamResponse, LocalReply, PendingBody, UnreadBody};
use super::prepare::ChosenUpstream;
use super::request_context::RequestContext;
use super::resolve::await_admission;
use super::usage;
use super::view::GenerationView;
use weir_bodies::fields::FieldMask;
use weir_limits::{Admission, AppliedLimits, LimitRejection, NotAdmitted, PendingLimits};
use weir_net::overload::LoadShed;
use weir_policy::identify::body::BodyFields;
use weir_policy::rules::RuleIndex;
use weir_policy::rules::deferral::DeferredRequest;
use weir_policy::rules::selection::Selection;
use weir_telemetry::spans::context::TraceContext;

/// Maximum size of the future of a held request, in bytes.
const MAX_FUTURE_SIZE: usize = 1024;

/// A request that is held.
pub(super) struct HeldRequest {
    pub(super) view: Rc<GenerationView>,
    pub(super) context: Box<RequestContext>,
    pub(super) pending: PendingLimits,
    pub(super) head: request::Parts,
    pub(super) flags: RequestHeaderFlags,
    pub(super) unread: PendingBody,
    /// Trace context of a request without a span.
    pub(super) trace: Option<TraceContext>,
    /// Fields of the body, if rules needed them.
    pub(super) fields: Option<Box<BodyFields>>,
}

/// Future of a held request: the future that forwards it, or the response to its rejection.
pub(super) type HeldFuture<F> = Pin<Box<dyn Future<Output = Result<Pin<Box<F>>, DownstreamResponse>>>>;

/// What follows from a new decision.
enum NewDecision {
    /// The request is held again.
    Held(Box<HeldRequest>),
    /// It is to be forwarded after this delay.
    Admitted(Box<HeldRequest>, Option<Duration>),
    /// It is rejected.
    Rejected(Box<DownstreamResponse>),
}

impl HeldRequest {
    /// Holds the request until the fields `wanted` of its body are known and its limits decide. Then it is rejected, or
    /// `forward` returns the future that forwards it after its delay.
    pub(super) fn hold<F: 'static>(
        self,
        wanted: Option<FieldMask>,
        forward: impl FnOnce(AdmittedRequest, Option<Duration>) -> F + 'static,
    ) -> HeldFuture<F> {
        let mut held = Box::new(self);
        let waiting = async move {
            held.log_headers();
            let (admitted, delay) = match wanted {
                // Boxed, because few requests need this and every held request's future would be larger.
                Some(wanted) => Box::pin(held.admit_by_fields(wanted)).await?,
                None => held.admit().await?,
            };
            Ok(Box::pin(forward(admitted, delay)))
        };
        debug_assert!(size_of_val(&waiting) <= MAX_FUTURE_SIZE, "{} bytes", size_of_val(&waiting));
        Box::pin(waiting)
    }

    /// Reads the fields `wanted` of the body, and waits until the limits admit the request.
    ///
    /// # Errors
    /// The response to its rejection.
    async fn admit_by_fields(
        mut self: Box<Self>,
        wanted: FieldMask,
    ) -> Result<(AdmittedRequest, Option<Duration>), DownstreamResponse> {
        if let Err(reason) = self.read_fields(wanted).await {
            return Err(self.not_read(&reason));
        }
        let mut deferral = None;
        let (held, delay) = match self.decide_again(&mut deferral) {
            NewDecision::Held(held) => (held, None),
            NewDecision::Admitted(admitted, delay) => (admitted, delay),
            NewDecision::Rejected(response) => return Err(*response),
        };
        if let Some(deferral) = deferral.filter(|_| !held.context.is_last_hop) {
            return Err(held.defer(deferral, delay).await);
        }
        if held.pending.is_held() { held.admit().await } else { held.prepare_with(delay) }
    }

    /// Reads the fields `wanted` of the body.
    ///
    /// # Errors
    /// Why they are not read.
    async fn read_fields(&mut self, wanted: FieldMask) -> Result<(), NotRead> {
        let Self { view, context, head, unread, fields, .. } = self;
        if let Some(settings) = &view.policy.bodies {
            let read = body_fields::read(context, settings, wanted, head, unread).await?;
            *fields = Some(Box::new(read));
        }
        Ok(())
    }

    /// Adopts another configuration. If its rules read fields of the body, they are read, again or for the first time.
    ///
    /// # Errors
    /// Why they are not read.
    async fn adopt(&mut self, in_force: Rc<GenerationView>) -> Result<(), NotRead> {
        (self.view, self.fields) = (in_force, None);
        body_fields::stop_watching(&mut self.unread.body);
        let Self { view, context, head, unread, .. } = &*self;
        let connection = &context.connection;
        let attributes = identify_request(connection, view, head, context.started_at);
        let wanted = attributes
            .ok()
            .and_then(|attributes| body_fields::needed(context, &view.policy, unread, &attributes));
        match wanted {
            Some(wanted) => Box::pin(self.read_fields(wanted)).await,
            None => Ok(()),
        }
    }

    /// Responds to a request whose body is not read.
    fn not_read(mut self: Box<Self>, reason: &NotRead) -> DownstreamResponse {
        match reason {
            NotRead::Shed => {
                self.context.connection.worker.metrics.record_load_shed(LoadShed::Waiting);
                LocalReply::overloaded(LoadShed::Waiting).send(self.context, self.unread.into())
            }
            NotRead::Failed(failure) => {
                let limits = &mut AppliedLimits::none(self.context.started_at);
                LocalReply::failed(&mut self.context, failure, limits).send(self.context, UnreadBody::Rest)
            }
        }
    }

    /// Stores the request, to be sent later. Returns the response to it.
    async fn defer(
        self: Box<Self>,
        deferral: DeferredRequest,
        delay: Option<Duration>,
    ) -> DownstreamResponse {
        let Self { view, mut context, pending, mut head, flags, unread, .. } = *self;
        let connection = Rc::clone(&context.connection);
        let Ok(attributes) = identify_request(&connection, &view, &head, context.started_at) else {
            return LocalReply::malformed(InvalidRequest::Malformed).send(context, unread.into());
        };
        let hop = IdentifiedRequest::new(&connection, &view, &head, &attributes, context.request_bits).hop;
        let call = PendingCall::new(&mut context, hop, &mut head, flags, deferral, &view);
        accept::start(context, Rc::clone(&view), pending, delay, call, unread).await
    }

    /// Waits until the limits admit the request, and prepares it. Returns it with its delay.
    ///
    /// # Errors
    /// The response to its rejection.
    async fn admit(mut self: Box<Self>) -> Result<(AdmittedRequest, Option<Duration>), DownstreamResponse> {
        let mut delayed = None;
        loop {
            let Self { view, context, pending, .. } = &mut *self;
            match await_admission(&view.limits, context, pending, &mut delayed).await {
                Ok(delay) => return self.prepare_with(delay),
                Err(NotAdmitted::Rejected(rule, retry_after)) => return Err(self.reject(rule, retry_after)),
                Err(NotAdmitted::Superseded) => {}
            }
            let in_force = self.context.connection.view();
            if Rc::ptr_eq(&self.view, &in_force) {
                // By the same rules, it may be superseded at once; others of this thread must continue. Otherwise it does
                // not yield, so that requests are decided in the order of the queue.
                tokio::task::yield_now().await;
            } else if let Err(reason) = self.adopt(in_force).await {
                return Err(self.not_read(&reason));
            }
            // A request that has waited is not stored to be sent later.
            match self.decide_again(&mut None) {
                NewDecision::Held(held) => self = held,
                NewDecision::Admitted(mut admitted, delay) => {
                    if let Some(delay) = delay {
                        let Self { context, pending, head, .. } = &mut *admitted;
                        if !delay::take_delayed_memory(context, pending, &head.headers) {
                            let reply = LocalReply::overloaded(LoadShed::Waiting);
                            return Err(reply.send(admitted.context, admitted.unread.into()));
                        }
                        // It is counted together with the wait.
                        delay::hold_request(context, tokio::time::sleep(delay)).await;
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
        let (connection, bits) = (Rc::clone(&context.connection), context.request_bits);
        if let Ok(attributes) = identify_request(&connection, view, head, context.started_at) {
            let identified = IdentifiedRequest::new(&connection, view, head, &attributes, bits);
            log_headers(context, &mut head.clone(), *flags, &identified.hop);
        }
    }

    /// Prepares an admitted request for its upstream.
    #[expect(clippy::result_large_err, reason = "the caller returns the response at once")]
    fn prepare_with(
        self: Box<Self>,
        delay: Option<Duration>,
    ) -> Result<(AdmittedRequest, Option<Duration>), DownstreamResponse> {
        let Self { view, mut context, pending, mut head, flags, mut unread, trace, fields } = *self;
        let (connection, now) = (Rc::clone(&context.connection), context.started_at);
        if let Some(fields) = &fields {
            let headers = &mut head.headers;
            usage::ask_for_usage(&mut context, &view.policy, &pending, fields, headers, &mut unread);
        }
        let Ok(attributes) = identify_request(&connection, &view, &head, now) else {
            let reply = LocalReply::malformed(InvalidRequest::Malformed);
            return Err(reply.send(context, UnreadBody::Unknown));
        };
        // For keys of limits inside streams. A batch is one stream.
        if let Some(element) = fields.as_ref().and_then(|fields| fields.of_elements().next()) {
            attributes.body.set(element);
        }
        let identified = IdentifiedRequest::new(&connection, &view, &head, &attributes, context.request_bits);
        let has_body = !unread.is_empty();
        let chosen = ChosenUpstream::choose(identified, &mut context, &view, &pending, &head, has_body);
        let (request, overrides) =
            chosen.prepare(&mut context, &mut head, flags, &pending, &view, trace.as_ref());
        let ChosenUpstream { upstream, cached, .. } = chosen;
        let admitted =
            AdmittedRequest { view, context, pending, request, unread, upstream, overrides, cached };
        Ok((admitted, delay))
    }

    /// Returns the response to a request that `rule` rejects.
    fn reject(self: Box<Self>, rule: RuleIndex, retry_after: Duration) -> DownstreamResponse {
        let Self { view, mut context, mut pending, mut head, flags, unread, .. } = *self;
        let (connection, now) = (Rc::clone(&context.connection), context.started_at);
        let mut cached = None;
        if let Ok(attributes) = identify_request(&connection, &view, &head, now) {
            let bits = context.request_bits;
            let identified = IdentifiedRequest::new(&connection, &view, &head, &attributes, bits);
            keep_details(&mut context, &view.policy, &head, flags, &identified.hop);
            cached = view.fallbacks.look_up(rule, identified.incoming(&head, !unread.is_empty(), &view), now);
        }
        let rejected = pending.rejection(rule, retry_after);
        record_rejection(&mut context, &rejected, None);
        let request::Parts { method, headers, .. } = &mut head;
        let reply = LocalReply::rate_limited(&view.limits, &rejected, cached, method, headers);
        reply.send(context, unread.into())
    }

    /// Decides the request by its configuration; `deferral` becomes the rule that defers it.
    fn decide_again(mut self: Box<Self>, deferral: &mut Option<DeferredRequest>) -> NewDecision {
        let connection = Rc::clone(&self.context.connection);
        let now = connection.worker.shared.clock.now();
        let Self { view, context, pending, head, flags, fields, unread, .. } = &mut *self;
        let Ok(attributes) = identify_request(&connection, view, head, now) else {
            let reply = LocalReply::malformed(InvalidRequest::Malformed);
            return NewDecision::rejected(reply.send(self.context, UnreadBody::Unknown));
        };
        let identified = IdentifiedRequest::new(&connection, view, head, &attributes, context.request_bits);
        let IdentifiedRequest { next_hop, hop, .. } = identified;
        if let NextHop::Refused(refusal) = next_hop {
            let reply = LocalReply::refused(refusal);
            return NewDecision::rejected(reply.send(self.context, self.unread.into()));
        }
        if unread.is_empty() {
            attributes.body_size.set(Some(0));
        }
        let arrival = pending.arrival();
        let mut selection = Selection::default();
        match fields {
            Some(fields) => {
                select_by_fields(&mut selection, context, view, head, &attributes, fields, deferral)
            }
            None => select(&mut selection, context, view, head, &attributes, deferral),
        }
        *pending = match decide_selection(&mut selection, context, view, &attributes, arrival, now) {
            Ok(pending) => pending,
            Err((rule, denial)) => {
                set_route(context, &view.policy, std::iter::once(rule), &attributes);
                keep_details(context, &view.policy, head, *flags, &hop);
                let reply = LocalReply::denied(&self.view.policy, rule, denial);
                return NewDecision::rejected(reply.send(self.context, self.unread.into()));
            }
        };
        set_route(context, &view.policy, pending.rules(), &attributes);
        let delay = match pending.admission() {
            Admission::Held => return NewDecision::Held(self),
            Admission::Pass(delay) => delay,
            Admission::Reject(LimitRejection { rule, retry_after, .. }) => {
                return NewDecision::rejected(self.reject(rule, retry_after));
            }
        };
        record_admission(context, view, pending, &attributes);
        NewDecision::Admitted(self, delay)
    }
}

impl NewDecision {
    fn rejected(response: DownstreamResponse) -> Self {
        Self::Rejected(Box::new(response))
    }
}
