//! Stages of the pipeline from the identification of a request to the decision of its limits. A request passes them again
//! if a reload removes a limit for which it waits.

use http::{HeaderMap, Method, Uri, request};

use super::connection::DownstreamConnection;
use super::deferred;
use super::fallback::IncomingRequest;
use super::forward_proxy::NextHop;
use super::headers::{self, Hop, RequestHeaderFlags};
use super::request_context::{RequestContext, record_decision};
use super::view::GenerationView;
use weir_http::headers::FieldLines;
use weir_limiter::timestamp::Timestamp;
use weir_limits::{DecisionSummary, LimitRejection, PendingLimits, QueueArrival};
use weir_policy::engine::Policy;
use weir_policy::identify::body::BodyFields;
use weir_policy::identify::{Attributes, ConnectionAttributes, MalformedPath, identify};
use weir_policy::rules::RuleIndex;
use weir_policy::rules::deferral::DeferredRequest;
use weir_policy::rules::selection::{Denial, Selection};
use weir_telemetry::metrics::DecisionOutcome;

/// A request whose client and next hop are known.
pub(super) struct IdentifiedRequest<'a, 'h, 'c> {
    /// What rules and routes match. They borrow the head, and are too large to be moved.
    pub(super) attributes: &'a Attributes<'h>,
    pub(super) next_hop: NextHop<'c>,
    pub(super) hop: Hop<'c>,
}

impl<'a, 'h, 'c> IdentifiedRequest<'a, 'h, 'c> {
    /// Finds the next hop of a request with these attributes. `random`: for its request ID.
    #[inline]
    pub(super) fn new(
        connection: &'c DownstreamConnection,
        view: &'c GenerationView,
        head: &request::Parts,
        attributes: &'a Attributes<'h>,
        random: u128,
    ) -> Self {
        let next_hop = NextHop::of_request(connection, view, head, attributes);
        let hop = next_hop.hop(connection, view, head.version, attributes.client, random);
        Self { attributes, next_hop, hop }
    }

    /// Returns the request as the fallback caches see it.
    pub(super) fn incoming<'r>(
        &'r self,
        head: &'r request::Parts,
        has_body: bool,
        view: &'r GenerationView,
    ) -> IncomingRequest<'r, 'h> {
        IncomingRequest::new(head, has_body, &self.hop, self.attributes, &view.policy, &view.upstreams)
    }
}

/// Returns the attributes of a request that arrived on `connection`.
#[inline]
pub(super) fn identify_request<'a>(
    connection: &'a DownstreamConnection,
    view: &'a GenerationView,
    head: &'a request::Parts,
    now: Timestamp,
) -> Result<Attributes<'a>, MalformedPath> {
    identify_as(connection, view, &head.method, &head.uri, &head.headers, now)
}

/// As [`identify_request`], for a request with this head.
#[inline]
pub(super) fn identify_as<'a>(
    connection: &'a DownstreamConnection,
    view: &'a GenerationView,
    method: &'a Method,
    uri: &'a Uri,
    headers: &'a HeaderMap,
    now: Timestamp,
) -> Result<Attributes<'a>, MalformedPath> {
    let (settings, civil) = (&view.policy.identify, connection.worker.shared.clock.civil_time_at(now));
    let mut attributes = identify(method, uri, headers, connection.peer, settings, civil)?;
    attributes.connection = ConnectionAttributes {
        certificate: connection.certificate(),
        listener: view.listener_name(connection.listener),
    };
    Ok(attributes)
}

/// Decides the limits of a request that are counted here; `deferral` becomes the rule that defers it. `arrival`: when a
/// request that has waited in a queue arrived.
///
/// # Errors
/// The rule that rejects the request before any limit is evaluated.
// Inline: the limits are large, and would be moved once more.
#[inline(always)]
pub(super) fn decide(
    context: &mut RequestContext,
    view: &GenerationView,
    head: &request::Parts,
    attributes: &Attributes<'_>,
    deferral: &mut Option<DeferredRequest>,
    arrival: Option<QueueArrival>,
    now: Timestamp,
) -> Result<PendingLimits, (RuleIndex, Denial)> {
    let mut selection = Selection::default();
    select(&mut selection, context, view, head, attributes, deferral);
    decide_selection(&mut selection, context, view, attributes, arrival, now)
}

/// As [`select`], by the fields of the request's body. Of a batch, the limits of each element apply.
pub(super) fn select_by_fields<'f>(
    selection: &mut Selection,
    context: &RequestContext,
    view: &GenerationView,
    head: &request::Parts,
    attributes: &Attributes<'f>,
    fields: &'f BodyFields,
    deferral: &mut Option<DeferredRequest>,
) {
    attributes.body_size.set(fields.size);
    let mut selections = fields.of_elements().map(|element| {
        attributes.body.set(element);
        let mut selection = Selection::default();
        select(&mut selection, context, view, head, attributes, deferral);
        selection
    });
    let first = selections.next().unwrap_or_default();
    *selection = selections.fold(first, Selection::joined);
}

