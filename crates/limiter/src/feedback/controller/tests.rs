//! The controller alone, and against a provider whose limit changes.

mod simulation;

use proptest::prelude::*;

use self::simulation::{KINDS, Kind, Outcome, Simulation, millis};
use super::*;

fn percent(hundredths: u32) -> Percent {
    Percent::from_hundredths(hundredths)
}

fn settings() -> ControllerSettings {
    let min = LimitShare::from_percent(percent(1000));
    ControllerSettings::new(min, percent(3000), percent(5000), Duration::from_secs(1))
}

fn start() -> Timestamp {
    Timestamp::from_secs(1_000_000)
}

/// Calls `test` with each kind of provider, with headers and without.
fn for_each_provider(test: impl Fn(Kind, bool)) {
    for kind in KINDS {
        [false, true].into_iter().for_each(|has_headers| test(kind, has_headers));
    }
}

/// Returns a simulation of a limit that is `share` of the provider's.
fn simulation(kind: Kind, has_headers: bool, provider: f64, share: f64) -> Simulation {
    let mut simulation = Simulation::new(kind, provider * share, provider, settings());
    simulation.has_headers = has_headers;
    simulation
}

/// Runs until most of the limit is in force, and returns the seconds that this takes.
fn seconds_until_restored(simulation: &mut Simulation) -> f64 {
    let tenths = (0..1000).take_while(|_| {
        let is_restored = simulation.controller.share().fraction() >= 0.9;
        if !is_restored {
            simulation.run(0.1);
        }
        !is_restored
    });
    tenths.count() as f64 / 10.0
}

#[test]
fn limit_just_below_that_of_the_provider_is_used_whole_and_nothing_is_rejected() {
    for_each_provider(|kind, has_headers| {
        for (limit, seconds) in [(10.0, 600.0), (1000.0, 60.0), (10_000.0, 10.0)] {
            let Outcome { used, rejections, .. } = simulation(kind, has_headers, limit, 0.99).run(seconds);
            assert!(used >= 0.99 && rejections == 0, "{kind:?} {limit} {has_headers}: {used} {rejections}");
        }
    });
}

#[test]
fn limit_above_that_of_the_provider_uses_it_and_is_rarely_rejected() {
    for_each_provider(|kind, has_headers| {
        // A single call in a second is a tenth of the limit of ten.
        for (limit, seconds, most) in
            [(10.0, 5_000.0, 0.005), (1000.0, 100.0, 0.001), (10_000.0, 10.0, 0.001)]
        {
            let mut simulation = simulation(kind, has_headers, limit, 1.3);
            simulation.run(60.0 + seconds / 5.0);
            let Outcome { used, rejected, .. } = simulation.run(seconds);
            assert!(used >= 0.97 && rejected <= most, "{kind:?} {limit} {has_headers}: {used} {rejected}");
        }
    });
}

#[test]
fn requests_that_wait_after_their_decision_do_not_make_the_limit_oscillate() {
    for_each_provider(|kind, has_headers| {
        let mut simulation = simulation(kind, has_headers, 1000.0, 1.3);
        simulation.queue = millis(1000);
        simulation.run(120.0);
        let Outcome { used, rejected, .. } = simulation.run(300.0);
        assert!(used >= 0.97 && rejected <= 0.005, "{kind:?} {has_headers}: {used} {rejected}");
    });
}

#[test]
fn limit_that_the_provider_halves_and_restores_is_used_within_seconds() {
    for_each_provider(|kind, has_headers| {
        for limit in [1000.0, 10_000.0] {
            let mut simulation = simulation(kind, has_headers, limit, 0.99);
            simulation.run(10.0);
            simulation.provider = limit / 2.0;
            simulation.run(4.0);
            let at_first = simulation.run(1.0).used;
            assert!(at_first >= 0.9, "{kind:?} {limit} {has_headers}: {at_first}");
            let settled = simulation.run(10.0);
            assert!(settled.used >= 0.95, "{kind:?} {limit} {has_headers}: {settled:?}");
            simulation.provider = limit;
            let seconds = seconds_until_restored(&mut simulation);
            assert!(seconds <= 8.0, "{kind:?} {limit} {has_headers}: {seconds}");
        }
    });
}

