use http::StatusCode;
use http::header::CONTENT_LENGTH;

use super::*;
use crate::response::fallback::cache_key::StoreKey;

const KIB: u64 = 1 << 10;

fn memory(budget: u64, largest: u64) -> Arc<Memory> {
    let keeping = Keeping { budget, largest, max_age: Duration::from_secs(60), ignored: Arc::default() };
    Arc::new(Memory::new("a", keeping, &Arc::default()).unwrap())
}

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_secs(1000 + seconds)
}

/// A capture of the answer to `key`, if one begins.
fn begin(memory: &Arc<Memory>, key: &str, now: Timestamp) -> Option<Recorder> {
    let taking = Taking::begin(memory, StoreKey { bytes: key.as_bytes(), is_personal: false }, now)?;
    Some(Recorder::new(vec![taking], now))
}

fn head(capture: &mut Recorder, length: Option<u64>) -> bool {
    let headers = length.map(|length| (CONTENT_LENGTH, length.into())).into_iter().collect();
    capture.head(StatusCode::OK, &headers)
}

/// Feeds so many bytes in small parts, as far as they are taken.
fn feed(capture: &mut Recorder, bytes: usize) -> bool {
    (0..bytes / 100).all(|_| capture.data(&vec![b'x'; 100].into()))
}

#[test]
fn what_is_being_taken_down_stays_within_the_budget() {
    let memory = memory(64 * KIB, 32 * KIB);
    // All of them slow: none has come to its end.
    let mut under_way: Vec<_> =
        (0..50).map(|n| begin(&memory, &format!("/{n}"), at(0)).expect("room for a key")).collect();
    under_way.retain_mut(|capture| head(capture, None) && feed(capture, 30_000));
    let held: usize = under_way.iter().map(Recorder::held).sum();
    assert!((1..=2).contains(&under_way.len()), "{} are under way", under_way.len());
    assert!(held as u64 <= 64 * KIB, "{held}");
    // Who breaks off makes room.
    drop(under_way);
    let mut next = begin(&memory, "/next", at(0)).unwrap();
    assert!(head(&mut next, None) && feed(&mut next, 30_000));
    next.keep();
    assert_eq!(memory.answers.get(&b"/next"[..]).unwrap().body().len(), 30_000);
    assert!(memory.answers.get(&b"/1"[..]).is_none());
}

#[test]
fn the_same_answer_is_taken_down_once_at_a_time() {
    let memory = memory(64 * KIB, 32 * KIB);
    let first = begin(&memory, "/", at(0)).unwrap();
    assert!(begin(&memory, "/", at(1)).is_none());
    assert!(begin(&memory, "/other", at(1)).is_some());
    // A client that reads slowly is not waited for, and takes nothing from who comes after it.
    let second = begin(&memory, "/", at(60)).unwrap();
    drop(first);
    assert!(begin(&memory, "/", at(61)).is_none());
    drop(second);
    assert!(begin(&memory, "/", at(61)).is_some());
}

#[test]
fn an_answer_that_says_it_is_too_large_is_not_begun() {
    let memory = memory(64 * KIB, 32 * KIB);
    for (length, fits) in
        [(Some(32 * KIB), false), (Some(30_000), true), (Some(u64::MAX), false), (None, true)]
    {
        let mut capture = begin(&memory, "/", at(0)).unwrap();
        assert_eq!(head(&mut capture, length), fits, "{length:?}");
    }
    let mut silent = begin(&memory, "/", at(0)).unwrap();
    assert!(head(&mut silent, None) && !feed(&mut silent, 40_000), "it turns out to be");
}

#[test]
fn an_answer_is_taken_down_anew_when_it_is_no_longer_fresh() {
    let memory = memory(64 * KIB, 32 * KIB);
    let mut capture = begin(&memory, "/", at(0)).unwrap();
    assert!(head(&mut capture, Some(100)) && feed(&mut capture, 100));
    capture.keep();
    assert!(begin(&memory, "/", at(0)).is_none());
    assert!(begin(&memory, "/", at(1)).is_some());
}
