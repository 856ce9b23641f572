//! Limits that several regions share: the scripts of the regional stores and of the global one, attacked in virtual time.
//!
//! Messages are late, lost and out of order, links are cut for longer than allotments are valid, stores lose their data or are
//! restored from snapshots. Units are spent at any time while they may be. No window may have more than the limit admits.

#[path = "regions/limit.rs"]
mod limit;
#[path = "regions/server.rs"]
mod server;
#[path = "regions/world.rs"]
mod world;

use fastrand::Rng;
use weir_store::protocol::{GLOBAL_SCRIPT, SCRIPT};

use self::limit::SECOND;
use self::world::{Faults, World};
use crate::limit::Limit;
use crate::runs::env_parameter;

const SCRIPTS: [&str; 2] = [SCRIPT, GLOBAL_SCRIPT];

/// Returns a fleet of regions under attack, after a run.
fn attacked(seed: u64, scripts: [&str; 2]) -> World {
    let mut rng = Rng::with_seed(seed);
    let faults = Faults {
        cuts: rng.bool(),
        regional_loss: rng.u8(0..3) == 0,
        global_loss: rng.u8(0..3) == 0,
        lost: [0, 20, 120][rng.usize(0..3)],
    };
    let limit = Limit::random(&mut rng);
    let mut world = World::new(seed, limit, faults, scripts);
    world.run(rng.u64(20..150) * SECOND);
    world
}

#[test]
fn attacks_on_regions_admit_no_more_than_the_limit() {
    let mut spent = 0;
    let seeds = env_parameter("WEIR_SEEDS").map_or(20, |seeds: u64| seeds / 16);
    for seed in env_parameter("WEIR_FIRST").unwrap_or(0)..seeds {
        let World { limit, faults, excess, spending, .. } = attacked(seed, SCRIPTS);
        spent += spending.total;
        assert!(excess <= 0.001, "seed {seed}: {limit:?}, {faults:?}: {excess} over");
    }
    assert!(spent > 0);
}

/// The snapshot has an allotment that another region has got since.
#[test]
fn global_store_that_is_restored_from_a_snapshot_gives_nothing_out_twice() {
    let World { excess, spending, .. } = attacked(49_166, SCRIPTS);
    assert!(excess <= 0.001 && spending.total > 0, "{excess} over");
}

/// Steps of the protocol, and what they are replaced with: in the regional script or in the global one, and the first seed with
/// which the limit is exceeded.
const BROKEN: [(usize, &str, &str, u64); 8] = [
    (0, "local units = s and occupied[kind](s, list) or 0", "local units = 0", 1),
    (0, "if number ~= it.number or not is_awaited(it, q) then return 0 end", "", 1),
    (0, "(q.keeps == 1 or now < s[2] or s[1] == 0)", "true", 52),
    (1, "if number <= mine.number then", "if false then", 4),
    (1, "now < it.at + it.valid + it.settle", "now < it.at + it.valid / 2", 5),
    (1, "if born > 0 and", "if false and", 70),
    (1, "free, total = free - it.parts, total + it.demand", "total = total + it.demand", 1),
    (1, "math.max(parts, math.min(mine.parts, in_use))", "parts", 0),
];

#[test]
fn every_step_of_the_protocol_is_needed() {
    for (script, step, broken, first) in BROKEN {
        assert!(SCRIPTS[script].contains(step), "{step}");
        let text = SCRIPTS[script].replace(step, broken);
        let mut scripts = SCRIPTS;
        scripts[script] = &text;
        let caught = (first..first + 100).find(|seed| attacked(*seed, scripts).excess > 0.001);
        assert!(caught.is_some(), "not noticed: {step}");
    }
}

#[test]
fn demand_gets_the_limit_wherever_it_is() {
    for limit in
        [Limit::Bucket { interval: 1000, burst: 1000 }, Limit::Window { count: 1000, length: SECOND }]
    {
        let mut world = World::new(1, limit, Faults::default(), SCRIPTS).without_faults();
        world.min_interval = 20_000;
        for demands in [[4.0, 0.0, 0.0], [0.0, 4.0, 0.0], [1.0, 0.5, 3.0]] {
            for (region, demand) in world.regions.iter_mut().zip(demands) {
                region.demand = demand * 1000.0;
            }
            world.run(10 * SECOND);
            let before = world.spending.total;
            world.run(20 * SECOND);
            let used = world.spending.total - before;
            assert!(used >= 19_000, "{limit:?} with {demands:?}: {used} of 20 000");
        }
        assert!(world.excess <= 0.001, "{} over", world.excess);
    }
}

#[test]
fn limits_that_are_too_small_for_all_regions_are_used_in_turn() {
    for (burst, interval) in [(1, SECOND), (2, SECOND), (5, SECOND / 5)] {
        let limit = Limit::Bucket { interval, burst };
        let mut world = World::new(1, limit, Faults::default(), SCRIPTS).without_faults();
        for region in &mut world.regions {
            region.demand = 20.0;
        }
        world.run(300 * SECOND);
        let admitted: Vec<_> = world.regions.iter().map(|region| region.admitted).collect();
        let most = 300 * SECOND / interval;
        assert!(admitted.iter().all(|units| *units >= most / 12), "{admitted:?} of {most}");
        assert!(admitted.iter().sum::<u64>() >= most * 2 / 5, "{admitted:?} of {most}");
        assert!(world.excess <= 0.001, "{} over", world.excess);
    }
}
