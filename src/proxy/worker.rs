//! One worker thread: its state, and the loops that accept connections and keep its time.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arc_swap::ArcSwap;
use arc_swap::cache::Cache;
use tokio::task::{JoinError, JoinSet};

use super::connection::{self, ListenerSettings};
use super::date::Date;
use super::elastic::Load;
use super::headers::{Hop, RequestHeaderFlags};
use super::timeouts::{ConnectionTimeouts, SlowClock, TICK};
use super::view::View;
use super::{Generation, Shared};
use crate::drain::Phase;
use crate::listener::socket::Socket;
use crate::listener::{self, Accepted};
use crate::telemetry::metrics::WorkerMetrics;
use crate::tls::handshake_limiter::HandshakeLimiter;
use crate::worker::Unfinished;

/// Slow-clock ticks in a second.
const TICKS_PER_SECOND: u32 = 10;

/// The state of one worker thread.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) shared: Arc<Shared>,
    pub(super) slow_clock: Rc<SlowClock>,
    pub(super) date: Date,
    pub(super) metrics: Rc<WorkerMetrics>,
    pub(super) generation: RefCell<Cache<Arc<ArcSwap<Generation>>, Arc<Generation>>>,
    pub(super) view: RefCell<Rc<View>>,
    pub(super) random: RefCell<fastrand::Rng>,
    pub(super) load: Arc<Load>,
    /// The TLS handshakes in progress, by listener.
    pub(super) handshakes: Box<[HandshakeLimiter]>,
}

/// Serves `sockets` (beside their settings) on this thread until the drain is over.
///
/// # Errors
/// If it has to stop before that. A panic of what keeps time or accepts goes on here: without either, the
/// thread would look alive and serve nobody.
pub async fn run(shared: Arc<Shared>, sockets: Vec<(listener::Settings, Socket)>) -> Result<(), Unfinished> {
    let worker = Rc::new(Worker::new(Arc::clone(&shared)));
    let mut ticking = tokio::task::spawn_local(keep_time(Rc::clone(&worker)));
    let served = tokio::select! {
        served = serve(&worker, sockets) => served,
        ended = &mut ticking => pass_on(ended).and(Err(Unfinished("time stands still"))),
    };
    ticking.abort();
    served
}

async fn serve(worker: &Rc<Worker>, sockets: Vec<(listener::Settings, Socket)>) -> Result<(), Unfinished> {
    let shared = &worker.shared;
    let mut accepting = JoinSet::new();
    for (index, (settings, socket)) in sockets.into_iter().enumerate() {
        let timeouts = ConnectionTimeouts::new(settings.idle_timeout, settings.header_timeout);
        let (worker, shared) = (Rc::clone(worker), Arc::clone(shared));
        accepting.spawn_local(async move {
            let handle = |accepted: Accepted| {
                let permit = match shared.overload.acquire_connection() {
                    Ok(permit) => permit,
                    Err(limit) => return worker.metrics.load_shed(limit),
                };
                // Timed from now on, not from its first poll: the drain must know of it.
                let timer = worker.slow_clock.add_connection(timeouts);
                let proxy_protocol = settings.proxy_protocol;
                let settings = ListenerSettings { listener: index, proxy_protocol, limits: settings.limits };
                // A task of its own: what panics in it ends with it, and with nothing else.
                let serving = connection::serve(Rc::clone(&worker), settings, timer, accepted, permit);
                drop(tokio::task::spawn_local(serving));
            };
            let failed = || worker.metrics.accept_failed();
            listener::serve(socket, shared.drain.reached(Phase::Draining), handle, failed).await;
        });
    }
    while let Some(ended) = accepting.join_next().await {
        pass_on(ended)?;
        if shared.drain.phase() < Phase::Draining {
            return Err(Unfinished("a listener has stopped"));
        }
    }
    worker.slow_clock.drain();
    let ended = shared.drain.reached(Phase::Ended);
    tokio::select! {
        () = worker.slow_clock.until_all_closed() => {}
        () = ended => {}
    }
    Ok(())
}

/// A panic of a task becomes one of the task that needs it.
fn pass_on(ended: Result<(), JoinError>) -> Result<(), Unfinished> {
    match ended.map_err(JoinError::try_into_panic) {
        Ok(()) => Ok(()),
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        Err(Err(_)) => Err(Unfinished("a task was cancelled")),
    }
}

/// Moves the slow clock on, and what depends on it.
async fn keep_time(worker: Rc<Worker>) {
    let mut interval = tokio::time::interval(TICK);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for tick in 0_u32.. {
        interval.tick().await;
        worker.slow_clock.tick();
        worker.date.renew(worker.shared.clock.civil_now());
        worker.handshakes.iter().for_each(HandshakeLimiter::tick);
        worker.view().upstreams.iter().for_each(|upstream| upstream.tick());
        if tick % TICKS_PER_SECOND == 0 {
            worker.view().upstreams.iter().for_each(|upstream| upstream.age());
        }
    }
}

impl Worker {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let metrics = Rc::new(shared.metrics.worker());
        let mut generation = Cache::new(Arc::clone(&shared.generation));
        let now = generation.load();
        let view = View::new(now, None, &shared);
        Self {
            slow_clock: Rc::default(),
            date: Date::new(shared.clock.civil_now()),
            metrics,
            generation: RefCell::new(generation),
            view: RefCell::new(Rc::new(view)),
            random: RefCell::new(fastrand::Rng::new()),
            load: shared.elastic.worker(),
            handshakes: shared.generation.load().tls.iter().map(|_| HandshakeLimiter::default()).collect(),
            shared,
        }
    }

    /// The generation in force.
    pub(super) fn view(&self) -> Rc<View> {
        let mut generation = self.generation.borrow_mut();
        let now = generation.load();
        let mut view = self.view.borrow_mut();
        if !Arc::ptr_eq(&view.policy, &now.policy) {
            *view = Rc::new(View::new(now, Some(&view), &self.shared));
        }
        Rc::clone(&view)
    }

    pub(super) fn random(&self) -> u128 {
        self.random.borrow_mut().u128(..)
    }

    /// A private peer that forwards for others but is not trusted is most likely an ingress: then per-address
    /// limits count the ingress. Said once.
    pub(super) fn warn_of_untrusted_proxy(&self, hop: &Hop<'_>, flags: RequestHeaderFlags) {
        if hop.client.peer_is_trusted || !flags.forwarded_for {
            return;
        }
        if is_private(hop.peer) && !self.shared.warned_of_proxy.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                peer = %hop.peer,
                "x-forwarded-for from a private address that is not among client_ip.trusted_proxies is ignored: \
                 if it is your ingress, limits by client_ip count the ingress, not its clients"
            );
        }
    }
}

fn is_private(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(v4) => v4.is_private() || v4.is_loopback() || v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unique_local() || v6.is_loopback() || v6.is_unicast_link_local(),
    }
}
