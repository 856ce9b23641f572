//! HTTP/1.1 messages on a connection (RFC 9112): one implementation for both sides, server towards clients and client
//! towards upstreams.
//!
//! `httparse` parses heads; everything else is implemented here. Bytes are read into a [`read_buf`]. Heads are decoded
//! by [`server`] or [`client`], and bodies by a [`decoder`]. An [`encoder`] writes messages through a [`write_buf`].
//! What a header means to a proxy is decided by the caller.

pub mod chunked;
pub mod client;
pub mod content_length;
pub mod decoder;
pub mod encoder;
pub mod framing;
pub mod head;
pub mod interim;
pub mod malformed;
pub mod memory_pool;
pub mod read_buf;
pub mod server;
pub mod splice;
pub mod write_buf;

#[cfg(test)]
mod tests;
