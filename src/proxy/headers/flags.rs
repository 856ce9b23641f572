//! Flags for headers of a request that matter to a proxy.
//!
//! Most requests have few of them, and looking up each by name would hash a dozen names per request. Instead,
//! [`validate`](super::validate()) inspects all headers once.

use http::HeaderMap;
use http::header::EXPECT;

/// Headers of a request that a later stage looks up or removes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::proxy) struct RequestHeaderFlags {
    /// Headers that are not forwarded unchanged, such as hop-by-hop ones.
    pub(super) hop_by_hop: bool,
    pub(super) expect: bool,
    pub(in crate::proxy) forwarded_for: bool,
    pub(super) forwarded_proto: bool,
    pub(super) request_id: bool,
    pub(super) external: bool,
    pub(super) via: bool,
    /// `Max-Forwards` of an OPTIONS request.
    pub(super) max_forwards: bool,
    pub(super) client_cert: bool,
    /// Headers in which proxies name the client or a target.
    pub(in crate::proxy) client_names: bool,
    pub(super) overrides: bool,
    /// Headers whose names have an underscore.
    pub(in crate::proxy) underscores: bool,
}

impl RequestHeaderFlags {
    /// Returns whether the client waits for `100 Continue`.
    pub(in crate::proxy) const fn expectation(self) -> Expectation {
        if self.expect { Expectation::Continue } else { Expectation::None }
    }
}

/// Whether the client waits for `100 Continue` before it sends its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::proxy) enum Expectation {
    /// It waits.
    Continue,
    /// It sends the body without waiting.
    None,
}

impl Expectation {
    /// Reads the expectation from the headers of a request.
    pub(in crate::proxy) fn from_headers(headers: &HeaderMap) -> Self {
        if headers.contains_key(EXPECT) { Self::Continue } else { Self::None }
    }
}
