//! The bound listeners: binds those of a new configuration before it is applied, and drains those that it removes.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::bind_error::BindError;
use super::tcp_address;
use crate::admin::ListenerInfo;
use crate::proxy::{Generation, WorkerListener, WorkerUpdate, WorkerUpdates};
use weir_config::Config;
use weir_net::listener::inherited::InheritedSockets;
use weir_net::listener::lifetime::ListenerLifetime;
use weir_net::listener::socket::{self, Socket};
use weir_net::listener::taken_over::{SocketDescription, TakenSockets};
use weir_net::listener::{ListenAddress, ListenerSettings, SocketKey};
use weir_telemetry::metrics::Metrics;

/// Positions are those of metrics, whose memory is bounded.
const TOO_MANY_NAMES: &str = "listeners have had 1024 names since the start; send SIGUSR2 to use others";

/// Purpose of the sockets that the service manager has passed.
const OF_SERVICE_MANAGER: &str = "service manager";

/// Maximum reloads that wait for a thread to notice them. Further ones wait with the reload.
pub(super) const MAX_UPDATES: usize = 8;

/// The bound listeners.
#[derive(Debug)]
pub(super) struct Listeners {
    /// Of each worker.
    workers: Box<[mpsc::Sender<WorkerUpdate>]>,
    bound: Mutex<Vec<BoundListener>>,
    /// The same, as the admin port shows them.
    shown: Arc<ArcSwap<Vec<ListenerInfo>>>,
    metrics: Arc<Metrics>,
    inherited: InheritedSockets,
    taken: Arc<TakenSockets>,
}

#[derive(Clone, Debug)]
struct BoundListener {
    settings: ListenerSettings,
    /// With the port that the system chose.
    address: ListenAddress,
    lifetime: Arc<ListenerLifetime>,
    /// Handles of the workers' sockets, for the process that replaces this one.
    handles: Arc<Mutex<Vec<Socket>>>,
}

/// The listeners of a configuration that is still to be applied.
#[derive(Debug, Default)]
pub(super) struct ListenerPlan(Vec<PlannedListener>);

#[derive(Debug)]
struct PlannedListener {
    bound: BoundListener,
    /// Position of its name.
    position: usize,
    /// One for each worker; none if the workers have them already.
    sockets: Vec<Socket>,
}

impl Listeners {
    /// Creates the listeners of a process with this many workers, none of which is bound yet; `taken` are the sockets of the
    /// process that it replaces. Also returns the part of each worker.
    pub(super) fn new(
        workers: usize,
        taken: &Arc<TakenSockets>,
        metrics: &Arc<Metrics>,
    ) -> (Self, Vec<WorkerUpdates>) {
        let (senders, updates): (Vec<_>, Vec<_>) = (0..workers).map(|_| mpsc::channel(MAX_UPDATES)).unzip();
        let listeners = Self {
            workers: senders.into(),
            bound: Mutex::default(),
            shown: Arc::default(),
            metrics: Arc::clone(metrics),
            inherited: inherited_sockets(taken),
            taken: Arc::clone(taken),
        };
        (listeners, updates)
    }

    /// Returns the listeners as the admin port shows them.
    pub(super) fn shown(&self) -> Arc<ArcSwap<Vec<ListenerInfo>>> {
        Arc::clone(&self.shown)
    }

