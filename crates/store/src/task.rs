//! Task that communicates with the store, on a thread of its own, apart from all requests.

pub(crate) mod calls;
mod regions;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use self::calls::StoreCalls;
use super::handle::{LeaseWaiter, QueuedCounter, StoreHandle};
use super::protocol::{self, InstanceInfo};
use super::redis::CallError;
use super::regions::Region;
use super::regions::calls::GlobalCalls;
use super::regions::errands::{ErrandBatch, ErrandOutcome};
use super::regions::link::RegionLink;
use super::scheduler::{BatchReply, LeaseBatch, LeaseScheduler};
use super::settings::StoreSettings;
use weir_limiter::feedback::sharing::SharedKeyState;
use weir_limiter::feedback::states::RuleFeedback;
use weir_limiter::key::KeyHasher;
use weir_limiter::leases::{AfterGrant, AppliedGrant, LeaseRequest, LeaseResponse, SharedCounter};
use weir_limiter::timestamp::Timestamp;
use weir_limiter::{Fleet, Limiter};
use weir_net::clock::Clock;
use weir_net::jitter::{backoff, equal_jitter};
use weir_telemetry::metrics::{StoreMetrics, StoreOutcome, Unanswered};

/// Interval between two registrations of an instance in a small fleet.
const MIN_HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum registrations per second of a whole fleet, as far as [`MAX_HEARTBEAT_INTERVAL`] permits.
const MAX_FLEET_HEARTBEATS_PER_SECOND: u32 = 32;
/// Maximum interval between two registrations of an instance.
const MAX_HEARTBEAT_INTERVAL: Duration = Duration::from_secs(4);
/// Maximum delay before a ban is reported to the store.
const MAX_BAN_REPORT_DELAY: Duration = Duration::from_millis(100);
/// Number of missed registrations after which an instance counts as gone.
const MAX_MISSED_HEARTBEATS: u32 = 4;
/// Time after which a counter is reviewed that needed units while the store was unreachable.
const REVIEW_AFTER: Duration = Duration::from_secs(1);
/// Maximum rounds in which leases are given up, with the last look that finds none.
const MAX_GIVE_UP_ROUNDS: u32 = 5;
/// Base of the exponential backoff between attempts to reach an unreachable store; the maximum follows.
const BASE_PROBE_DELAY: Duration = Duration::from_millis(40);
const MAX_PROBE_DELAY: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub struct StoreTaskResources {
    /// The limiter with the counters.
    pub limiter: Arc<Limiter>,
    /// The process's clock.
    pub clock: Arc<Clock>,
    /// The workers' handle to the store.
    pub handle: StoreHandle,
    /// Metrics of calls.
    pub metrics: StoreMetrics,
    /// Receiving end of the handle's queue.
    pub queue: mpsc::Receiver<QueuedCounter>,
    /// Random secret for the fleet, if it has none yet.
    pub secret: [u64; 2],
    /// Random number of this instance.
    pub instance_id: u32,
}

/// State of the task.
struct StoreTask<F> {
    store: Arc<StoreCalls>,
    limiter: Arc<Limiter>,
    clock: Arc<Clock>,
    handle: StoreHandle,
    metrics: StoreMetrics,
    scheduler: LeaseScheduler,
    /// Requests that wait for a query which is not sent yet.
    waiters: BTreeMap<SharedCounter, Vec<LeaseWaiter>>,
    /// Requests that wait for a query in flight.
    sent_waiters: BTreeMap<SharedCounter, Vec<LeaseWaiter>>,
    in_flight: JoinSet<CompletedCall>,
    instance: String,
    /// Random secret for the fleet, if it has none yet.
    secret: [u64; 2],
    /// Consecutive failed registrations.
    failures: u32,
    next_heartbeat: Instant,
    is_registering: bool,
    /// Whether requests whose wait ended without a response have been reported.
    has_reported_unanswered: bool,
    /// Fleet size in the last reply. A change takes effect when two consecutive replies agree.
    reported_instances: u32,
    on_fleet_change: F,
    /// Rounds of queries that are left to give up all leases, while the process ends.
    give_up_rounds: u32,
    region_link: Option<RegionLink>,
    /// Whether failed errands have been reported.
    has_reported_errands: bool,
}

