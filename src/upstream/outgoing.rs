//! A request as it goes out.

use http::{HeaderMap, request};

use crate::http1::lines::Lines;

/// The head of a request to an upstream.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// What it says.
    pub head: request::Parts,
    /// Fields beside those of the head, none of which stands in it.
    pub ours: Lines,
    /// Nobody reads the answer's fields, so that those may stay as they came for whose name this is true; with others the
    /// answer has all of them in a map. `None` where somebody does.
    pub lets_through: Option<LetsThrough>,
}

/// Whether a field of this name, in any case, may go on as it came.
pub type LetsThrough = fn(&[u8]) -> bool;

impl From<request::Parts> for Outgoing {
    /// Nothing beside the head, and an answer whose fields are read.
    fn from(head: request::Parts) -> Self {
        Self { head, ours: Lines::default(), lets_through: None }
    }
}

impl Outgoing {
    /// All fields, for what is not written as HTTP/1.1 is.
    pub(super) fn headers(&self) -> HeaderMap {
        let mut headers = self.head.headers.clone();
        self.ours.extend(&mut headers);
        headers
    }
}
