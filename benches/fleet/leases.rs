//! Instances that share a limit as Weir does, with its code: the limiter, and the task that calls the store.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::task::LocalSet;
use weir_limiter::algorithm::Algorithm;
use weir_limiter::algorithm::conversion::OnChange;
use weir_limiter::decision::Enforcement;
use weir_limiter::key::KeyHash;
use weir_limiter::leases::LeasePolicy;
use weir_limiter::leases::acquisition::LeaseDecision;
use weir_limiter::quota::{Limit as Count, Period, Quota, TimeUnit};
use weir_limiter::reservation::ChargeTiming;
use weir_limiter::timestamp::Timestamp;
use weir_limiter::{Check, LimitIdentity, LimitSpec, Limiter, LimiterSettings};
use weir_net::clock::Clock;
use weir_store::handle::StoreHandle;
use weir_store::lease_wait::{LeaseWaits, WaitGroup};
use weir_store::settings::{self, Credentials, Topology};
use weir_store::task::{self, StoreTaskResources};
use weir_telemetry::metrics::Metrics;

/// Maximum number of evaluations of one request, as in the proxy.
const MAX_ATTEMPTS: usize = 4;

/// A limit, and the way to share it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FleetLimit {
    pub(crate) quota: Quota,
    /// Lease policy; without one, the limit is divided by the number of instances.
    pub(crate) lease_policy: Option<LeasePolicy>,
    pub(crate) keys: u32,
}

/// Decision of a request.
#[derive(Debug)]
pub(crate) enum RequestOutcome {
    Admitted,
    Rejected,
    /// The request waits for the store.
    Waits(LeaseWaits),
}

/// One instance.
#[derive(Debug)]
pub(crate) struct LeaseInstance {
    limiter: Arc<Limiter>,
    handle: StoreHandle,
    check: Check,
    keys: Arc<[KeyHash]>,
    kill: Option<oneshot::Sender<()>>,
    /// Check of the divided limit, used while the store is unreachable.
    fallback_check: Check,
    /// Whether its part is used then.
    has_parts: bool,
}

/// Returns a limit of `count` units per second, with a burst of `count`, for each of `keys` keys.
pub(crate) fn fleet_limit(count: u32, sharing: Option<LeasePolicy>, keys: u32) -> FleetLimit {
    let count = NonZeroU32::new(count).expect("a limit above 0");
    let quota = Quota::new(Algorithm::Gcra, Count::new(count, Period::one(TimeUnit::Second)), Some(count));
    FleetLimit { quota: quota.expect("a quota"), lease_policy: sharing, keys }
}

/// Returns the settings of the store.
pub(crate) fn store_settings(topology: Topology, prefix: &str) -> settings::StoreSettings {
    settings::StoreSettings {
        topology,
        credentials: Credentials::default(),
        tls: None,
        prefix: prefix.into(),
        timeout: Duration::from_millis(50),
        registration: Duration::from_secs(60),
        weight: std::num::NonZeroU16::MIN,
        instance: None,
        regions: None,
    }
}

/// Instances that are started together, and the size of the whole fleet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FleetPart {
    /// Number of the first of them. Numbers are unique in the fleet.
    pub(crate) first: usize,
    pub(crate) count: usize,
    pub(crate) fleet_size: usize,
}

impl FleetPart {
    /// Returns all instances of a fleet.
    pub(crate) const fn entire_fleet(count: usize) -> Self {
        Self { first: 0, count, fleet_size: count }
    }
}

