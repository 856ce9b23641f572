//! Simulation of a fleet and its store in virtual time: the real limiter and scheduler, and a model of the
//! store's script.
//!
//! The network delays, loses, duplicates and reorders messages. Clocks run at different rates, instances are
//! killed, and the store loses its data. In all cases the fleet admits no more than a single instance would:
//! a bucket that is charged for every admission never holds more than the burst.

#[path = "world/backlog.rs"]
mod backlog;
#[path = "world/partition.rs"]
mod partition;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use weir_limiter::leases::{LeasePolicy, LeaseRequest, SharedCounter, StoreCounterKind};
use weir_limiter::reservation::ChargeTiming;
use weir_limiter::timestamp::Timestamp;
use weir_limiter::{Check, Limiter, LimiterSettings};
use weir_store::protocol::{self, InstanceInfo};
use weir_store::scheduler::{BatchReply, LeaseBatch, LeaseScheduler};

use self::partition::Connection;
use crate::instance::{check, spec};
use crate::model::Model;
use crate::plan::{Outcome, Plan, rate};

/// Number of groups of counters, as with one server.
const GROUPS: u16 = 2;
/// 2026-11-21T08:00:00Z, in microseconds.
const START: u64 = 1_795_248_000_000_000;

enum Event {
    /// A call arrives at the store.
    CallArrived(usize, u64, Vec<String>, Vec<String>),
    /// A reply arrives at the instance.
    ReplyArrived(usize, u64, BatchReply),
    ReplyTimedOut(usize, u64),
    Review(usize),
    Expired(usize, u64, u64),
    /// An instance of a region spends a unit of this key that was granted to the region.
    Spent(u64),
}

struct Instance {
    limiter: Limiter,
    scheduler: LeaseScheduler,
    check: Check,
    calls: HashMap<u64, LeaseBatch>,
    waiting: Vec<(u64, u64)>,
    drift: i64,
    /// Number of restarts. Messages for an earlier process are dropped.
    epoch: u64,
    review: Option<Timestamp>,
    /// Millisecond at which the instance applies the changed limit.
    changes_at: u64,
    connection: Connection,
}

/// Units that an instance may spend, by the store's clock.
struct HeldLease {
    counter: SharedCounter,
    kind: StoreCounterKind,
    units: u32,
    until: u64,
    granted_at: u64,
}

/// A bucket with the rate and burst of the limit.
#[derive(Default)]
struct Bucket {
    level: f64,
    at: u64,
}

impl Bucket {
    fn drain(&mut self, now: u64, rate: f64) {
        self.level = (self.level - (now - self.at) as f64 / 1e6 * rate).max(0.0);
        self.at = now;
    }
}

struct FleetSimulation {
    plan: Plan,
    rng: Rng,
    now: u64,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    pending_events: HashMap<u64, Event>,
    serial: u64,
    instances: Vec<Instance>,
    store: Model,
    run: u64,
    fleet_buckets: HashMap<u64, Bucket>,
    single_instance_buckets: HashMap<u64, Bucket>,
    outcome: Outcome,
    requests_and_admissions: Vec<(u64, u64)>,
    /// Generation key of each counter key's group.
    groups: Vec<String>,
    /// Leases of each instance with units neither spent nor returned.
    held_leases: Vec<Vec<HeldLease>>,
    sent: HashMap<(usize, u64), u64>,
}

fn lease_policy(number: usize, plan: &Plan) -> LeasePolicy {
    let priority = (plan.role)(number).priority.unwrap_or(plan.lease_policy.priority);
    LeasePolicy { priority, max_wait: Some(Duration::from_micros(plan.wait)), ..plan.lease_policy }
}

impl Instance {
    fn new(number: usize, plan: &Plan, drift: i64, epoch: u64) -> Self {
        let limiter = Limiter::new(LimiterSettings { max_keys: 10_000, secret: [17, 42] });
        let sharing = lease_policy(number, plan);
        let check = check(&limiter, (plan.quota, sharing), ChargeTiming::OnArrival);
        let (weight, instances) = ((plan.role)(number).weight, plan.instances as u32);
        let id = number as u32 + (epoch / 1_000_000) as u32 * 1000;
        let asker = InstanceInfo { id, weight, instances, clock_lead: 0 };
        let connection = Connection::default();
        let parts = Arc::clone(&connection.parts);
        parts.set_used(sharing.has_parts);
        let valid = plan.partitions.map_or(Duration::from_secs(60), |partitions| partitions.valid);
        Self {
            limiter,
            scheduler: LeaseScheduler::new(asker, GROUPS).with_parts(parts, valid),
            connection,
            check,
            calls: HashMap::new(),
            waiting: Vec::new(),
            drift,
            epoch,
            review: None,
            changes_at: plan.change.map_or(u64::MAX, |(_, at)| at + number as u64 * 997 % 300),
        }
    }

