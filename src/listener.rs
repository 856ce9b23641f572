//! Sockets: binding them for every worker, and accepting from them until the drain.
//!
//! Knows nothing of HTTP: what is done with a connection is the handler's business.

pub mod address;
pub mod preamble;
pub mod proxy_protocol;
pub mod socket;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

pub use self::address::Address;
use self::socket::{Accepting, Socket};
use crate::transport::Transport;

/// Pause after an accept that failed for want of descriptors or memory: time for some to be given back.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// One place where clients connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Name in metrics and logs; its address unless configured.
    pub name: Box<str>,
    /// Where to listen.
    pub address: Address,
    /// From a request's first byte to the end of its head.
    pub header_timeout: Duration,
    /// How long a connection may stay without a request.
    pub idle_timeout: Duration,
    /// What a connection and a request may take.
    pub limits: Limits,
    /// Whether a proxy in front says who connected.
    pub proxy_protocol: ProxyProtocol,
}

/// What a connection and a request may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a request's head.
    pub header_size: u32,
    /// Fields of a request's head.
    pub headers: u32,
    /// Requests that a connection of HTTP/2 may have under way.
    pub streams: u32,
}

/// Whether connections begin with the PROXY protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ProxyProtocol {
    /// They do not.
    #[default]
    Disabled,
    /// They may.
    Optional,
    /// All do, or they are closed.
    Required,
}

/// A connection as accepted.
#[derive(Debug)]
pub struct Accepted {
    /// The connection.
    pub stream: Transport,
    /// Who is at the other end; loopback and port 0 for a process of this machine.
    pub peer: SocketAddr,
}

/// Accepts until `stop` completes, then takes what is still queued, and closes the socket.
///
/// Connections that the kernel has completed but we have not accepted would be reset by closing: a client
/// that saw its connect succeed deserves an answer.
///
/// `failed` is told of each time that none could be accepted, for want of descriptors or memory.
pub async fn serve(
    socket: Socket,
    stop: impl Future<Output = ()>,
    mut handle: impl FnMut(Accepted),
    mut failed: impl FnMut(),
) {
    let accepting = match Accepting::new(socket) {
        Ok(accepting) => accepting,
        Err(error) => {
            tracing::error!(%error, "cannot watch a listener");
            return;
        }
    };
    let mut stop = std::pin::pin!(stop);
    let mut failures = 0_u64;
    loop {
        tokio::select! {
            // A flood of connections must not keep us from noticing the end.
            biased;
            () = &mut stop => break,
            accepted = accepting.accept() => match accepted {
                Ok(accepted) => handle(accepted),
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => {
                    failures += 1;
                    failed();
                    // Fifty a second, for as long as it lasts: said at the first, the second, the fourth and so on.
                    if failures.is_power_of_two() {
                        tracing::warn!(%error, failures, "cannot accept, pausing");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    if let Err(error) = empty_queue(accepting, handle) {
        tracing::warn!(%error, "cannot empty the accept queue");
    }
}

fn empty_queue(accepting: Accepting, mut handle: impl FnMut(Accepted)) -> io::Result<()> {
    for accepted in accepting.into_queue()? {
        match accepted {
            Ok(accepted) => handle(accepted),
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Errors that concern a connection that is already gone, not the listener.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted
    )
}
