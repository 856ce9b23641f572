//! Accepted connections on their way to the worker that serves them.

use std::io;

use super::AcceptedConnection;
use super::balance::{
    BalanceMember, ConnectionBalancer, ConnectionPlace, IncomingConnections, PlacedConnection, ReservedPlace,
};
use super::socket::AcceptedSocket;

/// A connection that this thread is to serve.
#[derive(Debug)]
pub struct AssignedConnection<P> {
    pub accepted: AcceptedConnection,
    /// Its permit, which the accepting worker acquired.
    pub permit: P,
    /// To be kept while the connection is open.
    pub place: ConnectionPlace,
}

/// A connection in the queue of another worker.
#[derive(Debug)]
pub struct QueuedConnection<P> {
    socket: AcceptedSocket,
    permit: P,
}

/// One worker's part of the balance of connections.
pub type WorkerBalance<P> = BalanceMember<QueuedConnection<P>>;

/// Chooses the worker of a connection that this one has accepted, and hands it over. Returns the connection if this worker is
/// to serve it: it has been chosen, or the other worker cannot take the connection.
///
/// # Errors
/// As [`AcceptedSocket::register`].
pub fn assign<P>(
    balancer: &ConnectionBalancer<QueuedConnection<P>>,
    socket: AcceptedSocket,
    permit: P,
) -> io::Result<Option<AssignedConnection<P>>> {
    let connection = QueuedConnection { socket, permit };
    let own = match balancer.reserve() {
        ReservedPlace::Own(place) => Some(PlacedConnection { connection, place }),
        ReservedPlace::Other(handover) => handover.send(connection),
    };
    own.map(register).transpose()
}

/// Passes the connections that other workers hand over to `handle`, until `stop` completes and the queue is empty. `failed`
/// is called for each one that cannot be registered, and is closed.
pub async fn receive<P>(
    incoming: IncomingConnections<QueuedConnection<P>>,
    stop: impl Future<Output = ()>,
    mut handle: impl FnMut(AssignedConnection<P>),
    mut failed: impl FnMut(),
) {
    let mut failures = 0_u64;
    let handle = |placed| match register(placed) {
        Ok(assigned) => handle(assigned),
        Err(error) => {
            failures += 1;
            failed();
            // Logged only at the 1st, 2nd, 4th, 8th and so on.
            if failures.is_power_of_two() {
                tracing::warn!(%error, failures, "cannot register a connection of another worker");
            }
        }
    };
    incoming.serve(stop, handle).await;
}

fn register<P>(placed: PlacedConnection<QueuedConnection<P>>) -> io::Result<AssignedConnection<P>> {
    let PlacedConnection { connection: QueuedConnection { socket, permit }, place } = placed;
    Ok(AssignedConnection { accepted: socket.register()?, permit, place })
}
