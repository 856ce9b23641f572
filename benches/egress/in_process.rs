//! Waiting requests without sockets: what a queue uses of a fast limit, and what that costs.
//!
//! Requests arrive at twice the limit, each as a task of one current-thread runtime, and pass the limits as the proxy's
//! requests do. So nothing but the queue, its timers and the processor bounds the use of the limit.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Method, Uri};
use tokio::task::{JoinSet, LocalSet};
use weir_config as config;
use weir_limiter::elastic::Headroom;
use weir_limiter::timestamp::Timestamp;
use weir_limiter::{Limiter, LimiterSettings};
use weir_limits::{Admission, HeldProgress, LimitResources, LimitTables, LimitsView, PendingLimits, Woken};
use weir_net::clock::Clock;
use weir_policy::engine::Policy;
use weir_policy::identify::identify;
use weir_policy::rules::selection::Selection;
use weir_telemetry::metrics::Metrics;
use weir_telemetry::observe::top_keys::TopKeys;

use crate::cpu_time::thread_cpu_nanos;
use crate::figures::Quantiles;

/// Interval at which requests arrive.
const TICK: Duration = Duration::from_millis(1);
/// Maximum number of ticks whose requests have not been started.
const MAX_BACKLOG: u64 = 4;
/// Maximum wait of a request.
const MAX_WAIT: Duration = Duration::from_millis(500);
/// Time until the queue is full and the bursts are used up, which is not measured.
const WARM_UP: Duration = Duration::from_millis(1500);
const ALGORITHMS: [&str; 4] = ["gcra", "token_bucket", "fixed_window", "sliding_window"];
const PACES: [&str; 3] = ["none", "even", "pid"];

/// Head of the table.
pub(crate) const HEAD: &str = "| algorithm | pace | arrivals per second | use | rejected per second | wait p50, p99 ms | overtaken | by at most, requests \
     | CPU per request, µs |\n|---|---|---|---|---|---|---|---|---|";

/// A rule with a queue.
struct Scene {
    limit: u64,
    algorithm: &'static str,
    pace: &'static str,
}

/// What has become of the requests.
#[derive(Debug, Default)]
struct Outcomes {
    /// Numbers of the admitted requests in the order in which they are forwarded, and their waits in microseconds.
    admitted: Vec<(u64, u64)>,
    rejected: u64,
    /// Number of requests that have arrived.
    arrived: u64,
}

/// A worker's limits, and its clock.
struct Worker {
    policy: Arc<Policy>,
    view: Rc<LimitsView>,
    clock: Arc<Clock>,
    uri: Uri,
    headers: HeaderMap,
    outcomes: RefCell<Outcomes>,
}

/// Measures each algorithm without a pace and with each kind of pace.
#[expect(clippy::print_stdout, reason = "prints its results")]
pub(crate) fn run(limit: u64, seconds: f64) {
    println!("{HEAD}");
    for algorithm in ALGORITHMS {
        for pace in PACES {
            println!("{}", Scene { limit, algorithm, pace }.measure(seconds));
        }
    }
}

impl Scene {
    fn yaml(&self) -> String {
        let Self { limit, algorithm, pace } = self;
        let pace = if *pace == "none" { String::new() } else { format!(", pace: {pace}") };
        let burst =
            if algorithm.ends_with("window") { String::new() } else { format!("burst: {}, ", limit / 200) };
        format!(
            "listeners: 127.0.0.1:8080\nupstream: echo\nrules:\n- {{ name: q, key: [], limit: {limit}/s, {burst}algorithm: \
             {algorithm}, throttle: {{ wait: {{ max: {}ms, queue: 1000000 }}{pace} }} }}\n",
            MAX_WAIT.as_millis()
        )
    }

