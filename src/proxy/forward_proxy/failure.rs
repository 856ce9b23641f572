//! Local replies of a forward proxy. Each states its reason in `Proxy-Status` (RFC 9209), since the client is the
//! operator's own program, and a bare 502 would not tell whether the destination or the proxy has sent it.

use std::io;

use http::{HeaderName, HeaderValue, StatusCode};

use crate::proxy::failure::ForwardFailure;
use crate::proxy::request_context::ResponseFlag;
use weir_net::tls::client::{ClientHandshakeError, ClientHandshakeErrorKind};
use weir_upstream::error::{NoAddress, UpstreamError};
use weir_upstream::forward_proxy::access::Refusal;

pub(in crate::proxy) const PROXY_STATUS: HeaderName = HeaderName::from_static("proxy-status");

/// A local reply of a forward proxy.
#[derive(Debug)]
pub(in crate::proxy) struct FailureReply {
    pub(in crate::proxy) status: StatusCode,
    pub(in crate::proxy) flag: ResponseFlag,
    pub(in crate::proxy) text: &'static str,
    pub(in crate::proxy) proxy_status: HeaderValue,
}

const fn reply(
    status: StatusCode,
    flag: ResponseFlag,
    text: &'static str,
    proxy_status: &'static str,
) -> FailureReply {
    FailureReply { status, flag, text, proxy_status: HeaderValue::from_static(proxy_status) }
}

/// Returns the reply to a request that the proxy does not serve.
pub(in crate::proxy) const fn refusal_reply(refusal: Refusal) -> FailureReply {
    use ResponseFlag::{Denied, DownstreamProtocol, NoRoute, UpstreamFailure};
    use StatusCode as Status;
    match refusal {
        Refusal::Client => reply(
            Status::FORBIDDEN,
            Denied,
            "this client is not allowed to use the proxy\n",
            "weir; error=http_request_denied",
        ),
        Refusal::Malformed => reply(
            Status::BAD_REQUEST,
            DownstreamProtocol,
            "the target is not a valid destination\n",
            "weir; error=http_request_error",
        ),
        Refusal::Destination => reply(
            Status::FORBIDDEN,
            Denied,
            "this destination is not allowed\n",
            "weir; error=http_request_denied",
        ),
        Refusal::ConnectPort => reply(
            Status::FORBIDDEN,
            Denied,
            "CONNECT to this port is not allowed\n",
            "weir; error=http_request_denied",
        ),
        Refusal::Loop => reply(
            Status::LOOP_DETECTED,
            NoRoute,
            "the destination is this proxy\n",
            "weir; error=proxy_loop_detected",
        ),
        Refusal::NoAuthorities => reply(
            Status::BAD_GATEWAY,
            UpstreamFailure,
            "no certificate authority is configured\n",
            "weir; error=proxy_configuration_error",
        ),
    }
}

/// Returns the reply to a request that got no response from its destination. The status codes are those that RFC 9209
/// recommends.
pub(in crate::proxy) fn failure_reply(failure: &ForwardFailure) -> Option<FailureReply> {
    use ResponseFlag::{
        Denied, DnsFailed, NoHealthyUpstream, NoRoute, UpstreamClosed, UpstreamFailure, UpstreamOverflow,
        UpstreamProtocol, UpstreamTimeout,
    };
    use StatusCode as Status;
    Some(match failure {
        ForwardFailure::NoRoute => reply(
            Status::NOT_FOUND,
            NoRoute,
            "no destination: a request to a forward proxy has an absolute URL or the method CONNECT\n",
            "weir; error=destination_not_found",
        ),
        ForwardFailure::NoAddress(NoAddress::NotFound) => {
            reply(Status::BAD_GATEWAY, DnsFailed, "name not resolved\n", "weir; error=dns_error")
        }
        ForwardFailure::NoAddress(NoAddress::TimedOut) => reply(
            Status::GATEWAY_TIMEOUT,
            DnsFailed,
            "name not resolved in time\n",
            "weir; error=dns_timeout",
        ),
        ForwardFailure::NoAddress(NoAddress::Prohibited) => reply(
            Status::FORBIDDEN,
            Denied,
            "the address of this destination is not allowed\n",
            "weir; error=destination_ip_prohibited",
        ),
        ForwardFailure::NoAddress(NoAddress::Loop) => refusal_reply(Refusal::Loop),
        ForwardFailure::NoEndpoint => reply(
            Status::SERVICE_UNAVAILABLE,
            NoHealthyUpstream,
            "destination unavailable\n",
            "weir; error=destination_unavailable",
        ),
        ForwardFailure::Upstream(UpstreamError::Connect(error)) => {
            let (text, proxy_status) = connect_error(error);
            reply(Status::BAD_GATEWAY, UpstreamFailure, text, proxy_status)
        }
        ForwardFailure::Upstream(UpstreamError::ConnectTimeout) => reply(
            Status::GATEWAY_TIMEOUT,
            UpstreamFailure,
            "connection timed out\n",
            "weir; error=connection_timeout",
        ),
        ForwardFailure::Upstream(UpstreamError::ServerName(_)) => reply(
            Status::BAD_GATEWAY,
            UpstreamFailure,
            "the destination has no certificate for this host\n",
            "weir; error=tls_certificate_error",
        ),
        ForwardFailure::Upstream(UpstreamError::Overflow) => reply(
            Status::SERVICE_UNAVAILABLE,
            UpstreamOverflow,
            "too many connections to the destination\n",
            "weir; error=connection_limit_reached",
        ),
        ForwardFailure::Upstream(UpstreamError::Reset(_)) | ForwardFailure::BrokenResponse => reply(
            Status::BAD_GATEWAY,
            UpstreamClosed,
            "the destination closed the connection\n",
            "weir; error=connection_terminated",
        ),
        ForwardFailure::Upstream(UpstreamError::Malformed(_)) | ForwardFailure::UnexpectedProtocol => reply(
            Status::BAD_GATEWAY,
            UpstreamProtocol,
            "malformed response from the destination\n",
            "weir; error=http_protocol_error",
        ),
        ForwardFailure::ResponseTimeout(_) | ForwardFailure::PerTryTimeout(_) => reply(
            Status::GATEWAY_TIMEOUT,
            UpstreamTimeout,
            "the destination timed out\n",
            "weir; error=http_response_timeout",
        ),
        ForwardFailure::UpgradeUnavailable
        | ForwardFailure::RequestStalled
        | ForwardFailure::BrokenRequest => return None,
    })
}

/// Returns the text and the `Proxy-Status` of a connection that could not be established.
fn connect_error(error: &io::Error) -> (&'static str, &'static str) {
    let handshake = error.get_ref().and_then(|inner| inner.downcast_ref::<ClientHandshakeError>());
    match handshake.map(|error| error.kind) {
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
    }
}
