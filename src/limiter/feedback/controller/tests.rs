//! The controller against a provider whose limit changes.

use proptest::prelude::*;

use super::*;

const TICK: Duration = Duration::from_millis(10);

fn percent(hundredths: u32) -> Percent {
    Percent::from_hundredths(hundredths)
}

fn settings() -> ControllerSettings {
    let min = LimitShare::from_percent(percent(1000));
    ControllerSettings::new(min, percent(3000), percent(500), Duration::from_secs(1))
}

fn start() -> Timestamp {
    Timestamp::from_secs(1_000_000)
}

/// A provider that admits at a rate, with a burst, and a client that sends as much as its share permits.
struct Simulation {
    controller: ShareController,
    now: Timestamp,
    /// Provider's limit as a part of the configured one.
    provider: f64,
    /// Requests that the provider would admit at once.
    tokens: f64,
    /// Part of a request that the client has saved up.
    carry: f64,
    sent: u64,
    rejected: u64,
    admitted: f64,
    offered: f64,
}

/// Requests per second of the configured limit.
const LIMIT: f64 = 1000.0;

impl Simulation {
    fn new() -> Self {
        Self {
            controller: ShareController::default(),
            now: start(),
            provider: 1.0,
            tokens: 0.0,
            carry: 0.0,
            sent: 0,
            rejected: 0,
            admitted: 0.0,
            offered: 0.0,
        }
    }

    /// Runs for some time and returns the use of the provider's limit, and the part of requests that it rejected.
    fn run(&mut self, seconds: u64) -> (f64, f64) {
        (self.sent, self.rejected, self.admitted, self.offered) = (0, 0, 0.0, 0.0);
        let round_trip = Duration::from_millis(50);
        let end = self.now.saturating_add(Duration::from_secs(seconds));
        while self.now < end {
            let by_tick = LIMIT * TICK.as_secs_f64();
            self.offered += by_tick * self.provider;
            self.tokens = (self.tokens + by_tick * self.provider).min(LIMIT * self.provider * 0.1);
            self.carry += by_tick * self.controller.share().fraction();
            // Callers send in bursts of ten.
            while self.carry >= 10.0 {
                self.carry -= 10.0;
                for _ in 0..10 {
                    self.sent += 1;
                    let answered_at = self.now.saturating_add(round_trip);
                    if self.tokens >= 1.0 {
                        self.tokens -= 1.0;
                        self.admitted += 1.0;
                        self.controller.on_success(answered_at, &settings());
                    } else {
                        self.rejected += 1;
                        self.controller.on_rejection(self.now, answered_at, &settings());
                    }
                }
            }
            self.now = self.now.saturating_add(TICK);
        }
        (self.admitted / self.offered, self.rejected as f64 / self.sent as f64)
    }
}

#[test]
fn limit_is_used_whole_while_the_provider_admits_it() {
    let mut provider = Simulation::new();
    provider.run(1);
    let (used, rejected) = provider.run(60);
    assert!(used > 0.99 && rejected == 0.0, "{used} {rejected}");
    assert_eq!(provider.controller.share(), LimitShare::FULL);
}

#[test]
fn provider_that_halves_its_limit_rarely_rejects_in_steady_state_and_its_limit_is_used() {
    let mut provider = Simulation::new();
    provider.provider = 0.5;
    provider.run(60);
    let (used, rejected) = provider.run(600);
    assert!(used >= 0.95, "use {used}");
    assert!(rejected <= 0.002, "rejected {rejected}");
}

#[test]
fn limit_that_the_provider_doubles_is_used_again() {
    let mut provider = Simulation::new();
    provider.provider = 0.4;
    provider.run(120);
    provider.provider = 0.8;
    provider.run(60);
    let (used, rejected) = provider.run(300);
    assert!(used >= 0.95, "use {used}");
    assert!(rejected <= 0.002, "rejected {rejected}");
    provider.provider = 1.0;
    provider.run(60);
    assert_eq!(provider.controller.share(), LimitShare::FULL);
}

#[test]
fn burst_of_rejections_lowers_the_share_once() {
    let mut controller = ShareController::default();
    let now = start();
    let later = |millis| now.saturating_add(Duration::from_millis(millis));
    assert!(controller.on_rejection(now, now, &settings()));
    for millis in 0..100 {
        assert!(!controller.on_rejection(later(millis), later(millis), &settings()));
    }
    assert_eq!(controller.share().millionths(), 700_000);
    // Sent before the decrease, rejected long after.
    assert!(!controller.on_rejection(now, later(5000), &settings()));
    assert!(controller.on_rejection(later(1), later(5000), &settings()));
}

#[test]
fn share_rises_by_the_increase_in_one_period() {
    let min = LimitShare::MIN;
    let slow = ControllerSettings::new(min, percent(5000), percent(500), Duration::from_secs(60));
    let mut controller = ShareController::new(LimitShare::MIN, None, start(), start());
    for second in 1..=60 {
        controller.on_success(start().saturating_add(Duration::from_secs(second)), &slow);
    }
    let share = controller.share().millionths();
    assert!((59_900..=60_000).contains(&share), "{share}");
    // A pause without responses counts as one period at most.
    controller.on_success(start().saturating_add(Duration::from_secs(7200)), &slow);
    assert_eq!(controller.share().millionths(), share + 50_000);
}

proptest! {
    #[test]
    fn share_stays_between_the_minimum_and_the_limit(
        min in 0..20_000_u32,
        decrease in 0..20_000_u32,
        increase in 0..20_000_u32,
        period in 0..200_000_u64,
        events in prop::collection::vec((any::<bool>(), 0..5000_u64, 0..5000_u64), 0..200),
    ) {
        let min = LimitShare::from_percent(percent(min));
        let period = Duration::from_millis(period);
        let settings = ControllerSettings::new(min, percent(decrease), percent(increase), period);
        let mut controller = ShareController::default();
        let mut now = start();
        for (is_rejection, pause, age) in events {
            now = now.saturating_add(Duration::from_millis(pause));
            let before = controller.share();
            if is_rejection {
                let sent_at = now.saturating_sub(Duration::from_millis(age));
                controller.on_rejection(sent_at, now, &settings);
                prop_assert!(controller.share() <= before);
            } else {
                controller.on_success(now, &settings);
                prop_assert!(controller.share() >= before);
            }
            prop_assert!(controller.share() >= min && controller.share() <= LimitShare::FULL);
        }
    }
}
