//! HTTP/2 (RFC 9113) for the connections of one thread.
//!
//! A connection has one task, which reads frames, calls what handles a request, and writes. Streams are handles on shared
//! state. Other tasks of the thread use them to send and receive, and wake the connection's task when there is something
//! to write, so that the frames of many streams leave in one system call. Nothing is locked.
//!
//! Everything that a peer can make grow has a maximum: header sections, streams, received data (flow control), data to be
//! sent (the output buffer limits all streams), frames without effect, and streams that end early. The modules, in the
//! order of a request: `connection`, `input`, `handle_frame`, `head`, `server`, `receive`, `send`, `output`.

mod client;
mod connection;
mod error;
mod floods;
mod frame;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod handle;
mod handle_data;
mod handle_frame;
mod handle_headers;
mod head;
pub mod hpack;
mod input;
mod malformation;
mod output;
mod receive;
mod receive_windows;
mod responder;
mod send;
mod server;
mod settings;
mod shared;
mod shutdown;
mod stream;
mod stream_queue;
mod windows;

pub use self::client::{ClientConnection, PendingResponse, RequestSender};
pub use self::error::{Http2Error, Reason};
pub use self::head::{AcceptedOrigins, FieldWriter, PseudoHeaders};
pub use self::hpack::Protocol;
pub use self::malformation::{Malformation, MalformedStreams};
pub use self::receive::ReceiveStream;
pub use self::responder::Responder;
pub use self::send::SendStream;
pub use self::server::ServerConnection;
pub use self::settings::Http2Settings;

#[cfg(test)]
mod tests;
