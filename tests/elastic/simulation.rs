//! Guarantees of the controller with an upstream that slows down, recovers and oscillates.
//!
//! Each test runs with several seeds. `cargo bench --bench elastic -- --svg docs/elastic` draws the same runs.

use weir_limiter::elastic::controller::Assessment;
use weir_limiter::elastic::signal::{Signal, SignalSet};

use super::upstream::{Scenario, TickState, run};

/// Factor by which requests take longer, at a second of the simulation.
type Slowdown = fn(f64) -> f64;

/// Returns the factors between two seconds.
fn factors(moments: &[TickState], from: f64, to: f64) -> Vec<f64> {
    let between = moments.iter().filter(|moment| (from..to).contains(&moment.at));
    between.map(|moment| moment.factor).collect()
}

fn mean(numbers: &[f64]) -> f64 {
    numbers.iter().sum::<f64>() / numbers.len() as f64
}

/// Returns the maximum deviation of the factors from their mean, relative to the mean.
fn max_deviation(factors: &[f64]) -> f64 {
    let mean = mean(factors);
    factors.iter().map(|factor| (factor - mean).abs() / mean).fold(0.0, f64::max)
}

/// Returns the seconds from `from` until every limit is back at its base.
fn time_to_base(moments: &[TickState], from: f64) -> Option<f64> {
    let at_base = moments.iter().find(|moment| moment.at >= from && moment.factor <= 1.0)?;
    Some(at_base.at - from)
}

/// Returns the admitted requests per second of each client, between two seconds.
fn rates(moments: &[TickState], from: f64, to: f64) -> Vec<f64> {
    let clients = moments[0].admitted.len();
    let between = || moments.iter().filter(|moment| (from..to).contains(&moment.at));
    let rate = |client: usize| between().map(|moment| f64::from(moment.admitted[client])).sum::<f64>();
    (0..clients).map(|client| rate(client) / (to - from)).collect()
}

#[test]
fn elastic_factor_is_stable_within_a_tenth_in_steady_state() {
    for seed in 0..8 {
        let latency = Scenario::greedy(seed);
        let reports = Scenario { reports_load: true, ..latency.clone() };
        let few_servers = Scenario { servers: 2, service: 0.0022, ..latency.clone() };
        for scenario in [latency, reports, few_servers] {
            let factors = factors(&run(&scenario), 60.0, 180.0);
            let (swing, mean) = (max_deviation(&factors), mean(&factors));
            assert!(swing < 0.1, "{swing} of {mean} with {scenario:?}");
            assert!((1.2..2.05).contains(&mean), "{mean} with {scenario:?}");
        }
    }
}

#[test]
fn elastic_limit_reaches_its_maximum_if_the_upstream_has_capacity() {
    for (limit, spread) in [(1, 0.5), (1, 1.5), (5, 1.0), (20, 1.5), (100, 0.5)] {
        let scenario = Scenario { limit, spread, servers: 64, ..Scenario::greedy(7) };
        let moments = run(&scenario);
        let lowest = factors(&moments, 30.0, 180.0).into_iter().fold(f64::MAX, f64::min);
        assert!(lowest > 2.99, "{lowest} at {limit}/s, spread {spread}");
    }
}

#[test]
fn elastic_limits_are_at_base_two_seconds_after_a_slowdown() {
    let slowdowns: [(&str, Slowdown); 4] = [
        ("to a third", |second| if second < 90.0 { 1.0 } else { 3.0 }),
        ("to a tenth", |second| if second < 90.0 { 1.0 } else { 10.0 }),
        ("to a stop", |second| if second < 90.0 { 1.0 } else { 1000.0 }),
        ("by and by", |second| 1.0 + (second - 85.0).clamp(0.0, 5.0)),
    ];
    for (name, slowness) in slowdowns {
        for seed in 0..4 {
            let moments = run(&Scenario { slowdown: slowness, seconds: 100, ..Scenario::greedy(seed) });
            assert!(mean(&factors(&moments, 70.0, 85.0)) > 1.7, "the limits had not grown: {name}");
            let time = time_to_base(&moments, 90.0).unwrap_or(f64::MAX);
            assert!(time <= 2.0, "{time} s to the base limits when it slows down {name}, seed {seed}");
            assert!(factors(&moments, 92.0, 100.0).iter().all(|factor| *factor <= 1.0), "{name}");
        }
    }
}

