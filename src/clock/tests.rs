use super::*;

const HOUR: Duration = Duration::from_secs(3600);
const YEAR: Duration = Duration::from_secs(365 * 86_400);

/// A clock with a simulated wall clock.
struct Bench {
    clock: Clock,
    latest: Timestamp,
}

impl Bench {
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

    fn compare(&mut self, wall: Timestamp) -> Comparison {
        let comparison = self.clock.compare_with(wall);
        self.now();
        comparison
    }

    /// Returns the difference between the civil time and `wall`.
    fn error(&mut self, wall: Timestamp) -> Duration {
        let now = self.now();
        let civil = self.clock.civil(now);
        civil.since(wall).max(wall.since(civil))
    }
}

/// Tolerance of these tests; generous, because test machines stall.
const ABOUT: Duration = Duration::from_secs(30);

#[test]
fn a_wall_clock_that_is_ahead_as_after_a_suspend_is_caught_up_with() {
    let mut bench = Bench::start();
    let wall = bench.now().saturating_add(HOUR);
    let Comparison::CaughtUp(lead) = bench.compare(wall) else { panic!("expected to catch up an hour") };
    assert!(HOUR - lead < ABOUT, "{lead:?}");
    assert!(bench.now() >= wall && bench.error(wall) < ABOUT);
    assert_eq!(bench.compare(wall), Comparison::Same);
}

#[test]
fn a_wall_clock_that_jumps_ahead_and_back_takes_the_civil_time_with_it_and_never_limits() {
    for jump in [Duration::from_secs(90), HOUR, YEAR] {
        let mut bench = Bench::start();
        let wall = bench.now();
        bench.compare(wall.saturating_add(jump));
        assert!(bench.error(wall.saturating_add(jump)) < ABOUT);
        let ahead = bench.now();
        let Comparison::Ahead(lead) = bench.compare(wall) else { panic!("backward jump not detected") };
        assert!(lead >= jump && lead - jump < ABOUT, "{lead:?}");
        assert!(bench.error(wall) < ABOUT, "{jump:?}");
        assert!(bench.now() >= ahead, "the time of limits went backwards");
        assert_eq!(bench.compare(wall), Comparison::Same, "reported once");
    }
}

#[test]
fn a_wall_clock_that_was_wrong_at_the_start_and_is_set_back_is_followed() {
    let mut bench = Bench::start();
    let wall = Timestamp::from_nanos(bench.now().as_nanos() - nanos(HOUR));
    assert!(matches!(bench.compare(wall), Comparison::Ahead(_)));
    assert!(bench.error(wall) < ABOUT);
}

#[test]
fn a_lead_of_minutes_is_worked_off_until_windows_begin_where_they_should() {
    let mut bench = Bench::start();
    let wall = bench.now();
    bench.compare(wall.saturating_add(Duration::from_secs(90)));
    let mut comparisons = 0;
    // The simulated wall clock stands still, so each comparison stands for a second.
    while bench.clock.now().since(wall) > ABOUT {
        bench.compare(wall);
        bench.clock.floor.store(0, Ordering::Relaxed);
        bench.latest = Timestamp::EPOCH;
        comparisons += 1;
        assert!(comparisons < 10_000, "the clock does not converge");
    }
    assert!(comparisons > 900, "{comparisons} comparisons: slowed down by more than 6 %");
}

#[test]
fn a_lead_of_a_year_is_left_alone() {
    let mut bench = Bench::start();
    let wall = bench.now();
    bench.compare(wall.saturating_add(YEAR));
    let anchor = bench.clock.anchor.load(Ordering::Relaxed);
    for _ in 0..10 {
        bench.compare(wall);
    }
    assert_eq!(bench.clock.anchor.load(Ordering::Relaxed), anchor);
    assert!(bench.error(wall) < ABOUT);
}

#[test]
fn while_a_lead_is_worked_off_time_never_runs_backwards() {
    let mut bench = Bench::start();
    let wall = bench.now();
    bench.compare(wall.saturating_add(Duration::from_secs(600)));
    for _ in 0..50 {
        bench.compare(wall);
        for _ in 0..200 {
            bench.now();
        }
    }
}
