//! Which of the fields that concern a proxy a request has.
//!
//! Most requests have few of them, and asking for each by name would hash a dozen names per request: so
//! [`validate`](super::validate()) looks at all fields once.

use http::HeaderMap;
use http::header::EXPECT;

/// The fields of a request that a later stage looks up or removes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::proxy) struct RequestHeaderFlags {
    /// Something that does not go on as it is.
    pub(super) of_the_hop: bool,
    pub(super) expect: bool,
    pub(in crate::proxy) forwarded_for: bool,
    pub(super) forwarded_proto: bool,
    pub(super) request_id: bool,
    pub(super) external: bool,
    pub(super) client_cert: bool,
    pub(super) overrides: bool,
    /// What only looks like one of ours.
    pub(super) imitations: bool,
}

impl RequestHeaderFlags {
    /// Whether the client waits for permission to send its body.
    pub(in crate::proxy) const fn expectation(self) -> Expectation {
        if self.expect { Expectation::Continue } else { Expectation::None }
    }
}

/// Whether the client waits for `100 Continue` before it sends its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::proxy) enum Expectation {
    /// It does.
    Continue,
    /// It sends right away.
    None,
}

impl Expectation {
    /// What the fields of a request say.
    pub(in crate::proxy) fn of(headers: &HeaderMap) -> Self {
        if headers.contains_key(EXPECT) { Self::Continue } else { Self::None }
    }
}