#[test]
fn burst_of_all_clients_is_contained_within_two_seconds_and_settles() {
    // A long time without demand lets limits grow to their maximum. Then all clients exceed the upstream's capacity at
    // once.
    let burst: fn(f64) -> f64 = |second| if second < 60.0 { 20.0 } else { 500.0 };
    for seed in 0..4 {
        let moments = run(&Scenario { clients: vec![burst; 4], ..Scenario::greedy(seed) });
        assert!(mean(&factors(&moments, 50.0, 60.0)) > 2.99);
        let over = |moment: &&TickState| moment.at > 60.0 && moment.factor <= 2.0;
        let contained = moments.iter().find(over).unwrap().at - 60.0;
        assert!(contained <= 2.0, "{contained} s until the factor was 2");
        let later = factors(&moments, 120.0, 180.0);
        assert!(
            max_deviation(&later) < 0.1 && mean(&later) > 1.7,
            "{} {}",
            max_deviation(&later),
            mean(&later)
        );
    }
}

#[test]
fn elastic_limits_recover_with_the_upstream() {
    let slowness: Slowdown = |second| if (60.0..65.0).contains(&second) { 4.0 } else { 1.0 };
    for seed in 0..4 {
        let moments = run(&Scenario { slowdown: slowness, ..Scenario::greedy(seed) });
        let before = mean(&factors(&moments, 40.0, 60.0));
        assert!(time_to_base(&moments, 60.0).is_some_and(|time| time <= 2.0));
        let (soon, later) = (mean(&factors(&moments, 95.0, 100.0)), mean(&factors(&moments, 140.0, 180.0)));
        assert!(soon > before * 0.85, "{before} before, {soon} soon after");
        assert!(later > before * 0.93, "{before} before, {later} at the end");
        let late = moments.iter().filter(|moment| moment.at > 80.0 && moment.latency > Some(0.25));
        assert_eq!(late.count(), 0, "the queue does not build up again");
    }
}

#[test]
fn elastic_limits_are_at_base_two_seconds_after_each_oscillation() {
    let slowness: Slowdown = |second| if second > 40.0 && second % 40.0 < 10.0 { 5.0 } else { 1.0 };
    for seed in 0..4 {
        let moments = run(&Scenario { slowdown: slowness, seconds: 200, ..Scenario::greedy(seed) });
        for start in [80.0, 120.0, 160.0] {
            assert!(mean(&factors(&moments, start - 4.0, start)) > 1.2, "not recovered by {start} s");
            let time = time_to_base(&moments, start).unwrap_or(f64::MAX);
            assert!(time <= 2.0, "{time} s after {start}, seed {seed}");
        }
    }
}

#[test]
fn clients_get_at_least_the_base_limit_and_equal_shares() {
    let slowness: Slowdown = |second| if second > 60.0 && second % 20.0 < 5.0 { 4.0 } else { 1.0 };
    // Two clients that want all they can get, and one that stays well below its base limit.
    let clients: Vec<fn(f64) -> f64> = vec![|_| 500.0, |_| 500.0, |_| 50.0];
    let moments =
        run(&Scenario { slowdown: slowness, clients, seconds: 120, servers: 8, ..Scenario::greedy(3) });
    for second in (0..118).map(f64::from) {
        let rates = rates(&moments, second, second + 2.0);
        assert!(rates[0] > 98.0 && rates[1] > 98.0, "{rates:?} at {second}");
        assert!((rates[0] - rates[1]).abs() < 0.1 * rates[0], "{rates:?} at {second}");
    }
    let modest = rates(&moments, 0.0, 120.0)[2];
    assert!((48.0..52.0).contains(&modest), "{modest}");
}

/// Returns the seconds from `from` until the factor stays at or above `factor`.
fn time_to_factor(moments: &[TickState], from: f64, factor: f64) -> f64 {
    let below = moments.iter().rev().find(|moment| moment.factor < factor);
    below.map_or(0.0, |below| (below.at - from).max(0.0))
}

