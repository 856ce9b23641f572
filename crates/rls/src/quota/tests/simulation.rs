//! Simulated Envoys that report and apply the assignments they receive.

use std::collections::VecDeque;
use std::time::Duration;

use super::super::{
    ASSIGNMENT_TIME_TO_LIVE, AssignedStrategy, Assignment, BucketId, BucketUsage, QuotaBuckets, StreamId,
};
use crate::rules::DescriptorRules;
use weir_limiter::timestamp::Timestamp;

const STEP: Duration = Duration::from_millis(10);

/// Several Envoys and the service.
pub(super) struct Mesh {
    quotas: QuotaBuckets,
    rules: DescriptorRules,
    interval: Duration,
    now: Timestamp,
    envoys: Vec<Envoy>,
    random: fastrand::Rng,
    has_latencies: bool,
    admitted_per_run: Vec<u64>,
}

/// An Envoy with a demand of `demand` requests per second.
struct Envoy {
    demand: f64,
    pending_requests: f64,
    /// Assignment in use and its expiry; without one, all requests are admitted.
    strategy: Option<(AssignedStrategy, Timestamp)>,
    tokens: f64,
    next_report: Timestamp,
    last_report: Option<Timestamp>,
    usage: (u64, u64),
    /// Assignments and reports in transit, to and from the Envoy.
    assignments_in_transit: VecDeque<(Timestamp, AssignedStrategy)>,
    reports_in_transit: VecDeque<(Timestamp, BucketUsage)>,
    latency: Duration,
    is_silent: bool,
    has_left: bool,
}

impl Mesh {
    pub(super) fn new(rules: DescriptorRules, interval: Duration) -> Self {
        Self {
            quotas: QuotaBuckets::default(),
            rules,
            interval,
            now: Timestamp::from_secs(1_795_248_000),
            envoys: Vec::new(),
            random: fastrand::Rng::with_seed(7),
            has_latencies: false,
            admitted_per_run: Vec::new(),
        }
    }

    /// Gives each Envoy a random latency.
    pub(super) fn with_latencies(self, seed: u64) -> Self {
        Self { random: fastrand::Rng::with_seed(seed), has_latencies: true, ..self }
    }

    pub(super) fn add_envoy(&mut self, demand: f64) -> usize {
        let latency = if self.has_latencies { self.random.u64(1..12) } else { 2 + self.envoys.len() as u64 };
        self.envoys.push(Envoy {
            demand,
            pending_requests: 1.0,
            strategy: None,
            tokens: 0.0,
            next_report: self.now,
            last_report: None,
            usage: (0, 0),
            assignments_in_transit: VecDeque::new(),
            reports_in_transit: VecDeque::new(),
            latency: STEP * u32::try_from(latency).unwrap(),
            is_silent: false,
            has_left: false,
        });
        self.envoys.len() - 1
    }

    pub(super) fn set_demand(&mut self, envoy: usize, demand: f64) {
        self.envoys[envoy].demand = demand;
    }

    /// Stops the reports of an Envoy without ending its stream.
    pub(super) fn stop_reports(&mut self, envoy: usize) {
        self.envoys[envoy].is_silent = true;
    }

    /// Ends the stream of an Envoy, which continues to use its assignment until that expires.
    pub(super) fn close_stream(&mut self, envoy: usize) {
        self.envoys[envoy].has_left = true;
        self.envoys[envoy].is_silent = true;
        self.quotas.close_stream(envoy as StreamId);
    }

    /// Returns the number of tokens that an Envoy is using.
    pub(super) fn assigned_tokens(&self, envoy: usize) -> u64 {
        match self.envoys[envoy].strategy {
            Some((AssignedStrategy::TokenBucket { tokens: count, .. }, until)) if until > self.now => {
                count.into()
            }
            _ => 0,
        }
    }

    /// Returns the number of tokens that all Envoys are using.
    pub(super) fn tokens_in_force(&self) -> u64 {
        (0..self.envoys.len()).map(|envoy| self.assigned_tokens(envoy)).sum()
    }

    /// Simulates this time; returns the number of admitted requests.
    pub(super) fn run(&mut self, time: Duration) -> u64 {
        let end = self.now.saturating_add(time);
        let mut admitted = 0;
        while self.now < end {
            self.now = self.now.saturating_add(STEP);
            for at in 0..self.envoys.len() {
                let now = self.now;
                admitted += self.envoys[at].step(now, self.interval);
                while let Some((_, usage)) =
                    self.envoys[at].reports_in_transit.pop_front_if(|(due, _)| *due <= now)
                {
                    let client = at as StreamId;
                    let assignments = self.quotas.process_report(&self.rules, client, "d", vec![usage], now);
                    assignments.iter().for_each(|assignment| self.deliver(assignment));
                }
            }
        }
        self.admitted_per_run.push(admitted);
        admitted
    }

    fn deliver(&mut self, assignment: &Assignment) {
        let envoy = &mut self.envoys[usize::try_from(assignment.client).unwrap()];
        if let (Some(strategy), false) = (assignment.strategy, envoy.has_left) {
            envoy.assignments_in_transit.push_back((self.now.saturating_add(envoy.latency), strategy));
        }
    }
}

impl Envoy {
    fn step(&mut self, now: Timestamp, interval: Duration) -> u64 {
        while let Some((_, strategy)) = self.assignments_in_transit.pop_front_if(|(due, _)| *due <= now) {
            let is_changed = self.strategy.is_none_or(|(before, _)| before != strategy);
            // An Envoy starts with a full bucket whenever the assignment differs.
            if let (true, AssignedStrategy::TokenBucket { tokens: count, .. }) = (is_changed, strategy) {
                self.tokens = count.into();
            }
            // The validity starts on receipt.
            self.strategy = Some((strategy, now.saturating_add(ASSIGNMENT_TIME_TO_LIVE)));
        }
        self.pending_requests += self.demand * STEP.as_secs_f64();
        let before = self.usage.0;
        if let Some((AssignedStrategy::TokenBucket { tokens: count, period: per }, _)) = self.strategy {
            let refill = f64::from(count) / per.as_secs_f64() * STEP.as_secs_f64();
            self.tokens = (self.tokens + refill).min(count.into());
        }
        while self.pending_requests >= 1.0 {
            self.pending_requests -= 1.0;
            self.process_request(now);
        }
        self.report(now, interval);
        self.usage.0.saturating_sub(before)
    }

    fn process_request(&mut self, now: Timestamp) {
        let is_admitted = match self.strategy {
            None | Some((AssignedStrategy::AllowAll, _)) => true,
            Some((AssignedStrategy::DenyAll, _)) => false,
            Some((AssignedStrategy::TokenBucket { .. }, until)) => until > now && self.tokens >= 1.0,
        };
        match is_admitted {
            true => (self.tokens, self.usage.0) = (self.tokens - 1.0, self.usage.0 + 1),
            false => self.usage.1 += 1,
        }
    }

    fn report(&mut self, now: Timestamp, interval: Duration) {
        if now < self.next_report || self.is_silent {
            return;
        }
        let bucket = BucketId::from([("a".to_owned(), "1".to_owned())]);
        let elapsed = self.last_report.map_or(Duration::ZERO, |last| now.since(last));
        let (allowed, denied) = std::mem::take(&mut self.usage);
        self.reports_in_transit
            .push_back((now.saturating_add(self.latency), BucketUsage { bucket, elapsed, allowed, denied }));
        self.last_report = Some(now);
        self.next_report = now.saturating_add(interval);
    }
}
