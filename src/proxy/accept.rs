//! Accepts connections of clients on one worker, and opens those that other workers hand over.

use std::rc::Rc;

use tokio::task::{JoinError, JoinSet};

use super::connection::{self, ConnectionSettings};
use super::timeouts::ConnectionTimeouts;
use super::worker::Worker;
use weir_net::drain::DrainPhase;
use weir_net::listener::balance::ConnectionBalancer;
use weir_net::listener::handover::{self, AssignedConnection, QueuedConnection, WorkerBalance};
use weir_net::listener::socket::{AcceptedSocket, Socket};
use weir_net::listener::{self, ListenerSettings};
use weir_net::overload::ConnectionPermit;
use weir_net::worker::WorkerFailed;

/// Permit of a connection, on its way to the worker that serves it.
#[derive(Debug)]
pub struct ListenerPermit {
    /// Index of the listener.
    listener: usize,
    permit: ConnectionPermit,
}

/// What a worker needs to open a connection.
#[derive(Debug)]
struct ConnectionOpener {
    worker: Rc<Worker>,
    listeners: Box<[OpenerSettings]>,
}

#[derive(Clone, Copy, Debug)]
struct OpenerSettings {
    connection: ConnectionSettings,
    timeouts: ConnectionTimeouts,
}

/// Accepts connections on `sockets`, each with its settings, until the drain begins and the queues are empty.
///
/// # Errors
/// If accepting ends before that.
pub(super) async fn run(
    worker: &Rc<Worker>,
    sockets: Vec<(ListenerSettings, Socket)>,
    balance: WorkerBalance<ListenerPermit>,
) -> Result<(), WorkerFailed> {
    let drain = &worker.shared.drain;
    let (settings, sockets): (Vec<_>, Vec<_>) = sockets.into_iter().unzip();
    let listeners = settings.iter().enumerate().map(|(index, settings)| OpenerSettings::new(index, settings));
    let opener = Rc::new(ConnectionOpener { worker: Rc::clone(worker), listeners: listeners.collect() });
    let WorkerBalance { balancer, incoming } = balance;
    let balancer = Rc::new(balancer);
    let mut accepting = JoinSet::new();
    for (listener, socket) in sockets.into_iter().enumerate() {
        accepting.spawn_local(accept(Rc::clone(&opener), Rc::clone(&balancer), listener, socket));
    }
    let stop = Rc::clone(worker);
    accepting.spawn_local(async move {
        let stop = stop.shared.drain.wait_for_phase(DrainPhase::Draining);
        let failed = || opener.worker.metrics.accept_failed();
        handover::receive(incoming, stop, |assigned| opener.open(assigned), failed).await;
    });
    while let Some(ended) = accepting.join_next().await {
        propagate_panic(ended)?;
        if drain.phase() < DrainPhase::Draining {
            return Err(WorkerFailed("a listener has stopped"));
        }
    }
    Ok(())
}

/// Accepts the connections of one listener.
async fn accept(
    opener: Rc<ConnectionOpener>,
    balancer: Rc<ConnectionBalancer<QueuedConnection<ListenerPermit>>>,
    listener: usize,
    socket: Socket,
) {
    let shared = &opener.worker.shared;
    let metrics = &opener.worker.metrics;
    let handle = |accepted: AcceptedSocket| {
        match shared.overload.acquire_connection() {
            Ok(permit) => {
                let assigned = handover::assign(&balancer, accepted, ListenerPermit { listener, permit })?;
                assigned.into_iter().for_each(|assigned| opener.open(assigned));
            }
            Err(limit) => metrics.record_load_shed(limit),
        }
        Ok(())
    };
    let stop = shared.drain.wait_for_phase(DrainPhase::Draining);
    listener::serve(socket, stop, handle, || metrics.accept_failed()).await;
}

impl OpenerSettings {
    fn new(listener: usize, settings: &ListenerSettings) -> Self {
        let &ListenerSettings { proxy_protocol, limits, .. } = settings;
        Self {
            connection: ConnectionSettings { listener, proxy_protocol, limits },
            timeouts: ConnectionTimeouts::new(settings.idle_timeout, settings.header_timeout),
        }
    }
}

impl ConnectionOpener {
    /// Serves a connection on this thread, in a task of its own, so that a panic ends only this connection.
    fn open(&self, assigned: AssignedConnection<ListenerPermit>) {
        let AssignedConnection { accepted, permit: ListenerPermit { listener, permit }, place } = assigned;
        let settings = self.listeners[listener];
        // Timed from now on, not from the first poll, so that the drain waits for the connection.
        let timer = self.worker.coarse_clock.add_connection(settings.timeouts);
        let worker = Rc::clone(&self.worker);
        // Spawned as it is: a future around it would have room for it twice.
        let serving = connection::serve(worker, settings.connection, timer, accepted, permit, place);
        drop(tokio::task::spawn_local(serving));
    }
}

/// Resumes the panic of a task in the task that depends on it.
pub(super) fn propagate_panic(ended: Result<(), JoinError>) -> Result<(), WorkerFailed> {
    match ended.map_err(JoinError::try_into_panic) {
        Ok(()) => Ok(()),
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        Err(Err(_)) => Err(WorkerFailed("a task was cancelled")),
    }
}
