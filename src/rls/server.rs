//! The gRPC listener of the rate limit service. Like the proxy, each worker accepts, shakes hands and responds by
//! itself.

mod budget;
mod calls;
mod connection;
mod health;
mod outbox;
mod quota;
mod ratelimit;
mod receiving;
mod reports;
mod wire;

use std::num::NonZeroUsize;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use arc_swap::ArcSwap;
use envoy_types::pb::envoy::service::rate_limit_quota::v3::rate_limit_quota_service_server::RateLimitQuotaServiceServer;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitServiceServer;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tonic_health::pb::health_server::HealthServer;

use self::budget::Budget;
use self::calls::Load;
use self::health::Health;
use self::quota::{Quota, Streams};
use self::ratelimit::RateLimit;
use self::receiving::Receiving;
use super::desk::Desk;
use crate::drain::Phase;
use crate::listener::socket::Socket;
use crate::listener::{self, AcceptedConnection};
use crate::tls::handshake_limiter::HandshakeLimiter;
use crate::tls::server::TlsServer as Tls;
use crate::worker::WorkerFailed;

/// Settings of gRPC connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Age after which a connection is closed gracefully, varied by about 10 %, so that clients resolve the service
    /// again.
    pub max_age: Duration,
    /// Maximum time for the calls in flight then.
    pub grace: Duration,
    /// Maximum connections; `None` for a share of the process's file descriptors.
    pub max: Option<NonZeroUsize>,
}

/// The listener's state, shared by all workers.
#[derive(Debug)]
pub struct Port {
    desk: Arc<Desk>,
    settings: Settings,
    security: ArcSwap<Security>,
    budget: Arc<Budget>,
    /// Quotas of all workers, because limits are divided among all clients.
    quotas: Arc<Mutex<Streams>>,
    /// Total size of incomplete messages of all streams, in bytes.
    incomplete: Arc<AtomicUsize>,
}

/// TLS of connections.
#[derive(Clone, Debug, Default)]
pub struct Security {
    /// TLS configuration; plain text if `None`.
    pub tls: Option<Arc<Tls>>,
    /// Names of which a client certificate must have one; if empty, any verified certificate is accepted.
    pub client_names: Arc<[Box<str>]>,
}

/// The gRPC services of a connection.
#[derive(Clone, Debug)]
struct Services {
    rate_limit: RateLimitServiceServer<RateLimit>,
    quota: RateLimitQuotaServiceServer<Quota>,
    health: HealthServer<Health>,
    /// Total size of incomplete messages of all streams, in bytes.
    incomplete: Arc<AtomicUsize>,
}

impl Port {
    /// Creates the state of a listener for `desk`, with at most `max` connections unless the settings have another
    /// number.
    pub fn new(desk: Arc<Desk>, settings: Settings, security: Security, max: usize) -> Self {
        let security = ArcSwap::from_pointee(security);
        let budget = Budget::new(settings.max.map_or(max, NonZeroUsize::get));
        Self { desk, settings, security, budget, quotas: Arc::default(), incomplete: Arc::default() }
    }

    /// Replaces the TLS settings for new connections.
    pub fn secure(&self, security: Security) {
        self.security.store(Arc::new(security));
    }

    /// Returns the TLS settings for new connections.
    pub fn security(&self) -> Arc<Security> {
        self.security.load_full()
    }

    fn services(&self) -> Services {
        Services {
            rate_limit: RateLimitServiceServer::new(RateLimit(Arc::clone(&self.desk))),
            quota: RateLimitQuotaServiceServer::new(Quota {
                desk: Arc::clone(&self.desk),
                streams: Arc::clone(&self.quotas),
            }),
            incomplete: Arc::clone(&self.incomplete),
            health: HealthServer::new(Health(Arc::clone(&self.desk))),
        }
    }
}

/// State that the connections of one worker share.
#[derive(Debug, Default)]
struct Shared {
    handshakes: HandshakeLimiter,
    receiving: Receiving,
    load: Rc<Load>,
}

/// Serves `socket` on this thread until the graceful shutdown has ended.
///
/// # Errors
/// If serving stops before that.
pub async fn run(port: Arc<Port>, socket: Socket) -> Result<(), WorkerFailed> {
    let drain = Arc::clone(port.desk.drain());
    let services = port.services();
    let shared = Rc::<Shared>::default();
    let connections = Rc::new(std::cell::RefCell::new(JoinSet::new()));
    let handle = |accepted: AcceptedConnection| {
        // The connection is closed; a load balancer in front connects elsewhere.
        let Some(place) = port.budget.enter() else { return };
        let (port, shared) = (Arc::clone(&port), Rc::clone(&shared));
        let serving = connection::serve(port, shared, services.clone(), accepted, place);
        let mut connections = connections.borrow_mut();
        while connections.try_join_next().is_some() {}
        connections.spawn_local(serving);
    };
    listener::serve(socket, drain.reached(Phase::Draining), handle, || {}).await;
    if drain.phase() < Phase::Draining {
        return Err(WorkerFailed("the listener of the rate limit service has stopped"));
    }
    let mut connections = connections.take();
    let all_gone = async { while connections.join_next().await.is_some() {} };
    tokio::select! {
        () = all_gone => {}
        () = drain.reached(Phase::Ended) => {}
    }
    Ok(())
}
