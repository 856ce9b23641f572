//! Attacks on the parts: instances lose and find the store at random, their calls arrive late or not at all, the store loses its
//! data, and everything that may be spent is spent at once.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use weir_limiter::algorithm::Algorithm;
use weir_limiter::leases::{LeaseOutcome, LeasePolicy, UnitSource, settle_time};
use weir_limiter::quota::{Limit as QuotaLimit, Period, Quota, TimeUnit};
use weir_limiter::reservation::ChargeTiming;
use weir_limiter::timestamp::Timestamp;
use weir_limiter::{Check, Limiter, LimiterSettings};
use weir_store::parts::StoreParts;
use weir_store::protocol::InstanceInfo;
use weir_store::scheduler::{BatchReply, LeaseBatch, LeaseScheduler};

use crate::instance::check;
use crate::limit::{ExactCounter, Limit};
use crate::model::Model;
use crate::plan::LEASE;
use crate::runs::env_parameter;

const START: u64 = 1_795_248_000_000_000;
/// Time for which the store holds parts back, in microseconds.
const VALID: u64 = 10_000_000;

struct Attacked {
    limiter: Limiter,
    check: Check,
    scheduler: LeaseScheduler,
    parts: Arc<StoreParts>,
    is_unreachable: bool,
    /// How much faster its clock is, in thousandths.
    drift: i64,
}

struct Attack {
    rng: Rng,
    now: u64,
    store: Model,
    replica: Model,
    run: u32,
    /// Generation of the last reply.
    known: String,
    instances: Vec<Attacked>,
    limit: Limit,
    /// Units of the limit, and the time in microseconds after which nothing matters that was spent.
    units: u64,
    settle: u128,
    /// What one instance would have admitted.
    counter: ExactCounter,
    excess: f64,
    /// Units that were spent of parts.
    of_parts: u64,
    /// Calls that the store has not run yet, and when it does.
    late: VecDeque<(u64, Vec<String>, Vec<String>)>,
    /// Replies on their way: when they arrive, at which instance, and the calls.
    replies: Vec<(u64, usize, LeaseBatch, BatchReply)>,
}

impl Attacked {
    fn new(number: u32, quota: Quota, drift: i64) -> Self {
        let limiter = Limiter::new(LimiterSettings { max_keys: 100, secret: [17, 42] });
        let policy = LeasePolicy { has_parts: true, ..LEASE };
        let check = check(&limiter, (quota, policy), ChargeTiming::OnArrival);
        let parts = Arc::<StoreParts>::default();
        parts.set_used(true);
        let instance = InstanceInfo { id: number, weight: 1.0, instances: 3, clock_lead: 0 };
        let scheduler =
            LeaseScheduler::new(instance, 1).with_parts(Arc::clone(&parts), Duration::from_micros(VALID));
        Self { limiter, check, scheduler, parts, is_unreachable: false, drift }
    }

    fn local_time(&self, now: u64) -> Timestamp {
        let passed = (now - START) as i64;
        Timestamp::from_nanos((START as i64 + passed + passed * self.drift / 1000) as u64 * 1000)
    }
}

