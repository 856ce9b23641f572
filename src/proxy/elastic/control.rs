//! The one place that sets headroom: ten times a second, off the request path.

use std::time::Duration;

use super::cpu::Cpu;
use super::load::Noted;
use crate::limiter::elastic::controller::{Assessment, Controller, TICK};
use crate::limiter::elastic::signal::{Reading, Signal, Signals};
use crate::limiter::timestamp::Timestamp;
use crate::proxy::Shared;
use crate::telemetry::metrics::UpstreamCounts;

/// How often it is looked whether a reload has brought an elastic rule.
const IDLE: Duration = Duration::from_secs(1);
/// Ticks from one reading of the CPU's pressure to the next: the kernel updates it every two seconds or so.
const TICKS_PER_CPU: u32 = 10;

/// Keeps headroom up to date for as long as it is polled. While no rule is elastic there is none, and what was
/// known of the upstream is forgotten.
pub async fn keep_headroom(shared: &Shared) {
    let mut watch: Option<Watch> = None;
    loop {
        let generation = shared.generation.load();
        if generation.policy.rules.is_elastic() {
            let watching = watch.get_or_insert_with(|| Watch::begin(shared));
            let assessment = watching.look(shared, generation.elastic);
            shared.elastic.set(Some(assessment));
        } else if watch.take().is_some() {
            shared.elastic.set(None);
        }
        drop(generation);
        tokio::time::sleep(if watch.is_some() { TICK } else { IDLE }).await;
    }
}

/// The controller and what it has been told.
#[derive(Debug)]
struct Watch {
    controller: Controller,
    noted: Noted,
    ended: u64,
    failed: u64,
    cpu: Cpu,
    ticks: u32,
}

impl Watch {
    fn begin(shared: &Shared) -> Self {
        let totals = shared.metrics.upstreams();
        Self {
            controller: Controller::default(),
            noted: shared.elastic.noted(),
            ended: ended(&totals),
            failed: totals.failures(),
            cpu: Cpu::find(),
            ticks: 0,
        }
    }

    fn look(&mut self, shared: &Shared, signals: Signals) -> Assessment {
        let now = shared.clock.now();
        let reading = self.read(shared, signals, now);
        self.controller.assess(&reading, signals, now)
    }

    fn read(&mut self, shared: &Shared, signals: Signals, now: Timestamp) -> Reading {
        let (totals, noted) = (shared.metrics.upstreams(), shared.elastic.noted());
        let (before, ended, failed) = (self.noted, ended(&totals), totals.failures());
        let reading = Reading {
            in_flight: totals.in_flight(),
            answers: noted.answers_since(before),
            ended: ended.saturating_sub(self.ended),
            failed: failed.saturating_sub(self.failed),
            utilization: noted.utilization_since(before),
            cpu: self.cpu(signals, now),
        };
        (self.noted, self.ended, self.failed) = (noted, ended, failed);
        reading
    }

    fn cpu(&mut self, signals: Signals, now: Timestamp) -> Option<f64> {
        let is_due = self.ticks.is_multiple_of(TICKS_PER_CPU) && signals.contains(Signal::Cpu);
        self.ticks = self.ticks.wrapping_add(1);
        is_due.then(|| self.cpu.share_waited(now)).flatten()
    }
}

/// Requests that ended by the upstream's doing.
fn ended(totals: &UpstreamCounts) -> u64 {
    totals.successes().saturating_add(totals.failures())
}
