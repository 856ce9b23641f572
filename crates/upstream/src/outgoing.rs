//! A request to be sent to an upstream.

use http::{HeaderMap, request};

use weir_http::headers::FieldLines;

/// Header section of a request to an upstream.
#[derive(Clone, Debug)]
pub struct OutgoingRequest {
    /// Request line and headers.
    pub head: request::Parts,
    /// Additional raw headers, none of which is in `head`.
    pub added_headers: FieldLines,
}

impl From<request::Parts> for OutgoingRequest {
    /// Without additional headers.
    fn from(head: request::Parts) -> Self {
        Self { head, added_headers: FieldLines::default() }
    }
}

impl OutgoingRequest {
    pub(super) fn headers(&self) -> HeaderMap {
        let mut headers = self.head.headers.clone();
        self.added_headers.copy_into(&mut headers);
        headers
    }
}