/// Decides the limits that apply to a request; see [`decide`].
///
/// # Errors
/// The rule that rejects the request before any limit is evaluated.
#[inline(always)]
pub(super) fn decide_selection(
    selection: &mut Selection,
    context: &mut RequestContext,
    view: &GenerationView,
    attributes: &Attributes<'_>,
    arrival: Option<QueueArrival>,
    now: Timestamp,
) -> Result<PendingLimits, (RuleIndex, Denial)> {
    match selection {
        Selection::Exempt(rule) => {
            record_without_limit(context, view, *rule, DecisionOutcome::Exempt, attributes);
            Ok(PendingLimits::none(now))
        }
        Selection::Limited(checks, rest) => {
            Ok(PendingLimits::check(&view.limits, checks, rest, attributes, now, arrival))
        }
        Selection::Denied(rule, denial) => {
            record_without_limit(context, view, *rule, DecisionOutcome::Denied, attributes);
            Err((*rule, *denial))
        }
    }
}

/// Matches the rules against a request; `deferral` becomes the rule that defers it. A stored call is only subject to the
/// rule that has stored it: the others were applied when it was accepted. The `selection` is written in place, because it is
/// large.
pub(super) fn select(
    selection: &mut Selection,
    context: &RequestContext,
    view: &GenerationView,
    head: &request::Parts,
    attributes: &Attributes<'_>,
    deferral: &mut Option<DeferredRequest>,
) {
    let connection = &context.connection;
    let (rules, headroom) = (&view.policy.rules, connection.worker.shared.elastic.headroom());
    if let Some(stored) = &connection.stored {
        *selection = rules.select_deferred(&stored.deferred, attributes, headroom);
        return;
    }
    rules.select_into(selection, attributes, headroom);
    if rules.has_deferrals()
        && let Selection::Limited(..) = selection
    {
        match deferred::find(context, view, head, attributes) {
            Ok(found) => *deferral = found,
            Err(denied) => *selection = Selection::Denied(denied.rule, denied.denial),
        }
    }
}

/// Sets the route of the request's span.
pub(super) fn set_route(
    context: &mut RequestContext,
    policy: &Policy,
    rules: impl Iterator<Item = RuleIndex>,
    attributes: &Attributes<'_>,
) {
    if let Some(log) = &mut context.log {
        log.set_route(policy, rules, attributes);
    }
}

/// Keeps what the local reply to a request may repeat, if the reply of any rule needs it.
pub(super) fn keep_details(
    context: &mut RequestContext,
    policy: &Policy,
    head: &request::Parts,
    flags: RequestHeaderFlags,
    hop: &Hop<'_>,
) {
    if policy.has_dynamic_replies {
        context.details = Some(Box::new(headers::request_details(head, flags, hop)));
    }
}

/// Records for the log the headers of a request that is not forwarded as the upstream would have received them, to which
/// `head` is changed.
pub(super) fn log_headers(
    context: &mut RequestContext,
    head: &mut request::Parts,
    flags: RequestHeaderFlags,
    hop: &Hop<'_>,
) {
    if let Some(log) = &mut context.log {
        let mut added = FieldLines::default();
        let _ = headers::prepare_request(head, flags, hop, &[], Some(&mut added));
        log.copy_headers(&head.headers, &added);
    }
}

/// Records what to settle of an admitted request, and how the limits that are counted here admit it, unless the store or
/// another service has yet to decide.
pub(super) fn record_admission(
    context: &mut RequestContext,
    view: &GenerationView,
    pending: &PendingLimits,
    attributes: &Attributes<'_>,
) {
    context.settlement = pending.settlement(&view.limits);
    context.followed = pending.followed(&view.limits);
    if !pending.is_pending() {
        record_decision(context, pending.limits(), None, Some(attributes));
    }
}

/// Records that a limit rejects a request, and when a stored call is sent again. Without `attributes`, the request was held.
pub(super) fn record_rejection(
    context: &mut RequestContext,
    rejected: &LimitRejection<'_>,
    attributes: Option<&Attributes<'_>>,
) {
    record_decision(context, rejected.limits, Some(rejected.rule), attributes);
    context.connection.reject_stored(rejected.retry_after);
}

/// Records what a rule decided without a limit, also for the log.
fn record_without_limit(
    context: &mut RequestContext,
    view: &GenerationView,
    rule: RuleIndex,
    outcome: DecisionOutcome,
    attributes: &Attributes<'_>,
) {
    view.limits.record_without_limit(rule, outcome, attributes, context.started_at);
    context.decision = Some(outcome);
    if let Some(log) = &mut context.log {
        log.set_decision(DecisionSummary::without_limit(rule, outcome));
    }
}
