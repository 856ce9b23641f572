//! Whatever the order in which threads come to the locks: nothing beyond a limit, all or nothing, no deadlock.

use std::num::NonZeroU32;

use interleavings::limiter::algorithm::Algorithm;
use interleavings::limiter::algorithm::conversion::OnChange;
use interleavings::limiter::decision::Enforcement;
use interleavings::limiter::quota::{Limit, Period, Quota, Unit};
use interleavings::limiter::reservation::{Charging, Reservation};
use interleavings::limiter::timestamp::Timestamp;
use interleavings::limiter::{Check, Limiter, Lineage, Meter, MeterSpec, Settings};
use shuttle::sync::Arc;
use shuttle::thread;

const NOW: Timestamp = Timestamp::from_secs(1_795_248_000);
/// Enough for sixteen shards.
const MAX_KEYS: usize = 2000;
const SCHEDULES: usize = 1500;

/// Tries many orders, at random and by few changes of turn, which finds other mistakes.
fn in_many_orders(test: impl Fn() + Send + Sync + Clone + 'static) {
    shuttle::check_random(test.clone(), SCHEDULES);
    shuttle::check_pct(test, SCHEDULES, 3);
}

fn spec(rule: u32, algorithm: Algorithm, count: u32) -> MeterSpec {
    let limit = Limit::new(NonZeroU32::new(count).unwrap(), Period::one(Unit::Day));
    MeterSpec {
        lineage: Lineage { rule: rule.to_string().into(), key: "[]".into() },
        quota: Quota::new(algorithm, limit, None).unwrap(),
        on_change: OnChange::Keep,
        sharing: None,
    }
}

/// A limiter with a rule for each of these counts.
fn limiter(max_keys: usize, algorithm: Algorithm, counts: &[u32]) -> (Arc<Limiter>, Vec<Meter>) {
    let limiter = Limiter::new(Settings { max_keys, secret: [7, 11] });
    let specs: Vec<_> = (0..).zip(counts).map(|(rule, count)| spec(rule, algorithm, *count)).collect();
    let meters = limiter.install(&specs, NOW);
    (Arc::new(limiter), meters)
}

fn check(limiter: &Limiter, meter: Meter, key: u32, charging: Charging) -> Check {
    Check {
        meter,
        key: limiter.hasher().hash(&key.to_be_bytes()),
        cost: 1,
        enforcement: Enforcement::Enforced,
        charging,
        terms: None,
    }
}

fn passes(limiter: &Limiter, checks: &[Check]) -> bool {
    !limiter.check(checks, NOW).is_refused()
}

fn used(limiter: &Limiter, meter: Meter, key: u32) -> u32 {
    limiter.usage(meter, limiter.hasher().hash(&key.to_be_bytes()), NOW).unwrap().used
}

/// Runs the jobs, each in a thread, and answers what they answered.
fn together<T: Send + 'static>(jobs: Vec<Box<dyn FnOnce() -> T + Send>>) -> Vec<T> {
    let threads: Vec<_> = jobs.into_iter().map(thread::spawn).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

#[test]
fn limits_of_several_shards_are_charged_together_or_not_at_all() {
    for algorithm in [Algorithm::Gcra, Algorithm::SlidingWindow, Algorithm::SlidingLog] {
        in_many_orders(move || {
            let (limiter, meters) = limiter(MAX_KEYS, algorithm, &[3, 2, 5]);
            let jobs = (0..3).map(|turn| {
                let (limiter, mut meters) = (Arc::clone(&limiter), meters.clone());
                // Every thread names them in another order, which must not matter to the locks.
                meters.rotate_left(turn);
                Box::new(move || {
                    let checks: Vec<_> = (0..)
                        .zip(&meters)
                        .map(|(_, meter): (u32, &Meter)| check(&limiter, *meter, 1, Charging::OnArrival))
                        .collect();
                    (0..2).filter(|_| passes(&limiter, &checks)).count() as u32
                }) as Box<dyn FnOnce() -> u32 + Send>
            });
            let passed: u32 = together(jobs.collect()).iter().sum();
            assert_eq!(passed, 2, "{algorithm}");
            assert!(meters.iter().all(|meter| used(&limiter, *meter, 1) == 2), "{algorithm}");
        });
    }
}

#[test]
fn a_reload_in_the_midst_of_requests_gives_nothing_away() {
    for algorithm in [Algorithm::Gcra, Algorithm::FixedWindow, Algorithm::SlidingLog] {
        in_many_orders(move || {
            let (limiter, meters) = limiter(MAX_KEYS, algorithm, &[3, 9]);
            let mut jobs: Vec<Box<dyn FnOnce() -> u32 + Send>> = Vec::new();
            for key in [1, 1, 2] {
                let (limiter, meters) = (Arc::clone(&limiter), meters.clone());
                jobs.push(Box::new(move || {
                    let check = check(&limiter, meters[0], key, Charging::OnArrival);
                    (0..3).filter(|_| passes(&limiter, &[check])).count() as u32
                }));
            }
            let reloading = Arc::clone(&limiter);
            jobs.push(Box::new(move || {
                // One limit becomes another's algorithm and larger, the second goes.
                let to = reloading.install(&[spec(0, Algorithm::TokenBucket, 5)], NOW);
                reloading.retire_others(&to, NOW);
                0
            }));
            let passed = together(jobs);
            assert!((3..=5).contains(&(passed[0] + passed[1])), "{passed:?}");
            assert_eq!(passed[2], 3, "{passed:?}");
            assert_eq!(used(&limiter, meters[0], 1), passed[0] + passed[1]);
            assert_eq!(used(&limiter, meters[0], 2), 3);
        });
    }
}

#[test]
fn what_is_held_until_the_answer_takes_room_from_everybody() {
    in_many_orders(|| {
        let (limiter, meters) = limiter(MAX_KEYS, Algorithm::Gcra, &[2]);
        let jobs = (0..3).map(|thread| {
            let (limiter, meter) = (Arc::clone(&limiter), meters[0]);
            Box::new(move || {
                let check = check(&limiter, meter, 1, Charging::OnAnswer);
                let mut counted = 0;
                for _ in 0..2 {
                    if passes(&limiter, &[check]) {
                        let mut held = Reservation::new(&check, NOW);
                        // One thread's answers never count.
                        let due = u32::from(thread > 0);
                        limiter.settle(&mut held, due, NOW);
                        counted += due;
                    }
                }
                counted
            }) as Box<dyn FnOnce() -> u32 + Send>
        });
        let counted: u32 = together(jobs.collect()).iter().sum();
        assert!(counted <= 2);
        assert_eq!(used(&limiter, meters[0], 1), counted);
    });
}

#[test]
fn newcomers_to_a_full_table_share_however_they_come() {
    in_many_orders(|| {
        let (limiter, meters) = limiter(16, Algorithm::SlidingLog, &[4]);
        for key in 100.. {
            let check = check(&limiter, meters[0], key, Charging::OnArrival);
            if limiter.check(&[check], NOW).overflowed() {
                break;
            }
        }
        let jobs = (0..3).map(|thread| {
            let (limiter, meter) = (Arc::clone(&limiter), meters[0]);
            Box::new(move || {
                let passing = |turn: u32| {
                    passes(&limiter, &[check(&limiter, meter, 1000 + 10 * thread + turn, Charging::OnArrival)])
                };
                (0..2).filter(|turn| passing(*turn)).count() as u32
            }) as Box<dyn FnOnce() -> u32 + Send>
        });
        // The first that overflowed has taken one.
        assert_eq!(together(jobs.collect()).iter().sum::<u32>(), 3);
    });
}
