//! Properties of the limiter for any interleaving of threads: no admission beyond a limit, all-or-nothing charges, no
//! deadlock.

use std::num::NonZeroU32;

use weir_limiter::algorithm::Algorithm;
use weir_limiter::algorithm::conversion::OnChange;
use weir_limiter::decision::Enforcement;
use weir_limiter::quota::{Limit, Period, Quota, TimeUnit};
use weir_limiter::reservation::{ChargeTiming, Reservation};
use weir_limiter::timestamp::Timestamp;
use weir_limiter::{Check, Limiter, LimitIdentity, LimitHandle, LimitSpec, LimiterSettings};
use shuttle::sync::Arc;
use shuttle::thread;

const NOW: Timestamp = Timestamp::from_secs(1_795_248_000);
/// Enough for 16 shards.
const MAX_KEYS: usize = 2000;
const SCHEDULES: usize = 1500;

/// Runs a test in many interleavings: random ones, and ones with few context switches, which find different bugs.
fn explore_interleavings(test: impl Fn() + Send + Sync + Clone + 'static) {
    shuttle::check_random(test.clone(), SCHEDULES);
    shuttle::check_pct(test, SCHEDULES, 3);
}

fn spec(rule: u32, algorithm: Algorithm, count: u32) -> LimitSpec {
    let limit = Limit::new(NonZeroU32::new(count).unwrap(), Period::one(TimeUnit::Day));
    LimitSpec {
        identity: LimitIdentity { rule: rule.to_string().into(), key: "[]".into() },
        quota: Quota::new(algorithm, limit, None).unwrap(),
        on_change: OnChange::Keep,
        lease_policy: None,
    }
}

/// Returns a limiter with one rule for each of these counts.
fn limiter(max_keys: usize, algorithm: Algorithm, counts: &[u32]) -> (Arc<Limiter>, Vec<LimitHandle>) {
    let limiter = Limiter::new(LimiterSettings { max_keys, secret: [7, 11] });
    let specs: Vec<_> = (0..).zip(counts).map(|(rule, count)| spec(rule, algorithm, *count)).collect();
    let handles = limiter.install(&specs, NOW);
    (Arc::new(limiter), handles)
}

fn check(limiter: &Limiter, handle: LimitHandle, key: u32, charge_timing: ChargeTiming) -> Check {
    Check {
        handle,
        key: limiter.hasher().hash(&key.to_be_bytes()),
        cost: 1,
        enforcement: Enforcement::Enforced,
        charge_timing,
        options: None,
    }
}

fn passes(limiter: &Limiter, checks: &[Check]) -> bool {
    !limiter.check(checks, NOW).is_rejected()
}

fn used(limiter: &Limiter, handle: LimitHandle, key: u32) -> u32 {
    limiter.usage(handle, limiter.hasher().hash(&key.to_be_bytes()), NOW).unwrap().used
}

/// Runs each job in a thread of its own, and returns their results.
fn run_concurrently<T: Send + 'static>(jobs: Vec<Box<dyn FnOnce() -> T + Send>>) -> Vec<T> {
    let threads: Vec<_> = jobs.into_iter().map(thread::spawn).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

#[test]
fn limits_of_several_shards_are_charged_together_or_not_at_all() {
    for algorithm in [Algorithm::Gcra, Algorithm::SlidingWindow, Algorithm::SlidingLog] {
        explore_interleavings(move || {
            let (limiter, handles) = limiter(MAX_KEYS, algorithm, &[3, 2, 5]);
            let jobs = (0..3).map(|turn| {
                let (limiter, mut handles) = (Arc::clone(&limiter), handles.clone());
                // Each thread has the limits in a different order, which must not affect the order of locking.
                handles.rotate_left(turn);
                Box::new(move || {
                    let checks: Vec<_> = (0..)
                        .zip(&handles)
                        .map(|(_, handle): (u32, &LimitHandle)| check(&limiter, *handle, 1, ChargeTiming::OnArrival))
                        .collect();
                    (0..2).filter(|_| passes(&limiter, &checks)).count() as u32
                }) as Box<dyn FnOnce() -> u32 + Send>
            });
            let passed: u32 = run_concurrently(jobs.collect()).iter().sum();
            assert_eq!(passed, 2, "{algorithm}");
            assert!(handles.iter().all(|handle| used(&limiter, *handle, 1) == 2), "{algorithm}");
        });
    }
}

