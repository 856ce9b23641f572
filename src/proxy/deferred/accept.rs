//! Accepts a request that is sent later: its body is collected, the store confirms the call, and the client gets the
//! configured status.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{ACCESS_CONTROL_ALLOW_ORIGIN, CONTENT_LENGTH};
use http::{HeaderName, HeaderValue, request};
use hyper::body::Body as _;

use crate::proxy::body::{DownstreamBody, RequestBody};
use crate::proxy::decide::{keep_details, log_headers};
use crate::proxy::failure::ForwardFailure;
use crate::proxy::fallback::CachedFallbacks;
use crate::proxy::finish;
use crate::proxy::forward::response_timeout;
use crate::proxy::headers::{self, Hop, RequestHeaderFlags, X_REQUEST_ID};
use crate::proxy::local_reply::{
    AcceptedCall, DownstreamResponse, LocalReply, PendingBody, StoreRejection, UnreadBody,
};
use crate::proxy::request_context::RequestContext;
use crate::proxy::resolve;
use crate::proxy::view::GenerationView;
use weir_limits::{AppliedLimits, PendingLimits};
use weir_policy::engine::Policy;
use weir_policy::response::cors::CorsSettings;
use weir_policy::rules::RuleIndex;
use weir_policy::rules::deferral::{Deferral, DeferredRequest};
use weir_store::deferred::BodyMemory;
use weir_store::deferred::call::{StoredCall, format_id};
use weir_store::deferred::handle::{DeferredHandle, NotStored};

/// Identifies the call for the upstream, so that it can drop duplicates (draft-ietf-httpapi-idempotency-key-header).
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Maximum time in which the body of a call arrives, so that slow clients cannot hold memory for long.
const COLLECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Future of the response to a request that is being stored.
pub(in crate::proxy) type AcceptFuture = Pin<Box<dyn Future<Output = DownstreamResponse>>>;

/// A request that is being accepted.
#[derive(Debug)]
pub(in crate::proxy) struct PendingCall {
    rule: Box<str>,
    deferral: Deferral,
    call: StoredCall,
    /// The request ID with which the call will be sent.
    request_id: HeaderValue,
}

/// The body of a request, or why there is none.
enum CollectedBody {
    Complete(Bytes),
    Rejected(StoreRejection),
    Failed(ForwardFailure),
}

impl PendingCall {
    /// Creates the call of a request with this validated head; `None` if the rule is gone.
    pub(in crate::proxy) fn new(
        context: &mut RequestContext,
        hop: Hop<'_>,
        head: &mut request::Parts,
        flags: RequestHeaderFlags,
        DeferredRequest { rule, key }: DeferredRequest,
        view: &GenerationView,
    ) -> Option<Box<Self>> {
        let rule = view.policy.rules.get(rule)?;
        let deferral = (**rule.action.limiting()?.deferral.as_ref()?).clone();
        keep_details(context, &view.policy, head, flags, &hop);
        if context.log.is_some() {
            log_headers(context, &mut head.clone(), flags, &hop);
        }
        // A target that names the destination is kept for the forward proxy, which checks it again.
        headers::prepare_for_store(head, hop.hides_client);
        let id = format_id(hop.random);
        let id = HeaderValue::from_str(&id).ok()?;
        head.headers.entry(IDEMPOTENCY_KEY).or_insert_with(|| id.clone());
        let given = head.headers.get(X_REQUEST_ID).filter(|_| hop.client.peer_is_trusted);
        let request_id = given.unwrap_or(&id).clone();
        let call = StoredCall {
            id: hop.random,
            key,
            peer: hop.peer,
            listener: view.listener_name(context.connection.listener).unwrap_or_default().into(),
            is_tls: hop.tls.is_some(),
            certificate: hop.tls.and_then(|tls| tls.forwarded.clone()),
            method: std::mem::take(&mut head.method),
            target: std::mem::take(&mut head.uri),
            headers: std::mem::take(&mut head.headers),
            body: Bytes::new(),
        };
        Some(Box::new(Self { rule: rule.name.clone(), deferral, call, request_id }))
    }
}

/// Starts to accept a request that the limits of other rules have admitted so far.
pub(in crate::proxy) fn start(
    context: Box<RequestContext>,
    view: Rc<GenerationView>,
    pending: PendingLimits,
    delay: Option<Duration>,
    call: Option<Box<PendingCall>>,
    unread: PendingBody,
) -> AcceptFuture {
    Box::pin(async move {
        let Some(call) = call else {
            return LocalReply::not_stored(StoreRejection::Unavailable).send(context, unread.into());
        };
        let details = context.details.clone();
        let cors = details.as_ref().and_then(|_| cors_of(&view.policy, &call.rule));
        let mut reply = accept(context, view, pending, delay, call, unread).await;
        if let (Some(cors), Some(details)) = (cors, details)
            && !reply.headers.contains(&ACCESS_CONTROL_ALLOW_ORIGIN)
        {
            cors.write(&details, &mut reply.headers);
        }
        reply
    })
}

