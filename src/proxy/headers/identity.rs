//! Fields that say who a client is or how a message is framed, where a client has no business to write them: under a
//! name that only looks like theirs, among the fields that `Connection` has us drop, and in trailers.

use http::{HeaderMap, HeaderName};

use crate::headers;

/// Whether a field says who asks, on whose behalf, or by which name a request is known; or steers those who believe it.
pub(in crate::proxy) fn tells_who_asks(name: &str) -> bool {
    ["x-forwarded-", "x-envoy-", "x-weir-"].iter().any(|prefix| name.starts_with(prefix))
        || matches!(name, "x-request-id" | "x-real-ip" | "x-original-url" | "x-rewrite-url" | "forwarded")
}

/// Whether a name could imitate another: services that turn fields into variables, as CGI has it, cannot tell
/// `x_forwarded_for` from `X-Forwarded-For`, nor either from our own.
pub(super) fn may_imitate(name: &str) -> bool {
    matches!(name.as_bytes().first(), Some(b'x' | b'c' | b't' | b'f')) && name.contains('_')
}

/// Takes off what imitates a field that says who asks or how the message is framed. Other names with an underscore are
/// a service's own business.
pub(super) fn remove_imitations(headers: &mut HeaderMap) {
    let imitates = |name: &&HeaderName| {
        let meant = name.as_str().replace('_', "-");
        meant != name.as_str()
            && (tells_who_asks(&meant) || matches!(&*meant, "content-length" | "transfer-encoding"))
    };
    let doomed: Vec<HeaderName> = headers.keys().filter(imitates).cloned().collect();
    for name in doomed {
        headers.remove(name);
    }
}

/// Takes off trailers what would mean something in a head (RFC 9110 section 6.5.1): the limits, the routes and the
/// upstream's own checks have looked at the head, and some services put both together.
pub(in crate::proxy) fn clean_trailers(fields: &mut HeaderMap) {
    let doomed: Vec<HeaderName> = fields.keys().filter(|name| !may_trail(name)).cloned().collect();
    for name in doomed {
        fields.remove(name);
    }
}

fn may_trail(name: &HeaderName) -> bool {
    headers::may_trail(name) && !tells_who_asks(&name.as_str().replace('_', "-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(names: &[&'static str]) -> HeaderMap {
        names.iter().map(|name| (HeaderName::from_static(name), "1".parse().unwrap())).collect()
    }

    fn names(headers: &HeaderMap) -> Vec<&str> {
        let mut names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        // What is taken off leaves the rest in another order.
        names.sort_unstable();
        names
    }

    #[test]
    fn only_what_imitates_an_identity_or_a_length_is_taken_off() {
        let given = [
            "x_forwarded_for",
            "x-forwarded_proto",
            "x_request-id",
            "content_length",
            "x_api_key",
            "api_key",
        ];
        assert!(given[..5].iter().all(|name| may_imitate(name)));
        let mut headers = map(&given);
        remove_imitations(&mut headers);
        assert_eq!(names(&headers), ["api_key", "x_api_key"]);
    }

    #[test]
    fn trailers_say_nothing_that_belongs_into_a_head() {
        let mut trailers = map(&[
            "grpc-status",
            "x-checksum",
            "cookie",
            "x-envoy-internal",
            "x_forwarded_for",
            "connection",
            "authorization",
            "host",
        ]);
        clean_trailers(&mut trailers);
        assert_eq!(names(&trailers), ["grpc-status", "x-checksum"]);
    }
}
