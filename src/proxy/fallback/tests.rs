use http::StatusCode;
use http::header::CONTENT_LENGTH;

use super::*;
use crate::response::fallback::cache_key::StoreKey;

const KIB: u64 = 1 << 10;

fn memory(budget: u64, largest: u64) -> Arc<RuleCache> {
    let keeping = FallbackCacheSettings {
        budget,
        max_size: largest,
        max_age: Duration::from_secs(60),
        ignored: Arc::default(),
    };
    Arc::new(RuleCache::new("a", keeping, &Arc::default()).unwrap())
}

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_secs(1000 + seconds)
}

/// Starts to record the response to `key`, if possible.
fn begin(memory: &Arc<RuleCache>, key: &str, now: Timestamp) -> Option<Recorder> {
    let taking = ActiveRecording::start(memory, StoreKey { bytes: key.as_bytes(), is_personal: false }, now)?;
    Some(Recorder::new(vec![taking], now))
}

fn head(capture: &mut Recorder, length: Option<u64>) -> bool {
    let headers = length.map(|length| (CONTENT_LENGTH, length.into())).into_iter().collect();
    capture.record_head(StatusCode::OK, &headers)
}

/// Records `bytes` bytes in small parts, as far as they are taken.
fn feed(capture: &mut Recorder, bytes: usize) -> bool {
    (0..bytes / 100).all(|_| capture.record_data(&vec![b'x'; 100].into()))
}

#[test]
fn what_is_being_taken_down_stays_within_the_budget() {
    let memory = memory(64 * KIB, 32 * KIB);
    // All clients are slow: no response has ended.
    let mut under_way: Vec<_> =
        (0..50).map(|n| begin(&memory, &format!("/{n}"), at(0)).expect("room for a key")).collect();
    under_way.retain_mut(|capture| head(capture, None) && feed(capture, 30_000));
    let held: usize = under_way.iter().map(Recorder::body_capacity).sum();
    assert!((1..=2).contains(&under_way.len()), "{} are in flight", under_way.len());
    assert!(held as u64 <= 64 * KIB, "{held}");
    // Dropping a recording releases its memory.
    drop(under_way);
    let mut next = begin(&memory, "/next", at(0)).unwrap();
    assert!(head(&mut next, None) && feed(&mut next, 30_000));
    next.store();
    assert_eq!(memory.responses.get(&b"/next"[..]).unwrap().body().len(), 30_000);
    assert!(memory.responses.get(&b"/1"[..]).is_none());
}

#[test]
fn the_same_answer_is_taken_down_once_at_a_time() {
    let memory = memory(64 * KIB, 32 * KIB);
    let first = begin(&memory, "/", at(0)).unwrap();
    assert!(begin(&memory, "/", at(1)).is_none());
    assert!(begin(&memory, "/other", at(1)).is_some());
    // After a while, a slow client's recording no longer prevents another, and its end does not affect that one.
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
    assert!(head(&mut silent, None) && !feed(&mut silent, 40_000), "larger than allowed");
}

#[test]
fn an_answer_is_taken_down_anew_when_it_is_no_longer_fresh() {
    let memory = memory(64 * KIB, 32 * KIB);
    let mut capture = begin(&memory, "/", at(0)).unwrap();
    assert!(head(&mut capture, Some(100)) && feed(&mut capture, 100));
    capture.store();
    assert!(begin(&memory, "/", at(0)).is_none());
    assert!(begin(&memory, "/", at(1)).is_some());
}
