//! Responses that count against a limit (`count`).

use http::{HeaderName, StatusCode};

use super::Statuses;
use crate::rules::grpc::{GrpcStatus, GrpcStatuses};
use crate::rules::pattern::HeaderPattern;
use weir_http::headers::Headers;

/// Responses that count. All configured fields must hold; within a field, any of its items is enough.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResponseCondition {
    /// HTTP status codes.
    pub statuses: Option<Statuses>,
    /// Headers and their patterns, any of which must match. If a header has several lines, any of them may match.
    pub headers: Box<[(HeaderName, Box<[HeaderPattern]>)]>,
    /// Statuses of gRPC calls.
    pub calls: Option<GrpcStatuses>,
}

impl ResponseCondition {
    /// Whether a response counts by its status code and headers. The status of the call may still exclude it.
    pub(super) fn matches(&self, status: StatusCode, headers: &Headers) -> bool {
        let matches = |(name, patterns): &(HeaderName, Box<[HeaderPattern]>)| {
            patterns.iter().any(|pattern| pattern.matches_any(headers.get_all(name)))
        };
        self.statuses.as_ref().is_none_or(|statuses| statuses.contain(status))
            && self.headers.iter().all(matches)
    }

    /// Whether a response counts by the status of its call. `None` stands for a response without one.
    pub(super) fn matches_call(&self, call: Option<GrpcStatus>) -> bool {
        self.calls.is_none_or(|calls| call.is_some_and(|call| calls.contain(call)))
    }
}
