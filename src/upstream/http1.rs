//! HTTP/1.1 as its client speaks it: one request and its answer over one connection (RFC 9112).
//!
//! A connection belongs to the request that uses it: the request's own future writes, reads and decodes, and
//! the answer's body takes the connection over and gives it back. No task stands between them and nothing is
//! passed through a channel, except where an answer begins before its request has ended: then two halves of the
//! connection go on independently, and whichever ends last gives the connection back (see [`duplex`]).

pub(super) mod connection;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
pub(super) mod head;
pub(super) mod streaming;
pub(super) mod upload;

mod duplex;
mod encode;