/// Result of a call.
enum CompletedCall {
    Leased(LeaseBatch, Result<BatchReply, CallError>),
    Registered(Timestamp, Result<([u64; 2], u32), CallError>),
    RegionRegistered(Result<([u64; 2], u32), CallError>),
    ErrandsMade(ErrandBatch, Result<Vec<ErrandOutcome>, CallError>),
    /// What other instances know of the provider of a rule, and when the query was sent.
    Followed(Arc<RuleFeedback>, Timestamp, Result<Vec<SharedKeyState>, CallError>),
}

/// Communicates with the store while it is polled. `on_fleet_change` is called with the fleet's secret and
/// size when they are known, and whenever they change.
pub async fn run(
    settings: &StoreSettings,
    resources: StoreTaskResources,
    on_fleet_change: impl FnMut(Fleet),
) {
    let StoreTaskResources { limiter, clock, handle, metrics, queue, secret, instance_id } = resources;
    let instance = settings.instance.as_deref().map_or_else(|| format!("{instance_id:08x}"), str::to_owned);
    let store = match StoreCalls::new(settings, &instance) {
        Ok(store) => Arc::new(store),
        Err(error) => {
            tracing::error!(%error, "cannot set up TLS for the store: limits are not shared");
            return;
        }
    };
    let region = settings
        .regions
        .as_ref()
        .map(|it| Region::new(&it.name, it.count, settings.registration, it.keeps_allotment));
    let region_link = match settings.regions.as_ref().map(|it| GlobalCalls::new(it, &instance)).transpose() {
        Ok(calls) => calls.zip(region).map(|(calls, region)| RegionLink::new(calls, region.count().get())),
        Err(error) => {
            tracing::error!(%error, "cannot set up TLS for the global store: limits are not shared");
            return;
        }
    };
    let weight = f64::from(settings.weight.get());
    let parts = Arc::clone(handle.parts());
    let task = StoreTask {
        store,
        limiter,
        clock,
        handle,
        metrics,
        scheduler: LeaseScheduler::new(
            InstanceInfo { id: instance_id, weight, instances: 1, clock_lead: 0 },
            protocol::group_count(&settings.topology),
        )
        .with_parts(parts, settings.registration)
        .with_region(region),
        waiters: BTreeMap::new(),
        sent_waiters: BTreeMap::new(),
        in_flight: JoinSet::new(),
        instance,
        secret,
        failures: 0,
        next_heartbeat: Instant::now(),
        is_registering: false,
        has_reported_unanswered: false,
        reported_instances: 0,
        on_fleet_change,
        give_up_rounds: 0,
        region_link,
        has_reported_errands: false,
    };
    task.run(queue).await;
}

impl<F: FnMut(Fleet)> StoreTask<F> {
    async fn run(mut self, mut queue: mpsc::Receiver<QueuedCounter>) {
        loop {
            // Requests that are in a query must be known before its response.
            while let Ok(queued) = queue.try_recv() {
                self.handle_queued(queued);
            }
            let now = self.clock.now();
            let due = self.scheduler.review_due(&self.limiter, now);
            if !self.handle.is_unreachable() {
                self.limiter
                    .take_unreported_bans()
                    .into_iter()
                    .for_each(|counter| self.scheduler.enqueue_ban(counter));
                self.limiter
                    .take_unreported_debts()
                    .into_iter()
                    .for_each(|counter| self.scheduler.schedule_review(counter, now));
            }
            // A renewal of a call that may not arrive would put off when the part may be spent.
            self.scheduler.renews_parts = !self.handle.is_unreachable() && self.handle.parts().are_used();
            self.continue_to_give_up();
            self.start_calls();
            self.start_regional_calls();
            self.report_unanswered();
            let due = due.into_iter().chain(self.scheduler.next_renewal()).min();
            let after = due.map_or(MIN_HEARTBEAT_INTERVAL, |due| due.since(self.clock.now()));
            let after = if self.limiter.has_shared_bans() { after.min(MAX_BAN_REPORT_DELAY) } else { after };
            let after = self.regional_work_after().map_or(after, |regional| after.min(regional));
            let wake = self.next_heartbeat.min(Instant::now() + after);
            tokio::select! {
                queued = queue.recv() => {
                    let Some(queued) = queued else { return };
                    self.handle_queued(queued);
                }
                Some(completed) = self.in_flight.join_next() => {
                    if let Ok(completed) = completed {
                        self.handle_completed(completed);
                    }
                }
                () = self.handle.wait_for_give_up() => self.give_up_rounds = MAX_GIVE_UP_ROUNDS,
                () = self.handle.query_dropped() => self.wake_waiters_of_dropped_queries(),
                () = sleep_until(wake) => self.send_heartbeat(),
            }
        }
    }

