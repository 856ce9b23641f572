//! Replies to another proxy that asks for decisions: local replies in the form that this proxy understands.

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue, StatusCode};

use super::{DownstreamResponse, LocalReply, PLAIN_TEXT, announce_close};
use crate::proxy::body::ResponseBody;
use crate::proxy::request_context::{RequestContext, ResponseFlag};
use weir_http::headers::{Headers, Response};
use weir_policy::decision::{InquiryForm, InvalidInquiry, check};
use weir_policy::response::dynamic_reply::ReplyDraft;
use weir_policy::response::grpc_reply;

/// The status code for the client, where the proxy that asks understands only few codes.
const X_WEIR_STATUS: HeaderName = HeaderName::from_static("x-weir-status");

impl LocalReply<'static> {
    /// Replies that the request is admitted.
    pub(in crate::proxy) fn decided() -> Self {
        Self::new(StatusCode::OK, ResponseFlag::None, Headers::default(), Bytes::new())
    }

    /// Replies to a request for a decision that cannot be decided.
    pub(in crate::proxy) fn invalid_inquiry(problem: &InvalidInquiry) -> Self {
        let (status, flag) = match problem {
            InvalidInquiry::UntrustedPeer => (StatusCode::FORBIDDEN, ResponseFlag::Denied),
            InvalidInquiry::NotCheck => (StatusCode::NOT_FOUND, ResponseFlag::DownstreamProtocol),
            InvalidInquiry::Missing(_)
            | InvalidInquiry::Repeated(_)
            | InvalidInquiry::Malformed(_)
            | InvalidInquiry::Message(_) => (StatusCode::BAD_REQUEST, ResponseFlag::DownstreamProtocol),
        };
        let reply = Self::new(status, flag, Headers::default(), format!("{problem}\n").into());
        reply.with_header(&CONTENT_TYPE, &PLAIN_TEXT)
    }
}

/// Returns the response to a request for a decision. `draft` is the local reply to the request that was decided.
pub(super) fn response(
    form: InquiryForm,
    flag: ResponseFlag,
    draft: ReplyDraft,
    is_last: bool,
    context: Box<RequestContext>,
) -> DownstreamResponse {
    let ReplyDraft { status, mut headers, body } = draft;
    if form == InquiryForm::GrpcCheck {
        return call_response(flag, ReplyDraft { status, headers, body }, context);
    }
    let code = status_for(form, flag, status);
    if code != status {
        headers.set_number(&X_WEIR_STATUS, status.as_u16().into());
    }
    announce_close(is_last && context.owns_connection(), &mut headers);
    Response { status: code, headers, body: ResponseBody::local(body, context) }
}

/// Returns the status code by which the proxy that asks recognises the decision.
fn status_for(form: InquiryForm, flag: ResponseFlag, status: StatusCode) -> StatusCode {
    if flag == ResponseFlag::None {
        return StatusCode::OK;
    }
    // Any success would admit the request.
    let is_understood = match form {
        InquiryForm::ForwardAuth | InquiryForm::GrpcCheck => !status.is_success(),
        InquiryForm::AuthRequest => matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN),
        // A failure of the server may be admitted. That of an overloaded one is meant to be.
        InquiryForm::HttpCheck => {
            !status.is_success() && (!status.is_server_error() || flag == ResponseFlag::Overloaded)
        }
    };
    match flag {
        _ if is_understood => status,
        ResponseFlag::RateLimited if form != InquiryForm::AuthRequest => StatusCode::TOO_MANY_REQUESTS,
        _ => StatusCode::FORBIDDEN,
    }
}

/// Returns the response to Envoy's call. The call fails if Weir is overloaded, so that Envoy decides.
fn call_response(
    flag: ResponseFlag,
    ReplyDraft { status, headers, body }: ReplyDraft,
    mut context: Box<RequestContext>,
) -> DownstreamResponse {
    let mut headers = headers.into_map();
    if flag == ResponseFlag::Overloaded {
        grpc_reply::write_trailers_only(status, &body, &mut headers);
        context.status = Some(StatusCode::OK);
        let body = ResponseBody::local(Bytes::new(), context);
        return Response { status: StatusCode::OK, headers: headers.into(), body };
    }
    let message = match flag {
        ResponseFlag::None => check::admission(&headers),
        _ => check::denial(status, &headers, &body),
    };
    let mut headers = Headers::default();
    headers.set(&CONTENT_TYPE, &HeaderValue::from_static("application/grpc"));
    Response { status: StatusCode::OK, headers, body: ResponseBody::message(message, context) }
}
