//! Bodies of messages to be sent.

use std::task::Context;

use bytes::Bytes;
use hyper::body::Body;

use crate::http1::splice::Spliced;

/// Body of a message to be sent.
pub trait MessageBody: Body<Data = Bytes, Error: std::error::Error + Send + Sync + 'static> + Unpin {
    /// Moves at most `max` of the next bytes into a pipe, which is never empty.
    fn poll_splice(&mut self, _max: usize, _cx: &mut Context<'_>) -> Spliced<Self::Error> {
        None
    }
}