    /// Returns unspent units once no query is in flight, because its response may bring others.
    fn continue_to_give_up(&mut self) {
        if self.give_up_rounds == 0 || !self.scheduler.is_idle() {
            return;
        }
        self.give_up_rounds -= 1;
        let has_parts = self.scheduler.renews_parts && self.scheduler.give_up_parts(self.clock.now());
        let counters = match self.give_up_rounds == 0 || self.handle.is_unreachable() {
            true => Vec::new(),
            false => self.limiter.give_up_leases(self.clock.now()),
        };
        if counters.is_empty() && !has_parts {
            self.give_up_rounds = 0;
            self.handle.set_given_up();
        }
        counters.into_iter().for_each(|counter| self.scheduler.enqueue(counter));
    }

    fn handle_queued(&mut self, queued: QueuedCounter) {
        let QueuedCounter { counter, needs_query, waiter } = queued;
        if self.handle.is_unreachable() {
            if needs_query {
                self.limiter.cancel_request(counter);
                // What is known of a counter without the store is dropped once it does not matter any more.
                self.scheduler.schedule_review(counter, self.clock.now().saturating_add(REVIEW_AFTER));
            }
            return;
        }
        if needs_query {
            self.scheduler.enqueue(counter);
        }
        if let Some(waiter) = waiter {
            if self.limiter.is_request_pending(counter) {
                self.waiters.entry(counter).or_default().push(waiter);
            } else {
                // The store has responded meanwhile.
                waiter.wake(LeaseResponse::Units);
            }
        }
    }

    /// Starts all calls that are due.
    fn start_calls(&mut self) {
        let response_at = Instant::now() + self.scheduler.overload_latency(self.clock.now());
        while let Some(batch) = self.next_batch(response_at) {
            for LeaseRequest { counter, .. } in &batch.requests {
                if let Some(waiters) = self.waiters.remove(counter) {
                    self.sent_waiters.insert(*counter, waiters);
                }
            }
            let store = Arc::clone(&self.store);
            let generation = format!("{:016x}", self.secret[0] ^ self.clock.now().as_nanos());
            self.in_flight.spawn_local(async move {
                let replied = store.request_leases(&batch, generation).await;
                CompletedCall::Leased(batch, replied)
            });
        }
        // They find out when they are decided again.
        for counter in self.scheduler.take_removed() {
            self.waiters
                .remove(&counter)
                .into_iter()
                .flatten()
                .for_each(|waiter| waiter.wake(LeaseResponse::Units));
        }
    }

    /// Returns the next call that is due, without queries whose requests have all stopped waiting, or will before the store
    /// responds at `response_at`. Later requests query again.
    fn next_batch(&mut self, response_at: Instant) -> Option<LeaseBatch> {
        let waiters = &mut self.waiters;
        let is_hopeless = |waiter: &LeaseWaiter| waiter.sender.is_closed() || waiter.deadline < response_at;
        let mut is_abandoned = |counter| {
            let has_no_waiter = waiters.get(&counter).is_some_and(|all| all.iter().all(is_hopeless));
            if has_no_waiter {
                waiters.remove(&counter);
            }
            has_no_waiter
        };
        self.scheduler.next_batch(&self.limiter, self.clock.now(), &mut is_abandoned)
    }

