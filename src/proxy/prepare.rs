//! Prepares an admitted request for its upstream.

use std::rc::Rc;

use http::header::ACCEPT_ENCODING;
use http::{HeaderMap, HeaderValue, request};

use super::classes;
use super::decide::{IdentifiedRequest, keep_details};
use super::fallback::CachedFallbacks;
use super::headers::overrides::RequestOverrides;
use super::headers::{self, Hop, RequestHeaderFlags};
use super::request_context::{RequestContext, propagate_trace};
use super::streams::RequestStreams;
use super::view::GenerationView;
use weir_http::headers::{FieldLines, take_head};
use weir_limits::PendingLimits;
use weir_policy::response::rate_limit_headers::{X_WEIR_CHARGED, X_WEIR_OVER_LIMIT};
use weir_telemetry::spans::context::TraceContext;
use weir_upstream::Upstream;
use weir_upstream::outgoing::OutgoingRequest;

/// What depends on the head of an admitted request as the client has sent it.
pub(super) struct ChosenUpstream<'c> {
    hop: Hop<'c>,
    pub(super) upstream: Option<Rc<Upstream>>,
    pub(super) cached: CachedFallbacks,
}

impl<'c> ChosenUpstream<'c> {
    /// Chooses the upstream of a request, and starts to record its response for the fallback caches.
    pub(super) fn choose(
        identified: IdentifiedRequest<'_, '_, 'c>,
        context: &mut RequestContext,
        view: &GenerationView,
        pending: &PendingLimits,
        head: &request::Parts,
        has_body: bool,
    ) -> Self {
        let incoming = identified.incoming(head, has_body, view);
        let cached = CachedFallbacks::look_up(&view.fallbacks, pending, incoming, context.started_at);
        context.recorder = view.fallbacks.record(pending, incoming, context.started_at);
        let IdentifiedRequest { attributes, next_hop, hop } = identified;
        classes::classify(context, view, head, attributes);
        // A stored call has no client whose stream could be slowed down.
        if view.policy.rules.has_streams() && context.connection.stored.is_none() {
            let RequestContext { connection, timer, .. } = context;
            context.streams = RequestStreams::select(&connection.worker, timer, view, attributes);
        }
        let diverting = pending.limits().diverting_rule().and_then(|rule| view.diversion(rule));
        let upstream = match diverting {
            Some(upstream) => {
                // A fallback is a response of the upstream that usually receives the request.
                context.recorder = None;
                Some(upstream.for_host(|| attributes.host.as_str()))
            }
            None => next_hop.upstream(view, attributes),
        };
        Self { hop, upstream, cached }
    }

    /// Prepares the request, to which `trace` belongs if it has no span. Returns it with the overrides of an internal client.
    pub(super) fn prepare(
        &self,
        context: &mut RequestContext,
        head: &mut request::Parts,
        flags: RequestHeaderFlags,
        pending: &PendingLimits,
        view: &GenerationView,
        trace: Option<&TraceContext>,
    ) -> (OutgoingRequest, Option<Box<RequestOverrides>>) {
        let upstream = self.upstream.as_deref();
        let (mut request, overrides) = prepare(context, head, flags, &self.hop, pending, view, upstream);
        propagate_trace(context, trace, &mut request);
        (request, overrides)
    }
}

/// Prepares the request for the upstream, and sets the timeouts of that upstream. Returns the request, and the
/// overrides of an internal client.
fn prepare(
    context: &mut RequestContext,
    head: &mut request::Parts,
    flags: RequestHeaderFlags,
    hop: &Hop<'_>,
    pending: &PendingLimits,
    view: &GenerationView,
    upstream: Option<&Upstream>,
) -> (OutgoingRequest, Option<Box<RequestOverrides>>) {
    if let Some(upstream) = upstream {
        context.timer.set_stream_idle_timeout(upstream.settings().idle_timeout);
        // A stored call has no client that could be slow.
        if let Some(scarcity) = upstream.scarcity().filter(|_| context.connection.stored.is_none()) {
            // The messages of a gRPC call may arrive at any pace.
            context.timer.require_min_rate(Rc::clone(scarcity), !context.is_grpc);
        }
    }
    if pending.is_pending() {
        // It may still be rejected, when its head is gone.
        keep_details(context, &view.policy, head, flags, hop);
    }
    let rewrite = upstream.map(|upstream| &upstream.settings().rewrite);
    context.hides_client |= rewrite.is_some_and(|rewrite| rewrite.hides_client);
    let hop = &Hop { hides_client: context.hides_client, ..*hop };
    let changes = rewrite.map(|rewrite| &rewrite.headers).filter(|changes| !changes.is_empty());
    let details = changes.filter(|changes| changes.has_templates());
    let details = details.map(|_| headers::request_details(head, flags, hop));
    let mut added_headers = FieldLines::default();
    // A rate limit service that has yet to decide may change headers of the request, and so may the upstream's settings.
    let added = (!pending.is_pending() && changes.is_none()).then_some(&mut added_headers);
    let upgrades = upstream.map_or(&[][..], |upstream| &*upstream.settings().upgrades);
    let asked = headers::prepare_request(head, flags, hop, upgrades, added);
    context.upgrade.protocol = asked.upgrade;
    classes::name_class(context, view, &mut head.headers);
    if !context.hides_client {
        add_marks(&mut head.headers, pending, view);
    }
    if let Some(log) = &mut context.log {
        log.copy_headers(&head.headers, &added_headers);
    }
    if let Some(rewrite) = rewrite {
        headers::rewrite::rewrite_head(head, rewrite, details.as_ref());
    }
    if pending.response_states_cost(&view.policy) {
        // A compressed response could not be read as it passes.
        head.headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    }
    (OutgoingRequest { head: take_head(head), added_headers }, asked.overrides)
}

/// Tells the upstream over which limits an admitted request is, and to which rules of groups it is charged.
fn add_marks(headers: &mut HeaderMap, pending: &PendingLimits, view: &GenerationView) {
    for mark in pending.limits().mark_values(&view.limits) {
        headers.append(X_WEIR_OVER_LIMIT, mark);
    }
    if view.policy.rules.has_groups() {
        for rule in pending.limits().charged_values(&view.limits) {
            headers.append(X_WEIR_CHARGED, rule);
        }
    }
}
