//! Local replies to calls that are sent later.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, StatusCode};

use super::{
    DownstreamResponse, LocalReply, PendingBody, announce_close, build_reply, closes_for_drain, plain_text,
};
use crate::proxy::body::ResponseBody;
use crate::proxy::headers::X_REQUEST_ID;
use crate::proxy::request_context::{RequestContext, ResponseFlag};
use weir_http::headers::{Headers, Response};

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// A deferred call that the store has confirmed.
#[derive(Debug)]
pub(in crate::proxy) struct AcceptedCall {
    /// Status code of the response.
    pub(in crate::proxy) status: StatusCode,
    pub(in crate::proxy) id: String,
    /// The request ID with which it will be sent.
    pub(in crate::proxy) request_id: HeaderValue,
}

/// Why a call is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::proxy) enum StoreRejection {
    /// Its body is too large.
    TooLarge,
    /// The store has the maximum number of calls of the rule.
    Full,
    /// The store did not confirm it, or this process receives too many bodies.
    Unavailable,
}

/// Responds to a call that is sent later.
pub(in crate::proxy) fn accepted(
    mut context: Box<RequestContext>,
    AcceptedCall { status, id, request_id }: AcceptedCall,
) -> DownstreamResponse {
    context.respond_with(status, ResponseFlag::None);
    context.timer.response_started();
    let close = closes_for_drain(&context);
    let mut headers = Headers::default();
    headers.set(&X_REQUEST_ID, &request_id);
    let body = match status {
        StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT => Bytes::new(),
        _ => {
            headers.set(&CONTENT_TYPE, &JSON);
            format!("{{\"id\":\"{id}\"}}\n").into()
        }
    };
    announce_close(close, &mut headers);
    Response { status, headers, body: ResponseBody::local(body, context) }
}

/// Responds to a call that is not accepted. `unread` is its body, unless that has been read in part or completely.
pub(in crate::proxy) fn not_stored(
    mut context: Box<RequestContext>,
    reason: StoreRejection,
    unread: Option<PendingBody>,
) -> DownstreamResponse {
    let (status, text) = match reason {
        StoreRejection::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "request body too large\n"),
        StoreRejection::Full => (StatusCode::SERVICE_UNAVAILABLE, "too many stored calls\n"),
        StoreRejection::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "call not stored\n"),
    };
    let mut headers = plain_text();
    if status == StatusCode::SERVICE_UNAVAILABLE {
        headers.set(&RETRY_AFTER, &HeaderValue::from_static("1"));
    }
    let flag = ResponseFlag::NotStored;
    let body = &Bytes::from_static(text.as_bytes());
    if let Some(unread) = unread {
        return build_reply(context, LocalReply { status, flag, headers, body, rule: None }, unread);
    }
    context.respond_with(status, flag);
    context.timer.response_started();
    let is_read = context.upload_is_complete();
    if !is_read {
        context.timer.must_linger();
    }
    let close = closes_for_drain(&context) || (context.owns_connection() && !is_read);
    announce_close(close, &mut headers);
    Response { status, headers, body: ResponseBody::local(body.clone(), context) }
}