    fn measure(&self, seconds: f64) -> String {
        let worker = Rc::new(Worker::new(&self.yaml()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let tasks = LocalSet::new();
        let per_tick = (2 * self.limit).div_ceil(1000);
        let (took, spent) = tasks.block_on(&runtime, async {
            worker.send(per_tick, WARM_UP).await;
            worker.outcomes.take();
            let (began, cpu) = (worker.clock.now(), thread_cpu_nanos());
            worker.send(per_tick, Duration::from_secs_f64(seconds)).await;
            (worker.clock.now().since(began).as_secs_f64(), thread_cpu_nanos() - cpu)
        });
        let Outcomes { admitted, rejected, arrived } = worker.outcomes.take();
        let mut waits: Vec<u64> = admitted.iter().map(|(_, wait)| *wait).collect();
        let Quantiles { p50, p99, .. } = Quantiles::of(&mut waits);
        let (overtaken, places) = overtaken(&admitted);
        format!(
            "| {} | {} | {:.0} | {:.1} % | {:.0} | {:.1}, {:.1} | {overtaken} | {places} | {:.2} |",
            self.algorithm,
            self.pace,
            arrived as f64 / took,
            100.0 * admitted.len() as f64 / took / self.limit as f64,
            rejected as f64 / took,
            p50 as f64 / 1e3,
            p99 as f64 / 1e3,
            spent as f64 / 1e3 / (admitted.len() as f64 + rejected as f64).max(1.0),
        )
    }
}

impl Worker {
    fn new(yaml: &str) -> Self {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), yaml).unwrap();
        let policy = config::load(file.path()).unwrap().policy;
        let clock = Arc::new(Clock::start());
        let limiter = Arc::new(Limiter::new(LimiterSettings { max_keys: 100, secret: [7, 11] }));
        let policy = policy.install(1, &limiter, clock.now());
        let (metrics, top_keys) = (Metrics::new(&[]), TopKeys::default());
        let resources = LimitResources {
            limiter: &limiter,
            clock: &clock,
            metrics: &metrics,
            store: None,
            top_keys: &top_keys,
            worker: top_keys.add_worker(),
        };
        let tables = Arc::new(LimitTables::new(&policy, limiter.hasher(), &metrics, &top_keys, None));
        Self {
            policy: Arc::clone(&policy),
            view: Rc::new(LimitsView::new(&policy, &tables, &[], None, resources)),
            clock,
            uri: Uri::from_static("/"),
            headers: HeaderMap::new(),
            outcomes: RefCell::default(),
        }
    }

    /// Sends requests for this time.
    async fn send(self: &Rc<Self>, per_tick: u64, time: Duration) {
        let (begun, mut number, mut sent) = (self.clock.now(), 0, self.outcomes.borrow().arrived);
        let mut requests = JoinSet::new();
        let mut interval = tokio::time::interval(TICK);
        loop {
            interval.tick().await;
            let elapsed = self.clock.now().since(begun);
            if elapsed >= time {
                // Those that still wait belong to no measurement.
                return;
            }
            let due = (elapsed.as_secs_f64() / TICK.as_secs_f64()) as u64 * per_tick;
            // What a saturated processor cannot take is left out.
            let room = (MAX_BACKLOG * per_tick).saturating_sub(sent - self.outcomes.borrow().arrived);
            let first = due.saturating_sub(room).max(due.min(number));
            for request in first..due {
                requests.spawn_local(Rc::clone(self).pass(request));
                sent += 1;
            }
            number = number.max(due);
            while requests.try_join_next().is_some() {}
        }
    }

    /// Passes one request through the limits.
    async fn pass(self: Rc<Self>, number: u64) {
        let arrived = self.clock.now();
        self.outcomes.borrow_mut().arrived += 1;
        let Some(mut pending) = self.check(arrived) else { return };
        let delay = match pending.admission() {
            Admission::Pass(delay) => delay,
            Admission::Reject(_) => return self.outcomes.borrow_mut().rejected += 1,
            Admission::Held => {
                let mut woken = None;
                loop {
                    match pending.progress(&self.view, woken) {
                        HeldProgress::Wait(wait) => {
                            let place = pending.until_woken(wait).await;
                            woken = Some(Woken { at: self.clock.now(), place });
                        }
                        HeldProgress::Admitted(delay) => break delay.map(|delay| delay.time),
                        HeldProgress::NotAdmitted(_) => return self.outcomes.borrow_mut().rejected += 1,
                    }
                }
            }
        };
        if let Some(delay) = delay {
            tokio::time::sleep(delay).await;
        }
        let waited = self.clock.now().since(arrived).as_micros() as u64;
        self.outcomes.borrow_mut().admitted.push((number, waited));
    }

    fn check(&self, now: Timestamp) -> Option<PendingLimits> {
        let policy = &self.policy;
        let peer = IpAddr::from([192, 0, 2, 1]);
        let request = identify(&Method::GET, &self.uri, &self.headers, peer, &policy.identify, now).ok()?;
        match &mut policy.rules.select(&request, Headroom::NONE) {
            Selection::Limited(checks, rest) => {
                Some(PendingLimits::check(&self.view, checks, rest, &request, now, None))
            }
            _ => None,
        }
    }
}

/// Returns how many requests were forwarded after one that arrived later, and the most places between the two.
fn overtaken(admitted: &[(u64, u64)]) -> (usize, u64) {
    let (mut last, mut count, mut most) = (0, 0, 0);
    for (number, _) in admitted {
        if *number < last {
            count += 1;
            most = most.max(last - number);
        }
        last = last.max(*number);
    }
    (count, most)
}
