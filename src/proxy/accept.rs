//! Accepts connections of clients on one worker, and opens those that other workers hand over.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinError, JoinSet};

use super::connection::replacement::ArrivedConnection;
use super::connection::{self, ConnectionSecurity, ConnectionSettings};
use super::headers::PeerTls;
use super::timeouts::ConnectionTimeouts;
use super::worker::Worker;
use weir_net::drain::{Closing, DrainPhase};
use weir_net::listener::balance::{ConnectionBalancer, IncomingConnections};
use weir_net::listener::handover::{self, AssignedConnection, QueuedConnection, WorkerBalance};
use weir_net::listener::lifetime::ListenerLifetime;
use weir_net::listener::socket::{AcceptedSocket, Socket};
use weir_net::listener::{self, ListenerSettings, ProxyProtocol, SocketKey};
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
    /// The worker's sockets; none if it accepts on sockets with this key already.
    pub sockets: Vec<Socket>,
}

/// What a worker is told while it runs.
#[derive(Debug)]
pub enum WorkerUpdate {
    /// All listeners, whenever they have changed.
    Listeners(Vec<WorkerListener>),
    /// The phase of the replacement has changed. The worker drops the sender once it decides no more by the last one.
    Replacement(std::sync::mpsc::SyncSender<()>),
    /// A connection of the process that this one replaces.
    Connection(Box<ArrivedConnection>),
}

/// What a worker is told while it runs.
pub type WorkerUpdates = mpsc::Receiver<WorkerUpdate>;

/// Permit of a connection, on its way to the worker that serves it.
#[derive(Debug)]
pub struct ListenerPermit {
    settings: AcceptSettings,
    permit: ConnectionPermit,
}

/// What new connections of a listener need.
#[derive(Debug)]
struct AcceptSettings {
    connection: ConnectionSettings,
    timeouts: ConnectionTimeouts,
    lifetime: Arc<ListenerLifetime>,
    /// Not that of the generation in force: a listener of the same name may have taken its place.
    tls: Option<Arc<TlsServer>>,
    /// Instead of `tls`, for a connection of the process that this one replaces.
    tls_elsewhere: Option<Box<PeerTls>>,
}

/// Why a task of a worker has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AcceptEnd {
    /// A reload has removed the listener.
    Removed,
    /// Otherwise; it is a failure unless the drain has begun.
    Stopped,
}

/// The sockets of a listener on which a worker accepts. They are closed when this is dropped.
#[derive(Debug)]
struct ListeningSockets {
    name: Box<str>,
    key: SocketKey,
    settings: Rc<RefCell<AcceptSettings>>,
    _close: Vec<oneshot::Sender<()>>,
}

/// Accepts the connections of one worker.
struct Acceptor {
    worker: Rc<Worker>,
    balancer: Rc<ConnectionBalancer<QueuedConnection<ListenerPermit>>>,
    sockets: Vec<ListeningSockets>,
    tasks: JoinSet<AcceptEnd>,
}

