//! Control task of elastic limits: updates headroom ten times a second, off the request path.

use std::time::Duration;

use tokio::time::MissedTickBehavior;

use super::cpu::CpuPressure;
use super::load::LoadTotals;
use crate::proxy::ProxyState;
use weir_limiter::control::TICK;
use weir_limiter::elastic::controller::{Assessment, Controller};
use weir_limiter::elastic::signal::{Signal, SignalSet, UpstreamMeasurement};
use weir_limiter::timestamp::Timestamp;
use weir_telemetry::metrics::UpstreamCounts;

/// Interval at which a reload is checked for elastic rules while there are none.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);
/// Ticks between readings of CPU pressure, which the kernel updates about every two seconds.
const TICKS_PER_CPU: u32 = 10;

/// Updates headroom for as long as the future is polled. While no rule is elastic, there is none, and what was learned
/// about the upstream is dropped.
pub async fn run_headroom_controller(shared: &ProxyState) {
    let mut watch: Option<HeadroomMonitor> = None;
    let mut idle = tokio::time::interval(IDLE_INTERVAL);
    idle.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        let generation = shared.generation.load();
        if generation.policy.rules.is_elastic() {
            let watching = watch.get_or_insert_with(|| HeadroomMonitor::start(shared));
            let assessment = watching.assess(shared, generation.elastic);
            shared.elastic.set_assessment(Some(assessment));
        } else if watch.take().is_some() {
            shared.elastic.set_assessment(None);
        }
        drop(generation);
        if watch.is_some() {
            tokio::time::sleep(TICK).await;
        } else {
            idle.tick().await;
        }
    }
}

/// The controller, with the values of the previous reading.
#[derive(Debug)]
struct HeadroomMonitor {
    controller: Controller,
    load_totals: LoadTotals,
    completed: u64,
    failed: u64,
    cpu: CpuPressure,
    ticks: u32,
}

impl HeadroomMonitor {
    fn start(shared: &ProxyState) -> Self {
        let totals = shared.metrics.upstream_totals();
        Self {
            controller: Controller::default(),
            load_totals: shared.elastic.load_totals(),
            completed: completed_requests(&totals),
            failed: totals.failures(),
            cpu: CpuPressure::find(),
            ticks: 0,
        }
    }

    fn assess(&mut self, shared: &ProxyState, signals: SignalSet) -> Assessment {
        let now = shared.clock.now();
        let reading = self.read(shared, signals, now);
        self.controller.assess(&reading, signals, now)
    }

    fn read(&mut self, shared: &ProxyState, signals: SignalSet, now: Timestamp) -> UpstreamMeasurement {
        let (totals, noted) = (shared.metrics.upstream_totals(), shared.elastic.load_totals());
        let (before, ended, failed) = (self.load_totals, completed_requests(&totals), totals.failures());
        let reading = UpstreamMeasurement {
            in_flight: totals.in_flight(),
            response_times: noted.responses_since(before),
            ended: ended.saturating_sub(self.completed),
            failed: failed.saturating_sub(self.failed),
            utilization: noted.utilization_since(before),
            cpu: self.cpu(signals, now),
        };
        (self.load_totals, self.completed, self.failed) = (noted, ended, failed);
        reading
    }

    fn cpu(&mut self, signals: SignalSet, now: Timestamp) -> Option<f64> {
        let is_due = self.ticks.is_multiple_of(TICKS_PER_CPU) && signals.contains(Signal::Cpu);
        self.ticks = self.ticks.wrapping_add(1);
        is_due.then(|| self.cpu.share_waited(now)).flatten()
    }
}

/// Returns the number of requests that the upstream completed or failed.
fn completed_requests(totals: &UpstreamCounts) -> u64 {
    totals.successes().saturating_add(totals.failures())
}
