//! Accepted connections on their way to the worker that serves them.

use super::AcceptedConnection;
use super::balance::{
    BalanceMember, ConnectionBalancer, ConnectionPlace, IncomingConnections, PlacedConnection, ReservedPlace,
};
use super::socket::{AcceptedSocket, DetachedSocket};

/// A connection that this thread is to serve.
#[derive(Debug)]
pub struct AssignedConnection<P> {
    /// The connection.
    pub accepted: AcceptedConnection,
    /// Its permit, which the accepting worker acquired.
    pub permit: P,
    /// To be kept while the connection is open.
    pub place: ConnectionPlace,
}

/// A connection in the queue of another worker.
#[derive(Debug)]
pub struct QueuedConnection<P> {
    socket: DetachedSocket,
    permit: P,
}

/// One worker's part of the balance of connections.
pub type WorkerBalance<P> = BalanceMember<QueuedConnection<P>>;

/// Chooses the worker of a connection that this one has accepted, and hands it over unless it is this worker.
pub fn assign<P>(
    balancer: &ConnectionBalancer<QueuedConnection<P>>,
    accepted: AcceptedSocket,
    permit: P,
) -> Option<AssignedConnection<P>> {
    let handover = match balancer.reserve() {
        ReservedPlace::Own(place) => {
            return Some(AssignedConnection { accepted: accepted.into(), permit, place });
        }
        ReservedPlace::Other(handover) => handover,
    };
    let detached = accepted.detach();
    let socket =
        detached.inspect_err(|error| tracing::warn!(%error, "cannot hand over a connection")).ok()?;
    register(handover.send(QueuedConnection { socket, permit })?)
}

/// Passes the connections that other workers hand over to `handle`, until `stop` completes and the queue is empty.
pub async fn receive<P>(
    incoming: IncomingConnections<QueuedConnection<P>>,
    stop: impl Future<Output = ()>,
    mut handle: impl FnMut(AssignedConnection<P>),
) {
    incoming.serve(stop, |placed| register(placed).into_iter().for_each(&mut handle)).await;
}

fn register<P>(placed: PlacedConnection<QueuedConnection<P>>) -> Option<AssignedConnection<P>> {
    let PlacedConnection { connection: QueuedConnection { socket, permit }, place } = placed;
    let registered = socket.register();
    let accepted =
        registered.inspect_err(|error| tracing::warn!(%error, "cannot register a connection")).ok()?;
    Some(AssignedConnection { accepted: accepted.into(), permit, place })
}
