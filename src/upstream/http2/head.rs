//! The head of a request as HTTP/2 has it: the host in a field of its own, nothing about the hop.

use http::header::{CONNECTION, HOST};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Request, Uri, Version};

use super::extended_connect::ExtendedConnect;
use crate::upstream::outgoing::Outgoing;

/// The head of a request as HTTP/2 has it.
#[derive(Debug)]
pub(in crate::upstream) struct RequestHead {
    /// The head.
    pub(super) request: Request<()>,
    /// The protocol that it switches to, of an extended CONNECT.
    pub(super) extended: Option<ExtendedConnect>,
}

/// Turns a request in origin-form into one of HTTP/2 (RFC 9113 section 8.3.1), which may ask to leave HTTP. Where it
/// names no host, as HTTP/1.0 may, `otherwise` stands for it.
pub(in crate::upstream) fn for_http2(outgoing: &Outgoing, scheme: Scheme, otherwise: &str) -> RequestHead {
    let parts = &outgoing.head;
    let mut headers = outgoing.headers();
    let host = headers.remove(HOST);
    let named = host.and_then(|host| Authority::try_from(host.as_bytes()).ok());
    let authority = named.or_else(|| Authority::try_from(otherwise).ok());
    let mut uri = http::uri::Parts::default();
    uri.path_and_query = parts.uri.path_and_query().cloned().or(Some(PathAndQuery::from_static("/")));
    uri.scheme = Some(scheme);
    uri.authority = Some(authority.unwrap_or_else(|| Authority::from_static("localhost")));
    // `te: trailers` stays; in HTTP/1.1 it had to be named here.
    headers.remove(CONNECTION);
    let mut request = Request::new(());
    *request.method_mut() = parts.method.clone();
    *request.uri_mut() = Uri::from_parts(uri).unwrap_or_default();
    *request.version_mut() = Version::HTTP_2;
    *request.headers_mut() = headers;
    let extended = ExtendedConnect::take(&mut request);
    RequestHead { request, extended }
}

#[cfg(test)]
mod tests {
    use http::request;

    use super::*;

    fn turned(request: request::Builder) -> Request<()> {
        let RequestHead { request, extended } =
            for_http2(&request.body(()).unwrap().into_parts().0.into(), Scheme::HTTP, "127.0.0.1:80");
        assert!(extended.is_none());
        request
    }

    #[test]
    fn the_host_becomes_the_authority() {
        let request = turned(Request::get("/a?b").header("host", "a.test:81").header("te", "trailers"));
        assert_eq!(request.uri(), "http://a.test:81/a?b");
        assert_eq!(request.headers().len(), 1, "only te is left");
        assert_eq!(request.version(), Version::HTTP_2);
    }

    #[test]
    fn where_no_host_is_named_the_upstreams_stands_for_it() {
        assert_eq!(turned(Request::get("/")).uri(), "http://127.0.0.1:80/");
        assert_eq!(turned(Request::get("/").header("host", "")).uri(), "http://127.0.0.1:80/");
    }

    #[test]
    fn fields_of_the_hop_are_left_behind() {
        let request = turned(Request::get("/").header("host", "a").header("connection", "te"));
        assert!(request.headers().is_empty());
    }
}