impl Attack {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let (quota, limit) = random_limit(&mut rng);
        let is_bucket = matches!(limit, Limit::Bucket { .. });
        let drift = if is_bucket { 10 } else { 0 };
        let instances =
            (0..rng.u32(2..5)).map(|number| Attacked::new(number, quota, rng.i64(-drift..=drift)));
        Self {
            now: START,
            store: Model::default(),
            replica: Model::default(),
            run: 1,
            known: "-".to_owned(),
            instances: instances.collect(),
            limit,
            units: quota.burst().get().into(),
            settle: settle_time(&quota.leased().unwrap()).unwrap().as_micros(),
            counter: ExactCounter::default(),
            excess: f64::MIN,
            of_parts: 0,
            late: VecDeque::new(),
            replies: Vec::new(),
            rng,
        }
    }

    fn run(mut self, may_lose_data: bool) -> (f64, u64) {
        // All know the store before it loses its data: a new instance that finds the loss first is an exception of the bound.
        (0..self.instances.len()).for_each(|number| self.renew(number, true));
        let usual = [5000, 60_000, 400_000][self.rng.usize(0..3)];
        for _ in 0..900 {
            let far = if self.rng.u8(0..30) == 0 { 6_000_000 } else { usual };
            let next = self.now + self.rng.u64(1..far);
            self.run_late_calls(next);
            self.now = next;
            self.deliver_replies();
            let number = self.rng.usize(0..self.instances.len());
            match self.rng.u8(if may_lose_data { 0 } else { 2 }..100) {
                0 => self.store.flush(),
                1 => {
                    self.run += 1;
                    self.store = self.replica.clone();
                }
                2..6 => self.replica = self.store.clone(),
                6..10 => self.instances[number].is_unreachable ^= true,
                10 => {
                    let size = [2, 96, 192, 400][self.rng.usize(0..4)];
                    self.instances[number].scheduler.set_instances(size);
                }
                11..40 => (0..self.instances.len()).for_each(|number| self.renew(number, false)),
                _ if self.instances[number].is_unreachable => self.spend_part(number),
                _ => self.spend_lease(number),
            }
        }
        (self.excess, self.of_parts)
    }

    /// Counts units that are spent now.
    fn count(&mut self, units: u64) {
        let limit = match self.limit {
            // An instance counts its part by its own clock, of which the fastest counts here.
            Limit::Bucket { interval, burst } => Limit::Bucket { interval: interval * 988 / 1000, burst },
            limit => limit,
        };
        self.excess = self.excess.max(self.counter.admit(limit, units, self.now));
    }

    /// Sends the renewal of an instance that is due. The store may get it late or not at all, and the reply may be lost.
    fn renew(&mut self, number: usize, must_arrive: bool) {
        let instance = &mut self.instances[number];
        let now = instance.local_time(self.now);
        instance.scheduler.renews_parts = !instance.is_unreachable;
        let batch = instance.scheduler.next_batch(&instance.limiter, now, &mut |_| false);
        let Some(batch) = batch else { return };
        let fate = self.rng.u8(0..40);
        if fate >= 4 || must_arrive {
            return self.call(number, batch, fate == 39 && !must_arrive);
        }
        let instance = &mut self.instances[number];
        instance.scheduler.apply_failure(&batch, &instance.limiter, now);
        instance.is_unreachable = true;
        if fate < 3 {
            let at = self.now + self.rng.u64(0..[100_000, 1_000_000, 5_000_000][usize::from(fate)]);
            self.late.push_back((
                at,
                batch.keys("weir"),
                batch.call("weir").arguments(self.run, self.generation()),
            ));
        }
    }

    fn generation(&self) -> String {
        format!("g{}", self.now)
    }

    /// The store runs a call at once.
    fn call(&mut self, number: usize, batch: LeaseBatch, is_reply_lost: bool) {
        let args = batch.call("weir").arguments(self.run, self.generation());
        let (generation, part, _) = self.store.call(&batch.keys("weir"), &args, self.now);
        self.known = generation.clone();
        let instance = &mut self.instances[number];
        let now = instance.local_time(self.now);
        if is_reply_lost {
            instance.scheduler.apply_failure(&batch, &instance.limiter, now);
            instance.is_unreachable = true;
            return;
        }
        let (generation, store_time) = (generation.into(), self.now);
        let reply = BatchReply { generation, store_time, part, grants: Vec::new() };
        let delay = [0, 0, 0, 100_000, 2_000_000][self.rng.usize(0..5)];
        if delay > 0 {
            self.replies.push((self.now + self.rng.u64(0..delay), number, batch, reply));
            return;
        }
        instance.scheduler.apply_reply(&batch, &reply, &instance.limiter, now, |_, _, _| {});
    }

    /// Replies that are due arrive.
    fn deliver_replies(&mut self) {
        let due: Vec<_> = self.replies.extract_if(.., |(at, ..)| *at <= self.now).collect();
        for (_, number, batch, reply) in due {
            let instance = &mut self.instances[number];
            let now = instance.local_time(self.now);
            instance.scheduler.apply_reply(&batch, &reply, &instance.limiter, now, |_, _, _| {});
        }
    }

    fn run_late_calls(&mut self, until: u64) {
        self.late.make_contiguous().sort_unstable();
        while self.late.front().is_some_and(|(at, ..)| *at < until) {
            let Some((at, keys, args)) = self.late.pop_front() else { return };
            self.store.call(&keys, &args, at.max(self.now));
        }
    }

    /// Spends as many units as the store grants now.
    fn spend_lease(&mut self, number: usize) {
        let units = self.rng.u64(1..=self.units);
        let question = self.limit.question(self.now, 0, &format!("{units} {units} 0 0 0 0 0 0"), "1 1");
        // In upper case, because parts are held back.
        let (kind, rest) = question.split_once(' ').unwrap();
        let question = format!("{} {} {rest}", kind.to_uppercase(), self.settle);
        let now = self.instances[number].local_time(self.now);
        let counter = self.instances[number].limiter.shared_counter(&self.instances[number].check);
        let demanded = Duration::from_millis(units * 1000 / self.units);
        self.instances[number].parts.record_demand(0, demanded, now);
        let group = [
            weir_store::protocol::generation_key("weir", 0),
            weir_store::protocol::parts_key("weir", 0),
            weir_store::protocol::counter_key("weir", 0, counter),
        ];
        let args = [&self.known, &self.run.to_string(), &self.generation(), "-", &question]
            .map(|text: &str| text.to_owned());
        let (generation, _, replies) = self.store.call(&group, &args, self.now);
        self.known = generation;
        self.count(u64::try_from(replies[0][0]).unwrap());
    }

    /// Spends all that is left of an instance's part.
    fn spend_part(&mut self, number: usize) {
        loop {
            let instance = &self.instances[number];
            let now = instance.local_time(self.now);
            let counter = instance.limiter.shared_counter(&instance.check);
            let Some(part) = instance.parts.part_of(counter, now) else { return };
            let outcome = instance.limiter.acquire_units_from(UnitSource::Part(part), &instance.check, now);
            let is_admitted = !instance.limiter.check(&[instance.check], now).is_rejected();
            if !matches!(outcome, LeaseOutcome::Ready(_)) || !is_admitted {
                return;
            }
            self.of_parts += 1;
            self.count(1);
        }
    }
}