    fn handle_completed(&mut self, completed: CompletedCall) {
        match completed {
            CompletedCall::Leased(batch, Ok(reply)) => {
                let now = self.clock.now();
                self.metrics.record_call(StoreOutcome::Ok, now.since(batch.sent_at));
                let (metrics, mut applied) = (&self.metrics, Vec::with_capacity(batch.requests.len()));
                self.scheduler.apply_reply(&batch, &reply, &self.limiter, now, |request, grant, result| {
                    metrics.record_lease_request(grant.granted, request.returned.units);
                    applied.push((request.counter, result));
                });
                self.wake_waiters(&applied);
                self.repeat_waiters(&batch);
                self.update_wait();
            }
            CompletedCall::Leased(batch, Err(error)) => {
                self.metrics.record_call(error.outcome(), Duration::ZERO);
                self.scheduler.apply_failure(&batch, &self.limiter, self.clock.now());
                self.update_wait();
                self.mark_unreachable(&error);
            }
            CompletedCall::Registered(sent_at, Ok((secret, instances))) => {
                self.is_registering = false;
                self.record_other_call(sent_at);
                self.handle_registration(secret, instances);
                self.exchange_feedback();
                self.next_heartbeat = Instant::now() + self.heartbeat_interval();
            }
            CompletedCall::RegionRegistered(registered) => self.handle_region_registration(registered),
            CompletedCall::ErrandsMade(batch, made) => self.handle_errands(&batch, made),
            CompletedCall::Followed(rule, sent_at, Ok(states)) => {
                let now = self.clock.now();
                states.iter().for_each(|state| rule.adopt(state, sent_at, now, &self.limiter));
            }
            CompletedCall::Followed(_, _, Err(error)) => {
                self.metrics.record_call(error.outcome(), Duration::ZERO);
            }
            CompletedCall::Registered(sent_at, Err(error)) => {
                self.is_registering = false;
                self.metrics.record_call(error.outcome(), Duration::ZERO);
                self.record_other_call(sent_at);
                self.mark_unreachable(&error);
                self.failures = self.failures.saturating_add(1);
                self.next_heartbeat =
                    Instant::now() + equal_jitter(backoff(BASE_PROBE_DELAY, MAX_PROBE_DELAY, self.failures));
            }
        }
    }

    /// Wakes the requests that wait for these counters, so that they decide again. Those that arrived after the query wait
    /// for the next one, if there is one.
    fn wake_waiters(&mut self, applied: &[(SharedCounter, AppliedGrant)]) {
        for (counter, AppliedGrant { next, response }) in applied {
            let included = self.sent_waiters.remove(counter).into_iter().flatten();
            included.for_each(|waiter| waiter.wake(*response));
            if *next != AfterGrant::Query {
                self.waiters
                    .remove(counter)
                    .into_iter()
                    .flatten()
                    .for_each(|waiter| waiter.wake(LeaseResponse::Units));
            }
        }
    }

    /// Lets requests wait for a further query if that about their counter has to be repeated.
    fn repeat_waiters(&mut self, batch: &LeaseBatch) {
        for LeaseRequest { counter, .. } in &batch.requests {
            if let Some(waiters) = self.sent_waiters.remove(counter) {
                self.waiters.entry(*counter).or_default().extend(waiters);
            }
        }
    }

    /// Records the time of a call that does not query counters, or that has failed.
    fn record_other_call(&mut self, sent_at: Timestamp) {
        let now = self.clock.now();
        self.scheduler.record_other_call(now.since(sent_at), now);
        self.update_wait();
    }

    /// Tells the workers how long requests wait by default.
    fn update_wait(&self) {
        let wait = self.scheduler.default_wait(self.clock.now());
        self.handle.set_default_wait(wait);
        self.metrics.set_default_wait(wait);
    }

    /// Counts requests whose wait ended without a response, and warns of the first.
    fn report_unanswered(&mut self) {
        let counts = Unanswered::ALL.map(|reason| (reason, self.handle.take_unanswered(reason)));
        let Some((reason, requests)) = counts.into_iter().find(|(_, requests)| *requests > 0) else { return };
        self.handle.report_unanswered_limits(self.clock.now());
        for (reason, requests) in counts {
            self.metrics.record_unanswered(reason, requests);
        }
        if !std::mem::replace(&mut self.has_reported_unanswered, true) {
            let wait = self.scheduler.default_wait(self.clock.now());
            tracing::warn!(
                requests,
                reason = reason.as_str(),
                default_wait = ?wait,
                "the store did not respond within `wait`: `on_store_loss` decided; reported once, \
                 weir_store_unanswered_total counts them"
            );
        }
    }