#[test]
fn recovered_capacity_is_used_within_fifteen_seconds() {
    // One client with a base limit of 100 per second that sends 500; for 30 seconds the capacity is between 150 and 30
    // per second.
    let lost: [(usize, Slowdown); 3] = [
        (8, |second| if (40.0..70.0).contains(&second) { 0.33 } else { 1.0 }),
        (12, |second| if (40.0..70.0).contains(&second) { 0.2 } else { 1.0 }),
        (14, |second| if (40.0..70.0).contains(&second) { 0.1 } else { 1.0 }),
    ];
    for (servers, working) in lost {
        for seed in 0..4 {
            let clients: Vec<fn(f64) -> f64> = vec![|_| 500.0];
            let scenario =
                Scenario { servers, working, clients, spread: 0.3, seconds: 120, ..Scenario::greedy(seed) };
            let moments = run(&scenario);
            assert!(mean(&factors(&moments, 60.0, 70.0)) < 1.9, "no loss: {servers} servers, seed {seed}");
            let time = time_to_factor(&moments, 70.0, 2.9);
            assert!(time <= 15.0, "{time} s, {servers} servers, seed {seed}");
        }
    }
}

#[test]
fn lasting_latency_shift_is_learned_within_a_minute() {
    let shifts: [(Slowdown, f64); 3] = [
        // Response times of 36, 50 and 70 ms instead of 20; above four times the usual one, adapting takes longer.
        (|second| if second < 60.0 { 1.0 } else { 1.8 }, 40.0),
        (|second| if second < 60.0 { 1.0 } else { 2.5 }, 45.0),
        (|second| if second < 60.0 { 1.0 } else { 3.5 }, 45.0),
    ];
    for (slowness, longest) in shifts {
        for (seed, spread) in (0..8).zip([0.3, 0.6].into_iter().cycle()) {
            let scenario = Scenario {
                slowdown: slowness,
                spread,
                servers: 64,
                seconds: 150,
                limit: 50,
                ..Scenario::greedy(seed)
            };
            let moments = run(&scenario);
            let least = factors(&moments, 60.0, 80.0).into_iter().fold(f64::MAX, f64::min);
            assert!(least < 2.5, "no reaction to the higher latency: {least}, spread {spread}, seed {seed}");
            let time = time_to_factor(&moments, 60.0, 2.7);
            assert!(time <= longest, "{time} s, spread {spread}, seed {seed}");
        }
    }
}

#[test]
fn overload_does_not_raise_the_latency_threshold() {
    // The upstream's queue grows although all limits are at their base: response times increase up to the timeout.
    let slowness: Slowdown = |second| if (60.0..120.0).contains(&second) { 4.0 } else { 1.0 };
    for seed in 0..4 {
        let moments = run(&Scenario { slowdown: slowness, seconds: 180, ..Scenario::greedy(seed) });
        let threshold = |at: f64| moments[(at * 10.0) as usize].assessment.levels[Signal::Latency as usize];
        let (before, after) = (threshold(58.0).unwrap().threshold, threshold(140.0).unwrap().threshold);
        assert!(after < before * 3.0, "{before} s before, {after} s after, seed {seed}");
    }
}

#[test]
fn elastic_growth_does_not_raise_the_latency_threshold() {
    let moments = run(&Scenario { seconds: 900, ..Scenario::greedy(5) });
    let of = |assessment: &Assessment| assessment.levels[Signal::Latency as usize];
    let threshold = |at: f64| of(&moments[(at * 10.0) as usize].assessment).unwrap().threshold;
    assert!(threshold(890.0) < threshold(60.0) * 1.25, "{} to {}", threshold(60.0), threshold(890.0));
    assert!(max_deviation(&factors(&moments, 600.0, 900.0)) < 0.1);
}

#[test]
fn in_flight_signal_alone_detects_a_standstill() {
    let slowness: Slowdown = |second| if second < 60.0 { 1.0 } else { 1000.0 };
    let signals: SignalSet = [Signal::InFlight].into_iter().collect();
    let moments = run(&Scenario { slowdown: slowness, signals, seconds: 70, ..Scenario::greedy(2) });
    assert!(time_to_base(&moments, 60.0).is_some_and(|time| time <= 2.0));
    assert!(moments.last().is_some_and(|last| last.in_flight > 1000), "the upstream still responds");
}
