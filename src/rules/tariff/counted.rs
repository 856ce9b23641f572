//! Which responses count (`count`).

use http::{HeaderName, StatusCode};

use super::Statuses;
use crate::headers::Headers;
use crate::rules::grpc::{GrpcStatus, GrpcStatuses};
use crate::rules::pattern::HeaderPattern;

/// Responses that count: all fields that are given must hold, within a field any of its items.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counted {
    /// The status of HTTP.
    pub statuses: Option<Statuses>,
    /// For each of these headers, any of its patterns. Of a header with several lines any may match.
    pub headers: Box<[(HeaderName, Box<[HeaderPattern]>)]>,
    /// The status of a gRPC call.
    pub calls: Option<GrpcStatuses>,
}

impl Counted {
    /// Whether the header of the response lets it count. The status of a call may still keep it from that.
    pub(super) fn hold(&self, status: StatusCode, headers: &Headers) -> bool {
        let matches = |(name, patterns): &(HeaderName, Box<[HeaderPattern]>)| {
            patterns.iter().any(|pattern| pattern.matches_any(headers.get_all(name)))
        };
        self.statuses.as_ref().is_none_or(|statuses| statuses.contain(status))
            && self.headers.iter().all(matches)
    }

    /// Whether a call with this status counts, or a response without any.
    pub(super) fn hold_for(&self, call: Option<GrpcStatus>) -> bool {
        self.calls.is_none_or(|calls| call.is_some_and(|call| calls.contain(call)))
    }
}
