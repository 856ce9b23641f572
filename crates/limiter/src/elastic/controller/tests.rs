use super::*;
use crate::control::TICK;
use crate::control::samples::Samples;

const START: Timestamp = Timestamp::from_secs(1_704_067_200);

/// A controller and its simulated time.
struct Simulation {
    controller: Controller,
    now: Timestamp,
}

impl Simulation {
    fn new() -> Self {
        Self { controller: Controller::default(), now: START }
    }

    /// Feeds the same reading for `seconds`; returns every assessment.
    fn run_ticks(&mut self, reading: &UpstreamMeasurement, seconds: f64) -> Vec<Assessment> {
        let ticks = (seconds / TICK.as_secs_f64()).round() as u32;
        let step = |_| {
            self.now = self.now.saturating_add(TICK);
            self.controller.assess(reading, SignalSet::ALL, self.now)
        };
        (0..ticks).map(step).collect()
    }

    fn headroom_after(&mut self, reading: &UpstreamMeasurement, seconds: f64) -> f64 {
        self.run_ticks(reading, seconds).last().unwrap().headroom.fraction()
    }

    /// Returns a controller at full headroom.
    fn with_full_headroom() -> Self {
        let mut run = Self::new();
        assert!(run.headroom_after(&healthy(), 15.0) > 0.999);
        run
    }
}

fn response_times(count: u64, millis: u64) -> Samples {
    let mut samples = Samples::default();
    (0..count).for_each(|_| samples.add(Duration::from_millis(millis)));
    samples
}

fn healthy() -> UpstreamMeasurement {
    UpstreamMeasurement {
        in_flight: 5,
        response_times: response_times(50, 10),
        ended: 50,
        ..UpstreamMeasurement::default()
    }
}

fn with_utilization(utilization: f64) -> UpstreamMeasurement {
    UpstreamMeasurement { utilization: Some(utilization), ..healthy() }
}

#[test]
fn headroom_starts_at_none_and_is_full_after_ten_seconds() {
    let mut run = Simulation::new();
    assert!(run.headroom_after(&healthy(), 0.4) <= 0.0);
    let headroom = run.headroom_after(&healthy(), 5.1);
    assert!((0.45..0.55).contains(&headroom), "{headroom}");
    assert!(run.headroom_after(&healthy(), 6.0) > 0.999);
}

#[test]
fn any_overloaded_signal_removes_headroom_within_two_seconds() {
    let overloads = [
        (Signal::InFlight, UpstreamMeasurement { in_flight: 300, ..UpstreamMeasurement::default() }),
        (Signal::Latency, UpstreamMeasurement { response_times: response_times(50, 40), ..healthy() }),
        (Signal::Failures, UpstreamMeasurement { failed: 10, ..healthy() }),
        (Signal::Utilization, with_utilization(0.95)),
        (Signal::Cpu, UpstreamMeasurement { cpu: Some(0.7), ..healthy() }),
    ];
    for (signal, reading) in overloads {
        let mut run = Simulation::with_full_headroom();
        let seen = run.run_ticks(&reading, 2.0);
        assert_eq!(seen.last().unwrap().headroom, Headroom::NONE, "{signal}");
        assert_eq!(seen.last().unwrap().binding().unwrap().signal, signal);
        assert!(seen.iter().any(|assessment| assessment.trend == Trend::Shrinking));
    }
}

#[test]
fn disabled_signal_does_not_affect_headroom() {
    let mut run = Simulation::with_full_headroom();
    let others: SignalSet = Signal::ALL.into_iter().filter(|signal| *signal != Signal::Utilization).collect();
    for _ in 0..100 {
        run.now = run.now.saturating_add(TICK);
        let assessment = run.controller.assess(&with_utilization(2.0), others, run.now);
        assert_eq!(assessment.headroom, Headroom::FULL);
        assert_eq!(assessment.levels[Signal::Utilization as usize], None);
    }
}

#[test]
fn headroom_is_steady_near_a_threshold() {
    let mut run = Simulation::new();
    let before = run.headroom_after(&healthy(), 5.0);
    let seen = run.run_ticks(&with_utilization(0.65), 60.0);
    assert!(seen.iter().all(|assessment| (assessment.headroom.fraction() - before).abs() < 1e-4));
    assert!(seen.iter().all(|assessment| assessment.trend == Trend::Steady));
}

#[test]
fn headroom_recovers_fast_below_its_last_peak_and_slowly_above() {
    let mut run = Simulation::new();
    run.headroom_after(&healthy(), 5.5);
    let overloaded = run.headroom_after(&with_utilization(2.0), 2.0);
    assert!(overloaded <= 0.0);
    let calm = with_utilization(0.2);
    let back = run.headroom_after(&calm, 6.0);
    assert!((0.4..0.47).contains(&back), "{back}");
    let later = run.headroom_after(&calm, 2.0);
    assert!(later - back < 0.03, "{back} to {later}");
    assert!(run.headroom_after(&calm, 70.0) > 0.999, "the headroom grows beyond the last turning point");
}

#[test]
fn stale_utilization_reports_expire() {
    let mut run = Simulation::with_full_headroom();
    assert!(run.headroom_after(&with_utilization(0.95), 2.0) <= 0.0);
    let seen = run.run_ticks(&healthy(), 30.0);
    assert_eq!(seen[50].headroom, Headroom::NONE, "the last report is still used");
    assert_eq!(seen.last().unwrap().levels[Signal::Utilization as usize], None);
    assert!(seen.last().unwrap().headroom > Headroom::NONE);
}

#[test]
fn single_failure_at_low_traffic_does_not_shrink_headroom() {
    let mut run = Simulation::with_full_headroom();
    let quiet = UpstreamMeasurement { ended: 1, failed: 1, in_flight: 0, ..UpstreamMeasurement::default() };
    assert!(run.run_ticks(&quiet, 0.1).iter().all(|assessment| assessment.trend != Trend::Shrinking));
}

#[test]
fn process_pause_does_not_grow_headroom() {
    let mut run = Simulation::new();
    run.headroom_after(&healthy(), 1.0);
    run.now = run.now.saturating_add(Duration::from_secs(3600));
    assert!(run.headroom_after(&healthy(), 0.1) < 0.2);
}

#[test]
fn non_finite_reports_are_ignored() {
    let mut run = Simulation::with_full_headroom();
    for wrong in [f64::NAN, f64::INFINITY] {
        let reading = UpstreamMeasurement { utilization: Some(wrong), cpu: Some(wrong), ..healthy() };
        assert!(run.headroom_after(&reading, 5.0) > 0.999);
    }
}
