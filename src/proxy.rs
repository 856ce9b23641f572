//! HTTP between clients and the upstream, with the limiter in between.
//!
//! `service` is the request path; the other files are its steps. Everything here belongs to one worker
//! thread, except what [`Shared`] holds.

pub mod activity;
pub mod elastic;
pub mod fallback;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;

mod answers;
mod asking;
mod body;
mod connection;
mod date;
mod deadline;
mod exchange;
mod forward;
mod grpc;
mod headers;
mod limits;
mod policies;
mod reply;
mod retry;
mod service;
mod settle;
mod stream;
mod tunnel;

use std::borrow::Cow;
use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use arc_swap::cache::Cache;
use tokio::task::{JoinError, JoinSet};

use self::activity::{Patience, SlowClock, TICK};
use self::connection::{Entrance, Handshakes};
use self::date::Date;
use self::elastic::{Elastic, Load};
use self::fallback::Fallbacks;
use self::headers::{Given, Hop};
use self::policies::Policies;
use crate::clock::Clock;
use crate::drain::{Drain, Phase};
use crate::engine::Policy;
use crate::identify::Attributes;
use crate::limiter::Limiter;
use crate::limiter::elastic::signal::Signals;
use crate::listener::socket::Socket;
use crate::listener::{self, Accepted};
use crate::overload::{Overload, Refusal as Overloaded};
use crate::remote;
use crate::remote::service::Service;
use crate::response::Visibility;
use crate::response::rate_limit_headers::Notation;
use crate::response::refusal::{Prepared, Refusal};
use crate::rules::RuleIndex;
use crate::rules::rule::{Rule, RuleLimit};
use crate::rules::selection::Selected;
use crate::telemetry::access_log::AccessLog;
use crate::telemetry::metrics::{DecisionOutcome, Metrics, RuleMetrics, TurnedAway, WorkerMetrics};
use crate::telemetry::spans::Tracer;
use crate::tls::server::Server;
use crate::upstream::Upstream;
use crate::upstream::cluster::Cluster;
use crate::worker::Unfinished;

/// Slow-clock ticks in a second.
const TICKS_PER_SECOND: u32 = 10;

/// What all workers share.
#[derive(Debug)]
pub struct Shared {
    /// The generation in force.
    pub generation: Arc<ArcSwap<Generation>>,
    /// The counters.
    pub limiter: Arc<Limiter>,
    /// The time.
    pub clock: Arc<Clock>,
    /// The end.
    pub drain: Arc<Drain>,
    /// The numbers.
    pub metrics: Arc<Metrics>,
    /// The access log, if there is one.
    pub access_log: Option<AccessLog>,
    /// Who begins spans, if anybody does.
    pub tracer: Option<Arc<Tracer>>,
    /// How far elastic limits may grow.
    pub elastic: Elastic,
    /// How much may be under way.
    pub overload: Arc<Overload>,
    /// Whether a client behind an untrusted private proxy has been warned of already.
    pub warned_of_proxy: AtomicBool,
}

/// All that a request needs of one configuration, replaced as one.
#[derive(Debug)]
pub struct Generation {
    /// How requests are decided.
    pub policy: Arc<Policy>,
    /// Where they go, in the order of the routes. Upstreams whose settings stay the same keep their place, and
    /// with it the connections made to them.
    pub upstreams: Box<[Arc<Cluster>]>,
    /// What is kept for those who are refused.
    pub fallbacks: Arc<Fallbacks>,
    /// What elastic limits go by.
    pub elastic: Signals,
    /// TLS, beside the listeners.
    pub tls: Box<[Option<Arc<Server>>]>,
    /// Who keeps limits of rules, if others do.
    pub services: Box<[remote::service::Settings]>,
}

