//! The gRPC listener of the rate limit service. Like the proxy, each worker accepts, shakes hands and responds by
//! itself.

mod call;
mod calls;
mod connection;
mod connection_limiter;
mod grpc;
mod health;
mod incomplete_timer;
mod message_reader;
mod quota;
mod ratelimit;
mod report_reader;
mod response_queue;
mod wire;

use std::cell::RefCell;
use std::io;
use std::num::NonZeroUsize;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::task::JoinSet;

use self::calls::WorkerCalls;
use self::connection_limiter::ConnectionLimiter;
pub use self::connection_limiter::GrpcConnectionPermit;
use self::message_reader::MessageReader;
use self::quota::QuotaStreams;
use super::handler::RlsHandler;
use weir_net::drain::DrainPhase;
use weir_net::listener;
use weir_net::listener::balance::ConnectionBalancer;
use weir_net::listener::handover::{self, AssignedConnection, QueuedConnection, WorkerBalance};
use weir_net::listener::socket::{AcceptedSocket, Socket};
use weir_net::tls::handshake_limiter::HandshakeLimiter;
use weir_net::tls::server::TlsServer as Tls;
use weir_net::worker::WorkerFailed;
use weir_telemetry::observe::top_keys::WorkerId;

/// Settings of gRPC connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RlsConnectionSettings {
    /// Age after which a connection is closed gracefully, varied by about 10 %, so that clients resolve the service
    /// again.
    pub max_age: Duration,
    /// Maximum time for the calls in flight then.
    pub grace: Duration,
    /// Maximum connections; `None` for a share of the process's file descriptors.
    pub max_connections: Option<NonZeroUsize>,
}

/// The listener's state, shared by all workers.
#[derive(Debug)]
pub struct GrpcPort {
    handler: Arc<RlsHandler>,
    settings: RlsConnectionSettings,
    security: ArcSwap<PortSecurity>,
    connection_limiter: Arc<ConnectionLimiter>,
    /// Quotas of all workers, because limits are divided among all clients.
    quota_streams: Mutex<QuotaStreams>,
    /// Total size of incomplete messages of all streams, in bytes.
    incomplete_bytes: Arc<AtomicUsize>,
}

/// TLS of connections.
#[derive(Clone, Debug, Default)]
pub struct PortSecurity {
    /// TLS configuration; plain text if `None`.
    pub tls: Option<Arc<Tls>>,
    /// Names of which a client certificate must have one; if empty, any verified certificate is accepted.
    pub client_names: Arc<[Box<str>]>,
}

impl GrpcPort {
    /// Creates the state of a listener for `handler`, with at most `max_connections` connections unless the
    /// settings have another number.
    pub fn new(
        handler: Arc<RlsHandler>,
        settings: RlsConnectionSettings,
        security: PortSecurity,
        max_connections: usize,
    ) -> Self {
        let security = ArcSwap::from_pointee(security);
        let connection_limiter =
            ConnectionLimiter::new(settings.max_connections.map_or(max_connections, NonZeroUsize::get));
        Self {
            handler,
            settings,
            security,
            connection_limiter,
            quota_streams: Mutex::default(),
            incomplete_bytes: Arc::default(),
        }
    }

    /// Replaces the TLS settings for new connections.
    pub fn set_security(&self, security: PortSecurity) {
        self.security.store(Arc::new(security));
    }

    /// Returns the TLS settings for new connections.
    pub fn security(&self) -> Arc<PortSecurity> {
        self.security.load_full()
    }
}

/// State that the connections of one worker share.
#[derive(Debug)]
struct GrpcWorker {
    id: WorkerId,
    handshake_limiter: HandshakeLimiter,
    message_reader: MessageReader,
    calls: Rc<WorkerCalls>,
}

/// What a worker needs to open a connection, and its open connections.
#[derive(Debug)]
struct GrpcOpener {
    port: Arc<GrpcPort>,
    worker: Rc<GrpcWorker>,
    connections: RefCell<JoinSet<()>>,
}

/// Serves `sockets` on this thread, which is that of `worker`, until the graceful shutdown has ended. `balance` is this
/// worker's part of the balance of connections.
///
/// # Errors
/// If serving stops before that.
pub async fn run(
    port: Arc<GrpcPort>,
    sockets: Vec<Socket>,
    balance: WorkerBalance<GrpcConnectionPermit>,
    worker: WorkerId,
) -> Result<(), WorkerFailed> {
    let drain = Arc::clone(port.handler.drain());
    let WorkerBalance { balancer, incoming } = balance;
    let opener = Rc::new(GrpcOpener::new(port, worker));
    let balancer = Rc::new(balancer);
    let mut accepting = JoinSet::new();
    for socket in sockets {
        let (opener, balancer, drain) = (Rc::clone(&opener), Rc::clone(&balancer), Arc::clone(&drain));
        accepting.spawn_local(async move {
            let handle = |accepted| opener.assign(&balancer, accepted);
            listener::serve(socket, drain.wait_for_closing(), handle, || {}).await;
        });
    }
    let accepting = async {
        while accepting.join_next().await.is_some() {}
        match drain.phase() < DrainPhase::Draining {
            true => Err(WorkerFailed("the listener of the rate limit service has stopped")),
            false => Ok(()),
        }
    };
    let handed_over = async {
        let stop = drain.wait_for_phase(DrainPhase::Draining);
        handover::receive(incoming, stop, |assigned| opener.open(assigned), || {}).await;
        Ok(())
    };
    tokio::try_join!(accepting, handed_over)?;
    let mut connections = opener.connections.take();
    let all_closed = async { while connections.join_next().await.is_some() {} };
    tokio::select! {
        () = all_closed => {}
        () = drain.wait_for_phase(DrainPhase::Terminated) => {}
    }
    Ok(())
}

impl GrpcOpener {
    fn new(port: Arc<GrpcPort>, worker: WorkerId) -> Self {
        let worker = Rc::new(GrpcWorker {
            id: worker,
            handshake_limiter: HandshakeLimiter::default(),
            message_reader: MessageReader::default(),
            calls: Rc::default(),
        });
        Self { port, worker, connections: RefCell::default() }
    }

    /// Assigns an accepted connection to a worker.
    fn assign(
        &self,
        balancer: &ConnectionBalancer<QueuedConnection<GrpcConnectionPermit>>,
        accepted: AcceptedSocket,
    ) -> io::Result<()> {
        // The connection is closed; a load balancer in front connects elsewhere.
        let Some(permit) = self.port.connection_limiter.acquire() else { return Ok(()) };
        let assigned = handover::assign(balancer, accepted, permit)?;
        assigned.into_iter().for_each(|assigned| self.open(assigned));
        Ok(())
    }

    /// Serves a connection on this thread, in a task of its own.
    fn open(&self, assigned: AssignedConnection<GrpcConnectionPermit>) {
        let AssignedConnection { accepted, permit, place } = assigned;
        let (port, worker) = (Arc::clone(&self.port), Rc::clone(&self.worker));
        let serving = connection::serve(port, worker, accepted, permit);
        let mut connections = self.connections.borrow_mut();
        while connections.try_join_next().is_some() {}
        connections.spawn_local(async move {
            serving.await;
            drop(place);
        });
    }
}
