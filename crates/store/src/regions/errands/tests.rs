use std::num::NonZeroU32;

use super::*;
use weir_limiter::leases::StoreLatency;
use weir_limiter::testing::{NOW, limiter};

const SECOND: Duration = Duration::from_secs(1);
const VALID: Duration = Duration::from_secs(60);

/// Returns a book of one group, and a query about a counter.
fn book() -> (ErrandBook, LeaseRequest) {
    let (limiter, check) = limiter();
    limiter.acquire_units(&check, NOW);
    let request =
        limiter.lease_request(limiter.shared_counter(&check), StoreLatency::default(), NOW).unwrap();
    (ErrandBook::new(Region::new("eu", NonZeroU32::MIN.saturating_add(2), VALID, true), 1), request)
}

fn after(seconds: u32) -> Timestamp {
    NOW.saturating_add(SECOND * seconds)
}

#[test]
fn errand_is_made_once_and_again_when_it_is_due() {
    let (mut book, request) = book();
    book.send(&request);
    book.send(&request);
    let batch = book.next_batch(NOW).unwrap();
    assert_eq!((batch.errands.len(), batch.errands[0].is_sent), (1, true));
    assert_eq!((batch.errands[0].query.needed, batch.errands[0].query.demanded), (0, 0));
    assert!(book.next_batch(NOW).is_none());
    book.complete(&batch, &[ErrandOutcome::Again(SECOND)], NOW);
    assert_eq!(book.next_due(), Some(after(1)));
    assert!(book.next_batch(NOW).is_none());
    let again = book.next_batch(after(1)).unwrap();
    assert!(!again.errands[0].is_sent);
    book.complete(&again, &[ErrandOutcome::Done], after(1));
    assert_eq!((book.counters(), book.next_due()), (0, None));
}

#[test]
fn errand_that_the_store_asks_for_meanwhile_is_made_next() {
    let (mut book, request) = book();
    book.send(&request);
    let batch = book.next_batch(NOW).unwrap();
    book.send(&request);
    book.complete(&batch, &[ErrandOutcome::Done], NOW);
    let next = book.next_batch(NOW).unwrap();
    assert!(next.errands[0].is_sent);
}

#[test]
fn errands_that_fail_are_made_again_for_as_long_as_an_allotment_is_valid() {
    let (mut book, request) = book();
    book.send(&request);
    let mut seconds = 0;
    while let Some(batch) = book.next_batch(after(seconds)) {
        book.complete(&batch, &[ErrandOutcome::Failed], after(seconds));
        seconds += 2;
    }
    assert_eq!((book.counters(), seconds), (0, 62));
}

#[test]
fn no_errand_is_made_without_the_global_store() {
    let (mut book, request) = book();
    book.send(&request);
    book.set_cut_off(true);
    book.send(&request);
    assert!(book.next_batch(NOW).is_none());
    assert_eq!(book.next_due(), None);
    let head = book.head_of_query(&request).unwrap();
    assert!(head.ends_with(" 1"), "the allotment is kept: {head}");
    book.set_cut_off(false);
    assert_eq!(book.next_batch(NOW).unwrap().errands.len(), 1);
    assert!(book.head_of_query(&request).unwrap().ends_with(" 0"));
}
