//! Concurrency limits of a fleet in virtual time: the requests in flight never exceed the limit, even if messages are
//! lost or delayed and instances are killed.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use fastrand::Rng;
use weir_limiter::quota::Quota;
use weir_limiter::reservation::{ChargeTiming, Reservation};
use weir_limiter::timestamp::Timestamp;
use weir_limiter::{Check, Limiter, LimiterSettings};
use weir_store::protocol::InstanceInfo;
use weir_store::scheduler::{BatchReply, LeaseBatch, LeaseScheduler};

use crate::instance::{check, decide};
use crate::model::Model;
use crate::plan::LEASE;
use crate::runs::env_parameter;

/// 2026-11-21T08:00:00Z, in milliseconds.
const START: u64 = 1_795_248_000_000;
const MILLIS: u64 = 12_000;

#[derive(Clone, Copy, Debug)]
struct PermitPlan {
    instances: usize,
    limit: u32,
    /// Requests per second that arrive at one instance.
    arrivals: f64,
    /// Maximum duration of a request, in milliseconds.
    max_duration: u64,
    /// One message in this many is lost.
    lost_one_in: Option<u32>,
    /// Maximum delay of a message, in milliseconds.
    delay: u64,
    /// Milliseconds between two kills of an instance.
    kill_interval: Option<u64>,
}

struct PermitInstance {
    limiter: Limiter,
    scheduler: LeaseScheduler,
    check: Check,
    /// Requests in flight, with the time at which they end.
    serving: Vec<(u64, Reservation)>,
    waiting: Vec<u64>,
    number: u32,
}

enum Message {
    Request(usize, u32, LeaseBatch),
    Reply(usize, u32, LeaseBatch, BatchReply),
    Lost(usize, u32, LeaseBatch),
}

struct PermitSimulation {
    plan: PermitPlan,
    rng: Rng,
    now: u64,
    instances: Vec<PermitInstance>,
    store: Model,
    messages: BTreeMap<(u64, u64), Message>,
    serial: u64,
    max_in_flight: usize,
    admitted: u64,
    arrived: u64,
}

impl PermitInstance {
    fn new(number: u32, limit: u32) -> Self {
        let limiter = Limiter::new(LimiterSettings { max_keys: 1000, secret: [17, 42] });
        let quota = Quota::in_flight(NonZeroU32::new(limit).unwrap());
        let check = check(&limiter, (quota, LEASE), ChargeTiming::WhileInFlight);
        let desk =
            LeaseScheduler::new(InstanceInfo { id: number, weight: 1.0, instances: 1, clock_lead: 0 }, 2);
        Self { limiter, scheduler: desk, check, serving: Vec::new(), waiting: Vec::new(), number }
    }

    fn finish(&mut self, now: u64) {
        let limiter = &self.limiter;
        self.serving.retain(|(ends, permit)| {
            let goes_on = *ends > now;
            if !goes_on {
                limiter.release_permit(permit);
            }
            goes_on
        });
    }
}

fn time(millis: u64) -> Timestamp {
    Timestamp::from_nanos((START + millis) * 1_000_000)
}

impl PermitSimulation {
    fn new(plan: PermitPlan, seed: u64) -> Self {
        Self {
            plan,
            rng: Rng::with_seed(seed),
            now: 0,
            instances: (0..plan.instances)
                .map(|number| PermitInstance::new(number as u32, plan.limit))
                .collect(),
            store: Model::default(),
            messages: BTreeMap::new(),
            serial: 0,
            max_in_flight: 0,
            admitted: 0,
            arrived: 0,
        }
    }

    fn run(mut self) -> Self {
        for now in 0..MILLIS {
            self.now = now;
            while let Some(entry) = self.messages.first_entry().filter(|entry| entry.key().0 <= now) {
                let message = entry.remove();
                self.handle(message);
            }
            if self.plan.kill_interval.is_some_and(|every| now % every == every - 1) {
                self.kill();
            }
            for number in 0..self.plan.instances {
                self.instances[number].finish(now);
                // Arrivals alternate: twice the mean rate for 500 ms, then none for 500 ms.
                let is_on = (now / 500 + number as u64).is_multiple_of(2);
                let mean = if is_on { self.plan.arrivals / 500.0 } else { 0.0 };
                for _ in 0..(mean as u64 + u64::from(self.rng.f64() < mean.fract())) {
                    self.arrived += 1;
                    self.attempt(number, now);
                }
                self.send(number);
            }
            let in_flight = self.instances.iter().map(|instance| instance.serving.len()).sum();
            self.max_in_flight = self.max_in_flight.max(in_flight);
        }
        self
    }

