//! The fields that a proxy must know by name: hop-by-hop ones, and those that are not for trailers.

use http::HeaderName;
use http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, COOKIE,
    EXPECT, FORWARDED, HOST, MAX_FORWARDS, SET_COOKIE, TRAILER, VIA,
};

/// Whether the field of this name, in any case, is for the next hop alone: those of RFC 9110 section 7.6.1, and what
/// practice has added to it. `Trailer` is not: whoever writes a message decides about its trailers.
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

/// Whether a field may stand in trailers: one that frames, routes, authenticates, controls or describes the content would
/// mean something in a head (RFC 9110 section 6.5.1), and some recipients put both together.
pub fn may_trail(name: &HeaderName) -> bool {
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
