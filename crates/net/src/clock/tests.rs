use super::*;

const HOUR: Duration = Duration::from_secs(3600);
const YEAR: Duration = Duration::from_secs(365 * 86_400);

/// A clock with a simulated wall clock.
struct SimulatedClock {
    clock: Clock,
    latest: Timestamp,
}

impl SimulatedClock {
    fn start() -> Self {
        let clock = Clock::start();
        Self { latest: clock.now(), clock }
    }

    /// Returns the time and asserts that it did not go backwards.
    fn now(&mut self) -> Timestamp {
        let now = self.clock.now();
        assert!(now >= self.latest, "{:?} earlier than before", self.latest.since(now));
        self.latest = now;
        now
    }

    fn compare(&mut self, wall: Timestamp) -> ClockComparison {
        let comparison = self.clock.compare_with_time(wall);
        self.now();
        comparison
    }

    /// Returns the difference between the civil time and `wall`.
    fn civil_time_error(&mut self, wall: Timestamp) -> Duration {
        let now = self.now();
        let civil = self.clock.civil_time_at(now);
        civil.since(wall).max(wall.since(civil))
    }
}

/// Tolerance of these tests; generous, because test machines stall.
const TEST_TOLERANCE: Duration = Duration::from_secs(30);

#[test]
fn clock_catches_up_with_the_wall_clock_after_a_suspend() {
    let mut bench = SimulatedClock::start();
    let wall = bench.now().saturating_add(HOUR);
    let ClockComparison::CaughtUp(lead) = bench.compare(wall) else { panic!("expected to catch up an hour") };
    assert!(HOUR - lead < TEST_TOLERANCE, "{lead:?}");
    assert!(bench.now() >= wall && bench.civil_time_error(wall) < TEST_TOLERANCE);
    assert_eq!(bench.compare(wall), ClockComparison::Same);
}

#[test]
fn civil_time_follows_wall_clock_jumps_and_limiter_time_never_decreases() {
    for jump in [Duration::from_secs(90), HOUR, YEAR] {
        let mut bench = SimulatedClock::start();
        let wall = bench.now();
        bench.compare(wall.saturating_add(jump));
        assert!(bench.civil_time_error(wall.saturating_add(jump)) < TEST_TOLERANCE);
        let ahead = bench.now();
        let ClockComparison::Ahead(lead) = bench.compare(wall) else { panic!("backward jump not detected") };
        assert!(lead >= jump && lead - jump < TEST_TOLERANCE, "{lead:?}");
        assert!(bench.civil_time_error(wall) < TEST_TOLERANCE, "{jump:?}");
        assert!(bench.now() >= ahead, "the time of limits went backwards");
        assert_eq!(bench.compare(wall), ClockComparison::Same, "reported once");
    }
}

#[test]
fn civil_time_follows_a_wall_clock_that_is_set_back() {
    let mut bench = SimulatedClock::start();
    let wall = Timestamp::from_nanos(bench.now().as_nanos() - saturating_nanos(HOUR));
    assert!(matches!(bench.compare(wall), ClockComparison::Ahead(_)));
    assert!(bench.civil_time_error(wall) < TEST_TOLERANCE);
}

#[test]
fn small_lead_over_the_wall_clock_is_corrected_gradually() {
    let mut bench = SimulatedClock::start();
    let wall = bench.now();
    bench.compare(wall.saturating_add(Duration::from_secs(90)));
    let mut comparisons = 0;
    // The simulated wall clock stands still, so each comparison stands for a second.
    while bench.clock.now().since(wall) > TEST_TOLERANCE {
        bench.compare(wall);
        bench.clock.floor.store(0, Ordering::Relaxed);
        bench.latest = Timestamp::EPOCH;
        comparisons += 1;
        assert!(comparisons < 10_000, "the clock does not converge");
    }
    assert!(comparisons > 900, "{comparisons} comparisons: slowed down by more than 6 %");
}

#[test]
fn large_lead_over_the_wall_clock_is_not_corrected() {
    let mut bench = SimulatedClock::start();
    let wall = bench.now();
    bench.compare(wall.saturating_add(YEAR));
    let anchor = bench.clock.anchor.load(Ordering::Relaxed);
    for _ in 0..10 {
        bench.compare(wall);
    }
    assert_eq!(bench.clock.anchor.load(Ordering::Relaxed), anchor);
    assert!(bench.civil_time_error(wall) < TEST_TOLERANCE);
}

#[test]
fn clock_never_goes_backwards_during_a_correction() {
    let mut bench = SimulatedClock::start();
    let wall = bench.now();
    bench.compare(wall.saturating_add(Duration::from_secs(600)));
    for _ in 0..50 {
        bench.compare(wall);
        for _ in 0..200 {
            bench.now();
        }
    }
}
