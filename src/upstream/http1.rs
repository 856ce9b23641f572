//! HTTP/1.1 to the upstream: what becomes of a connection when its response has begun.
//!
//! A connection belongs to the request that uses it: the request's own future writes, reads and decodes, and
//! the response's body takes the connection over and gives it back. No task stands between them and nothing is
//! passed through a channel, except where a response begins before its request has ended: then two halves of the
//! connection go on independently, and whichever ends last gives the connection back (see [`rejoin`]).

pub(super) mod connection;
pub(super) mod streaming;

mod rejoin;
