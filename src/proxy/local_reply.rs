//! Local replies: responses that the proxy generates itself. The causes make a [`LocalReply`], and [`LocalReply::send`]
//! converts it for the protocol of the request.

mod causes;
mod decided;
mod failures;
mod rate_limited;
mod unread;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

pub(super) use self::causes::{AcceptedCall, StoreRejection};
pub(super) use self::failures::response_broken_off;
pub(super) use self::unread::{PendingBody, UnreadBody};
use super::body::ResponseBody;
use super::request_context::{RequestContext, ResponseFlag};
use weir_http::headers::{Headers, Response};
use weir_policy::response::dynamic_reply::{ConfiguredParts, ReplyDraft};
use weir_policy::response::grpc_reply;
use weir_policy::response::problem::{GRPC_STATUS_DETAILS, ProblemReply};
use weir_policy::response::rejection::RejectionResponse;
use weir_policy::rules::cost::RequestEnd;

const PLAIN_TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const X_ENVOY_OVERLOADED: HeaderName = HeaderName::from_static("x-envoy-overloaded");

/// A response on its way to the client.
pub(super) type DownstreamResponse = Response<ResponseBody>;

/// A local reply, before it is converted for the protocol of the request.
#[derive(Debug)]
pub(super) struct LocalReply<'a> {
    draft: ReplyDraft,
    flag: ResponseFlag,
    /// The reply of the rule that rejects the request, if one does, and which parts are that reply.
    rule: Option<(&'a RejectionResponse, ConfiguredParts)>,
    /// Whether it is the last response of the connection, if the request has that to itself.
    is_last: bool,
}

impl<'a> LocalReply<'a> {
    #[inline]
    fn new(status: StatusCode, flag: ResponseFlag, headers: Headers, body: Bytes) -> Self {
        Self { draft: ReplyDraft { status, headers, body }, flag, rule: None, is_last: false }
    }

    /// Creates a reply with a fixed text. It discloses no internal details.
    fn plain(status: StatusCode, flag: ResponseFlag, text: &'static str) -> Self {
        let mut headers = Headers::default();
        headers.set(&CONTENT_TYPE, &PLAIN_TEXT);
        Self::new(status, flag, headers, Bytes::from_static(text.as_bytes()))
    }

    /// Has the reply completed by `rule`, which configures these parts of it.
    fn of_rule(self, rule: &'a RejectionResponse, parts: ConfiguredParts) -> Self {
        Self { rule: Some((rule, parts)), ..self }
    }

    fn with_header(mut self, name: &HeaderName, value: &HeaderValue) -> Self {
        self.draft.headers.set(name, value);
        self
    }

    /// Adds Envoy's mark on the replies of an overloaded proxy, which its routers do not retry.
    fn mark_overloaded(self) -> Self {
        self.with_header(&X_ENVOY_OVERLOADED, &HeaderValue::from_static("true"))
    }

    /// Returns the status code; a rule may still change it.
    pub(super) const fn status(&self) -> StatusCode {
        self.draft.status
    }

    /// Returns the end of a request to which Weir responds in place of the upstream.
    pub(super) const fn request_end(&self) -> RequestEnd<'_> {
        RequestEnd::Responded { status: self.draft.status, headers: &self.draft.headers }
    }

    /// Returns the headers.
    pub(super) const fn headers_mut(&mut self) -> &mut Headers {
        &mut self.draft.headers
    }

    /// Sends the reply to the request, of whose body this part is unread.
    pub(super) fn send(mut self, mut context: Box<RequestContext>, unread: UnreadBody) -> DownstreamResponse {
        // The draft stays where it is until the end, because it is large.
        let Self { flag, rule, is_last, .. } = self;
        let closes = rule.is_some_and(|(rule, parts)| rule.closes && parts != ConfiguredParts::None);
        if closes && context.inquiry.is_none() {
            return withheld(context, flag);
        }
        let problem = rule.filter(|(_, parts)| *parts == ConfiguredParts::All);
        let problem = problem.and_then(|(rule, _)| rule.problem.as_deref());
        if let (Some((rule, parts)), Some(request)) = (rule, context.details.take()) {
            self.draft = rule.complete(&request, parts, self.draft);
        }
        let draft = &mut self.draft;
        if context.upgrade.is_connect && draft.status.is_success() {
            // A configured success, such as a degraded response, would tell the client that the tunnel exists.
            draft.status = StatusCode::SERVICE_UNAVAILABLE;
        }
        context.respond_with(draft.status, flag);
        context.timer.response_started();
        let is_last = closes_for_drain(&context) | unread.discard(&context) | is_last;
        if let Some(form) = context.inquiry {
            return decided::response(form, flag, self.draft, is_last, context);
        }
        if context.is_grpc {
            // Headers express what the status code and the text mean.
            if let Some(problem) = problem {
                write_grpc_details(problem, draft.status, draft.headers.map_mut());
            }
            grpc_reply::write_trailers_only(draft.status, &draft.body, draft.headers.map_mut());
            context.status = Some(StatusCode::OK);
            let body = ResponseBody::local(Bytes::new(), context);
            return Response { status: StatusCode::OK, headers: self.draft.headers, body };
        }
        announce_close(is_last && context.owns_connection(), &mut draft.headers);
        let ReplyDraft { status, headers, body } = self.draft;
        Response { status, headers, body: ResponseBody::local(body, context) }
    }
}

/// Ends a request whose connection is closed without a response.
fn withheld(mut context: Box<RequestContext>, flag: ResponseFlag) -> DownstreamResponse {
    (context.status, context.flag) = (None, flag);
    context.timer.response_started();
    let body = ResponseBody::withheld(context);
    Response { status: StatusCode::NO_CONTENT, headers: Headers::default(), body }
}

/// Adds the error details of a call that a limit rejects.
fn write_grpc_details(problem: &ProblemReply, status: StatusCode, headers: &mut HeaderMap) {
    let retry_after = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    if let Some(details) = problem.grpc_details(status, retry_after.unwrap_or(1)) {
        headers.insert(GRPC_STATUS_DETAILS, details);
    }
}

/// Whether the connection is to be closed after the response because the drain has begun.
pub(super) fn closes_for_drain(context: &RequestContext) -> bool {
    context.owns_connection() && context.connection.timer().is_draining()
}

/// Adds the header that announces the end of the connection, if that is to be closed.
pub(super) fn announce_close(close: bool, headers: &mut Headers) {
    if close {
        headers.set(&CONNECTION, &HeaderValue::from_static("close"));
    }
}
