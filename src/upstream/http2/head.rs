//! Conversion of a request's header section to HTTP/2: the host becomes `:authority`, and hop-by-hop headers are
//! removed.

use http::header::{CONNECTION, HOST, UPGRADE};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderValue, Request, Uri, Version};

use super::extended_connect::ExtendedConnect;
use crate::http2::{Http2Error, PendingResponse, PseudoHeaders, RequestSender, SendStream};
use crate::upstream::outgoing::OutgoingRequest;

/// Authority of a request if there is no other.
const UNKNOWN_AUTHORITY: &str = "localhost";

/// A request in origin-form and what HTTP/2 states beside it (RFC 9113 section 8.3.1).
#[derive(Clone, Copy, Debug)]
pub(in crate::upstream) struct Http2Request<'a> {
    /// The request.
    pub(in crate::upstream) outgoing: &'a OutgoingRequest,
    /// Scheme of the upstream.
    pub(in crate::upstream) scheme: &'a Scheme,
    /// Authority if the request has no host, as HTTP/1.0 permits.
    pub(in crate::upstream) default_authority: &'a str,
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
        let authority = authority(parts.headers.get(HOST), self.default_authority);
        let path = parts.uri.path_and_query().map_or("/", PathAndQuery::as_str);
        let pseudo = PseudoHeaders { method: &parts.method, scheme: self.scheme, authority, path };
        let (response, stream) = sender.send_fields(&pseudo, is_bodiless, |fields| {
            for (name, value) in &parts.headers {
                // `te: trailers` stays. In HTTP/1.1, `connection` had to name it.
                if name != HOST && name != CONNECTION {
                    fields.push(name, value);
                }
            }
            for (name, value) in self.outgoing.added_headers.iter() {
                fields.push_raw(name, value);
            }
        })?;
        Ok(SentRequest { response, stream, extended: None })
    }

    fn send_upgrade(&self, sender: &mut RequestSender) -> Result<SentRequest, Http2Error> {
        let mut request = self.to_request();
        let extended = ExtendedConnect::from_upgrade(&mut request);
        let (response, stream) = sender.send_request(&request, false)?;
        Ok(SentRequest { response, stream, extended })
    }

    /// Returns the request as a map of its headers.
    fn to_request(self) -> Request<()> {
        let parts = &self.outgoing.head;
        let mut headers = self.outgoing.headers();
        let host = headers.remove(HOST);
        headers.remove(CONNECTION);
        let authority = authority(host.as_ref(), self.default_authority);
        let mut uri = http::uri::Parts::default();
        uri.path_and_query = parts.uri.path_and_query().cloned().or(Some(PathAndQuery::from_static("/")));
        uri.scheme = Some(self.scheme.clone());
        uri.authority = Authority::try_from(authority).ok();
        let mut request = Request::new(());
        *request.method_mut() = parts.method.clone();
        *request.uri_mut() = Uri::from_parts(uri).unwrap_or_default();
        *request.version_mut() = Version::HTTP_2;
        *request.headers_mut() = headers;
        request
    }
}

/// Returns the authority of a request: its `Host` if that is valid, or `default`.
fn authority<'a>(host: Option<&'a HeaderValue>, default: &'a str) -> &'a str {
    let host = host.and_then(|host| host.to_str().ok());
    let is_valid = |text: &&str| is_name_and_port(text) || Authority::try_from(*text).is_ok();
    host.into_iter().chain([default]).find(is_valid).unwrap_or(UNKNOWN_AUTHORITY)
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
mod tests {
    use http::request;

    use super::*;

    fn http2_request(request: request::Builder) -> Request<()> {
        to_request(&request.body(()).unwrap().into_parts().0.into())
    }

    fn to_request(outgoing: &OutgoingRequest) -> Request<()> {
        let request = Http2Request { outgoing, scheme: &Scheme::HTTP, default_authority: "127.0.0.1:80" };
        assert!(!request.is_upgrade());
        request.to_request()
    }

    #[test]
    fn the_host_becomes_the_authority() {
        let request =
            http2_request(Request::get("/a?b").header("host", "a.test:81").header("te", "trailers"));
        assert_eq!(request.uri(), "http://a.test:81/a?b");
        assert_eq!(request.headers().len(), 1, "only `te` is forwarded");
        assert_eq!(request.version(), Version::HTTP_2);
    }

    #[test]
    fn authority_is_the_default_unless_the_host_is_valid() {
        for (host, expected) in [
            (None, "d.test"),
            (Some(""), "d.test"),
            (Some("a b"), "d.test"),
            (Some("a.test"), "a.test"),
            (Some("a-b.test:8080"), "a-b.test:8080"),
            (Some("[::1]:80"), "[::1]:80"),
        ] {
            let host = host.map(HeaderValue::from_static);
            assert_eq!(authority(host.as_ref(), "d.test"), expected, "{host:?}");
        }
        assert_eq!(authority(None, "/run/a socket"), UNKNOWN_AUTHORITY);
    }

    #[test]
    fn plain_names_are_valid_authorities() {
        for (text, is_plain) in [
            ("a", true),
            ("127.0.0.1:80", true),
            ("a-1.b", true),
            ("", false),
            ("a:", false),
            ("a:x", false),
            ("a@b", false),
            ("[::1]", false),
        ] {
            assert_eq!(is_name_and_port(text), is_plain, "{text}");
            assert!(!is_plain || Authority::try_from(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn hop_by_hop_headers_are_removed_for_http2() {
        let request = http2_request(Request::get("/").header("host", "a").header("connection", "te"));
        assert!(request.headers().is_empty());
    }
}
