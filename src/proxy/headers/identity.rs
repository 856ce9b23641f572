//! Protection of headers that identify the client or frame the message, where a client must not set them. These are
//! names that only resemble such headers, headers that `Connection` asks to drop, and trailers.

use http::{HeaderMap, HeaderName};

use weir_http::headers;
use weir_policy::identify::client_headers::{AddressHeader, names_client_or_target};
use weir_policy::identify::forwarded::X_FORWARDED_FOR;
use weir_policy::rules::header_twins::HeaderTwins;

/// Whether a header identifies the client, the request or its original target, or overrides how it is handled.
pub(in crate::proxy) fn is_identity_header(name: &str) -> bool {
    ["x-forwarded-", "x-envoy-", "x-weir-"].iter().any(|prefix| name.starts_with(prefix))
        || name == "x-request-id"
        || names_client_or_target(name)
}

/// Removes headers whose names differ only in `-` and `_` from one that identifies the client, frames the message, or is
/// read by rules (`twins`). Returns their number.
///
/// Services that turn headers into variables, as CGI does, cannot distinguish `x_forwarded_for` from `X-Forwarded-For`,
/// whether sent by a client or set by Weir. Other names with an underscore are left to the service.
pub(in crate::proxy) fn remove_lookalikes(headers: &mut HeaderMap, twins: &HeaderTwins) -> usize {
    let imitates = |name: &&HeaderName| {
        if twins.contains(name) {
            return true;
        }
        if !name.as_str().contains('_') {
            return false;
        }
        let meant = name.as_str().replace('_', "-");
        is_identity_header(&meant)
            || matches!(&*meant, "content-length" | "transfer-encoding" | "x-http-method-override")
    };
    let doomed: Vec<HeaderName> = headers.keys().filter(imitates).cloned().collect();
    for name in &doomed {
        headers.remove(name);
    }
    doomed.len()
}

/// Removes headers in which an untrusted peer names a client or a target, and those of `address_headers`, which the
/// service believes too. Returns their number.
pub(in crate::proxy) fn remove_client_headers(
    headers: &mut HeaderMap,
    address_headers: &[AddressHeader],
) -> usize {
    let is_claim = |name: &&HeaderName| {
        names_client_or_target(name.as_str())
            || (**name != X_FORWARDED_FOR && address_headers.iter().any(|known| known.name() == *name))
    };
    let doomed: Vec<HeaderName> = headers.keys().filter(is_claim).cloned().collect();
    for name in &doomed {
        headers.remove(name);
    }
    doomed.len()
}

/// Removes trailers that must not be sent as trailers (RFC 9110 section 6.5.1). Limits, routes and the upstream's own
/// checks have only seen the header section, and some services merge trailers into it.
pub(in crate::proxy) fn sanitize_trailers(fields: &mut HeaderMap) {
    let doomed: Vec<HeaderName> = fields.keys().filter(|name| !may_be_trailer(name)).cloned().collect();
    for name in doomed {
        fields.remove(name);
    }
}

/// Removes trailers of a response that must not be sent as trailers. Those for a connection would make an HTTP/2 response
/// malformed (RFC 9113 section 8.2.2).
pub(in crate::proxy) fn remove_forbidden_trailers(fields: &mut HeaderMap) {
    if fields.keys().all(headers::may_be_trailer) {
        return;
    }
    let doomed: Vec<HeaderName> =
        fields.keys().filter(|name| !headers::may_be_trailer(name)).cloned().collect();
    for name in doomed {
        fields.remove(name);
    }
}

fn may_be_trailer(name: &HeaderName) -> bool {
    headers::may_be_trailer(name) && !is_identity_header(&name.as_str().replace('_', "-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(names: &[&'static str]) -> HeaderMap {
        names.iter().map(|name| (HeaderName::from_static(name), "1".parse().unwrap())).collect()
    }

    fn names(headers: &HeaderMap) -> Vec<&str> {
        let mut names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        // Removals change the order of the others.
        names.sort_unstable();
        names
    }

    #[test]
    fn lookalikes_of_identity_and_length_headers_are_removed() {
        let given = [
            "x_forwarded_for",
            "x-forwarded_proto",
            "x_request-id",
            "content_length",
            "x_api_key",
            "api_key",
            "true_client_ip",
            "x-team",
            "x_team",
        ];
        let mut headers = map(&given);
        let twins = HeaderTwins::new([HeaderName::from_static("x-team")].into_iter());
        assert_eq!(remove_lookalikes(&mut headers, &twins), 6);
        assert_eq!(names(&headers), ["api_key", "x-team", "x_api_key"]);
    }

    #[test]
    fn trailers_are_stripped_of_headers_that_belong_in_a_head() {
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
        sanitize_trailers(&mut trailers);
        assert_eq!(names(&trailers), ["grpc-status", "x-checksum"]);
    }
}