#[test]
fn limit_of_few_requests_that_the_provider_halves_and_restores_is_used_within_seconds() {
    for_each_provider(|kind, has_headers| {
        let mut simulation = simulation(kind, has_headers, 10.0, 0.99);
        simulation.run(10.0);
        simulation.provider = 5.0;
        simulation.run(5.0);
        let settled = simulation.run(10.0);
        assert!(settled.used >= 0.9 && settled.rejections <= 3, "{kind:?} {has_headers}: {settled:?}");
        simulation.provider = 10.0;
        let seconds = seconds_until_restored(&mut simulation);
        assert!(seconds <= 12.0, "{kind:?} {has_headers}: {seconds}");
    });
}

#[test]
fn limit_that_the_provider_restores_after_a_long_time_is_found() {
    for_each_provider(|kind, has_headers| {
        for limit in [10.0, 1000.0] {
            let mut simulation = simulation(kind, has_headers, limit, 0.99);
            simulation.provider = limit / 2.0;
            simulation.run(300.0);
            simulation.provider = limit;
            let seconds = seconds_until_restored(&mut simulation);
            assert!(seconds <= 20.0, "{kind:?} {limit} {has_headers}: {seconds}");
        }
    });
}

#[test]
fn limit_that_the_provider_states_again_is_used_within_three_periods() {
    for_each_provider(|kind, has_headers| {
        for limit in [10.0, 1000.0, 10_000.0] {
            let mut simulation = simulation(kind, has_headers, limit, 0.99);
            simulation.stated = Some(1.0);
            simulation.run(1.0);
            simulation.provider = limit / 2.0;
            simulation.run(20.0);
            // Not during an episode.
            while simulation.controller.episode.is_some() {
                simulation.run(0.1);
            }
            simulation.provider = limit;
            let seconds = seconds_until_restored(&mut simulation);
            assert!(seconds <= 3.0, "{kind:?} {limit} {has_headers}: {seconds}");
            let after = simulation.run(5.0);
            assert_eq!(after.rejections, 0, "{kind:?} {limit} {has_headers}: {after:?}");
        }
    });
}

#[test]
fn limits_of_several_quotas_that_the_provider_states_in_turn_raise_the_ceiling_once() {
    for_each_provider(|kind, has_headers| {
        let mut simulation = simulation(kind, has_headers, 1000.0, 2.0);
        for round in 0..5 {
            simulation.stated = Some(0.1);
            simulation.run(40.0);
            simulation.stated = Some(1.0);
            let Outcome { rejected, .. } = simulation.run(20.0);
            assert!(round == 0 || rejected <= 0.005, "{kind:?} {has_headers} {round}: {rejected}");
        }
    });
}

#[test]
fn test_of_an_unchanged_limit_costs_a_handful_of_rejections() {
    for_each_provider(|kind, has_headers| {
        let mut simulation = simulation(kind, has_headers, 1000.0, 1.3);
        simulation.run(30.0);
        let (mut in_a_row, mut most) = (0, 0);
        for _ in 0..300 {
            let rejections = simulation.run(0.4).rejections;
            in_a_row = if rejections == 0 { 0 } else { in_a_row + rejections };
            most = most.max(in_a_row);
        }
        // A provider that counts in windows admits a test for almost a whole window.
        assert!(most <= 15, "{kind:?} {has_headers}: {most}");
    });
}

#[test]
fn burst_of_rejections_lowers_the_share_once() {
    let mut controller = ShareController::default();
    let now = start();
    let later = |millis| now.saturating_add(Duration::from_millis(millis));
    assert!(controller.on_rejection(now, Duration::ZERO, now, &settings()));
    for millis in 0..100 {
        assert!(!controller.on_rejection(later(millis), Duration::ZERO, later(millis), &settings()));
    }
    assert_eq!(controller.share().millionths(), 700_000);
    // Sent before the decrease, rejected long after.
    assert!(!controller.on_rejection(now, Duration::ZERO, later(5000), &settings()));
    assert!(controller.on_rejection(later(1), Duration::ZERO, later(5000), &settings()));
}

