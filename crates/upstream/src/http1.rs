//! HTTP/1.1 to the upstream, from the start of the response on.
//!
//! A connection belongs to the request that uses it. The request's own future writes, reads and decodes; the response
//! body then takes the connection over and returns it to the pool. No task or channel is involved, unless a response
//! begins before its request has been sent. Then the two halves of the connection proceed independently, and the one
//! that ends last returns the connection (see [`rejoin`]).

pub(super) mod connection;
pub(super) mod response_body;

mod rejoin;