/// Returns which pages may read the local replies of the rule `name`.
fn cors_of(policy: &Policy, name: &str) -> Option<Box<CorsSettings>> {
    let index = policy.rules.rules().iter().position(|rule| *rule.name == *name)?;
    policy.rejection(RuleIndex(index))?.cors.clone()
}

async fn accept(
    mut context: Box<RequestContext>,
    view: Rc<GenerationView>,
    mut pending: PendingLimits,
    delay: Option<Duration>,
    mut accepted: Box<PendingCall>,
    unread: PendingBody,
) -> DownstreamResponse {
    let StoredCall { method, headers, .. } = &mut accepted.call;
    let resolved = resolve::resolve(&view.limits, &mut context, &mut pending, delay, headers).await;
    let limits = match resolved {
        Ok(limits) => limits,
        Err(rejected) => {
            let reply = rejected.reply(&view.limits, CachedFallbacks::default(), method, headers);
            return reply.send(context, unread.into());
        }
    };
    let max_body = accepted.deferral.max_body;
    if unread.body.size_hint().lower() > u64::from(max_body) {
        return LocalReply::not_stored(StoreRejection::TooLarge).send(context, unread.into());
    }
    let Some(handle) = context.connection.worker.shared.deferred.clone() else {
        return LocalReply::not_stored(StoreRejection::Unavailable).send(context, unread.into());
    };
    let mut memory = handle.body_memory(context.client);
    let collecting = collect(&mut context, unread.body, max_body, &mut memory);
    let collected = tokio::time::timeout(COLLECT_TIMEOUT, collecting).await;
    let rejection = match collected.unwrap_or(CollectedBody::Failed(ForwardFailure::RequestStalled)) {
        CollectedBody::Complete(body) => {
            store(&mut accepted, &handle, body, memory).await.err().map(LocalReply::not_stored)
        }
        CollectedBody::Rejected(reason) => Some(LocalReply::not_stored(reason)),
        CollectedBody::Failed(failure) => Some(LocalReply::failed(&mut context, &failure, limits)),
    };
    match rejection {
        Some(reply) => reply.send(context, UnreadBody::Rest),
        None => confirm(context, &view, limits, &accepted),
    }
}

/// Stores the call with its body.
async fn store(
    accepted: &mut PendingCall,
    handle: &DeferredHandle,
    body: Bytes,
    memory: BodyMemory,
) -> Result<(), StoreRejection> {
    accepted.call.body = body;
    if !accepted.call.body.is_empty() || accepted.call.headers.contains_key(CONTENT_LENGTH) {
        accepted.call.headers.insert(CONTENT_LENGTH, HeaderValue::from(accepted.call.body.len()));
    }
    let encoded = accepted.call.encode();
    // Only the encoded copy is needed.
    accepted.call.body = Bytes::new();
    let PendingCall { rule, deferral, .. } = &*accepted;
    handle.append(rule, deferral, encoded, memory).await.map_err(|error| match error {
        NotStored::Full => StoreRejection::Full,
        NotStored::Unavailable => StoreRejection::Unavailable,
    })
}

/// Reads a body of at most `max` bytes. Trailers are dropped.
async fn collect(
    context: &mut RequestContext,
    body: DownstreamBody,
    max: u32,
    memory: &mut BodyMemory,
) -> CollectedBody {
    let max = usize::try_from(max).unwrap_or(usize::MAX);
    let mut body = RequestBody::new(body, context, response_timeout(None, None));
    let mut collected = BytesMut::new();
    while !body.is_end_stream() {
        let frame = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx));
        match context.timer.limit(pin!(frame)).await {
            Ok(None) => break,
            Ok(Some(Ok(frame))) => {
                let data = frame.data_ref().map_or(&[][..], |data| data);
                let length = collected.len().saturating_add(data.len());
                if length > max {
                    return CollectedBody::Rejected(StoreRejection::TooLarge);
                }
                if !memory.grow_to(length) {
                    return CollectedBody::Rejected(StoreRejection::Unavailable);
                }
                collected.extend_from_slice(data);
            }
            Ok(Some(Err(_))) => return CollectedBody::Failed(ForwardFailure::BrokenRequest),
            Err(expired) => return CollectedBody::Failed(expired.into()),
        }
    }
    CollectedBody::Complete(collected.freeze())
}

/// Responds to a call that the store has confirmed.
fn confirm(
    mut context: Box<RequestContext>,
    view: &GenerationView,
    limits: &mut AppliedLimits,
    accepted: &PendingCall,
) -> DownstreamResponse {
    let status = accepted.deferral.status;
    let call = AcceptedCall { status, id: accepted.call.id_text(), request_id: accepted.request_id.clone() };
    let mut reply = LocalReply::accepted(call);
    finish::settle(&mut context, &reply.request_end(), limits);
    limits.write_all(reply.headers_mut(), &view.limits);
    reply.send(context, UnreadBody::Rest)
}