#[test]
fn one_rejection_among_many_costs_little() {
    let mut controller = ShareController::new(LimitShare::FULL, None, start(), start());
    let later = |millis| start().saturating_add(Duration::from_millis(millis));
    for millis in (100..2000).step_by(100) {
        controller.count_admitted(100, later(millis), later(millis), &settings());
    }
    assert!(controller.on_rejection(later(1990), Duration::ZERO, later(2000), &settings()));
    assert_eq!(controller.share().millionths(), 995_000);
}

#[test]
fn shares_of_other_instances_apply_to_the_requests_that_were_decided_since() {
    let share = LimitShare::from_millionths;
    let later = |millis| start().saturating_add(Duration::from_millis(millis));
    let below = || ShareController::new(share(400_000), Some(share(500_000)), start(), start());
    // Many of the requests at the share of the other instance were admitted: the ceiling there is known to be good.
    let mut raised = below();
    raised.raise_to(share(800_000), Some(share(790_000)), later(2000));
    raised.count_admitted(1000, later(2900), later(2900), &settings());
    assert!(raised.on_rejection(later(2900), Duration::ZERO, later(3000), &settings()));
    assert!(raised.share() > share(770_000), "{}", raised.share());
    // Requests that were decided at the share before, and are rejected, say nothing about the new one.
    assert_eq!(raised.history.at(later(1000)), share(400_000));
    let mut lowered = below();
    lowered.lower_to(share(200_000), later(2000));
    let mut followed = below();
    followed.follow(share(200_000), None, start(), later(2000));
    for controller in [lowered, followed] {
        assert_eq!(controller.history.at(later(1000)), share(400_000));
        assert_eq!(controller.history.at(later(2500)), share(200_000));
    }
}

#[test]
fn test_of_a_share_ends_when_another_instance_raises_it() {
    let share = LimitShare::from_millionths;
    let now = start();
    let stage_after = |stage| {
        let mut controller = ShareController::new(share(510_000), Some(share(500_000)), now, now);
        controller.probe = stage;
        controller.raise_to(share(600_000), Some(share(590_000)), now);
        controller.probe
    };
    assert_eq!(stage_after(ProbeStage::Test(now)), ProbeStage::None);
    assert_eq!(stage_after(ProbeStage::Growth), ProbeStage::Growth);
}

#[test]
fn share_rises_by_the_increase_in_one_period_at_most() {
    let min = LimitShare::MIN;
    let slow = ControllerSettings::new(min, percent(5000), percent(500), Duration::from_secs(60));
    let mut controller = ShareController::new(LimitShare::MIN, None, start(), start());
    let mut before = controller.share().millionths();
    for minute in 1..600_u64 {
        controller.count_admitted(1000, start(), start(), &slow);
        let now = start().saturating_add(Duration::from_secs(minute * 60));
        controller.on_success(now, now, &slow);
        let share = controller.share().millionths();
        assert!(share - before <= 50_000, "{before} {share}");
        before = share;
    }
    assert!(controller.share().is_full());
    // A pause without responses counts as one period at most.
    let mut controller = ShareController::new(LimitShare::from_millionths(500_000), None, start(), start());
    let now = start().saturating_add(Duration::from_secs(7200));
    controller.on_success(now, now, &slow);
    assert!(controller.share().millionths() <= 550_000);
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
                controller.on_rejection(sent_at, Duration::ZERO, now, &settings);
                prop_assert!(controller.share() <= before);
            } else {
                let decided_at = now.saturating_sub(Duration::from_millis(age));
                controller.count_admitted(1, decided_at, now, &settings);
                controller.on_success(decided_at, now, &settings);
                prop_assert!(controller.share() >= before);
            }
            prop_assert!(controller.share() >= min && controller.share() <= LimitShare::FULL);
        }
    }
}
