//! Streams of OpenAI's format are asked to state their usage, where rules want that: the request is changed.

use http::HeaderMap;
use http::header::{CONTENT_ENCODING, HeaderName, TRAILER};

use super::body::DownstreamBody;
use super::local_reply::PendingBody;
use super::request_context::RequestContext;
use weir_bodies::usage_option::Unchanged;
use weir_http::http1::head::list_elements;
use weir_limits::PendingLimits;
use weir_policy::engine::Policy;
use weir_policy::identify::body::BodyFields;

/// Headers with a digest of the body: RFC 9530, its predecessors, and that of AWS, which is signed.
const DIGESTS: [HeaderName; 5] = [
    HeaderName::from_static("content-digest"),
    HeaderName::from_static("repr-digest"),
    HeaderName::from_static("digest"),
    HeaderName::from_static("content-md5"),
    HeaderName::from_static("x-amz-content-sha256"),
];

/// Header with what HTTP message signatures cover (RFC 9421).
const SIGNATURE_INPUT: HeaderName = HeaderName::from_static("signature-input");

/// Makes a request ask for its usage if rules want that. Its fields are known.
pub(super) fn ask_for_usage(
    context: &mut RequestContext,
    policy: &Policy,
    pending: &PendingLimits,
    fields: &BodyFields,
    headers: &mut HeaderMap,
    unread: &mut PendingBody,
) {
    let DownstreamBody::Held(held) = &mut unread.body else { return };
    if fields.read.is_err() || !pending.injects_usage(policy) {
        return;
    }
    match reason_to_keep(headers) {
        None => held.include_usage(headers),
        Some(reason) if pending.lacks_usage(policy, fields) => {
            context.lacks_usage = true;
            context.connection.worker.metrics.record_unchanged_stream(reason);
        }
        Some(_) => {}
    }
}

/// Returns why the body of a request is not to be changed.
fn reason_to_keep(headers: &HeaderMap) -> Option<Unchanged> {
    let trailers = || headers.get_all(TRAILER).iter().flat_map(|value| list_elements(value.as_bytes()));
    let is_digest = |name: &[u8]| DIGESTS.iter().any(|digest| name.eq_ignore_ascii_case(digest.as_ref()));
    // A signature covers the length by this name.
    let is_length_signed = || {
        let covers = |input: &str| input.contains("\"content-length\"");
        headers.get_all(SIGNATURE_INPUT).iter().any(|input| input.to_str().is_ok_and(covers))
    };
    if DIGESTS.iter().any(|digest| headers.contains_key(digest)) || trailers().any(is_digest) {
        Some(Unchanged::Digest)
    } else if is_length_signed() {
        Some(Unchanged::Signature)
    } else if headers.contains_key(CONTENT_ENCODING) {
        Some(Unchanged::Coding)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn body_that_a_header_describes_is_kept() {
        let reason = |name: &'static str, value: &str| {
            let value = value.parse().expect("a value");
            reason_to_keep(&HeaderMap::from_iter([(HeaderName::from_static(name), value)]))
        };
        for name in ["content-digest", "repr-digest", "digest", "content-md5", "x-amz-content-sha256"] {
            assert_eq!(reason(name, "x"), Some(Unchanged::Digest), "{name}");
        }
        assert_eq!(reason("trailer", "x-time, Content-Digest"), Some(Unchanged::Digest));
        let signed = "sig=(\"@method\" \"content-length\");created=1";
        assert_eq!(reason("signature-input", signed), Some(Unchanged::Signature));
        assert_eq!(reason("signature-input", "sig=(\"@method\" \"date\")"), None);
        assert_eq!(reason("content-encoding", "gzip"), Some(Unchanged::Coding));
        assert_eq!(reason("content-length", "5"), None);
    }
}
