//! Local replies by their cause, except for [failures](super::failures) and [limits](super::rate_limited).

use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, StatusCode};

use super::LocalReply;
use crate::proxy::classes::NoSlot;
use crate::proxy::headers::{InvalidRequest, X_REQUEST_ID};
use crate::proxy::request_context::ResponseFlag;
use weir_http::headers::Headers;
use weir_net::overload::LoadShed;
use weir_policy::engine::Policy;
use weir_policy::identify::lookup::Ambiguity;
use weir_policy::response::dynamic_reply::ConfiguredParts;
use weir_policy::response::rate_limit_headers::{number, whole_seconds};
use weir_policy::rules::RuleIndex;
use weir_policy::rules::selection::{Denial, NOT_DEFERRABLE};

/// Methods that a proxy for a service forwards, among others.
const FORWARDED_METHODS: HeaderValue =
    HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
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

impl<'a> LocalReply<'a> {
    /// Replies to a request that may not be forwarded, and may have been misread.
    pub(in crate::proxy) fn malformed(unacceptable: InvalidRequest) -> Self {
        let (status, text) = match unacceptable {
            InvalidRequest::Malformed => (StatusCode::BAD_REQUEST, "bad request\n"),
            InvalidRequest::Method => (StatusCode::METHOD_NOT_ALLOWED, "method not allowed\n"),
            InvalidRequest::UnknownMethod => (StatusCode::NOT_IMPLEMENTED, "method not implemented\n"),
            InvalidRequest::TransferEncoding => {
                (StatusCode::NOT_IMPLEMENTED, "transfer coding not implemented\n")
            }
            InvalidRequest::TooManyFields => {
                (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "too many header fields\n")
            }
        };
        let reply = Self::plain(status, ResponseFlag::DownstreamProtocol, text);
        match unacceptable {
            // Required with 405 (RFC 9110 section 15.5.6).
            InvalidRequest::Method => reply.with_header(&ALLOW, &FORWARDED_METHODS),
            _ => reply,
        }
    }

    /// Replies to a request that is shed. If memory is short, its connection is closed too.
    pub(in crate::proxy) fn overloaded(reason: LoadShed) -> Self {
        let (status, flag) = (StatusCode::SERVICE_UNAVAILABLE, ResponseFlag::Overloaded);
        let is_last = reason == LoadShed::Memory;
        Self { is_last, ..Self::plain(status, flag, "overloaded\n").mark_overloaded() }
    }

    /// Replies to a request for which an upstream has no slot.
    pub(in crate::proxy) fn without_slot(reason: NoSlot) -> Self {
        match reason {
            NoSlot::Memory => Self::overloaded(LoadShed::Waiting),
            NoSlot::Deadline => {
                let (status, flag) = (StatusCode::GATEWAY_TIMEOUT, ResponseFlag::UpstreamTimeout);
                Self::plain(status, flag, "upstream timed out\n")
            }
            NoSlot::Shed | NoSlot::Throttled => {
                let (status, flag) = (StatusCode::SERVICE_UNAVAILABLE, ResponseFlag::UpstreamOverflow);
                let reply = Self::plain(status, flag, "overloaded\n").mark_overloaded();
                reply.with_header(&RETRY_AFTER, &HeaderValue::from_static("1"))
            }
        }
    }

    /// Replies to a request for the caller's own limits with these headers about them.
    pub(in crate::proxy) fn own_limits(mut headers: Headers, json: String) -> Self {
        headers.set(&CONTENT_TYPE, &JSON);
        headers.set(&CACHE_CONTROL, &HeaderValue::from_static("no-store"));
        Self::new(StatusCode::OK, ResponseFlag::None, headers, json.into())
    }

    /// Replies to a request for the caller's own limits with another method.
    pub(in crate::proxy) fn own_limits_are_only_read() -> Self {
        let reply = Self::plain(StatusCode::METHOD_NOT_ALLOWED, ResponseFlag::None, "method not allowed\n");
        reply.with_header(&ALLOW, &HeaderValue::from_static("GET, HEAD"))
    }

    /// Replies to a caller that may read its own limits again after this time.
    pub(in crate::proxy) fn own_limits_read_too_often(wait: Duration) -> Self {
        let reply = Self::plain(StatusCode::TOO_MANY_REQUESTS, ResponseFlag::None, "too many requests\n");
        reply.with_header(&RETRY_AFTER, &number(whole_seconds(wait).max(1)))
    }

    /// Replies to a request that `rule` rejects before any limit.
    pub(in crate::proxy) fn denied(policy: &'a Policy, rule: RuleIndex, denial: Denial) -> Self {
        let reply = match denial {
            Denial::Forbidden => {
                let rule = policy.denial(rule);
                let (headers, body) = (rule.headers.clone().into(), rule.body.clone());
                let reply = Self::new(rule.status, ResponseFlag::Denied, headers, body);
                return reply.of_rule(rule, ConfiguredParts::All);
            }
            Denial::NotDeferrable => {
                Self::plain(StatusCode::NOT_IMPLEMENTED, ResponseFlag::NotStored, NOT_DEFERRABLE)
            }
            Denial::Ambiguous(ambiguity) => {
                let flag = match ambiguity {
                    Ambiguity::Body(reason) => ResponseFlag::UnreadableBody(reason),
                    _ => ResponseFlag::Denied,
                };
                Self::plain(StatusCode::BAD_REQUEST, flag, ambiguity.reply_text())
            }
        };
        match policy.rejection(rule) {
            // Only its CORS headers apply to a request that is rejected for another reason than its configuration.
            Some(rule) => reply.of_rule(rule, ConfiguredParts::None),
            None => reply,
        }
    }

    /// Replies to an OPTIONS request that the limits admit and that may not be forwarded (RFC 9110 section 7.6.2).
    pub(in crate::proxy) fn last_hop() -> Self {
        let reply = Self::new(StatusCode::OK, ResponseFlag::None, Headers::default(), Bytes::new());
        reply.with_header(&ALLOW, &FORWARDED_METHODS)
    }

    /// Replies to a call that is sent later.
    pub(in crate::proxy) fn accepted(AcceptedCall { status, id, request_id }: AcceptedCall) -> Self {
        let reply = Self::new(status, ResponseFlag::None, Headers::default(), Bytes::new())
            .with_header(&X_REQUEST_ID, &request_id);
        if matches!(status, StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT) {
            return reply;
        }
        let mut reply = reply.with_header(&CONTENT_TYPE, &JSON);
        reply.draft.body = format!("{{\"id\":\"{id}\"}}\n").into();
        reply
    }

    /// Replies to a call that is not accepted.
    pub(in crate::proxy) fn not_stored(reason: StoreRejection) -> Self {
        let flag = ResponseFlag::NotStored;
        let unavailable = |text| {
            let reply = Self::plain(StatusCode::SERVICE_UNAVAILABLE, flag, text);
            reply.with_header(&RETRY_AFTER, &HeaderValue::from_static("1"))
        };
        match reason {
            StoreRejection::TooLarge => {
                Self::plain(StatusCode::PAYLOAD_TOO_LARGE, flag, "request body too large\n")
            }
            StoreRejection::Full => unavailable("too many stored calls\n"),
            StoreRejection::Unavailable => unavailable("call not stored\n"),
        }
    }
}
