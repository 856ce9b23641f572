//! How messages of HTTP/1.1 are written on a connection (RFC 9112), as both its sides need it: towards clients, whose
//! requests are read and answers written, and towards upstreams, where it is the other way round.
//!
//! Nothing here knows which side it is on: what a field means to a proxy is decided by those who call.

pub mod chunked;
pub mod coding;
pub mod content_length;
pub mod head;
pub mod inbox;
pub mod interim;
pub mod length;
pub mod malformed;
pub mod outbox;
pub mod sending;
