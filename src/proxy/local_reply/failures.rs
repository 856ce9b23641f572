//! Local replies to requests that got no response from the upstream, and to those that a forward proxy refuses.
//!
//! A forward proxy states the reason in `Proxy-Status` (RFC 9209), with the status code recommended there: its client is
//! the operator's own program, and a bare 502 would not tell whether the destination or the proxy has sent it. The
//! gateway of a service discloses no internal details.

use std::io;

use http::{HeaderName, HeaderValue, StatusCode};

use super::{DownstreamResponse, LocalReply, UnreadBody};
use crate::proxy::failure::ForwardFailure;
use crate::proxy::finish;
use crate::proxy::request_context::{RequestContext, ResponseFlag};
use weir_limits::AppliedLimits;
use weir_net::tls::client::{ClientHandshakeError, ClientHandshakeErrorKind};
use weir_upstream::error::{NoAddress, UpstreamError};
use weir_upstream::forward_proxy::access::Refusal;

const PROXY_STATUS: HeaderName = HeaderName::from_static("proxy-status");

/// Status code, flag and text of a reply.
type Reply = (StatusCode, ResponseFlag, &'static str);

impl LocalReply<'_> {
    /// Settles the request of `context`, to which there is no response from the upstream, and creates the reply.
    pub(in crate::proxy) fn failed(
        context: &mut RequestContext,
        failure: &ForwardFailure,
        limits: &mut AppliedLimits,
    ) -> Self {
        let is_forward_proxy = context.connection.is_forward_proxy();
        let reply = match proxy_reply(failure).filter(|_| is_forward_proxy) {
            Some(reply) => Self::with_proxy_status(reply),
            None => {
                let (status, flag, text) = gateway_reply(failure);
                Self::plain(status, flag, text)
            }
        };
        let was_sent = context.timer.was_sent();
        finish::settle(context, &failure.request_end(reply.status(), was_sent), limits);
        match failure {
            ForwardFailure::Upstream(UpstreamError::Overflow) => reply.mark_overloaded(),
            _ => reply,
        }
    }

    /// Replies to a request that the forward proxy does not serve.
    pub(in crate::proxy) fn refused(refusal: Refusal) -> Self {
        Self::with_proxy_status(refusal_reply(refusal))
    }

    fn with_proxy_status(((status, flag, text), proxy_status): (Reply, &'static str)) -> Self {
        Self::plain(status, flag, text).with_header(&PROXY_STATUS, &HeaderValue::from_static(proxy_status))
    }
}

/// Responds to a request whose upstream response failed before any of it was sent.
pub(in crate::proxy) fn response_broken_off(mut context: Box<RequestContext>) -> DownstreamResponse {
    let failure = match context.upload_has_failed() {
        true => ForwardFailure::BrokenRequest,
        false => ForwardFailure::BrokenResponse,
    };
    // The failed response had been recorded already; the reply takes its place.
    (context.is_complete, context.bytes_sent) = (false, 0);
    let mut limits = AppliedLimits::none(context.started_at);
    LocalReply::failed(&mut context, &failure, &mut limits).send(context, UnreadBody::Rest)
}

/// Returns the reply of a gateway, depending on which side caused the failure.
const fn gateway_reply(failure: &ForwardFailure) -> Reply {
    use ForwardFailure as Failure;
    use ResponseFlag as Flag;
    use StatusCode as Status;
    match failure {
        Failure::NoRoute => (Status::NOT_FOUND, Flag::NoRoute, "not found\n"),
        Failure::UpgradeUnavailable => {
            (Status::NOT_IMPLEMENTED, Flag::DownstreamProtocol, "protocol not implemented\n")
        }
        Failure::NoEndpoint | Failure::NoAddress(_) => {
            (Status::SERVICE_UNAVAILABLE, Flag::NoHealthyUpstream, "upstream unavailable\n")
        }
        Failure::Upstream(UpstreamError::Overflow) => {
            (Status::SERVICE_UNAVAILABLE, Flag::UpstreamOverflow, "upstream overloaded\n")
        }
        Failure::Upstream(UpstreamError::ServerName(_)) => {
            (Status::MISDIRECTED_REQUEST, Flag::UpstreamFailure, "misdirected request\n")
        }
        Failure::Upstream(UpstreamError::Connect(_) | UpstreamError::ConnectTimeout) => {
            (Status::SERVICE_UNAVAILABLE, Flag::UpstreamFailure, "upstream unavailable\n")
        }
        Failure::Upstream(UpstreamError::Reset(_)) => {
            (Status::SERVICE_UNAVAILABLE, Flag::UpstreamClosed, "upstream unavailable\n")
        }
        Failure::Upstream(UpstreamError::Malformed(_)) | Failure::UnexpectedProtocol => {
            (Status::BAD_GATEWAY, Flag::UpstreamProtocol, "bad gateway\n")
        }
        Failure::BrokenResponse => (Status::BAD_GATEWAY, Flag::UpstreamClosed, "bad gateway\n"),
        Failure::ResponseTimeout(_) | Failure::PerTryTimeout(_) => {
            (Status::GATEWAY_TIMEOUT, Flag::UpstreamTimeout, "upstream timed out\n")
        }
        Failure::RequestStalled => (Status::REQUEST_TIMEOUT, Flag::IdleTimeout, "request timed out\n"),
        Failure::BrokenRequest => (Status::BAD_REQUEST, Flag::DownstreamProtocol, "bad request\n"),
    }
}

/// Returns the reply of a forward proxy, and its `Proxy-Status`; `None` for that of a gateway.
fn proxy_reply(failure: &ForwardFailure) -> Option<(Reply, &'static str)> {
    use ForwardFailure as Failure;
    use ResponseFlag as Flag;
    use StatusCode as Status;
    Some(match failure {
        Failure::NoRoute => (
            (
                Status::NOT_FOUND,
                Flag::NoRoute,
                "no destination: a request to a forward proxy has an absolute URL or the method CONNECT\n",
            ),
            "weir; error=destination_not_found",
        ),
        Failure::NoAddress(no_address) => no_address_reply(*no_address),
        Failure::NoEndpoint => (
            (Status::SERVICE_UNAVAILABLE, Flag::NoHealthyUpstream, "destination unavailable\n"),
            "weir; error=destination_unavailable",
        ),
        Failure::Upstream(UpstreamError::Connect(error)) => connect_error_reply(error),
        Failure::Upstream(UpstreamError::ConnectTimeout) => (
            (Status::GATEWAY_TIMEOUT, Flag::UpstreamFailure, "connection timed out\n"),
            "weir; error=connection_timeout",
        ),
        Failure::Upstream(UpstreamError::ServerName(_)) => (
            (
                Status::BAD_GATEWAY,
                Flag::UpstreamFailure,
                "the destination has no certificate for this host\n",
            ),
            "weir; error=tls_certificate_error",
        ),
        Failure::Upstream(UpstreamError::Overflow) => (
            (
                Status::SERVICE_UNAVAILABLE,
                Flag::UpstreamOverflow,
                "too many connections to the destination\n",
            ),
            "weir; error=connection_limit_reached",
        ),
        Failure::Upstream(UpstreamError::Reset(_)) | Failure::BrokenResponse => (
            (Status::BAD_GATEWAY, Flag::UpstreamClosed, "the destination closed the connection\n"),
            "weir; error=connection_terminated",
        ),
        Failure::Upstream(UpstreamError::Malformed(_)) | Failure::UnexpectedProtocol => (
            (Status::BAD_GATEWAY, Flag::UpstreamProtocol, "malformed response from the destination\n"),
            "weir; error=http_protocol_error",
        ),
        Failure::ResponseTimeout(_) | Failure::PerTryTimeout(_) => (
            (Status::GATEWAY_TIMEOUT, Flag::UpstreamTimeout, "the destination timed out\n"),
            "weir; error=http_response_timeout",
        ),
        Failure::UpgradeUnavailable | Failure::RequestStalled | Failure::BrokenRequest => return None,
    })
}

const fn no_address_reply(no_address: NoAddress) -> (Reply, &'static str) {
    match no_address {
        NoAddress::NotFound => (
            (StatusCode::BAD_GATEWAY, ResponseFlag::DnsFailed, "name not resolved\n"),
            "weir; error=dns_error",
        ),
        NoAddress::TimedOut => (
            (StatusCode::GATEWAY_TIMEOUT, ResponseFlag::DnsFailed, "name not resolved in time\n"),
            "weir; error=dns_timeout",
        ),
        NoAddress::Prohibited => (
            (StatusCode::FORBIDDEN, ResponseFlag::Denied, "the address of this destination is not allowed\n"),
            "weir; error=destination_ip_prohibited",
        ),
        NoAddress::Loop => refusal_reply(Refusal::Loop),
    }
}

/// Returns the reply to a request for which no connection could be established.
fn connect_error_reply(error: &io::Error) -> (Reply, &'static str) {
    let handshake = error.get_ref().and_then(|inner| inner.downcast_ref::<ClientHandshakeError>());
    let (text, proxy_status) = match handshake.map(|error| error.kind) {
        Some(ClientHandshakeErrorKind::Untrusted | ClientHandshakeErrorKind::WrongName) => {
            ("the certificate of the destination is not trusted\n", "weir; error=tls_certificate_error")
        }
        Some(
            ClientHandshakeErrorKind::Closed
            | ClientHandshakeErrorKind::AlertReceived
            | ClientHandshakeErrorKind::NotTls
            | ClientHandshakeErrorKind::Incompatible
            | ClientHandshakeErrorKind::Unfinished
            | ClientHandshakeErrorKind::Other,
        ) => ("the TLS handshake with the destination failed\n", "weir; error=tls_protocol_error"),
        None if error.kind() == io::ErrorKind::ConnectionRefused => {
            ("connection refused by the destination\n", "weir; error=connection_refused")
        }
        None => ("destination unreachable\n", "weir; error=destination_ip_unroutable"),
    };
    ((StatusCode::BAD_GATEWAY, ResponseFlag::UpstreamFailure, text), proxy_status)
}

const fn refusal_reply(refusal: Refusal) -> (Reply, &'static str) {
    use ResponseFlag as Flag;
    use StatusCode as Status;
    match refusal {
        Refusal::Client => (
            (Status::FORBIDDEN, Flag::Denied, "this client is not allowed to use the proxy\n"),
            "weir; error=http_request_denied",
        ),
        Refusal::Malformed => (
            (Status::BAD_REQUEST, Flag::DownstreamProtocol, "the target is not a valid destination\n"),
            "weir; error=http_request_error",
        ),
        Refusal::Destination => (
            (Status::FORBIDDEN, Flag::Denied, "this destination is not allowed\n"),
            "weir; error=http_request_denied",
        ),
        Refusal::ConnectPort => (
            (Status::FORBIDDEN, Flag::Denied, "CONNECT to this port is not allowed\n"),
            "weir; error=http_request_denied",
        ),
        Refusal::Loop => (
            (Status::LOOP_DETECTED, Flag::NoRoute, "the destination is this proxy\n"),
            "weir; error=proxy_loop_detected",
        ),
        Refusal::NoAuthorities => (
            (Status::BAD_GATEWAY, Flag::UpstreamFailure, "no certificate authority is configured\n"),
            "weir; error=proxy_configuration_error",
        ),
    }
}
