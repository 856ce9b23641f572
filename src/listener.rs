//! Sockets: binding them for every worker, and accepting from them until the drain.
//!
//! Knows nothing of HTTP: what is done with a connection is the handler's business.

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};

/// Connections that may wait for us in the kernel; the system's own cap applies on top.
const BACKLOG: i32 = 4096;
/// Pause after an accept that failed for want of descriptors or memory: time for some to be given back.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// One place where clients connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Name in metrics and logs; its address unless configured.
    pub name: Box<str>,
    /// Where to listen; port 0 lets the system choose.
    pub address: SocketAddr,
    /// From a request's first byte to the end of its head.
    pub header_timeout: Duration,
    /// How long a connection may stay without a request.
    pub idle_timeout: Duration,
}

/// A connection as accepted.
#[derive(Debug)]
pub struct Accepted {
    /// The connection.
    pub stream: TcpStream,
    /// Who is at the other end.
    pub peer: SocketAddr,
}

/// Binds `address` once per worker.
///
/// # Errors
/// What the system says, in particular `AddrInUse`: also where another process shares ports with itself.
pub fn bind(address: SocketAddr, workers: usize) -> io::Result<Vec<StdListener>> {
    let socket = open(address)?;
    socket.bind(&address.into())?;
    if workers <= 1 {
        return Ok(vec![listen(socket)?]);
    }
    // With SO_REUSEPORT a second Weir would join in unnoticed; the plain bind above has ruled that out.
    let address = socket.local_addr()?.as_socket().unwrap_or(address);
    drop(socket);
    (0..workers)
        .map(|_| {
            let socket = open(address)?;
            socket.set_reuse_port(true)?;
            socket.bind(&address.into())?;
            listen(socket)
        })
        .collect()
}

fn open(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // A restart must not wait for the connections of its predecessor to be forgotten.
    socket.set_reuse_address(true)?;
    Ok(socket)
}

fn listen(socket: Socket) -> io::Result<StdListener> {
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Accepts until `stop` completes, then takes what is still queued, and closes the socket.
///
/// Connections that the kernel has completed but we have not accepted would be reset by closing: a client
/// that saw its connect succeed deserves an answer.
pub async fn serve(listener: StdListener, stop: impl Future<Output = ()>, mut handle: impl FnMut(Accepted)) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
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
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => handle(Accepted { stream, peer }),
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept, pausing");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    if let Err(error) = empty_queue(listener, handle) {
        tracing::warn!(%error, "cannot empty the accept queue");
    }
}

/// Takes what the kernel has queued, asking the socket itself: the runtime would stop at its budget.
fn empty_queue(listener: TcpListener, mut handle: impl FnMut(Accepted)) -> io::Result<()> {
    let listener = listener.into_std()?;
    loop {
        match listener.accept() {
            Ok((stream, peer)) => {
                stream.set_nonblocking(true)?;
                handle(Accepted { stream: TcpStream::from_std(stream)?, peer });
            }
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// Errors that concern a connection that is already gone, not the listener.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loopback() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 0))
    }

    #[test]
    fn every_worker_gets_a_socket_on_the_same_port() {
        let sockets = bind(loopback(), 3).unwrap();
        let ports: std::collections::HashSet<_> =
            sockets.iter().map(|socket| socket.local_addr().unwrap().port()).collect();
        assert_eq!((sockets.len(), ports.len()), (3, 1));
    }

    #[test]
    fn a_port_in_use_is_an_error_for_any_number_of_workers() {
        for (first, second) in [(1, 1), (2, 2), (1, 2), (2, 1)] {
            let sockets = bind(loopback(), first).unwrap();
            let error = bind(sockets[0].local_addr().unwrap(), second).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{first} {second}");
        }
    }
}
