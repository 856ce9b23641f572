//! A request as it goes out.

use http::{HeaderMap, request};

use crate::headers::FieldLines;

/// The head of a request to an upstream.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// What it says.
    pub head: request::Parts,
    /// Fields beside those of the head, none of which stands in it.
    pub ours: FieldLines,
    /// Whether the response's headers are better parsed into a map at once, for they will be needed in one. Only speed
    /// depends on it.
    pub wants_map: bool,
}

impl From<request::Parts> for Outgoing {
    /// Nothing beside the head.
    fn from(head: request::Parts) -> Self {
        Self { head, ours: FieldLines::default(), wants_map: true }
    }
}

impl Outgoing {
    /// All fields, for what is not written as HTTP/1.1 is.
    pub(super) fn headers(&self) -> HeaderMap {
        let mut headers = self.head.headers.clone();
        self.ours.clone().parse_into(&mut headers);
        headers
    }
}