#[test]
fn concurrent_reload_admits_no_more_than_the_limit() {
    for algorithm in [Algorithm::Gcra, Algorithm::FixedWindow, Algorithm::SlidingLog] {
        explore_interleavings(move || {
            let (limiter, handles) = limiter(MAX_KEYS, algorithm, &[3, 9]);
            let mut jobs: Vec<Box<dyn FnOnce() -> u32 + Send>> = Vec::new();
            for key in [1, 1, 2] {
                let (limiter, handles) = (Arc::clone(&limiter), handles.clone());
                jobs.push(Box::new(move || {
                    let check = check(&limiter, handles[0], key, ChargeTiming::OnArrival);
                    (0..3).filter(|_| passes(&limiter, &[check])).count() as u32
                }));
            }
            let reloading = Arc::clone(&limiter);
            jobs.push(Box::new(move || {
                // The first limit gets another algorithm and a higher count; the second one is removed.
                let to = reloading.install(&[spec(0, Algorithm::TokenBucket, 5)], NOW);
                reloading.retire_others(&to, NOW);
                0
            }));
            let passed = run_concurrently(jobs);
            assert!((3..=5).contains(&(passed[0] + passed[1])), "{passed:?}");
            assert_eq!(passed[2], 3, "{passed:?}");
            assert_eq!(used(&limiter, handles[0], 1), passed[0] + passed[1]);
            assert_eq!(used(&limiter, handles[0], 2), 3);
        });
    }
}

#[test]
fn reserved_units_are_unavailable_to_other_threads() {
    explore_interleavings(|| {
        let (limiter, handles) = limiter(MAX_KEYS, Algorithm::Gcra, &[2]);
        let jobs = (0..3).map(|thread| {
            let (limiter, handle) = (Arc::clone(&limiter), handles[0]);
            Box::new(move || {
                let check = check(&limiter, handle, 1, ChargeTiming::OnResponse);
                let mut counted = 0;
                for _ in 0..2 {
                    if passes(&limiter, &[check]) {
                        let mut held = Reservation::new(&check, NOW);
                        // The responses of one thread never count.
                        let due = u32::from(thread > 0);
                        limiter.settle(&mut held, due, NOW);
                        counted += due;
                    }
                }
                counted
            }) as Box<dyn FnOnce() -> u32 + Send>
        });
        let counted: u32 = run_concurrently(jobs.collect()).iter().sum();
        assert!(counted <= 2);
        assert_eq!(used(&limiter, handles[0], 1), counted);
    });
}

#[test]
fn new_keys_of_a_full_table_share_an_overflow_counter() {
    explore_interleavings(|| {
        let (limiter, handles) = limiter(16, Algorithm::SlidingLog, &[4]);
        for key in 100.. {
            let check = check(&limiter, handles[0], key, ChargeTiming::OnArrival);
            if limiter.check(&[check], NOW).overflowed() {
                break;
            }
        }
        let jobs = (0..3).map(|thread| {
            let (limiter, handle) = (Arc::clone(&limiter), handles[0]);
            Box::new(move || {
                let passing = |turn: u32| {
                    passes(&limiter, &[check(&limiter, handle, 1000 + 10 * thread + turn, ChargeTiming::OnArrival)])
                };
                (0..2).filter(|turn| passing(*turn)).count() as u32
            }) as Box<dyn FnOnce() -> u32 + Send>
        });
        // The first key that overflowed has used one unit.
        assert_eq!(run_concurrently(jobs.collect()).iter().sum::<u32>(), 3);
    });
}