/// One worker's part: everything a request touches without crossing threads.
#[derive(Debug)]
pub(crate) struct Worker {
    shared: Arc<Shared>,
    slow_clock: Rc<SlowClock>,
    date: Date,
    metrics: Rc<WorkerMetrics>,
    generation: RefCell<Cache<Arc<ArcSwap<Generation>>, Arc<Generation>>>,
    view: RefCell<Rc<View>>,
    random: RefCell<fastrand::Rng>,
    load: Arc<Load>,
    /// TLS handshakes under way, beside the listeners.
    handshakes: Box<[Handshakes]>,
}

/// One generation as a worker sees it; a request keeps the view it began with.
#[derive(Debug)]
struct View {
    policy: Arc<Policy>,
    rules: Box<[RuleMetrics]>,
    /// How each rule's limits are written, beside the rules.
    notations: Box<[Box<[Notation]>]>,
    /// The same in the IETF draft's fields.
    policies: Policies,
    /// The headers of each rule's refusals, where they can be had ready.
    prepared: Box<[Option<Prepared>]>,
    upstreams: Box<[Rc<Upstream>]>,
    /// How long bodies may stand still before it is known where they go.
    stall: Duration,
    fallbacks: Arc<Fallbacks>,
    /// TLS, beside the listeners.
    tls: Box<[Option<Arc<Server>>]>,
    services: Box<[Rc<Service>]>,
    default_refusal: Refusal,
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
        let patience = Patience::new(settings.idle_timeout, settings.header_timeout);
        let (worker, shared) = (Rc::clone(worker), Arc::clone(shared));
        accepting.spawn_local(async move {
            let handle = |accepted: Accepted| {
                let place = match shared.overload.connect() {
                    Ok(place) => place,
                    Err(refusal) => return worker.turn_away(refusal),
                };
                // Watched from now on, not from its first turn: the drain must know of it.
                let activity = worker.slow_clock.watch(patience);
                let proxy_protocol = settings.proxy_protocol;
                let entrance = Entrance { listener: index, proxy_protocol, limits: settings.limits };
                // A task of its own: what panics in it ends with it, and with nothing else.
                let serving = connection::serve(Rc::clone(&worker), entrance, activity, accepted, place);
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

/// A panic of a task becomes one of whoever needs it.
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
        worker.handshakes.iter().for_each(Handshakes::tick);
        worker.view().upstreams.iter().for_each(|upstream| upstream.tick());
        if tick % TICKS_PER_SECOND == 0 {
            worker.view().upstreams.iter().for_each(|upstream| upstream.age());
        }
    }
}

impl Worker {
    fn new(shared: Arc<Shared>) -> Self {
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
            handshakes: shared.generation.load().tls.iter().map(|_| Handshakes::default()).collect(),
            shared,
        }
    }

    /// The generation in force.
    fn view(&self) -> Rc<View> {
        let mut generation = self.generation.borrow_mut();
        let now = generation.load();
        let mut view = self.view.borrow_mut();
        if !Arc::ptr_eq(&view.policy, &now.policy) {
            *view = Rc::new(View::new(now, Some(&view), &self.shared));
        }
        Rc::clone(&view)
    }

    /// Notes that somebody is turned away.
    fn turn_away(&self, refusal: Overloaded) {
        self.metrics.turned_away(match refusal {
            Overloaded::Connections => TurnedAway::Connections,
            Overloaded::Client => TurnedAway::Client,
            Overloaded::Requests => TurnedAway::Requests,
            Overloaded::Memory => TurnedAway::Memory,
        });
    }

    fn random(&self) -> u128 {
        self.random.borrow_mut().u128(..)
    }

    /// A private peer that forwards for others but is not trusted is most likely an ingress: then per-address
    /// limits count the ingress. Said once.
    fn warn_of_untrusted_proxy(&self, hop: &Hop<'_>, given: Given) {
        if hop.client.peer_is_trusted || !given.forwarded_for {
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

impl View {
    /// A view of `generation`. The connections to whatever stays are as good as `before`.
    fn new(generation: &Generation, before: Option<&Self>, shared: &Shared) -> Self {
        let (policy, all) = (&generation.policy, &shared.metrics);
        let rules = policy.rules.rules();
        let notations: Box<[_]> = rules.iter().map(notations).collect();
        let visible = policy.response.ratelimit_headers != Visibility::Off && !policy.response.ietf_headers;
        let prepare = |((rule, refusal), notations): ((&Rule, &Refusal), &[Notation])| match notations {
            [only] if visible && !rule.is_elastic() => Prepared::new(&refusal.headers, only),
            _ => None,
        };
        let prepared =
            rules.iter().zip(&policy.rejections).zip(notations.iter().map(|of| &**of)).map(prepare);
        let upstream = |cluster| {
            let mut known = before.into_iter().flat_map(|before| &before.upstreams);
            let kept = known.find(|kept| Arc::ptr_eq(kept.cluster(), cluster));
            kept.map_or_else(|| Rc::new(Upstream::new(cluster, all)), Rc::clone)
        };
        let service = |settings| {
            let mut known = before.into_iter().flat_map(|before| &before.services);
            known.find(|kept| kept.settings() == settings).map_or_else(|| asked(settings, shared), Rc::clone)
        };
        let stalls = generation.upstreams.iter().map(|cluster| cluster.settings().idle_timeout);
        Self {
            policy: Arc::clone(policy),
            prepared: prepared.collect(),
            rules: rules.iter().map(|rule| all.rule(&rule.name)).collect(),
            notations,
            policies: Policies::of(rules, shared.limiter.hasher()),
            stall: stalls.max().unwrap_or_default(),
            upstreams: generation.upstreams.iter().map(upstream).collect(),
            fallbacks: Arc::clone(&generation.fallbacks),
            tls: generation.tls.clone(),
            services: generation.services.iter().map(service).collect(),
            default_refusal: Refusal::default(),
        }
    }

    fn record(&self, rule: RuleIndex, outcome: DecisionOutcome) {
        if let Some(metrics) = self.rules.get(rule.0) {
            metrics.record(outcome);
        }
    }

    fn rule_name(&self, rule: RuleIndex) -> &str {
        self.policy.rules.get(rule).map_or("", |rule| &rule.name)
    }

    fn notation(&self, selected: &Selected) -> Option<&Notation> {
        self.notations.get(selected.rule.0)?.get(selected.part.told()?)
    }

    fn prepared(&self, rule: RuleIndex) -> Option<&Prepared> {
        self.prepared.get(rule.0)?.as_ref()
    }

    fn refusal(&self, rule: RuleIndex) -> &Refusal {
        self.policy.rejection(rule).unwrap_or(&self.default_refusal)
    }

    /// Which upstream takes the request.
    fn upstream(&self, request: &Attributes<'_>) -> Option<&Rc<Upstream>> {
        self.upstreams.get(self.policy.routes.choose(request)?)
    }
}

/// A service that has not been asked before.
fn asked(settings: &remote::service::Settings, shared: &Shared) -> Rc<Service> {
    let metrics = shared.metrics.remote(&settings.place.to_string());
    let service = Service::new(settings.clone(), Arc::clone(&shared.clock), metrics);
    tokio::task::spawn_local(service.connect());
    Rc::new(service)
}

fn notations(rule: &Rule) -> Box<[Notation]> {
    rule.limits().iter().map(|limit| Notation::new(&limit_name(rule, limit), &limit.quota)).collect()
}

/// Nested networks are told apart by what they are.
fn limit_name<'a>(rule: &'a Rule, limit: &RuleLimit) -> Cow<'a, str> {
    match &limit.nested {
        Some(nested) => format!("{}/{}", rule.counter(), nested.prefix).into(),
        None => Cow::Borrowed(rule.counter()),
    }
}

fn is_private(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(v4) => v4.is_private() || v4.is_loopback() || v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unique_local() || v6.is_loopback() || v6.is_unicast_link_local(),
    }
}