/// Returns a limit of any kind, as it is configured and as the script gets it.
fn random_limit(rng: &mut Rng) -> (Quota, Limit) {
    // As long as parts are held back, at most.
    let seconds = [1, 1, 10][rng.usize(0..3)];
    let period = Period::new(NonZeroU32::new(seconds).unwrap(), TimeUnit::Second);
    let count = [21, 210, 2100][rng.usize(0..3)];
    let burst = count * [1, 1, 3][rng.usize(0..3)] / [1, 4, 1][rng.usize(0..3)];
    let quota = |algorithm, burst: Option<u32>| {
        let limit = QuotaLimit::new(NonZeroU32::new(count).unwrap(), period);
        Quota::new(algorithm, limit, burst.and_then(NonZeroU32::new)).unwrap()
    };
    let (units, length) = (count.into(), u64::from(seconds) * 1_000_000);
    match rng.u8(0..6) {
        0 => (quota(Algorithm::FixedWindow, None), Limit::Window { count: units, length }),
        1 => (quota(Algorithm::SlidingLog, None), Limit::Sliding { count: units, length }),
        2 => {
            let burst = burst.max(count);
            let limit = Limit::Refill { count: units, every: length, burst: burst.into() };
            (quota(Algorithm::RefillBucket, Some(burst)), limit)
        }
        _ => {
            let limit = Limit::Bucket { interval: length / u64::from(count), burst: burst.into() };
            (quota(Algorithm::Gcra, Some(burst)), limit)
        }
    }
}

/// Asserts that no attack exceeds the limit, and that parts are spent.
fn assert_kept(may_lose_data: bool) {
    let only = env_parameter::<u64>("WEIR_SEED");
    let seeds = env_parameter("WEIR_SEEDS").unwrap_or(600_u64);
    let mut of_parts = 0;
    for seed in only.map_or(0..seeds, |seed| seed..seed + 1) {
        let (excess, spent) = Attack::new(seed).run(may_lose_data);
        assert!(excess <= 1e-3, "seed {seed}: {excess}");
        of_parts += spent;
    }
    assert!(of_parts > 10 * seeds, "hardly anything is spent of parts: {of_parts}");
}

#[test]
fn attacks_on_parts_never_exceed_the_limit() {
    assert_kept(false);
}

#[test]
fn attacks_on_parts_of_a_store_that_loses_data_never_exceed_the_limit() {
    assert_kept(true);
}
