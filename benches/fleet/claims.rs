//! Instances that share a limit as Weir does, with its code: the limiter, and the task that calls the store.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::task::LocalSet;
use weir::clock::Clock;
use weir::limiter::algorithm::Algorithm;
use weir::limiter::algorithm::conversion::OnChange;
use weir::limiter::decision::Enforcement;
use weir::limiter::key::KeyHash;
use weir::limiter::leases::LeasePolicy;
use weir::limiter::quota::{Limit as Count, Period, Quota, TimeUnit};
use weir::limiter::reservation::ChargeTiming;
use weir::limiter::timestamp::Timestamp;
use weir::limiter::{Check, LimitIdentity, LimitSpec, Limiter, LimiterSettings};
use weir::store::handle::Handle;
use weir::store::settings::{self, Credentials, Topology};
use weir::store::supply::{Supply, Waiting};
use weir::store::task::{self, Resources};
use weir::telemetry::metrics::Metrics;

/// Maximum number of evaluations of one request, as in the proxy.
const MAX_ATTEMPTS: usize = 4;

/// A limit, and the way to share it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    pub(crate) quota: Quota,
    /// Lease policy; without one, the limit is divided by the number of instances.
    pub(crate) sharing: Option<LeasePolicy>,
    pub(crate) keys: u32,
}

/// Decision of a request.
#[derive(Debug)]
pub(crate) enum Decided {
    Admitted,
    Rejected,
    /// The request waits for the store.
    Waits(Waiting),
}

/// One instance.
#[derive(Debug)]
pub(crate) struct Instance {
    limiter: Arc<Limiter>,
    handle: Handle,
    check: Check,
    keys: Arc<[KeyHash]>,
    kill: Option<oneshot::Sender<()>>,
    /// Check of the divided limit, used while the store is unreachable.
    away: Check,
}

/// Returns a limit of `count` units per second, with a burst of `count`, for each of `keys` keys.
pub(crate) fn limit(count: u32, sharing: Option<LeasePolicy>, keys: u32) -> Limit {
    let count = NonZeroU32::new(count).expect("a limit above 0");
    let quota = Quota::new(Algorithm::Gcra, Count::new(count, Period::one(TimeUnit::Second)), Some(count));
    Limit { quota: quota.expect("a quota"), sharing, keys }
}

/// Returns the settings of the store.
pub(crate) fn store(topology: Topology, prefix: &str) -> settings::Settings {
    settings::Settings {
        topology,
        credentials: Credentials::default(),
        tls: None,
        prefix: prefix.into(),
        timeout: Duration::from_millis(50),
        weight: std::num::NonZeroU16::MIN,
        instance: None,
    }
}

/// Instances that are started together, and the size of the whole fleet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Members {
    /// Number of the first of them. Numbers are unique in the fleet.
    pub(crate) first: usize,
    pub(crate) count: usize,
    pub(crate) whole: usize,
}

impl Members {
    /// Returns all instances of a fleet.
    pub(crate) const fn all(count: usize) -> Self {
        Self { first: 0, count, whole: count }
    }
}

