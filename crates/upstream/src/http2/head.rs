//! Conversion of a request's header section to HTTP/2: the host becomes `:authority`, and hop-by-hop headers are
//! removed.

use http::header::{CONNECTION, HOST, UPGRADE};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderValue, Method, Request};

use super::extended_connect::ExtendedConnect;
use crate::outgoing::OutgoingRequest;
use weir_http::http2::{
    FieldWriter, Http2Error, PendingResponse, Protocol, PseudoHeaders, RequestSender, SendStream,
};

/// Authority of a request if there is no other.
const UNKNOWN_AUTHORITY: &str = "localhost";

/// A request in origin-form and what HTTP/2 states beside it (RFC 9113 section 8.3.1).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Http2Request<'a> {
    pub(crate) outgoing: &'a OutgoingRequest,
    /// Scheme of the upstream.
    pub(crate) scheme: &'a Scheme,
    /// Authority if the request has no host, as HTTP/1.0 permits.
    pub(crate) default_authority: &'a str,
}

/// A request whose head was sent.
#[derive(Debug)]
pub(super) struct SentRequest {
    pub(super) response: PendingResponse,
    /// The sending side of the stream.
    pub(super) stream: SendStream,
    /// The requested upgrade, for an extended CONNECT.
    pub(super) extended: Option<ExtendedConnect>,
}

impl Http2Request<'_> {
    /// Whether the request asks for an upgrade, and is thus sent as an extended CONNECT.
    pub(super) fn is_upgrade(&self) -> bool {
        self.outgoing.head.headers.contains_key(UPGRADE)
    }

    /// Sends the head. `is_bodiless`: there is no body. A stream that may be upgraded stays open.
    ///
    /// # Errors
    /// If the connection accepts no more requests. The request was not sent.
    pub(super) fn send(
        &self,
        sender: &mut RequestSender,
        is_bodiless: bool,
    ) -> Result<SentRequest, Http2Error> {
        if self.is_upgrade() {
            return self.send_upgrade(sender);
        }
        let parts = &self.outgoing.head;
        let host = self.host();
        let pseudo = self.pseudo_headers(&parts.method, &host, None);
        let (response, stream) = sender.send_fields(&pseudo, is_bodiless, |fields| {
            self.write_fields(&parts.headers, &host, fields);
            for (name, value) in self.outgoing.added_headers.iter() {
                fields.push_raw(name, value);
            }
        })?;
        Ok(SentRequest { response, stream, extended: None })
    }

    fn send_upgrade(&self, sender: &mut RequestSender) -> Result<SentRequest, Http2Error> {
        let mut request = Request::new(());
        *request.headers_mut() = self.outgoing.headers();
        let extended = ExtendedConnect::from_upgrade(&mut request);
        let host = self.host();
        let protocol = request.extensions().get::<Protocol>();
        let pseudo = self.pseudo_headers(request.method(), &host, protocol);
        let (response, stream) = sender
            .send_fields(&pseudo, false, |fields| self.write_fields(request.headers(), &host, fields))?;
        Ok(SentRequest { response, stream, extended })
    }

    fn host(&self) -> TargetHost<'_> {
        TargetHost::new(self.outgoing.head.headers.get(HOST), self.default_authority)
    }

    fn pseudo_headers<'a>(
        &'a self,
        method: &'a Method,
        host: &TargetHost<'a>,
        protocol: Option<&'a Protocol>,
    ) -> PseudoHeaders<'a> {
        let path = self.outgoing.head.uri.path_and_query().map_or("/", PathAndQuery::as_str);
        let authority = match *host {
            TargetHost::Authority(authority) => Some(authority),
            TargetHost::Field => None,
        };
        PseudoHeaders { method, scheme: self.scheme, authority, path, protocol }
    }

    fn write_fields(&self, headers: &HeaderMap, host: &TargetHost<'_>, fields: &mut FieldWriter<'_>) {
        for (name, value) in headers {
            // `te: trailers` stays. In HTTP/1.1, `connection` had to name it.
            if name != CONNECTION && (name != HOST || matches!(host, TargetHost::Field)) {
                fields.push(name, value);
            }
        }
    }
}

/// How a request states its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TargetHost<'a> {
    /// By `:authority`.
    Authority(&'a str),
    /// By `host`, as received: such as `a%2eb`, a name of RFC 3986 that is not valid in `:authority` for every recipient.
    /// The address of the upstream would name another host than the one that the rules have seen.
    Field,
}

impl<'a> TargetHost<'a> {
    /// Returns how to state `Host`. If the request has none, as HTTP/1.0 permits, or an empty one, it is `default`.
    fn new(host: Option<&'a HeaderValue>, default: &'a str) -> Self {
        let is_valid = |text: &str| is_name_and_port(text) || Authority::try_from(text).is_ok();
        match host.filter(|host| !host.is_empty()).map(HeaderValue::to_str) {
            Some(Ok(host)) if is_valid(host) => Self::Authority(host),
            Some(_) => Self::Field,
            None => Self::Authority(if is_valid(default) { default } else { UNKNOWN_AUTHORITY }),
        }
    }
}

/// Whether `text` is a domain name or an IPv4 address, perhaps with a port. Other authorities are valid too.
fn is_name_and_port(text: &str) -> bool {
    let (name, port) = text.split_once(':').unwrap_or((text, "0"));
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-');
    !name.is_empty()
        && name.bytes().all(is_name)
        && (1..=5).contains(&port.len())
        && port.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests;
