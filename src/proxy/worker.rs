//! State of one worker thread.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::awaited::AwaitedRequests;
use super::date::DateHeader;
use super::elastic::WorkerLoad;
use super::headers::{Hop, RequestHeaderFlags};
use super::timeouts::CoarseClock;
use super::view::GenerationView;
use super::{Generation, ProxyState};
use arc_swap::ArcSwap;
use arc_swap::cache::Cache;
use weir_net::tls::handshake_limiter::HandshakeLimiter;
use weir_telemetry::metrics::WorkerMetrics;
use weir_telemetry::observe::top_keys::WorkerId;

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
    handshakes: RefCell<Vec<Rc<HandshakeLimiter>>>,
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
            handshakes: RefCell::default(),
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

    /// Returns the handshakes of the listener at this position.
    pub(super) fn handshakes(&self, listener: usize) -> Rc<HandshakeLimiter> {
        let mut all = self.handshakes.borrow_mut();
        if all.len() <= listener {
            all.resize_with(listener + 1, Rc::default);
        }
        Rc::clone(&all[listener])
    }

    /// Advances the handshakes of all listeners by one tick.
    pub(super) fn tick_handshakes(&self) {
        self.handshakes.borrow().iter().for_each(|limiter| limiter.tick());
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

    /// Counts headers in which an untrusted peer named a client or a target, and which were removed.
    pub(super) fn client_headers_removed(&self, count: usize) {
        self.metrics.record_removed_client_headers(count);
        if !self.shared.noted_client_headers.swap(true, Ordering::Relaxed) {
            tracing::info!(
                "removed a request header such as x-real-ip or x-forwarded-host of a peer that is not in \
                 client_ip.trusted_proxies; `forwarded_headers: keep` forwards them; counted in \
                 weir_untrusted_headers_removed_total, not logged again"
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
