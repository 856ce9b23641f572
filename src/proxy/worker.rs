//! One worker thread: its state, and the task that advances its clock.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arc_swap::ArcSwap;
use arc_swap::cache::Cache;
use tokio::task::JoinHandle;

use super::accept::{self, ListenerPermit, propagate_panic};
use super::awaited::AwaitedRequests;
use super::date::DateHeader;
use super::deferred;
use super::elastic::WorkerLoad;
use super::headers::{Hop, RequestHeaderFlags};
use super::timeouts::{CoarseClock, TICK};
use super::view::GenerationView;
use super::{Generation, ProxyState};
use weir_http::http1::memory_pool;
use weir_net::drain::DrainPhase;
use weir_net::listener::ListenerSettings;
use weir_net::listener::handover::WorkerBalance;
use weir_net::listener::socket::Socket;
use weir_net::tls::handshake_limiter::HandshakeLimiter;
use weir_net::worker::WorkerFailed;
use weir_store::deferred::handle::DeferredHandle;
use weir_telemetry::metrics::WorkerMetrics;
use weir_telemetry::observe::top_keys::WorkerId;

/// Ticks of the coarse clock in a second.
const TICKS_PER_SECOND: u32 = 10;

/// Interval at which a worker without connections looks for a new configuration. Timers below 4096 ms wake the runtime once
/// before they expire, longer ones twice.
const IDLE_INTERVAL: Duration = Duration::from_secs(4);

/// State of one worker thread.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) shared: Arc<ProxyState>,
    pub(super) coarse_clock: Rc<CoarseClock>,
    pub(super) date: DateHeader,
    pub(super) metrics: Rc<WorkerMetrics>,
    pub(super) generation: RefCell<Cache<Arc<ArcSwap<Generation>>, Arc<Generation>>>,
    pub(super) view: RefCell<Rc<GenerationView>>,
    /// This worker among those that count keys.
    key_counter: WorkerId,
    pub(super) random: RefCell<fastrand::Rng>,
    pub(super) load: Arc<WorkerLoad>,
    /// Requests that are awaited without their clients.
    pub(super) awaited: AwaitedRequests,
    /// TLS handshakes in progress, by listener.
    pub(super) handshakes: Box<[HandshakeLimiter]>,
}

/// Serves `sockets`, each with its settings, on this thread until the drain is over. `balance` is this worker's part of
/// the balance of connections, and `key_counter` counts its keys.
///
/// # Errors
/// If the worker has to stop before that.
///
/// # Panics
/// If the task that keeps time or one that accepts connections panics: without them, the thread would appear alive and
/// serve no requests.
pub async fn run(
    shared: Arc<ProxyState>,
    sockets: Vec<(ListenerSettings, Socket)>,
    balance: WorkerBalance<ListenerPermit>,
    key_counter: WorkerId,
) -> Result<(), WorkerFailed> {
    let worker = Rc::new(Worker::new(Arc::clone(&shared), key_counter));
    let mut ticking = tokio::task::spawn_local(run_clock(Rc::clone(&worker)));
    let deferred = shared.deferred.as_ref().map(DeferredHandle::add_worker);
    let sending =
        deferred.map(|calls| tokio::task::spawn_local(deferred::send::run(Rc::clone(&worker), calls)));
    let served = tokio::select! {
        served = serve(&worker, sockets, balance) => served,
        ended = &mut ticking => propagate_panic(ended).and(Err(WorkerFailed("the coarse clock has stopped"))),
    };
    ticking.abort();
    sending.iter().for_each(JoinHandle::abort);
    served
}

async fn serve(
    worker: &Rc<Worker>,
    sockets: Vec<(ListenerSettings, Socket)>,
    balance: WorkerBalance<ListenerPermit>,
) -> Result<(), WorkerFailed> {
    accept::run(worker, sockets, balance).await?;
    worker.coarse_clock.drain();
    let ended = worker.shared.drain.wait_for_phase(DrainPhase::Terminated);
    tokio::select! {
        () = worker.coarse_clock.until_all_closed() => {}
        () = ended => {}
    }
    Ok(())
}