    fn attempt(&mut self, number: usize, since: u64) {
        let ends = self.now + self.rng.u64(1..=self.plan.max_duration);
        let instance = &mut self.instances[number];
        match decide(&instance.limiter, &mut instance.scheduler, &instance.check, time(self.now)) {
            None => instance.waiting.push(since),
            Some(false) => {}
            Some(true) => {
                let permit = Reservation::new(&instance.check, time(self.now));
                instance.serving.push((ends, permit));
                self.admitted += 1;
            }
        }
    }

    /// Kills an instance with all its requests in flight, and starts another one in its place.
    fn kill(&mut self) {
        let place = self.rng.usize(0..self.plan.instances);
        let number = self.instances[place].number + 1000;
        self.instances[place] = PermitInstance::new(number, self.plan.limit);
    }

    fn schedule(&mut self, after: u64, message: Message) {
        self.serial += 1;
        self.messages.insert((self.now + after, self.serial), message);
    }

    fn is_lost(&mut self) -> bool {
        self.plan.lost_one_in.is_some_and(|of| self.rng.u32(0..of) == 0)
    }

    fn send(&mut self, place: usize) {
        let now = time(self.now);
        let instance = &mut self.instances[place];
        instance.scheduler.review_due(&instance.limiter, now);
        let number = instance.number;
        while let Some(batch) = self.instances[place].next(now) {
            let delay = self.rng.u64(1..=self.plan.delay);
            if self.is_lost() {
                self.schedule(50, Message::Lost(place, number, batch));
            } else {
                self.schedule(delay, Message::Request(place, number, batch));
            }
        }
    }

    fn handle(&mut self, message: Message) {
        match message {
            Message::Request(place, number, batch) => {
                let args = batch.call("weir").arguments(1, format!("{number}.{}", self.serial));
                let at = (START + self.now) * 1000;
                let (generation, part, grants) = self.store.call(&batch.keys("weir"), &args, at);
                let grants = grants.into_iter().map(|grant| grant.to_vec()).collect();
                let reply = BatchReply { generation: generation.into(), store_time: at, part, grants };
                let delay = self.rng.u64(1..=self.plan.delay);
                if self.is_lost() {
                    self.schedule(50, Message::Lost(place, number, batch));
                } else {
                    self.schedule(delay, Message::Reply(place, number, batch, reply));
                }
            }
            Message::Reply(place, number, batch, reply) => {
                let instance = &mut self.instances[place];
                if instance.number != number {
                    return;
                }
                instance.scheduler.apply_reply(
                    &batch,
                    &reply,
                    &instance.limiter,
                    time(self.now),
                    |_, _, _| {},
                );
                // Requests that have waited for 20 ms or more have been rejected.
                let (waiting, now) = (std::mem::take(&mut instance.waiting), self.now);
                for since in waiting.into_iter().filter(|since| now - since < 20) {
                    self.attempt(place, since);
                }
            }
            Message::Lost(place, number, batch) => {
                let instance = &mut self.instances[place];
                if instance.number == number {
                    instance.scheduler.apply_failure(&batch, &instance.limiter, time(self.now));
                }
            }
        }
    }
}

impl PermitInstance {
    fn next(&mut self, now: Timestamp) -> Option<LeaseBatch> {
        self.scheduler.next_batch(&self.limiter, now, &mut |_| false)
    }
}

fn random_plan(seed: u64) -> PermitPlan {
    let mut rng = Rng::with_seed(seed);
    PermitPlan {
        instances: rng.usize(1..9),
        limit: [3, 20, 200][rng.usize(0..3)],
        arrivals: [5.0, 40.0, 400.0][rng.usize(0..3)],
        max_duration: [5, 100, 2000][rng.usize(0..3)],
        lost_one_in: [None, Some(20), Some(4)][rng.usize(0..3)],
        delay: [1, 5, 40][rng.usize(0..3)],
        kill_interval: [None, Some(700)][rng.usize(0..2)],
    }
}

#[test]
fn fleet_in_flight_never_exceeds_the_limit() {
    for seed in 0..env_parameter("WEIR_SEEDS").unwrap_or(60) {
        let plan = random_plan(seed);
        let world = PermitSimulation::new(plan, seed).run();
        assert!(
            world.max_in_flight <= plan.limit as usize,
            "seed {seed}: {} of {plan:?}",
            world.max_in_flight
        );
    }
}

#[test]
fn fleet_in_flight_reaches_the_limit() {
    let plan = PermitPlan {
        instances: 8,
        limit: 40,
        arrivals: 200.0,
        max_duration: 100,
        lost_one_in: None,
        delay: 2,
        kill_interval: None,
    };
    let world = PermitSimulation::new(plan, 1).run();
    // 1600 requests per second arrive and take 50 ms each, so the limit has room for half of them. The demand moves
    // between the even and the odd instances every half second.
    let part = world.admitted as f64 / world.arrived as f64;
    assert!(
        world.max_in_flight > 35 && part > 0.3,
        "{} in flight at most, {part} admitted",
        world.max_in_flight
    );
}
