//! Requests with several checks in a table in which keys share counters.

use super::*;

/// A table with room for one counter; all other keys share one per limit.
fn bench() -> TransactionFixture {
    TransactionFixture::with_max_keys(
        &[per_second(Algorithm::FixedWindow, 100, 0), per_second(Algorithm::Gcra, 5, 5)],
        1,
    )
}

fn check(bench: &TransactionFixture, index: usize, key: &[u8], cost: u32) -> Check {
    Check { cost, options: None, ..bench.check(index, key, CounterRole::Limit) }
}

fn used_by(bench: &TransactionFixture, key: &[u8]) -> u32 {
    bench.limiter.usage(bench.handles[0], bench.limiter.hasher().hash(key), START).unwrap().used
}

#[test]
fn counter_evicted_within_its_request_does_not_reset_the_overflow_counter() {
    let bench = bench();
    bench.decide(&[check(&bench, 0, b"first", 1)], 0);
    bench.decide(&[check(&bench, 0, b"other", 40)], 0);
    // The first key has a counter of its own, which becomes unused.
    bench.limiter.charge(bench.handles[0], bench.limiter.hasher().hash(b"first"), -1, START);
    assert_eq!((used_by(&bench, b"first"), used_by(&bench, b"other")), (0, 40));
    // The first check takes the slot, so that the second finds none.
    let decision = bench.decide(&[check(&bench, 1, b"first", 1), check(&bench, 0, b"first", 2)], 0);
    assert!(!decision.is_rejected() && decision.overflowed());
    assert_eq!(used_by(&bench, b"other"), 42);
}

#[test]
fn keys_of_one_request_in_the_overflow_counter_are_all_charged() {
    let bench = bench();
    bench.decide(&[check(&bench, 0, b"first", 1)], 0);
    bench.decide(&[check(&bench, 0, b"other", 10)], 0);
    let request = [b"one", b"two"].map(|key| check(&bench, 0, key, 3));
    assert!(!bench.decide(&request, 0).is_rejected());
    assert_eq!((used_by(&bench, b"one"), used_by(&bench, b"other")), (16, 16));
    // The same key twice gives the same result.
    assert!(!bench.decide(&[check(&bench, 0, b"one", 3); 2], 0).is_rejected());
    assert_eq!((used_by(&bench, b"other"), used_by(&bench, b"first")), (22, 1));
}
