//! Sockets: binding them for every worker, and accepting from them until the drain.
//!
//! Knows nothing of HTTP: what is done with a connection is the handler's business.

pub mod address;
pub mod socket;
pub mod transport;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

pub use self::address::Address;
use self::socket::{Accepting, Socket};
use self::transport::Transport;

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
pub async fn serve(socket: Socket, stop: impl Future<Output = ()>, mut handle: impl FnMut(Accepted)) {
    let accepting = match Accepting::new(socket) {
        Ok(accepting) => accepting,
        Err(error) => {
            tracing::error!(%error, "cannot watch a listener");
            return;
        }
    };
    let mut stop = std::pin::pin!(stop);
    loop {
        tokio::select! {
            // A flood of connections must not keep us from noticing the end.
            biased;
            () = &mut stop => break,
            accepted = accepting.accept() => match accepted {
                Ok(accepted) => handle(accepted),
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept, pausing");
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