    fn change(&mut self, plan: &Plan, sharing: LeasePolicy, now: Timestamp) {
        let (quota, _) = plan.change.unwrap();
        self.check.handle = self.limiter.install(&[spec((quota, sharing))], now)[0];
        self.changes_at = u64::MAX;
    }

    fn check(&self, key: u64) -> Check {
        Check { key: self.limiter.hasher().hash(&key.to_be_bytes()), ..self.check }
    }

    /// Returns the time of the instance's clock.
    fn local_time(&self, now: u64) -> Timestamp {
        let passed = (now - START) as i64;
        let passed = passed + passed * self.drift / 1000;
        Timestamp::from_nanos((START as i64 + passed) as u64 * 1000)
    }
}

impl FleetSimulation {
    fn new(plan: Plan) -> Self {
        let mut rng = Rng::with_seed(plan.seed);
        let drift = plan.faults.drift;
        let instances: Vec<_> = (0..plan.instances)
            .map(|number| Instance::new(number, &plan, rng.i64(-drift..=drift), 0))
            .collect();
        let groups = (0..plan.keys)
            .map(|key| {
                let counter = instances[0].limiter.shared_counter(&instances[0].check(key));
                protocol::generation_key("weir", protocol::group_index(counter, GROUPS))
            })
            .collect();
        Self {
            plan,
            rng,
            now: START,
            events: BinaryHeap::new(),
            pending_events: HashMap::new(),
            serial: 0,
            instances,
            store: Model::default(),
            run: 1,
            fleet_buckets: HashMap::new(),
            single_instance_buckets: HashMap::new(),
            outcome: Outcome::default(),
            requests_and_admissions: vec![(0, 0); plan.instances],
            groups,
            held_leases: (0..plan.instances).map(|_| Vec::new()).collect(),
            sent: HashMap::new(),
        }
    }

    fn schedule(&mut self, at: u64, event: Event) {
        self.serial += 1;
        self.events.push(Reverse((at, self.serial)));
        self.pending_events.insert(self.serial, event);
    }

    fn delay(&mut self) -> u64 {
        self.rng.u64(50..=self.plan.faults.delay.max(51))
    }

    fn run(mut self) -> Outcome {
        for milli in 0..self.plan.millis {
            let end = START + (milli + 1) * 1000;
            self.partition(milli);
            for number in 0..self.plan.instances {
                if self.instances[number].changes_at <= milli {
                    let now = self.instances[number].local_time(self.now);
                    let sharing = lease_policy(number, &self.plan);
                    self.instances[number].change(&self.plan, sharing, now);
                }
                let demand = self.plan.demand(number, milli);
                let arrivals = demand as u64 + u64::from(self.rng.f64() < demand.fract());
                for _ in 0..arrivals {
                    let key = self.rng.u64(0..self.plan.keys);
                    self.arrive(number, key);
                }
                self.send_calls(number);
            }
            self.run_events(end);
            self.crash(milli);
        }
        let least = self.requests_and_admissions.iter().filter(|(wanted, _)| *wanted > 0);
        self.outcome.unit_flow = self.store.unit_flow;
        self.outcome.requests_and_admissions = self.requests_and_admissions.clone();
        self.outcome.worst_share =
            least.map(|(wanted, got)| *got as f64 / *wanted as f64).fold(1.0, f64::min);
        self.outcome
    }

    /// Handles all events before `end`.
    fn run_events(&mut self, end: u64) {
        while let Some(Reverse((at, serial))) =
            self.events.peek().copied().filter(|Reverse((at, _))| *at < end)
        {
            self.events.pop();
            self.now = at;
            let event = self.pending_events.remove(&serial).unwrap();
            self.handle(event);
        }
        self.now = end;
    }

    fn crash(&mut self, milli: u64) {
        let Some(every) = self.plan.faults.crash_interval.filter(|every| milli % every == every - 1) else {
            return;
        };
        let _ = every;
        if self.rng.bool() {
            let number = self.rng.usize(0..self.plan.instances);
            let drift = self.instances[number].drift;
            let epoch = self.instances[number].epoch + 1_000_000;
            self.instances[number] = Instance::new(number, &self.plan, drift, epoch);
            self.held_leases[number].clear();
        } else {
            self.run += 1;
            if self.rng.bool() {
                self.store.flush();
            }
        }
    }

    /// Whether the warm-up is over, in which the initial burst is used up.
    fn is_measured(&self) -> bool {
        self.now >= START + self.plan.warm_up
    }

