//! The gRPC port: every worker accepts, shakes hands and answers on its own, as the proxy does.

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
use crate::listener::{self, Accepted};
use crate::tls::handshake_limiter::HandshakeLimiter;
use crate::tls::server::Server as Tls;
use crate::worker::Unfinished;

/// How connections are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// After this, more or less a tenth of it, a connection is told to go, so that clients look anew where to go.
    pub max_age: Duration,
    /// How long it then has for what is under way.
    pub grace: Duration,
    /// Connections at once; `None` for a share of the descriptors that the process may have.
    pub max: Option<NonZeroUsize>,
}

/// What all workers share of the port.
#[derive(Debug)]
pub struct Port {
    desk: Arc<Desk>,
    settings: Settings,
    security: ArcSwap<Security>,
    budget: Arc<Budget>,
    /// Of all workers: shares are divided among all who report.
    quotas: Arc<Mutex<Streams>>,
    /// Bytes of incomplete messages of all streams.
    incomplete: Arc<AtomicUsize>,
}

/// How connections are secured.
#[derive(Clone, Debug, Default)]
pub struct Security {
    /// TLS; plain without.
    pub tls: Option<Arc<Tls>>,
    /// Names of which a client's certificate must have one; any will do if there are none.
    pub client_names: Arc<[Box<str>]>,
}

/// What is answered by.
#[derive(Clone, Debug)]
struct Services {
    rate_limit: RateLimitServiceServer<RateLimit>,
    quota: RateLimitQuotaServiceServer<Quota>,
    health: HealthServer<Health>,
    /// Bytes of incomplete messages of all streams.
    incomplete: Arc<AtomicUsize>,
}

impl Port {
    /// The port of `desk`, for `max` connections unless the settings have another number.
    pub fn new(desk: Arc<Desk>, settings: Settings, security: Security, max: usize) -> Self {
        let security = ArcSwap::from_pointee(security);
        let budget = Budget::new(settings.max.map_or(max, NonZeroUsize::get));
        Self { desk, settings, security, budget, quotas: Arc::default(), incomplete: Arc::default() }
    }

    /// From now on new connections are secured by this.
    pub fn secure(&self, security: Security) {
        self.security.store(Arc::new(security));
    }

    /// How new connections are secured now.
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

/// What the connections of one worker share.
#[derive(Debug, Default)]
struct Shared {
    handshakes: HandshakeLimiter,
    receiving: Receiving,
    load: Rc<Load>,
}

/// Answers what comes to `socket` on this thread, until the drain is over.
///
/// # Errors
/// If it has to stop before that.
pub async fn run(port: Arc<Port>, socket: Socket) -> Result<(), Unfinished> {
    let drain = Arc::clone(port.desk.drain());
    let services = port.services();
    let shared = Rc::<Shared>::default();
    let connections = Rc::new(std::cell::RefCell::new(JoinSet::new()));
    let handle = |accepted: Accepted| {
        // Without a place it is closed: what balances in front of us comes back elsewhere.
        let Some(place) = port.budget.enter() else { return };
        let (port, shared) = (Arc::clone(&port), Rc::clone(&shared));
        let serving = connection::serve(port, shared, services.clone(), accepted, place);
        let mut connections = connections.borrow_mut();
        while connections.try_join_next().is_some() {}
        connections.spawn_local(serving);
    };
    listener::serve(socket, drain.reached(Phase::Draining), handle, || {}).await;
    if drain.phase() < Phase::Draining {
        return Err(Unfinished("the port of the rate limit service has stopped"));
    }
    let mut connections = connections.take();
    let all_gone = async { while connections.join_next().await.is_some() {} };
    tokio::select! {
        () = all_gone => {}
        () = drain.reached(Phase::Ended) => {}
    }
    Ok(())
}
