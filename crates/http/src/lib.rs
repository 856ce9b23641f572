//! Header sections and the codecs of HTTP/1.1 and HTTP/2, of both sides of a connection.
//!
//! The codecs work on any byte stream. They know no rules, no metrics and no upstreams.

#![cfg_attr(not(test), deny(clippy::unwrap_used))]

pub mod headers;
pub mod http1;
pub mod http2;
pub mod message_body;
pub mod messages;
pub mod unsent;