    fn rate(&self) -> f64 {
        let changed = self.plan.change.map(|(quota, _)| rate(&quota));
        rate(&self.plan.quota).max(changed.unwrap_or_default())
    }

    /// Returns the maximum burst of the limits that are in force during the experiment.
    fn burst(&self) -> f64 {
        let changed = self.plan.change.map(|(quota, _)| quota.burst().get());
        f64::from(self.plan.quota.burst().get().max(changed.unwrap_or_default()))
    }

    fn arrive(&mut self, number: usize, key: u64) {
        let (rate, burst) = (self.rate(), self.burst());
        let is_warm = u64::from(self.is_measured());
        let alone = self.single_instance_buckets.entry(key).or_default();
        alone.drain(self.now, rate);
        if alone.level + 1.0 <= burst + 1e-9 {
            alone.level += 1.0;
            self.outcome.possible += is_warm;
        }
        self.requests_and_admissions[number].0 += u64::from(self.is_measured());
        if !self.attempt(number, key) {
            let until = self.now + self.plan.wait;
            if self.plan.wait > 0 {
                let epoch = self.instances[number].epoch;
                self.instances[number].waiting.push((key, until));
                self.schedule(until, Event::Expired(number, epoch, key));
            }
        }
    }

    /// Decides a request. Returns `false` if it has to wait for the store.
    fn attempt(&mut self, number: usize, key: u64) -> bool {
        let breach = self.plan.partitions.and_then(|partitions| partitions.breach);
        let instance = &mut self.instances[number];
        let decided = instance.decide(breach, key, instance.local_time(self.now));
        if decided == Some(true) {
            self.admit(number, key);
        }
        decided.is_some()
    }

    /// Spends a unit. It must have been granted to this instance, and neither expired nor returned.
    fn spend(&mut self, number: usize, key: u64) {
        let instance = &self.instances[number];
        let counter = instance.limiter.shared_counter(&instance.check(key));
        let (now, held) = (self.now, &mut self.held_leases[number]);
        let spendable = held.iter_mut().filter(|it| it.counter == counter && it.units > 0 && now < it.until);
        match spendable.min_by_key(|it| it.granted_at) {
            Some(it) => it.units -= 1,
            None => self.outcome.invalid_uses += 1,
        }
    }

    /// Returns units. They must have been granted to this instance then or later, under this limit, and not been spent.
    fn return_units(&mut self, number: usize, question: &LeaseRequest) {
        let (mut units, since) = (question.returned.units, question.returned.granted_at);
        let (now, held) = (self.now, &mut self.held_leases[number]);
        held.sort_by_key(|it| (it.until > now, it.granted_at));
        for it in held
            .iter_mut()
            .filter(|it| it.counter == question.counter && it.kind == question.kind && it.granted_at >= since)
        {
            let back = it.units.min(units);
            (it.units, units) = (it.units - back, units - back);
        }
        self.outcome.invalid_uses += u64::from(units > 0);
        held.retain(|it| it.units > 0 && it.until + 20_000_000 > now);
    }

    fn record_grants(&mut self, number: usize, sent: u64, batch: &LeaseBatch, reply: &BatchReply) {
        for (question, grant) in batch.requests.iter().zip(&reply.grants) {
            let valid =
                if question.valid.is_zero() { question.arrival.as_micros() as u64 } else { grant[1] as u64 };
            self.held_leases[number].push(HeldLease {
                counter: question.counter,
                kind: question.kind,
                units: grant[0] as u32,
                until: sent + valid,
                granted_at: reply.store_time,
            });
        }
    }

    fn admit(&mut self, number: usize, key: u64) {
        // Units of parts are not granted.
        if self.plan.partitions.is_none() {
            self.spend(number, key);
        }
        let is_warm = u64::from(self.is_measured());
        self.outcome.admitted += is_warm;
        self.requests_and_admissions[number].1 += is_warm;
        match self.plan.second_tier {
            None => self.count(key),
            // Spends as many units as possible at one moment.
            Some(longest) => self.schedule(self.now.next_multiple_of(longest), Event::Spent(key)),
        }
    }

    /// Counts a spent unit against the limit.
    fn count(&mut self, key: u64) {
        let (rate, burst) = (self.rate(), self.burst());
        let bucket = self.fleet_buckets.entry(key).or_default();
        bucket.drain(self.now, rate);
        bucket.level += 1.0;
        // A store that has lost its data starts with full limits, unless the first call is by an instance
        // that knew them.
        let begun = self.store.full_starts.get(&self.groups[key as usize]).copied().unwrap_or(1);
        let late = rate * self.plan.second_tier.unwrap_or(0) as f64 / 1e6;
        let excess = bucket.level - late - burst * f64::from(begun.max(1));
        self.outcome.excess = self.outcome.excess.max(excess);
    }

