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

impl LocalReply<'static> {
    /// Settles the request of `context`, to which there is no response from the upstream, and creates the reply.
    pub(in crate::proxy) fn failed(
        context: &mut RequestContext,
        failure: &ForwardFailure,
        limits: &mut AppliedLimits,
    ) -> Self {
        let is_forward_proxy = context.connection.is_forward_proxy();
        let to_proxy_client = is_forward_proxy.then(|| proxy_reply(failure)).flatten();
        let reply = to_proxy_client.unwrap_or_else(|| gateway_reply(failure));
        let was_sent = context.timer.was_sent();
        finish::settle(context, &failure.request_end(reply.status(), was_sent), limits);
        match failure {
            ForwardFailure::Upstream(UpstreamError::Overflow) => reply.mark_overloaded(),
            _ => reply,
        }
    }

    /// Replies to a request that the forward proxy does not serve.
    pub(in crate::proxy) fn refused(refusal: Refusal) -> Self {
        use ResponseFlag as Flag;
        use StatusCode as Status;
        match refusal {
            Refusal::Client => {
                plain(Status::FORBIDDEN, Flag::Denied, "this client is not allowed to use the proxy\n")
                    .with_proxy_status("weir; error=http_request_denied")
            }
            Refusal::Malformed => plain(
                Status::BAD_REQUEST,
                Flag::DownstreamProtocol,
                "the target is not a valid destination\n",
            )
            .with_proxy_status("weir; error=http_request_error"),
            Refusal::Destination => {
                plain(Status::FORBIDDEN, Flag::Denied, "this destination is not allowed\n")
                    .with_proxy_status("weir; error=http_request_denied")
            }
            Refusal::ConnectPort => {
                plain(Status::FORBIDDEN, Flag::Denied, "CONNECT to this port is not allowed\n")
                    .with_proxy_status("weir; error=http_request_denied")
            }
            Refusal::Loop => plain(Status::LOOP_DETECTED, Flag::NoRoute, "the destination is this proxy\n")
                .with_proxy_status("weir; error=proxy_loop_detected"),
            Refusal::NoAuthorities => {
                plain(Status::BAD_GATEWAY, Flag::UpstreamFailure, "no certificate authority is configured\n")
                    .with_proxy_status("weir; error=proxy_configuration_error")
            }
        }
    }

    fn with_proxy_status(self, reason: &'static str) -> Self {
        self.with_header(&PROXY_STATUS, &HeaderValue::from_static(reason))
    }
}

