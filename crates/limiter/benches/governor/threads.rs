//! Decisions of several threads at once, each with its own sequence of keys.

use std::sync::Barrier;

use super::timing::thread_cpu_nanos;

/// Returns the nanoseconds per decision of the slowest thread.
///
/// `decide` takes a key and a tick, which is the time if no clock is read. All decisions must be `expected`.
pub(super) fn slowest_thread(
    sequences: &[Vec<u32>],
    first_tick: u64,
    expected: bool,
    decide: impl Fn(u32, u64) -> bool + Sync,
) -> f64 {
    let barrier = Barrier::new(sequences.len());
    let run = |sequence: &[u32]| {
        barrier.wait();
        let start = thread_cpu_nanos();
        let passed = sequence.iter().zip(first_tick..).filter(|(key, tick)| decide(**key, *tick)).count();
        let elapsed = thread_cpu_nanos() - start;
        assert_eq!(
            passed,
            if expected { sequence.len() } else { 0 },
            "unexpected share of admitted requests"
        );
        elapsed as f64 / sequence.len() as f64
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = sequences.iter().map(|sequence| scope.spawn(|| run(sequence))).collect();
        threads.into_iter().map(|thread| thread.join().expect("the thread panicked")).fold(0.0, f64::max)
    })
}
