//! Accepts connections of clients on one worker, and opens those that other workers hand over.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinError, JoinSet};

use super::connection::{self, ConnectionSettings};
use super::timeouts::ConnectionTimeouts;
use super::worker::Worker;
use weir_net::drain::DrainPhase;
use weir_net::listener::balance::{ConnectionBalancer, IncomingConnections};
use weir_net::listener::handover::{self, AssignedConnection, QueuedConnection, WorkerBalance};
use weir_net::listener::lifetime::ListenerLifetime;
use weir_net::listener::socket::{AcceptedSocket, Socket};
use weir_net::listener::{self, ListenerSettings, SocketKey};
use weir_net::overload::ConnectionPermit;
use weir_net::tls::server::TlsServer;
use weir_net::worker::WorkerFailed;

/// A listener of the configuration in force, as a worker is told of it.
#[derive(Debug)]
pub struct WorkerListener {
    /// Its position among the names of listeners.
    pub position: usize,
    pub settings: ListenerSettings,
    pub lifetime: Arc<ListenerLifetime>,
    /// TLS of new connections, if it has that.
    pub tls: Option<Arc<TlsServer>>,
    /// The worker's socket; `None` if it accepts on a socket with this key already.
    pub socket: Option<Socket>,
}

/// The listeners of a worker, again whenever they change: each list has all of them.
pub type ListenerUpdates = mpsc::Receiver<Vec<WorkerListener>>;

/// Permit of a connection, on its way to the worker that serves it.
#[derive(Debug)]
pub struct ListenerPermit {
    settings: AcceptSettings,
    permit: ConnectionPermit,
}

/// What new connections of a listener need.
#[derive(Clone, Debug)]
struct AcceptSettings {
    connection: ConnectionSettings,
    timeouts: ConnectionTimeouts,
    lifetime: Arc<ListenerLifetime>,
    /// Not that of the generation in force: a listener of the same name may have taken its place.
    tls: Option<Arc<TlsServer>>,
}

/// Why a task of a worker has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AcceptEnd {
    /// A reload has removed the listener.
    Removed,
    /// Otherwise; it is a failure unless the drain has begun.
    Stopped,
}

/// A socket on which a worker accepts. It is closed when this is dropped.
#[derive(Debug)]
struct ListeningSocket {
    key: SocketKey,
    settings: Rc<RefCell<AcceptSettings>>,
    _close: oneshot::Sender<()>,
}

/// Accepts the connections of one worker.
struct Acceptor {
    worker: Rc<Worker>,
    balancer: Rc<ConnectionBalancer<QueuedConnection<ListenerPermit>>>,
    sockets: Vec<ListeningSocket>,
    tasks: JoinSet<AcceptEnd>,
}

/// Accepts connections on the listeners that `updates` name, until the drain begins and the queues are empty.
///
/// # Errors
/// If accepting ends before that.
pub(super) async fn run(
    worker: &Rc<Worker>,
    mut updates: ListenerUpdates,
    balance: WorkerBalance<ListenerPermit>,
) -> Result<(), WorkerFailed> {
    let WorkerBalance { balancer, incoming } = balance;
    let (sockets, tasks) = (Vec::new(), JoinSet::new());
    let mut acceptor = Acceptor { worker: Rc::clone(worker), balancer: Rc::new(balancer), sockets, tasks };
    acceptor.receive_handovers(incoming);
    while !acceptor.tasks.is_empty() {
        tokio::select! {
            Some(listeners) = updates.recv() => acceptor.update(listeners),
            Some(ended) = acceptor.tasks.join_next() => acceptor.check_end(ended)?,
        }
    }
    Ok(())
}

impl Acceptor {
    /// Opens the connections that other workers hand over.
    fn receive_handovers(&mut self, incoming: IncomingConnections<QueuedConnection<ListenerPermit>>) {
        let worker = Rc::clone(&self.worker);
        self.tasks.spawn_local(async move {
            let stop = worker.shared.drain.wait_for_phase(DrainPhase::Draining);
            let failed = || worker.metrics.accept_failed();
            handover::receive(incoming, stop, |assigned| open(&worker, assigned), failed).await;
            AcceptEnd::Stopped
        });
    }

