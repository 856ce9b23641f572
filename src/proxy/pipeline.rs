//! Request pipeline: admit, validate, identify, select, decide, forward, finish. [`handle`] runs the stages, which
//! follow it in the same order.

use std::rc::Rc;

use http::{HeaderMap, Method, request};

use super::admitted::AdmittedRequest;
use super::body::DownstreamBody;
use super::body_fields;
use super::classes;
use super::connection::DownstreamConnection;
use super::decide::{
    IdentifiedRequest, decide, identify_request, keep_details, log_headers, record_admission,
    record_rejection, set_route,
};
use super::decision::{self, Inquiry};
use super::deferred::accept;
use super::deferred::accept::PendingCall;
use super::forward_proxy::NextHop;
use super::grpc;
use super::headers::{self, Expectation, Hop, InvalidRequest, RequestHeaderFlags};
use super::held::HeldRequest;
use super::local_reply::{DownstreamResponse, LocalReply, PendingBody, UnreadBody};
use super::own_limits;
use super::prepare::ChosenUpstream;
use super::request_context::{RequestContext, start_log};
use super::response_future::{RequestOutcome, ResponseFuture};
use super::view::GenerationView;
use weir_http::headers::take_head;
use weir_http::http1::head::ReceivedHead;
use weir_limiter::timestamp::Timestamp;
use weir_limits::{Admission, PendingLimits};
use weir_net::in_place;
use weir_net::overload::LoadShed;
use weir_policy::decision::{InquiryForm, InvalidInquiry};
use weir_policy::identify::client_ip;
use weir_telemetry::spans::context::TraceContext;

/// Handles one request.
///
/// Everything up to a rejection runs synchronously. Only a request that is forwarded or waits needs a future.
///
/// `head` is passed by reference because it is large. Afterwards, it may be changed or empty. `received` is the head as it
/// arrived over HTTP/1.1.
pub(super) fn handle(
    connection: &Rc<DownstreamConnection>,
    head: &mut request::Parts,
    body: DownstreamBody,
    received: ReceivedHead,
) -> RequestOutcome<impl Future<Output = DownstreamResponse> + use<>> {
    let (view, now) = (connection.view(), connection.worker.shared.clock.now());
    let inquiry = Inquiry::read(connection, &view, head);
    let (mut context, trace, admission) = admit(connection, head, received, now, &view);
    context.inquiry = inquiry.as_ref().map(|inquiry| inquiry.form);
    if let Err(by) = admission {
        let unread = PendingBody::new(Expectation::from_headers(&head.headers), body);
        return LocalReply::overloaded(by).send(context, unread.into()).into();
    }
    match inquiry {
        None => {}
        Some(Inquiry { problem: Some(problem), .. }) => {
            let unread = PendingBody::new(Expectation::from_headers(&head.headers), body);
            // An untrusted peer gets a decision, which no proxy takes for a failure.
            context.inquiry.take_if(|_| problem != InvalidInquiry::UntrustedPeer);
            return LocalReply::invalid_inquiry(&problem).send(context, unread.into()).into();
        }
        Some(Inquiry { form: InquiryForm::GrpcCheck, .. }) => {
            return ResponseFuture::Answering(decision::answer(context, view, body, handle_admitted)).into();
        }
        Some(_) => {
            // What was received describes another request.
            (context.is_grpc, context.received) = (false, ReceivedHead::default());
        }
    }
    handle_admitted(connection, view, context, trace, head, body)
}