    /// Returns the TCP addresses of the listeners.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.bound.lock().iter().filter_map(|bound| tcp_address(&bound.address)).collect()
    }

    /// Logs the sockets of the service manager that no listener has taken.
    pub(super) fn report_unused_sockets(&self) {
        self.inherited.report_unused();
    }

    /// Binds the listeners of `config` that are not bound yet, so that a port in use is found before anything changes.
    ///
    /// # Errors
    /// If a listener cannot be bound.
    pub(super) fn prepare(&self, config: &Config) -> Result<ListenerPlan, BindError> {
        let bound = self.bound.lock();
        let own: Vec<_> = bound.iter().filter_map(|bound| tcp_address(&bound.address)).collect();
        let plan_one = |(index, settings): (usize, &ListenerSettings)| {
            let position = self.metrics.listener(&settings.name);
            let too_many = || io::Error::other(TOO_MANY_NAMES);
            let position = position.ok_or_else(too_many).map_err(bind_error(index, settings))?;
            let key = settings.socket_key();
            if let Some(kept) = bound.iter().find(|kept| kept.settings.socket_key() == key) {
                let bound = BoundListener { settings: settings.clone(), ..kept.clone() };
                return Ok(PlannedListener { bound, position, sockets: Vec::new() });
            }
            let (bound, sockets) = self.bind(settings, &own).map_err(bind_error(index, settings))?;
            Ok(PlannedListener { bound, position, sockets })
        };
        let settings = config.listeners.iter().map(|listener| &listener.settings);
        settings.enumerate().map(plan_one).collect::<Result<_, _>>().map(ListenerPlan)
    }

    fn bind(
        &self,
        settings: &ListenerSettings,
        own: &[SocketAddr],
    ) -> io::Result<(BoundListener, Vec<Socket>)> {
        let workers = self.workers.len();
        let mut sockets = self.taken.take(&purpose(settings), workers)?;
        if sockets.is_empty() {
            sockets = match self.inherited.get(&settings.address, workers) {
                Some(sockets) => sockets?,
                None => socket::bind(&settings.address, workers, own)?,
            };
        }
        let address = sockets.first().and_then(|socket| socket.address().ok());
        let handles = sockets.iter().map(Socket::try_clone).collect::<io::Result<Vec<_>>>()?;
        let bound = BoundListener {
            settings: settings.clone(),
            address: address.unwrap_or_else(|| settings.address.clone()),
            lifetime: Arc::default(),
            handles: Arc::new(Mutex::new(handles)),
        };
        Ok((bound, sockets))
    }

    /// Returns the names of the listeners.
    pub(super) fn names(&self) -> Vec<Box<str>> {
        self.bound.lock().iter().map(|bound| bound.settings.name.clone()).collect()
    }

    /// Returns all sockets, for the process that replaces this one.
    ///
    /// # Errors
    /// The error of the system.
    pub(super) fn export(&self) -> io::Result<Vec<(SocketDescription, OwnedFd)>> {
        let mut exported = Vec::new();
        for bound in &*self.bound.lock() {
            for socket in &*bound.handles.lock() {
                exported.push(export(&purpose(&bound.settings), socket)?);
            }
        }
        for socket in self.inherited.all()? {
            exported.push(export(OF_SERVICE_MANAGER, &socket)?);
        }
        Ok(exported)
    }

    /// Closes the handles, so that the sockets close with the workers.
    pub(super) fn release(&self) {
        self.bound.lock().iter().for_each(|bound| bound.handles.lock().clear());
    }

    /// Leaves sockets to the process that replaces this one, and closes the handles of those that are not among `purposes`.
    pub(super) fn leave(&self, purposes: &[Box<str>]) {
        for bound in &*self.bound.lock() {
            let purpose = purpose(&bound.settings);
            match purposes.iter().any(|taken| **taken == purpose) {
                true => bound.handles.lock().iter().for_each(Socket::leave_file),
                false => bound.handles.lock().clear(),
            }
        }
    }

    /// Takes over the files of Unix sockets that another process has left.
    pub(super) fn claim_files(&self) {
        self.bound.lock().iter().for_each(|bound| bound.handles.lock().iter().for_each(Socket::claim_file));
    }

    /// Returns where each worker is told of changes.
    pub(super) fn workers(&self) -> Box<[mpsc::Sender<WorkerUpdate>]> {
        self.workers.clone()
    }

    /// Has the workers accept on the planned listeners, and no longer on others. Connections of the others drain as
    /// `generation` says, in which the listeners have their positions.
    pub(super) fn apply(&self, ListenerPlan(mut planned): ListenerPlan, generation: &Generation) {
        let next: Vec<_> = planned.iter().map(|planned| planned.bound.clone()).collect();
        for planned in planned.iter().filter(|planned| !planned.sockets.is_empty()) {
            let (name, address) = (&planned.bound.settings.name, &planned.bound.address);
            tracing::info!(listener = %name, %address, "listening");
        }
        let shown = next
            .iter()
            .map(|bound| ListenerInfo { name: bound.settings.name.clone(), address: bound.address.clone() });
        self.shown.store(Arc::new(shown.collect()));
        let mut shares: Vec<_> =
            planned.iter_mut().map(|planned| share_out(&mut planned.sockets, self.workers.len())).collect();
        for worker in &self.workers {
            let listeners = planned.iter().zip(&mut shares).map(|(planned, shares)| WorkerListener {
                position: planned.position,
                settings: planned.bound.settings.clone(),
                lifetime: Arc::clone(&planned.bound.lifetime),
                tls: generation.tls.get(planned.position).cloned().flatten(),
                sockets: shares.pop().unwrap_or_default(),
            });
            // A worker that has ended drains or has failed, and the process ends.
            let _ = worker.blocking_send(WorkerUpdate::Listeners(listeners.collect()));
        }
        let before = std::mem::replace(&mut *self.bound.lock(), next);
        let is_kept = |lifetime: &Arc<ListenerLifetime>| {
            planned.iter().any(|planned| Arc::ptr_eq(&planned.bound.lifetime, lifetime))
        };
        for removed in before.into_iter().filter(|bound| !is_kept(&bound.lifetime)) {
            tracing::info!(listener = %removed.settings.name, address = %removed.address, "draining");
            drain(removed.lifetime, generation.drain.timeout);
        }
    }
}

fn inherited_sockets(taken: &TakenSockets) -> InheritedSockets {
    let inherited = InheritedSockets::from_environment();
    // Fails only for lack of workers that share one.
    inherited.add(taken.take(OF_SERVICE_MANAGER, 0).unwrap_or_default());
    inherited
}

/// Returns a socket as another process takes it over.
pub(super) fn export(purpose: &str, socket: &Socket) -> io::Result<(SocketDescription, OwnedFd)> {
    Ok((SocketDescription::new(purpose, socket), socket.as_fd().try_clone_to_owned()?))
}

/// Distributes sockets among workers. There may be more than workers, if another process has had more.
fn share_out(sockets: &mut Vec<Socket>, workers: usize) -> Vec<Vec<Socket>> {
    let mut shares: Vec<_> = (0..workers).map(|_| Vec::new()).collect();
    for (index, socket) in sockets.drain(..).enumerate() {
        shares[index % workers].push(socket);
    }
    shares
}

/// Returns what the sockets of a listener are bound for.
fn purpose(settings: &ListenerSettings) -> String {
    match settings.socket_key() {
        SocketKey::Address(address) => format!("listener {address}"),
        SocketKey::Name(name) => format!("listener {name}"),
    }
}

fn bind_error(index: usize, settings: &ListenerSettings) -> impl FnOnce(io::Error) -> BindError {
    move |error| BindError::new(format!("listeners[{index}].address"), &settings.address, error)
}

/// Drains the connections of a listener, and closes those that are left after `timeout`.
fn drain(lifetime: Arc<ListenerLifetime>, timeout: Duration) {
    lifetime.drain();
    match Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn(async move {
            tokio::time::sleep(timeout).await;
            lifetime.terminate();
        })),
        Err(error) => tracing::warn!(%error, "connections of the removed listener are not closed in time"),
    }
}
