//! Listening sockets: binding one for every worker, and accepting connections until the drain.
//!
//! This module has no knowledge of HTTP; a handler serves the accepted connections.

pub mod address;
mod any_address;
pub mod balance;
pub mod handover;
pub mod inherited;
pub mod lifetime;
pub mod preamble;
pub mod proxy_protocol;
pub mod socket;
pub mod taken_over;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::Deserialize;

pub use self::address::ListenAddress;
use self::socket::{AcceptedSocket, AsyncListener, Socket};
use crate::drain::Closing;
use crate::transport::Transport;

/// Pause after an accept that failed for lack of file descriptors or memory, so that some can be released.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Time for the handshakes of connections that began before the drain.
const HANDSHAKE_TIME: Duration = Duration::from_millis(100);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerSettings {
    /// Name in metrics and logs; the address unless configured.
    pub name: Box<str>,
    pub address: ListenAddress,
    /// Maximum time from the first byte of a request to the end of its header section.
    pub header_timeout: Duration,
    /// Maximum time for which a connection may stay open without a request.
    pub idle_timeout: Duration,
    /// Maximum sizes of requests, and maximum streams per connection.
    pub limits: ListenerLimits,
    /// Whether a proxy in front sends the PROXY protocol.
    pub proxy_protocol: ProxyProtocol,
}

/// What distinguishes the sockets of listeners: their address, or their name if the system chooses the port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SocketKey {
    Address(ListenAddress),
    Name(Box<str>),
}

impl ListenerSettings {
    /// Returns the key of the listener's sockets. Listeners with the same key may follow each other on the same sockets.
    pub fn socket_key(&self) -> SocketKey {
        match &self.address {
            ListenAddress::Tcp(address) if address.port() == 0 => SocketKey::Name(self.name.clone()),
            address => SocketKey::Address(address.clone()),
        }
    }
}

/// Maximum sizes of requests, and maximum streams per connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerLimits {
    /// Maximum bytes of a request's header section.
    pub header_size: u32,
    /// Maximum number of headers of a request.
    pub headers: u32,
    /// Maximum concurrent streams on an HTTP/2 connection.
    pub streams: u32,
}

/// Whether connections begin with a PROXY protocol header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ProxyProtocol {
    /// None does.
    #[default]
    Disabled,
    /// Some may.
    Optional,
    /// All must; connections without one are closed.
    Required,
}

/// An accepted connection, registered with the runtime of the thread that serves it.
#[derive(Debug)]
pub struct AcceptedConnection {
    pub stream: Transport,
    /// Address of the peer; loopback and port 0 for a connection through a Unix socket.
    pub peer: SocketAddr,
}

/// Accepts connections until `stop` completes, then those that have begun, and closes the socket. One that another process
/// accepts on is left as it is.
///
/// Closing the socket resets connections that the kernel has completed but Weir has not accepted. To their clients, the
/// connect has succeeded already. The kernel therefore begins no more connections before the queue is emptied for the
/// last time.
///
/// `handle` fails if the connection cannot be registered. Until `stop` completes, `failed` is called each time that happens, and
/// each time an accept fails for lack of file descriptors or memory.
pub async fn serve(
    socket: Socket,
    stop: impl Future<Output = Closing>,
    mut handle: impl FnMut(AcceptedSocket) -> io::Result<()>,
    mut failed: impl FnMut(),
) {
    let accepting = match AsyncListener::new(socket) {
        Ok(accepting) => accepting,
        Err(error) => {
            tracing::error!(%error, "cannot register a listener with the event loop");
            return;
        }
    };
    let mut closing = Closing::Close;
    let stop = async { closing = stop.await };
    accept_until(&accepting, stop, &mut handle, &mut failed).await;
    if closing == Closing::LeaveOpen {
        return;
    }
    // Without socket filters, connections that complete while the socket is being closed are reset.
    if accepting.stop_new_connections().is_ok() {
        accept_until(&accepting, tokio::time::sleep(HANDSHAKE_TIME), &mut handle, &mut failed).await;
    }
    if let Err(error) = empty_queue(accepting, handle) {
        tracing::warn!(%error, "cannot empty the accept queue");
    }
}

async fn accept_until(
    accepting: &AsyncListener,
    stop: impl Future<Output = ()>,
    handle: &mut impl FnMut(AcceptedSocket) -> io::Result<()>,
    failed: &mut impl FnMut(),
) {
    let mut stop = std::pin::pin!(stop);
    let mut failures = 0_u64;
    loop {
        tokio::select! {
            // Checked first, so that a flood of connections cannot delay the shutdown.
            biased;
            () = &mut stop => break,
            accepted = accepting.accept() => match accepted.and_then(&mut *handle) {
                Ok(()) => {}
                Err(error) if is_connection_error(&error) => {}
                Err(error) => {
                    failures += 1;
                    failed();
                    // Up to 50 failures a second are possible; logged only at the 1st, 2nd, 4th, 8th and so on.
                    if failures.is_power_of_two() {
                        tracing::warn!(%error, failures, "cannot accept a connection or register it, the next one is accepted after a pause");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
}

fn empty_queue(
    accepting: AsyncListener,
    mut handle: impl FnMut(AcceptedSocket) -> io::Result<()>,
) -> io::Result<()> {
    for accepted in accepting.into_queue() {
        match accepted.and_then(&mut handle) {
            Ok(()) => {}
            Err(error) if is_connection_error(&error) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Whether an error concerns one connection, which is already gone, rather than the listener.
fn is_connection_error(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted
    )
}