/// Handles a request that is not shed. `trace` belongs to it if it has no span.
fn handle_admitted(
    connection: &Rc<DownstreamConnection>,
    view: Rc<GenerationView>,
    mut context: Box<RequestContext>,
    trace: Option<TraceContext>,
    head: &mut request::Parts,
    body: DownstreamBody,
) -> RequestOutcome<impl Future<Output = DownstreamResponse> + use<>> {
    let now = context.started_at;
    let flags = match validate(&mut context, head, &view) {
        Ok(flags) => flags,
        Err(unacceptable) => {
            return LocalReply::malformed(unacceptable).send(context, UnreadBody::Unknown).into();
        }
    };
    let Ok(attributes) = identify_request(connection, &view, head, now) else {
        return LocalReply::malformed(InvalidRequest::Malformed).send(context, UnreadBody::Unknown).into();
    };
    let identified = IdentifiedRequest::new(connection, &view, head, &attributes, context.request_bits);
    set_client(&mut context, &identified, flags, &view);
    let unread = PendingBody::new(flags.expectation(), body);
    let has_body = !unread.is_empty();
    if let Some(reply) = own_limits::respond(connection, &view, head, &attributes, now) {
        record_unforwarded(&mut context, &view, identified.hop, head, flags);
        return reply.send(context, unread.into()).into();
    }
    if let NextHop::Refused(refusal) = identified.next_hop {
        record_unforwarded(&mut context, &view, identified.hop, head, flags);
        return LocalReply::refused(refusal).send(context, unread.into()).into();
    }
    if !has_body {
        attributes.body_size.set(Some(0));
    }
    let mut deferral = None;
    if let Some(wanted) = body_fields::needed(&context, &view.policy, &unread, &attributes) {
        let (head, pending) = (take_head(head), PendingLimits::none(now));
        let held = HeldRequest { view, context, pending, head, flags, unread, trace, fields: None };
        return ResponseFuture::Held(held.hold(Some(wanted), AdmittedRequest::forward)).into();
    }
    let decided = decide(&mut context, &view, head, &attributes, &mut deferral, None, now);
    let mut pending = match decided {
        Ok(pending) => pending,
        Err((rule, denial)) => {
            set_route(&mut context, &view.policy, std::iter::once(rule), &attributes);
            record_unforwarded(&mut context, &view, identified.hop, head, flags);
            return LocalReply::denied(&view.policy, rule, denial).send(context, unread.into()).into();
        }
    };
    set_route(&mut context, &view.policy, pending.rules(), &attributes);
    let delay = match pending.admission() {
        Admission::Pass(delay) => delay,
        Admission::Held => None,
        Admission::Reject(rejected) => {
            let incoming = identified.incoming(head, has_body, &view);
            let cached = view.fallbacks.look_up(rejected.rule, incoming, now);
            record_rejection(&mut context, &rejected, Some(&attributes));
            record_unforwarded(&mut context, &view, identified.hop, head, flags);
            let request::Parts { method, headers, .. } = head;
            let reply = LocalReply::rate_limited(&view.limits, &rejected, cached, method, headers);
            return reply.send(context, unread.into()).into();
        }
    };
    record_admission(&mut context, &view, &pending, &attributes);
    if let Some(deferral) = deferral.filter(|_| !context.is_last_hop) {
        let call = PendingCall::new(&mut context, identified.hop, head, flags, deferral, &view);
        return ResponseFuture::Accepting(accept::start(context, view, pending, delay, call, unread)).into();
    }
    if pending.is_held() {
        let head = take_head(head);
        let held = HeldRequest { view, context, pending, head, flags, unread, trace, fields: None };
        return ResponseFuture::Held(held.hold(None, AdmittedRequest::forward)).into();
    }
    let chosen = ChosenUpstream::choose(identified, &mut context, &view, &pending, head, has_body);
    let (request, overrides) = chosen.prepare(&mut context, head, flags, &pending, &view, trace.as_ref());
    let ChosenUpstream { upstream, cached, .. } = chosen;
    let admitted = AdmittedRequest { view, context, pending, request, unread, upstream, overrides, cached };
    ResponseFuture::Forwarding(in_place::boxed!(admitted.forward(delay)).into()).into()
}

/// Admits a request unless it is shed: starts its timer, and counts it. An extended CONNECT is converted to the
/// equivalent HTTP/1.1 upgrade. Also returns the trace context of a request without a span.
fn admit(
    connection: &Rc<DownstreamConnection>,
    head: &mut request::Parts,
    received: ReceivedHead,
    now: Timestamp,
    view: &Rc<GenerationView>,
) -> (Box<RequestContext>, Option<TraceContext>, Result<(), LoadShed>) {
    let worker = &connection.worker;
    let is_extended_connect = headers::extended_connect::convert_request(head, || worker.random());
    let timer = connection.start_request(head.version, view.stream_idle_timeout);
    if connection.stored.is_none() {
        worker.metrics.request_started(connection.listener);
    }
    let mut context = RequestContext::new(connection, timer, now);
    let trace = start_log(&mut context, head, view);
    context.is_grpc = grpc::is_grpc_call(head);
    context.received = received;
    context.upgrade.is_extended_connect = is_extended_connect;
    let admission = worker.shared.overload.acquire_request().map(|permit| context.permit = permit);
    if let Err(by) = admission {
        worker.metrics.record_load_shed(by);
        connection.postpone_shed_call();
    }
    (context, trace, admission)
}