    /// Wakes requests that wait for a query which another request could not queue.
    fn wake_waiters_of_dropped_queries(&mut self) {
        let limiter = &self.limiter;
        self.waiters.retain(|counter, waiters| {
            let is_pending = limiter.is_request_pending(*counter);
            if !is_pending {
                waiters.drain(..).for_each(|waiter| waiter.wake(LeaseResponse::Units));
            }
            is_pending
        });
    }

    fn mark_unreachable(&mut self, error: &CallError) {
        if !self.handle.is_unreachable() {
            tracing::warn!(%error, "the store is unavailable: shared limits use `on_store_loss`");
            self.handle.set_unreachable(true);
            self.metrics.set_up(false);
            self.next_heartbeat = Instant::now();
        }
        self.waiters.clear();
        self.sent_waiters.clear();
    }

    fn send_heartbeat(&mut self) {
        if self.is_registering || Instant::now() < self.next_heartbeat {
            return;
        }
        self.is_registering = true;
        self.handle.parts().set_used(self.limiter.has_parts());
        self.metrics.set_part(self.handle.parts().least_fraction(self.clock.now()));
        self.waiters.retain(|_, waiters| waiters.iter().any(|waiter| !waiter.sender.is_closed()));
        let interval = self.heartbeat_interval();
        self.next_heartbeat = Instant::now() + interval;
        let store = Arc::clone(&self.store);
        let (instance, fleet) = (self.instance.clone(), self.limiter.fleet());
        let of_regions = self.region_link.as_ref().and_then(|link| link.secret);
        let own = if self.reported_instances > 0 { fleet.hasher.secret() } else { self.secret };
        let (secret, is_of_regions) = (of_regions.unwrap_or(own), of_regions.is_some());
        let sent_at = self.clock.now();
        self.in_flight.spawn_local(async move {
            let registered =
                store.register(&instance, secret, is_of_regions, interval * MAX_MISSED_HEARTBEATS).await;
            CompletedCall::Registered(sent_at, registered)
        });
    }

    /// Returns the interval between registrations, which grows with the fleet to bound the load on the store.
    fn heartbeat_interval(&self) -> Duration {
        (MIN_HEARTBEAT_INTERVAL * self.reported_instances / MAX_FLEET_HEARTBEATS_PER_SECOND)
            .clamp(MIN_HEARTBEAT_INTERVAL, MAX_HEARTBEAT_INTERVAL)
    }

    /// Exchanges with other instances what is known of the providers of shared rules, if any rule follows one.
    fn exchange_feedback(&mut self) {
        let now = self.clock.now();
        for (name, rule) in self.limiter.feedback().shared() {
            let (store, states) = (Arc::clone(&self.store), rule.publish(now));
            self.in_flight.spawn_local(async move {
                CompletedCall::Followed(rule, now, store.exchange_feedback(&name, &states).await)
            });
        }
    }

    fn handle_registration(&mut self, secret: [u64; 2], instances: u32) {
        self.failures = 0;
        let fleet = self.limiter.fleet();
        let instances = NonZeroU32::new(instances).unwrap_or(NonZeroU32::MIN);
        let is_new = fleet.hasher.secret() != secret;
        let has_changed = fleet.instances != self.divisor(instances)
            && (self.reported_instances == instances.get() || self.reported_instances == 0);
        self.reported_instances = instances.get();
        self.scheduler.set_instances(instances.get());
        if is_new || has_changed {
            let instances = self.divisor(instances);
            (self.on_fleet_change)(Fleet { hasher: KeyHasher::new(secret), instances });
        }
        if self.handle.is_unreachable() {
            tracing::info!(%instances, "the store is available: limits are shared");
            self.handle.set_unreachable(false);
            self.metrics.set_up(true);
        }
        let of_region = self.limiter.fleet().instances.get() / self.divisor(NonZeroU32::MIN);
        self.metrics.set_sizes(of_region, self.limiter.shared_counter_count());
    }
}

#[cfg(test)]
mod tests;