/// Advances the coarse clock and everything that depends on it.
async fn run_clock(worker: Rc<Worker>) {
    let mut interval = tokio::time::interval(TICK);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for tick in 0_u32.. {
        if is_unused(&worker) {
            stop_clock(&worker).await;
            interval.reset();
        }
        interval.tick().await;
        worker.coarse_clock.tick();
        worker.date.renew(worker.shared.clock.civil_now());
        worker.handshakes.iter().for_each(HandshakeLimiter::tick);
        let view = worker.view();
        view.upstreams.iter().for_each(|upstream| upstream.tick());
        view.forward_proxies.iter().flatten().for_each(|pool| pool.tick());
        if tick % TICKS_PER_SECOND == 0 {
            view.upstreams.iter().for_each(|upstream| upstream.tick_second());
            view.forward_proxies.iter().flatten().for_each(|pool| pool.tick_second());
            memory_pool::trim();
        }
    }
}

/// Whether nothing depends on the coarse clock: there is no connection from a client or to an upstream.
fn is_unused(worker: &Worker) -> bool {
    worker.coarse_clock.is_unused()
        && worker.view().upstreams.iter().all(|upstream| upstream.is_unconnected())
        && worker.view().forward_proxies.iter().flatten().all(|pool| pool.is_empty())
}

/// Waits for a connection, so that an idle process does not wake up ten times a second.
async fn stop_clock(worker: &Worker) {
    while tokio::time::timeout(IDLE_INTERVAL, worker.coarse_clock.until_used()).await.is_err() {
        // Drops the generation before a reload.
        drop(worker.view());
        memory_pool::trim();
    }
    worker.date.renew(worker.shared.clock.civil_now());
}

impl Worker {
    pub(super) fn new(shared: Arc<ProxyState>, key_counter: WorkerId) -> Self {
        let metrics = Rc::new(shared.metrics.worker());
        let mut generation = Cache::new(Arc::clone(&shared.generation));
        let now = generation.load();
        let view = GenerationView::new(now, None, &shared, key_counter);
        Self {
            coarse_clock: Rc::default(),
            date: DateHeader::new(shared.clock.civil_now()),
            metrics,
            generation: RefCell::new(generation),
            view: RefCell::new(Rc::new(view)),
            key_counter,
            random: RefCell::new(fastrand::Rng::new()),
            load: shared.elastic.add_worker(),
            awaited: AwaitedRequests::default(),
            handshakes: shared.generation.load().tls.iter().map(|_| HandshakeLimiter::default()).collect(),
            shared,
        }
    }

    /// Returns the view of the generation in force.
    pub(super) fn view(&self) -> Rc<GenerationView> {
        let mut generation = self.generation.borrow_mut();
        let now = generation.load();
        let mut view = self.view.borrow_mut();
        if !Arc::ptr_eq(&view.policy, &now.policy) {
            *view = Rc::new(GenerationView::new(now, Some(&view), &self.shared, self.key_counter));
        }
        Rc::clone(&view)
    }

    pub(super) fn random(&self) -> u128 {
        self.random.borrow_mut().u128(..)
    }

    /// Counts request headers that were removed because their names differ from others only in `-` and `_`.
    pub(super) fn headers_removed(&self, count: usize) {
        self.metrics.record_removed_headers(count);
        if !self.shared.warned_of_header_twins.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "removed a request header whose name differs only in `-` and `_` from one that rules or the upstream \
                 trust: services behind CGI, WSGI or PHP read both as one; counted in \
                 weir_request_headers_removed_total, not logged again"
            );
        }
    }

    /// Warns, once, of a private peer that forwards requests but is not trusted. It is most likely an ingress, and
    /// limits per address would then count the ingress.
    pub(super) fn warn_of_untrusted_proxy(&self, hop: &Hop<'_>, flags: RequestHeaderFlags) {
        if hop.client.peer_is_trusted || !flags.forwarded_for {
            return;
        }
        if is_private(hop.peer) && !self.shared.warned_of_untrusted_proxy.swap(true, Ordering::Relaxed) {
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