    /// Accepts on the sockets of `listeners` from now on, and no longer on others.
    fn update(&mut self, listeners: Vec<WorkerListener>) {
        let mut before = std::mem::take(&mut self.sockets);
        for listener in listeners {
            let (key, settings) = (listener.settings.socket_key(), AcceptSettings::new(&listener));
            match listener.socket {
                Some(socket) => self.accept_on(socket, key, settings),
                None => {
                    let Some(position) = before.iter().position(|kept| kept.key == key) else { continue };
                    let kept = before.swap_remove(position);
                    kept.settings.replace(settings);
                    self.sockets.push(kept);
                }
            }
        }
    }

    fn accept_on(&mut self, socket: Socket, key: SocketKey, settings: AcceptSettings) {
        let settings = Rc::new(RefCell::new(settings));
        let (close, closed) = oneshot::channel();
        let (worker, balancer) = (Rc::clone(&self.worker), Rc::clone(&self.balancer));
        self.tasks.spawn_local(accept(worker, balancer, Rc::clone(&settings), socket, closed));
        self.sockets.push(ListeningSocket { key, settings, _close: close });
    }

    fn check_end(&self, ended: Result<AcceptEnd, JoinError>) -> Result<(), WorkerFailed> {
        let is_early = self.worker.shared.drain.phase() < DrainPhase::Draining;
        match completed(ended)? {
            AcceptEnd::Stopped if is_early => Err(WorkerFailed("a listener has stopped")),
            AcceptEnd::Stopped | AcceptEnd::Removed => Ok(()),
        }
    }
}

/// Accepts the connections of one listener until it is removed.
async fn accept(
    worker: Rc<Worker>,
    balancer: Rc<ConnectionBalancer<QueuedConnection<ListenerPermit>>>,
    settings: Rc<RefCell<AcceptSettings>>,
    socket: Socket,
    closed: oneshot::Receiver<()>,
) -> AcceptEnd {
    let (shared, metrics) = (&worker.shared, &worker.metrics);
    let handle = |accepted: AcceptedSocket| {
        match shared.overload.acquire_connection() {
            Ok(permit) => {
                let permit = ListenerPermit { settings: settings.borrow().clone(), permit };
                let assigned = handover::assign(&balancer, accepted, permit)?;
                assigned.into_iter().for_each(|assigned| open(&worker, assigned));
            }
            Err(limit) => metrics.record_load_shed(limit),
        }
        Ok(())
    };
    let mut end = AcceptEnd::Stopped;
    let stop = async {
        tokio::select! {
            () = shared.drain.wait_for_phase(DrainPhase::Draining) => {}
            _ = closed => end = AcceptEnd::Removed,
        }
    };
    listener::serve(socket, stop, handle, || metrics.accept_failed()).await;
    end
}

impl AcceptSettings {
    fn new(listener: &WorkerListener) -> Self {
        let &ListenerSettings { proxy_protocol, limits, idle_timeout, header_timeout, .. } =
            &listener.settings;
        Self {
            connection: ConnectionSettings { listener: listener.position, proxy_protocol, limits },
            timeouts: ConnectionTimeouts::new(idle_timeout, header_timeout),
            lifetime: Arc::clone(&listener.lifetime),
            tls: listener.tls.clone(),
        }
    }
}

/// Serves a connection on this thread, in a task of its own, so that a panic ends only this connection.
fn open(worker: &Rc<Worker>, assigned: AssignedConnection<ListenerPermit>) {
    let AssignedConnection { accepted, permit: ListenerPermit { settings, permit }, place } = assigned;
    // Timed from now on, not from the first poll, so that the drain waits for the connection.
    let timer = worker.coarse_clock.add_connection(settings.timeouts, Some(settings.lifetime));
    let (worker, opened) = (Rc::clone(worker), Rc::clone(&timer));
    // Spawned as it is: a future around it would have room for it twice.
    let serving =
        connection::serve(worker, settings.connection, settings.tls, timer, accepted, permit, place);
    opened.abort_with_listener(tokio::task::spawn_local(serving).abort_handle());
}

/// Resumes the panic of a task in the task that depends on it.
pub(super) fn propagate_panic(ended: Result<(), JoinError>) -> Result<(), WorkerFailed> {
    completed(ended)
}

/// Returns the result of a task; resumes its panic in the task that depends on it.
fn completed<T>(ended: Result<T, JoinError>) -> Result<T, WorkerFailed> {
    match ended.map_err(JoinError::try_into_panic) {
        Ok(result) => Ok(result),
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        Err(Err(_)) => Err(WorkerFailed("a task was cancelled")),
    }
}