fn plain(status: StatusCode, flag: ResponseFlag, text: &'static str) -> LocalReply<'static> {
    LocalReply::plain(status, flag, text)
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
fn gateway_reply(failure: &ForwardFailure) -> LocalReply<'static> {
    use ForwardFailure as Failure;
    use ResponseFlag as Flag;
    use StatusCode as Status;
    match failure {
        Failure::NoRoute => plain(Status::NOT_FOUND, Flag::NoRoute, "not found\n"),
        Failure::UpgradeUnavailable => {
            plain(Status::NOT_IMPLEMENTED, Flag::DownstreamProtocol, "protocol not implemented\n")
        }
        Failure::NoEndpoint | Failure::NoAddress(_) => {
            plain(Status::SERVICE_UNAVAILABLE, Flag::NoHealthyUpstream, "upstream unavailable\n")
        }
        Failure::Upstream(UpstreamError::Overflow) => {
            plain(Status::SERVICE_UNAVAILABLE, Flag::UpstreamOverflow, "upstream overloaded\n")
        }
        Failure::Upstream(UpstreamError::ServerName(_)) => {
            plain(Status::MISDIRECTED_REQUEST, Flag::UpstreamFailure, "misdirected request\n")
        }
        Failure::Upstream(UpstreamError::Connect(_) | UpstreamError::ConnectTimeout) => {
            plain(Status::SERVICE_UNAVAILABLE, Flag::UpstreamFailure, "upstream unavailable\n")
        }
        Failure::Upstream(UpstreamError::Reset(_)) => {
            plain(Status::SERVICE_UNAVAILABLE, Flag::UpstreamClosed, "upstream unavailable\n")
        }
        Failure::Upstream(UpstreamError::Malformed(_)) | Failure::UnexpectedProtocol => {
            plain(Status::BAD_GATEWAY, Flag::UpstreamProtocol, "bad gateway\n")
        }
        Failure::BrokenResponse => plain(Status::BAD_GATEWAY, Flag::UpstreamClosed, "bad gateway\n"),
        Failure::ResponseTimeout(_) | Failure::PerTryTimeout(_) => {
            plain(Status::GATEWAY_TIMEOUT, Flag::UpstreamTimeout, "upstream timed out\n")
        }
        Failure::RequestStalled => plain(Status::REQUEST_TIMEOUT, Flag::IdleTimeout, "request timed out\n"),
        Failure::BrokenRequest => plain(Status::BAD_REQUEST, Flag::DownstreamProtocol, "bad request\n"),
    }
}

/// Returns the reply of a forward proxy, and its `Proxy-Status`; `None` for that of a gateway.
fn proxy_reply(failure: &ForwardFailure) -> Option<LocalReply<'static>> {
    use ForwardFailure as Failure;
    use ResponseFlag as Flag;
    use StatusCode as Status;
    Some(match failure {
        Failure::NoRoute => plain(
            Status::NOT_FOUND,
            Flag::NoRoute,
            "no destination: a request to a forward proxy has an absolute URL or the method CONNECT\n",
        )
        .with_proxy_status("weir; error=destination_not_found"),
        Failure::NoAddress(no_address) => no_address_reply(*no_address),
        Failure::NoEndpoint => {
            plain(Status::SERVICE_UNAVAILABLE, Flag::NoHealthyUpstream, "destination unavailable\n")
                .with_proxy_status("weir; error=destination_unavailable")
        }
        Failure::Upstream(UpstreamError::Connect(error)) => connect_error_reply(error),
        Failure::Upstream(UpstreamError::ConnectTimeout) => {
            plain(Status::GATEWAY_TIMEOUT, Flag::UpstreamFailure, "connection timed out\n")
                .with_proxy_status("weir; error=connection_timeout")
        }
        Failure::Upstream(UpstreamError::ServerName(_)) => plain(
            Status::BAD_GATEWAY,
            Flag::UpstreamFailure,
            "the destination has no certificate for this host\n",
        )
        .with_proxy_status("weir; error=tls_certificate_error"),
        Failure::Upstream(UpstreamError::Overflow) => plain(
            Status::SERVICE_UNAVAILABLE,
            Flag::UpstreamOverflow,
            "too many connections to the destination\n",
        )
        .with_proxy_status("weir; error=connection_limit_reached"),
        Failure::Upstream(UpstreamError::Reset(_)) | Failure::BrokenResponse => {
            plain(Status::BAD_GATEWAY, Flag::UpstreamClosed, "the destination closed the connection\n")
                .with_proxy_status("weir; error=connection_terminated")
        }
        Failure::Upstream(UpstreamError::Malformed(_)) | Failure::UnexpectedProtocol => {
            plain(Status::BAD_GATEWAY, Flag::UpstreamProtocol, "malformed response from the destination\n")
                .with_proxy_status("weir; error=http_protocol_error")
        }
        Failure::ResponseTimeout(_) | Failure::PerTryTimeout(_) => {
            plain(Status::GATEWAY_TIMEOUT, Flag::UpstreamTimeout, "the destination timed out\n")
                .with_proxy_status("weir; error=http_response_timeout")
        }
        Failure::UpgradeUnavailable | Failure::RequestStalled | Failure::BrokenRequest => return None,
    })
}

fn no_address_reply(no_address: NoAddress) -> LocalReply<'static> {
    match no_address {
        NoAddress::NotFound => plain(StatusCode::BAD_GATEWAY, ResponseFlag::DnsFailed, "name not resolved\n")
            .with_proxy_status("weir; error=dns_error"),
        NoAddress::TimedOut => {
            plain(StatusCode::GATEWAY_TIMEOUT, ResponseFlag::DnsFailed, "name not resolved in time\n")
                .with_proxy_status("weir; error=dns_timeout")
        }
        NoAddress::Prohibited => plain(
            StatusCode::FORBIDDEN,
            ResponseFlag::Denied,
            "the address of this destination is not allowed\n",
        )
        .with_proxy_status("weir; error=destination_ip_prohibited"),
        NoAddress::Loop => LocalReply::refused(Refusal::Loop),
    }
}

/// Returns the reply to a request for which no connection could be established.
fn connect_error_reply(error: &io::Error) -> LocalReply<'static> {
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
    plain(StatusCode::BAD_GATEWAY, ResponseFlag::UpstreamFailure, text).with_proxy_status(proxy_status)
}