/// Accepts connections on the listeners that `updates` name, until the drain begins and the queues are empty.
///
/// # Errors
/// If accepting ends before that.
pub(super) async fn run(
    worker: &Rc<Worker>,
    mut updates: WorkerUpdates,
    balance: WorkerBalance<ListenerPermit>,
) -> Result<(), WorkerFailed> {
    let WorkerBalance { balancer, incoming } = balance;
    let (sockets, tasks) = (Vec::new(), JoinSet::new());
    let mut acceptor = Acceptor { worker: Rc::clone(worker), balancer: Rc::new(balancer), sockets, tasks };
    acceptor.receive_handovers(incoming);
    while !acceptor.tasks.is_empty() {
        tokio::select! {
            Some(update) = updates.recv() => acceptor.handle(update),
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

    fn handle(&mut self, update: WorkerUpdate) {
        match update {
            WorkerUpdate::Listeners(listeners) => self.update(listeners),
            WorkerUpdate::Replacement(noticed) => {
                self.worker.coarse_clock.wake_all();
                // This thread is between two decisions.
                drop(noticed);
            }
            WorkerUpdate::Connection(arrived) => self.adopt(*arrived),
        }
    }

    /// Accepts on the sockets of `listeners` from now on, and no longer on others.
    fn update(&mut self, listeners: Vec<WorkerListener>) {
        let mut before = std::mem::take(&mut self.sockets);
        for mut listener in listeners {
            let sockets = std::mem::take(&mut listener.sockets);
            let (key, settings) = (listener.settings.socket_key(), AcceptSettings::new(&listener));
            if sockets.is_empty() {
                let Some(position) = before.iter().position(|kept| kept.key == key) else { continue };
                let kept = before.swap_remove(position);
                kept.settings.replace(settings);
                self.sockets.push(ListeningSockets { name: listener.settings.name, ..kept });
            } else {
                self.accept_on(sockets, listener.settings.name, key, settings);
            }
        }
    }

    fn accept_on(&mut self, sockets: Vec<Socket>, name: Box<str>, key: SocketKey, settings: AcceptSettings) {
        let settings = Rc::new(RefCell::new(settings));
        let accept_on = |socket| {
            let (close, closed) = oneshot::channel();
            let (worker, balancer) = (Rc::clone(&self.worker), Rc::clone(&self.balancer));
            self.tasks.spawn_local(accept(worker, balancer, Rc::clone(&settings), socket, closed));
            close
        };
        let close = sockets.into_iter().map(accept_on).collect();
        self.sockets.push(ListeningSockets { name, key, settings, _close: close });
    }

    /// Serves a connection of the process that this one replaces.
    fn adopt(&self, arrived: ArrivedConnection) {
        let ArrivedConnection { listener, socket, tls, stays_behind } = arrived;
        let Some(listener) = self.sockets.iter().find(|known| known.name == listener) else {
            tracing::debug!(%listener, "closed a connection of the old process: its listener is gone");
            return;
        };
        let shared = &self.worker.shared;
        let permit = match shared.overload.acquire_connection() {
            Ok(permit) => permit,
            Err(limit) => return self.worker.metrics.record_load_shed(limit),
        };
        let mut settings = listener.settings.borrow().for_connection();
        // Both have been done with.
        (settings.tls, settings.connection.proxy_protocol) = (None, ProxyProtocol::Disabled);
        settings.tls_elsewhere = tls;
        if stays_behind {
            settings.lifetime = Arc::default();
            settings.lifetime.drain();
        }
        match handover::assign(&self.balancer, socket, ListenerPermit { settings, permit }) {
            Ok(assigned) => assigned.into_iter().for_each(|assigned| open(&self.worker, assigned)),
            Err(error) => {
                self.worker.metrics.accept_failed();
                tracing::warn!(%error, "cannot register a connection of the old process");
            }
        }
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
                let permit = ListenerPermit { settings: settings.borrow().for_connection(), permit };
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
            closing = shared.drain.wait_for_closing() => closing,
            _ = closed => {
                end = AcceptEnd::Removed;
                Closing::Close
            }
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
            tls_elsewhere: None,
        }
    }

    /// Returns the settings of a connection that the listener has accepted.
    fn for_connection(&self) -> Self {
        let &Self { connection, timeouts, .. } = self;
        let (lifetime, tls) = (Arc::clone(&self.lifetime), self.tls.clone());
        Self { connection, timeouts, lifetime, tls, tls_elsewhere: None }
    }

    fn security(tls: Option<Arc<TlsServer>>, elsewhere: Option<Box<PeerTls>>) -> ConnectionSecurity {
        match (elsewhere, tls) {
            (Some(peer), _) => ConnectionSecurity::Elsewhere(peer),
            (None, Some(server)) => ConnectionSecurity::Handshake(server),
            (None, None) => ConnectionSecurity::Plain,
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
    let security = AcceptSettings::security(settings.tls, settings.tls_elsewhere);
    let serving = connection::serve(worker, settings.connection, security, timer, accepted, permit, place);
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