    /// Sends the pending requests of an instance to the store.
    fn send_calls(&mut self, number: usize) {
        loop {
            let is_warm = self.is_measured();
            let instance = &mut self.instances[number];
            let now = instance.local_time(self.now);
            instance.scheduler.renews_parts = instance.renews_parts();
            let Some(batch) = instance.scheduler.next_batch(&instance.limiter, now, &mut |_| false) else {
                break;
            };
            let keys = batch.keys("weir");
            let args = batch.call("weir").arguments(self.run, format!("{number}.{}", self.serial));
            self.outcome.calls += u64::from(is_warm);
            let id = instance.epoch + self.serial;
            let questions = batch.requests.clone();
            instance.calls.insert(id, batch);
            self.sent.insert((number, id), self.now);
            questions.iter().for_each(|question| self.return_units(number, question));
            let (there, lost) = (self.delay(), self.plan.faults.lost_one_in);
            let is_lost = lost.is_some_and(|of| self.rng.u32(0..of) == 0) || self.is_cut(number, true);
            if !is_lost {
                self.schedule(self.now + there, Event::CallArrived(number, id, keys.clone(), args.clone()));
            }
            // A call that gives units back must not be repeated.
            let returns = questions.iter().any(|question| question.returned.units > 0);
            if !returns && lost.is_some_and(|of| self.rng.u32(0..of) == 0) {
                let again = self.delay();
                self.schedule(self.now + there + again, Event::CallArrived(number, id, keys, args));
            }
            self.schedule(self.now + 50_000, Event::ReplyTimedOut(number, id));
        }
        self.schedule_review(number);
    }

    fn schedule_review(&mut self, number: usize) {
        let instance = &mut self.instances[number];
        let now = instance.local_time(self.now);
        let due = instance.scheduler.review_due(&instance.limiter, now);
        if let Some(at) = due.filter(|_| instance.review != due) {
            instance.review = due;
            let after = at.since(now).as_micros() as u64;
            self.schedule(self.now + after + 1, Event::Review(number));
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::CallArrived(number, id, keys, args) => {
                let (generation, part, grants) = self.store.call(&keys, &args, self.now);
                let grants = grants.into_iter().map(|grant| grant.to_vec()).collect();
                let store_time = self.now;
                let reply = BatchReply { generation: generation.into(), store_time, part, grants };
                let lost = self.plan.faults.lost_one_in;
                if lost.is_none_or(|of| self.rng.u32(0..of) != 0) && !self.is_cut(number, false) {
                    let back = self.delay();
                    self.schedule(self.now + back, Event::ReplyArrived(number, id, reply));
                }
            }
            Event::ReplyArrived(number, id, reply) => {
                let instance = &mut self.instances[number];
                let now = instance.local_time(self.now);
                let Some(batch) = instance.calls.remove(&id) else { return };
                let sent = self.sent[&(number, id)];
                self.record_grants(number, sent, &batch, &reply);
                let instance = &mut self.instances[number];
                instance.scheduler.apply_reply(&batch, &reply, &instance.limiter, now, |_, _, _| {});
                let counters: Vec<_> = batch.requests.iter().map(|it| it.counter).collect();
                self.retry_waiting(number, &counters);
                self.send_calls(number);
            }
            Event::ReplyTimedOut(number, id) => {
                let instance = &mut self.instances[number];
                let now = instance.local_time(self.now);
                let Some(batch) = instance.calls.remove(&id) else { return };
                instance.scheduler.apply_failure(&batch, &instance.limiter, now);
                instance.lose_store();
                self.send_calls(number);
            }
            Event::Review(number) => {
                self.instances[number].review = None;
                self.schedule_review(number);
                self.send_calls(number);
            }
            Event::Spent(key) => self.count(key),
            Event::Expired(number, epoch, key) => {
                let instance = &mut self.instances[number];
                if instance.epoch == epoch {
                    let now = self.now;
                    instance.waiting.retain(|(waiting, until)| *waiting != key || *until > now);
                }
            }
        }
    }

    /// Decides waiting requests for these counters again.
    fn retry_waiting(&mut self, number: usize, counters: &[SharedCounter]) {
        let waiting = std::mem::take(&mut self.instances[number].waiting);
        for (key, until) in waiting {
            let instance = &self.instances[number];
            let counter = instance.limiter.shared_counter(&instance.check(key));
            let is_in_time = self.now < until;
            if !is_in_time || (counters.contains(&counter) && self.attempt(number, key)) {
                continue;
            }
            self.instances[number].waiting.push((key, until));
        }
    }
}

/// Runs an experiment.
pub(crate) fn run(plan: Plan) -> Outcome {
    FleetSimulation::new(plan).run()
}
