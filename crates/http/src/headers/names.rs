//! Header names that have a meaning to a proxy: hop-by-hop headers, and headers that must not be sent as trailers.

use http::HeaderName;
use http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, COOKIE,
    EXPECT, FORWARDED, HOST, MAX_FORWARDS, SET_COOKIE, TRAILER, VIA,
};

/// Whether a header is hop-by-hop: those of RFC 9110 section 7.6.1 and further ones that are hop-by-hop in practice.
/// The name may be in any case. `Trailer` is not among them: the encoder of a message decides on its trailers.
#[inline]
pub fn is_hop_by_hop(name: &[u8]) -> bool {
    let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
    match name.len() {
        2 => is("te"),
        7 => is("upgrade"),
        10 => is("connection") || is("keep-alive"),
        14 => is("http2-settings"),
        16 => is("proxy-connection"),
        17 => is("transfer-encoding"),
        18 => is("proxy-authenticate"),
        19 => is("proxy-authorization"),
        _ => false,
    }
}

/// Whether a header may be sent as a trailer. Headers for framing, routing, authentication, request modifiers or
/// content format may not (RFC 9110 section 6.5.1): some recipients merge trailers into the header section.
pub fn may_be_trailer(name: &HeaderName) -> bool {
    let is_for_heads = matches!(
        *name,
        AUTHORIZATION
            | CACHE_CONTROL
            | CONTENT_ENCODING
            | CONTENT_LENGTH
            | CONTENT_RANGE
            | CONTENT_TYPE
            | COOKIE
            | EXPECT
            | FORWARDED
            | HOST
            | MAX_FORWARDS
            | SET_COOKIE
            | TRAILER
            | VIA
    );
    !is_for_heads && !is_hop_by_hop(name.as_str().as_bytes())
}
