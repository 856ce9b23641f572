//! Benchmark of the heaviest keys: the cost that counting a key adds to a decision.
//!
//! Run with `cargo bench --features jemalloc --bench top_keys -- [--rounds 5]`.
#![expect(clippy::print_stdout, reason = "prints its results")]

use std::env;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_limiter::key::{KeyHash, KeyHasher};
use weir_limiter::timestamp::Timestamp;
use weir_policy::rules::outcome::DecisionOutcome;
use weir_telemetry::observe::top_keys::TopKeys;

/// The allocator of the program.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const DECISIONS: usize = 4_000_000;

/// Streams of keys, by name: how many keys there are, and whether low numbers are more frequent.
const STREAMS: [(&str, u64, bool); 5] = [
    ("1 key", 1, false),
    ("200 keys", 200, false),
    ("100000 keys, skewed", 100_000, true),
    ("100000 keys, uniform", 100_000, false),
    ("1000000 keys, uniform", 1_000_000, false),
];

/// Returns the keys of a stream.
fn keys(count: u64, is_skewed: bool) -> Vec<KeyHash> {
    let hasher = KeyHasher::new([1, 2]);
    let mut random = fastrand::Rng::with_seed(7);
    let mut draw = || {
        let number = if is_skewed { (count as f64).powf(random.f64()) as u64 } else { random.u64(0..count) };
        hasher.hash_u32(number as u32)
    };
    (0..DECISIONS).map(|_| draw()).collect()
}

#[expect(clippy::disallowed_methods, reason = "measures time")]
fn measure(keys: &[KeyHash]) -> Duration {
    let top_keys = TopKeys::default();
    let sketch = top_keys.document_sketch(top_keys.add_worker(), "limit", "key");
    let start = Instant::now();
    for (index, key) in keys.iter().enumerate() {
        let now = Timestamp::from_nanos(index as u64 * 1000);
        // A text as of a real key, with its allocation.
        let text = || Arc::from(format!("client_ip={key:?}"));
        sketch.lock_worker(now).record(&sketch, black_box(*key), DecisionOutcome::Allowed, text);
    }
    start.elapsed()
}

fn main() {
    let arguments: Vec<String> = env::args().collect();
    let rounds =
        arguments.windows(2).find(|pair| pair[0] == "--rounds").and_then(|pair| pair[1].parse().ok());
    for (name, count, is_skewed) in STREAMS {
        let keys = keys(count, is_skewed);
        let fastest = (0..rounds.unwrap_or(5)).map(|_| measure(&keys)).min().unwrap_or_default();
        println!("{name:>24}: {:6.1} ns per decision", fastest.as_nanos() as f64 / DECISIONS as f64);
    }
}
