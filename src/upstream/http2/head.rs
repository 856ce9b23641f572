//! Conversion of a request's header section to HTTP/2: the host becomes `:authority`, and hop-by-hop headers are
//! removed.

use http::header::{CONNECTION, HOST};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Request, Uri, Version};

use super::extended_connect::ExtendedConnect;
use crate::upstream::outgoing::OutgoingRequest;

/// Header section of an HTTP/2 request.
#[derive(Debug)]
pub(in crate::upstream) struct Http2RequestHead {
    /// The header section.
    pub(super) request: Request<()>,
    /// The requested upgrade, for an extended CONNECT.
    pub(super) extended: Option<ExtendedConnect>,
}

/// Converts a request in origin-form to HTTP/2 (RFC 9113 section 8.3.1), with extended CONNECT for an upgrade. If the
/// request has no host, as HTTP/1.0 permits, `otherwise` is used.
pub(in crate::upstream) fn for_http2(
    outgoing: &OutgoingRequest,
    scheme: Scheme,
    otherwise: &str,
) -> Http2RequestHead {
    let parts = &outgoing.head;
    let mut headers = outgoing.headers();
    let host = headers.remove(HOST);
    let named = host.and_then(|host| Authority::try_from(host.as_bytes()).ok());
    let authority = named.or_else(|| Authority::try_from(otherwise).ok());
    let mut uri = http::uri::Parts::default();
    uri.path_and_query = parts.uri.path_and_query().cloned().or(Some(PathAndQuery::from_static("/")));
    uri.scheme = Some(scheme);
    uri.authority = Some(authority.unwrap_or_else(|| Authority::from_static("localhost")));
    // `te: trailers` stays. In HTTP/1.1, `connection` had to name it.
    headers.remove(CONNECTION);
    let mut request = Request::new(());
    *request.method_mut() = parts.method.clone();
    *request.uri_mut() = Uri::from_parts(uri).unwrap_or_default();
    *request.version_mut() = Version::HTTP_2;
    *request.headers_mut() = headers;
    let extended = ExtendedConnect::from_upgrade(&mut request);
    Http2RequestHead { request, extended }
}

#[cfg(test)]
mod tests {
    use http::request;

    use super::*;

    fn http2_request(request: request::Builder) -> Request<()> {
        let Http2RequestHead { request, extended } =
            for_http2(&request.body(()).unwrap().into_parts().0.into(), Scheme::HTTP, "127.0.0.1:80");
        assert!(extended.is_none());
        request
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
    fn authority_defaults_to_the_upstreams_without_host() {
        assert_eq!(http2_request(Request::get("/")).uri(), "http://127.0.0.1:80/");
        assert_eq!(http2_request(Request::get("/").header("host", "")).uri(), "http://127.0.0.1:80/");
    }

    #[test]
    fn ids_of_a_request_are_not_indexed() {
        let request = Request::get("/").header("x-request-id", "1").header("accept", "*/*");
        let mut outgoing = OutgoingRequest::from(request.body(()).unwrap().into_parts().0);
        outgoing.added_headers.push(b"traceparent", b"00-1-2-01");
        let request = for_http2(&outgoing, Scheme::HTTP, "127.0.0.1:80").request;
        let unindexed = |name| request.headers()[name].is_sensitive();
        assert!(unindexed("x-request-id") && unindexed("traceparent") && !unindexed("accept"));
    }

    #[test]
    fn hop_by_hop_headers_are_removed_for_http2() {
        let request = http2_request(Request::get("/").header("host", "a").header("connection", "te"));
        assert!(request.headers().is_empty());
    }
}