/// Validates the head of a request, and removes headers that the client must not set.
fn validate(
    context: &mut RequestContext,
    head: &mut request::Parts,
    view: &GenerationView,
) -> Result<RequestHeaderFlags, InvalidRequest> {
    let connection = Rc::clone(&context.connection);
    headers::normalise_length(head)?;
    let accepts_connect = head.method == Method::CONNECT && view.forward_proxy(connection.listener).is_some();
    let flags = headers::validate(head, connection.limits.headers, accepts_connect)?;
    // That of a stored call was decremented when it was accepted.
    context.is_last_hop =
        connection.stored.is_none() && headers::decrement_max_forwards(&mut head.headers, flags);
    context.is_last_hop |= context.inquiry.is_some();
    if accepts_connect {
        expect_tunnel(context);
    }
    let believed = || connection.may_forward_certificates(&view.policy.identify);
    headers::sanitize_certificate(&mut head.headers, flags, believed);
    remove_claims(&connection, &mut head.headers, flags, view);
    classes::remove_untrusted_name(&connection, &mut head.headers, view);
    headers::join_cookies(head);
    let twins = &view.policy.header_twins;
    if flags.underscores || twins.includes_dashes() {
        let removed = headers::remove_lookalikes(&mut head.headers, twins);
        if removed > 0 {
            connection.worker.headers_removed(removed);
        }
    }
    Ok(flags)
}

/// Removes headers in which an untrusted peer names a client or a target, before rules read them. Those of a forward
/// proxy's clients are meant for the destination, and a stored call has lost them already.
fn remove_claims(
    connection: &DownstreamConnection,
    headers: &mut HeaderMap,
    flags: RequestHeaderFlags,
    view: &GenerationView,
) {
    let settings = &view.policy.identify;
    let may_have_some = flags.client_names || settings.reads_other_headers;
    if !may_have_some || settings.keeps_client_headers || connection.stored.is_some() {
        return;
    }
    if settings.trusted_proxies.contains(connection.peer) || connection.is_forward_proxy() {
        return;
    }
    let removed = headers::remove_client_headers(headers, &settings.address_headers);
    if removed > 0 {
        connection.worker.client_headers_removed(removed);
    }
}

/// Marks a request as one for a tunnel. It is no gRPC call, whatever its content type is: a reply to a call has the
/// status 200, which would tell the client that the tunnel exists.
const fn expect_tunnel(context: &mut RequestContext) {
    (context.upgrade.is_connect, context.is_grpc) = (true, false);
}

/// Records the client as the rules see it, and its location if there is a database; an IPv6 client counts as a network.
fn set_client(
    context: &mut RequestContext,
    IdentifiedRequest { attributes, hop, .. }: &IdentifiedRequest<'_, '_, '_>,
    flags: RequestHeaderFlags,
    view: &GenerationView,
) {
    let ip = hop.client.ip;
    (context.hides_client, context.is_proxied) = (hop.hides_client, hop.hides_client);
    context.connection.worker.warn_of_untrusted_proxy(hop, flags);
    context.client = client_ip::network(ip, 32, view.policy.identify.ipv6_prefix);
    if let Some(location) = view.locate(ip) {
        attributes.set_location(location);
        context.location = Some(location);
    }
    if let Some(log) = &mut context.log {
        log.client = Some(ip);
    }
}

/// Records of a rejected request what its local reply may repeat, and its headers for the log.
fn record_unforwarded(
    context: &mut RequestContext,
    view: &GenerationView,
    hop: Hop<'_>,
    head: &mut request::Parts,
    flags: RequestHeaderFlags,
) {
    keep_details(context, &view.policy, head, flags, &hop);
    log_headers(context, head, flags, &hop);
}
