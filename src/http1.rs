//! HTTP/1.1 messages on a connection (RFC 9112): one implementation for the server's side, towards clients, and the client's,
//! towards upstreams.
//!
//! `httparse` parses heads; the rest is here. Bytes come into a [`read_buf`], heads are decoded by [`server`] or [`client`]
//! and bodies by a [`decoder`]; an [`encoder`] writes messages through a [`write_buf`]. What a field means to a proxy is
//! decided by the caller.

pub mod chunked;
pub mod client;
pub mod content_length;
pub mod decoder;
pub mod encoder;
pub mod framing;
pub mod head;
pub mod interim;
pub mod malformed;
pub mod read_buf;
pub mod server;
pub mod write_buf;
