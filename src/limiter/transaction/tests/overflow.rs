//! Requests with several checks in a table in which keys share counters.

use super::*;

/// A table with room for one counter; all other keys share one per limit.
fn bench() -> Bench {
    Bench::with_room(&[per_second(Algorithm::FixedWindow, 100, 0), per_second(Algorithm::Gcra, 5, 5)], 1)
}

fn check(bench: &Bench, index: usize, key: &[u8], cost: u32) -> Check {
    Check { cost, options: None, ..bench.check(index, key, CounterRole::Limit) }
}

fn used_by(bench: &Bench, key: &[u8]) -> u32 {
    bench.limiter.usage(bench.meters[0], bench.limiter.hasher().hash(key), START).unwrap().used
}

#[test]
fn a_counter_that_loses_its_place_to_another_of_its_request_takes_nothing_off_the_shared_one() {
    let bench = bench();
    bench.ask(&[check(&bench, 0, b"first", 1)], 0);
    bench.ask(&[check(&bench, 0, b"other", 40)], 0);
    // The first key has a counter of its own, which becomes unused.
    bench.limiter.charge(bench.meters[0], bench.limiter.hasher().hash(b"first"), -1, START);
    assert_eq!((used_by(&bench, b"first"), used_by(&bench, b"other")), (0, 40));
    // The first check takes the slot, so that the second finds none.
    let decision = bench.ask(&[check(&bench, 1, b"first", 1), check(&bench, 0, b"first", 2)], 0);
    assert!(!decision.is_rejected() && decision.overflowed());
    assert_eq!(used_by(&bench, b"other"), 42);
}

#[test]
fn keys_of_one_request_that_share_a_counter_are_all_charged_to_it() {
    let bench = bench();
    bench.ask(&[check(&bench, 0, b"first", 1)], 0);
    bench.ask(&[check(&bench, 0, b"other", 10)], 0);
    let request = [b"one", b"two"].map(|key| check(&bench, 0, key, 3));
    assert!(!bench.ask(&request, 0).is_rejected());
    assert_eq!((used_by(&bench, b"one"), used_by(&bench, b"other")), (16, 16));
    // The same key twice gives the same result.
    assert!(!bench.ask(&[check(&bench, 0, b"one", 3); 2], 0).is_rejected());
    assert_eq!((used_by(&bench, b"other"), used_by(&bench, b"first")), (22, 1));
}
