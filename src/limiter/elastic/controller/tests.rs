use super::super::latency::Samples;
use super::*;

const START: Timestamp = Timestamp::from_secs(1_704_067_200);

/// A controller and its simulated time.
struct Run {
    controller: Controller,
    now: Timestamp,
}

impl Run {
    fn new() -> Self {
        Self { controller: Controller::default(), now: START }
    }

    /// Feeds the same reading for `seconds`; returns every assessment.
    fn feed(&mut self, reading: &UpstreamMeasurement, seconds: f64) -> Vec<Assessment> {
        let ticks = (seconds / TICK.as_secs_f64()).round() as u32;
        let step = |_| {
            self.now = self.now.saturating_add(TICK);
            self.controller.assess(reading, SignalSet::ALL, self.now)
        };
        (0..ticks).map(step).collect()
    }

    fn headroom_after(&mut self, reading: &UpstreamMeasurement, seconds: f64) -> f64 {
        self.feed(reading, seconds).last().unwrap().headroom.fraction()
    }

    /// Returns a controller at full headroom.
    fn at_full() -> Self {
        let mut run = Self::new();
        assert!(run.headroom_after(&healthy(), 15.0) > 0.999);
        run
    }
}

fn answers(count: u64, millis: u64) -> Samples {
    let mut samples = Samples::default();
    (0..count).for_each(|_| samples.add(Duration::from_millis(millis)));
    samples
}

fn healthy() -> UpstreamMeasurement {
    UpstreamMeasurement {
        in_flight: 5,
        response_times: answers(50, 10),
        ended: 50,
        ..UpstreamMeasurement::default()
    }
}

fn with_utilization(utilization: f64) -> UpstreamMeasurement {
    UpstreamMeasurement { utilization: Some(utilization), ..healthy() }
}

#[test]
fn headroom_is_gained_in_ten_seconds_and_starts_at_none() {
    let mut run = Run::new();
    assert!(run.headroom_after(&healthy(), 0.4) <= 0.0);
    let headroom = run.headroom_after(&healthy(), 5.1);
    assert!((0.45..0.55).contains(&headroom), "{headroom}");
    assert!(run.headroom_after(&healthy(), 6.0) > 0.999);
}

#[test]
fn any_signal_alone_takes_all_headroom_within_two_seconds() {
    let overloads = [
        (Signal::InFlight, UpstreamMeasurement { in_flight: 300, ..UpstreamMeasurement::default() }),
        (Signal::Latency, UpstreamMeasurement { response_times: answers(50, 40), ..healthy() }),
        (Signal::Failures, UpstreamMeasurement { failed: 10, ..healthy() }),
        (Signal::Utilization, with_utilization(0.95)),
        (Signal::Cpu, UpstreamMeasurement { cpu: Some(0.7), ..healthy() }),
    ];
    for (signal, reading) in overloads {
        let mut run = Run::at_full();
        let seen = run.feed(&reading, 2.0);
        assert_eq!(seen.last().unwrap().headroom, Headroom::NONE, "{signal}");
        assert_eq!(seen.last().unwrap().binding().unwrap().signal, signal);
        assert!(seen.iter().any(|assessment| assessment.trend == Trend::Shrinking));
    }
}

#[test]
fn a_signal_that_is_not_asked_says_nothing() {
    let mut run = Run::at_full();
    let others: SignalSet = Signal::ALL.into_iter().filter(|signal| *signal != Signal::Utilization).collect();
    for _ in 0..100 {
        run.now = run.now.saturating_add(TICK);
        let assessment = run.controller.assess(&with_utilization(2.0), others, run.now);
        assert_eq!(assessment.headroom, Headroom::FULL);
        assert_eq!(assessment.levels[Signal::Utilization as usize], None);
    }
}

#[test]
fn near_a_threshold_headroom_stays_as_it_is() {
    let mut run = Run::new();
    let before = run.headroom_after(&healthy(), 5.0);
    let seen = run.feed(&with_utilization(0.65), 60.0);
    assert!(seen.iter().all(|assessment| (assessment.headroom.fraction() - before).abs() < 1e-4));
    assert!(seen.iter().all(|assessment| assessment.trend == Trend::Steady));
}

#[test]
fn it_comes_back_fast_to_near_where_it_turned_and_carefully_beyond() {
    let mut run = Run::new();
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
fn reports_that_stopped_are_forgotten() {
    let mut run = Run::at_full();
    assert!(run.headroom_after(&with_utilization(0.95), 2.0) <= 0.0);
    let seen = run.feed(&healthy(), 30.0);
    assert_eq!(seen[50].headroom, Headroom::NONE, "the last report is still used");
    assert_eq!(seen.last().unwrap().levels[Signal::Utilization as usize], None);
    assert!(seen.last().unwrap().headroom > Headroom::NONE);
}

#[test]
fn one_failure_among_few_requests_is_no_overload() {
    let mut run = Run::at_full();
    let quiet = UpstreamMeasurement { ended: 1, failed: 1, in_flight: 0, ..UpstreamMeasurement::default() };
    assert!(run.feed(&quiet, 0.1).iter().all(|assessment| assessment.trend != Trend::Shrinking));
}

#[test]
fn a_pause_of_the_process_is_no_second_of_growth_more() {
    let mut run = Run::new();
    run.headroom_after(&healthy(), 1.0);
    run.now = run.now.saturating_add(Duration::from_secs(3600));
    assert!(run.headroom_after(&healthy(), 0.1) < 0.2);
}

#[test]
fn numbers_that_are_none_are_not_believed() {
    let mut run = Run::at_full();
    for wrong in [f64::NAN, f64::INFINITY] {
        let reading = UpstreamMeasurement { utilization: Some(wrong), cpu: Some(wrong), ..healthy() };
        assert!(run.headroom_after(&reading, 5.0) > 0.999);
    }
}