/// Starts instances and waits until each knows the size of the fleet. Each has its own connection to the store; one
/// thread runs all of them.
pub(crate) fn fleet(
    members: Members,
    limit: Limit,
    store: &settings::Settings,
    clock: &Arc<Clock>,
) -> Vec<Instance> {
    let metrics = Metrics::new(&[]);
    let mut started = Vec::new();
    let mut tasks = Vec::new();
    for number in members.first..members.first + members.count {
        let limiter =
            Arc::new(Limiter::new(LimiterSettings { max_keys: 200_000, secret: [fastrand::u64(..), 7] }));
        let (handle, queue) = Handle::new(&limiter);
        let (kill, killed) = oneshot::channel();
        let resources = Resources {
            limiter: Arc::clone(&limiter),
            clock: Arc::clone(clock),
            handle: handle.clone(),
            metrics: metrics.store(),
            queue,
            random: ([fastrand::u64(..), fastrand::u64(..)], number as u32 + 1),
        };
        let joined = {
            let limiter = Arc::clone(&limiter);
            move |fleet| limiter.join_fleet(fleet)
        };
        tasks.push((store.clone(), resources, joined, killed));
        started.push((limiter, handle, kill));
    }
    std::thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let local = LocalSet::new();
        for (settings, resources, joined, killed) in tasks {
            local.spawn_local(async move {
                tokio::select! {
                    () = task::run(&settings, resources, joined) => {}
                    _ = killed => {}
                }
            });
        }
        runtime.block_on(local);
    });
    let size = NonZeroU32::new(members.whole as u32).expect("at least one instance");
    let patience = Instant::now() + Duration::from_secs(20);
    let is_whole = |limiter: &Limiter| limiter.fleet().instances == size;
    while limit.sharing.is_some() && !started.iter().all(|(limiter, ..)| is_whole(limiter)) {
        assert!(Instant::now() < patience, "instances do not discover each other");
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut keys: Option<Arc<[KeyHash]>> = None;
    let mut instances = Vec::new();
    for (limiter, handle, kill) in started {
        let hasher = limiter.fleet().hasher;
        let hash = || (0..limit.keys).map(|key| hasher.hash(&key.to_be_bytes())).collect();
        let keys = Arc::clone(keys.get_or_insert_with(hash));
        let [check, away] = checks(&limiter, limit, size, keys[0], clock.now());
        instances.push(Instance { limiter, handle, check, keys, kill: Some(kill), away });
    }
    instances
}

fn checks(limiter: &Limiter, limit: Limit, size: NonZeroU32, key: KeyHash, now: Timestamp) -> [Check; 2] {
    let spec = |rule: &str, quota, sharing| LimitSpec {
        identity: LimitIdentity { rule: rule.into(), key: "key".into() },
        quota,
        on_change: OnChange::Keep,
        lease_policy: sharing,
    };
    let divided = limit.quota.split_among(size);
    let here = match limit.sharing {
        Some(sharing) => spec("fleet", limit.quota.leased().expect("a limit"), Some(sharing)),
        None => spec("fleet", divided, None),
    };
    let meters = limiter.install(&[here, spec("away", divided, None)], now);
    [meters[0], meters[1]].map(|meter| Check {
        handle: meter,
        key,
        cost: 1,
        enforcement: Enforcement::Enforced,
        charge_timing: ChargeTiming::OnArrival,
        options: None,
    })
}

impl Instance {
    /// Decides a request as the proxy does. It may wait for the store for at most `wait`.
    pub(crate) fn decide(&self, key: u32, wait: Duration, now: Timestamp) -> Decided {
        let check = Check { key: self.keys[key as usize], ..self.check };
        for _ in 0..MAX_ATTEMPTS {
            let decision = self.limiter.check(&[check], now);
            let verdict = decision.verdicts()[0];
            if !verdict.exceeds() {
                return Decided::Admitted;
            }
            if !verdict.awaits_lease() {
                return Decided::Rejected;
            }
            if self.handle.is_away() {
                let away = Check { key: check.key, ..self.away };
                let passes = !self.limiter.check(&[away], now).verdicts()[0].exceeds();
                return if passes { Decided::Admitted } else { Decided::Rejected };
            }
            let counter = self.limiter.shared_counter(&check);
            match self.handle.supply(counter, self.limiter.acquire_units(&check, now), wait) {
                Supply::There => {}
                Supply::Asked(lacking) => return Decided::Waits(lacking.into()),
                Supply::Rejected(_) | Supply::Away => return Decided::Rejected,
            }
        }
        Decided::Rejected
    }

    /// Ends the task of the instance, as `kill -9` ends a process: leased units are lost.
    pub(crate) fn kill(&mut self) {
        drop(self.kill.take());
    }

    pub(crate) fn is_killed(&self) -> bool {
        self.kill.is_none()
    }
}