/// Starts instances and waits until each knows the size of the fleet. Each has its own connection to the store; one
/// thread runs all of them.
pub(crate) fn start_fleet(
    members: FleetPart,
    limit: FleetLimit,
    store: &settings::StoreSettings,
    clock: &Arc<Clock>,
) -> Vec<LeaseInstance> {
    let metrics = Metrics::new(&[]);
    let mut started = Vec::new();
    let mut tasks = Vec::new();
    for number in members.first..members.first + members.count {
        let limiter =
            Arc::new(Limiter::new(LimiterSettings { max_keys: 200_000, secret: [fastrand::u64(..), 7] }));
        let (handle, queue) = StoreHandle::new(&limiter);
        let (kill, killed) = oneshot::channel();
        let resources = StoreTaskResources {
            limiter: Arc::clone(&limiter),
            clock: Arc::clone(clock),
            handle: handle.clone(),
            metrics: metrics.store(),
            queue,
            secret: [fastrand::u64(..), fastrand::u64(..)],
            instance_id: number as u32 + 1,
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
    let size = NonZeroU32::new(members.fleet_size as u32).expect("at least one instance");
    let deadline = Instant::now() + Duration::from_secs(20);
    let is_whole = |limiter: &Limiter| limiter.fleet().instances == size;
    while limit.lease_policy.is_some() && !started.iter().all(|(limiter, ..)| is_whole(limiter)) {
        assert!(Instant::now() < deadline, "instances do not discover each other");
        std::thread::sleep(Duration::from_millis(10));
    }
    if let Some(regions) = &store.regions {
        let has_all =
            |handle: &StoreHandle| handle.region().is_some_and(|it| it.regions == regions.count.get());
        while !started.iter().all(|(_, handle, _)| has_all(handle)) {
            assert!(Instant::now() < deadline, "regions do not discover each other");
            std::thread::sleep(Duration::from_millis(10));
        }
        // They adopt one secret for keys with the next registration.
        std::thread::sleep(Duration::from_secs(3));
    }
    let mut keys: Option<Arc<[KeyHash]>> = None;
    let mut instances = Vec::new();
    for (limiter, handle, kill) in started {
        let hasher = limiter.fleet().hasher;
        let hash = || (0..limit.keys).map(|key| hasher.hash(&key.to_be_bytes())).collect();
        let keys = Arc::clone(keys.get_or_insert_with(hash));
        let [check, away] = checks(&limiter, limit, size, keys[0], clock.now());
        instances.push(LeaseInstance {
            limiter,
            handle,
            check,
            keys,
            kill: Some(kill),
            fallback_check: away,
            has_parts: limit.lease_policy.is_some_and(|policy| policy.has_parts),
        });
    }
    instances
}

fn checks(
    limiter: &Limiter,
    limit: FleetLimit,
    size: NonZeroU32,
    key: KeyHash,
    now: Timestamp,
) -> [Check; 2] {
    let spec = |rule: &str, quota, sharing| LimitSpec {
        identity: LimitIdentity { rule: rule.into(), key: "key".into() },
        quota,
        on_change: OnChange::Keep,
        lease_policy: sharing,
    };
    let divided = limit.quota.split_among(size);
    let here = match limit.lease_policy {
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

impl LeaseInstance {
    /// Decides a request as the proxy does. It may wait for the store for at most `wait`.
    pub(crate) fn decide(&self, key: u32, wait: Duration, now: Timestamp) -> RequestOutcome {
        let check = Check { key: self.keys[key as usize], ..self.check };
        for _ in 0..MAX_ATTEMPTS {
            let decision = self.limiter.check(&[check], now);
            let verdict = decision.verdicts()[0];
            if !verdict.exceeds() {
                return RequestOutcome::Admitted;
            }
            if !verdict.awaits_lease() {
                return RequestOutcome::Rejected;
            }
            if self.handle.is_unreachable() && !self.has_parts {
                let away = Check { key: check.key, ..self.fallback_check };
                let passes = !self.limiter.check(&[away], now).verdicts()[0].exceeds();
                return if passes { RequestOutcome::Admitted } else { RequestOutcome::Rejected };
            }
            let counter = self.limiter.shared_counter(&check);
            let mut waits = LeaseWaits::default();
            let left = Some(wait).filter(|wait| !wait.is_zero());
            let acquire = |source| self.limiter.acquire_units_from(source, &check, now);
            match self.handle.decide_lease(WaitGroup::Documents, counter, left, now, &mut waits, acquire) {
                LeaseDecision::Available => {}
                LeaseDecision::Pending => return RequestOutcome::Waits(waits),
                LeaseDecision::Rejected(_) | LeaseDecision::Unavailable => return RequestOutcome::Rejected,
            }
        }
        RequestOutcome::Rejected
    }

    /// Ends the task of the instance, as `kill -9` ends a process: leased units are lost.
    pub(crate) fn kill(&mut self) {
        drop(self.kill.take());
    }

    pub(crate) fn is_killed(&self) -> bool {
        self.kill.is_none()
    }
}
