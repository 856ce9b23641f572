use http::StatusCode;
use http::header::CONTENT_LENGTH;

use super::*;
use weir_policy::response::fallback::cache_key::StoreKey;

const KIB: u64 = 1 << 10;

fn rule_cache(budget: u64, max_size: u64) -> Arc<RuleCache> {
    let keeping =
        FallbackCacheSettings { budget, max_size, max_age: Duration::from_secs(60), ignored: Arc::default() };
    Arc::new(RuleCache::new("a", keeping, &Arc::default()).unwrap())
}

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_secs(1000 + seconds)
}

/// Starts to record the response to `key`, if possible.
fn start_recording(memory: &Arc<RuleCache>, key: &str, now: Timestamp) -> Option<Recorder> {
    let taking = ActiveRecording::start(memory, StoreKey { bytes: key.as_bytes(), is_personal: false }, now)?;
    Some(Recorder::new(vec![taking], now))
}

fn record_head(capture: &mut Recorder, length: Option<u64>) -> bool {
    let headers = length.map(|length| (CONTENT_LENGTH, length.into())).into_iter().collect();
    capture.record_head(StatusCode::OK, &headers)
}

/// Records `bytes` bytes in small parts, as far as they are taken.
fn record_body(capture: &mut Recorder, bytes: usize) -> bool {
    (0..bytes / 100).all(|_| capture.record_data(&vec![b'x'; 100].into()))
}

#[test]
fn fallback_recordings_stay_within_the_memory_budget() {
    let memory = rule_cache(64 * KIB, 32 * KIB);
    // All clients are slow: no response has ended.
    let mut in_flight: Vec<_> =
        (0..50).map(|n| start_recording(&memory, &format!("/{n}"), at(0)).expect("room for a key")).collect();
    in_flight.retain_mut(|capture| record_head(capture, None) && record_body(capture, 30_000));
    let held: usize = in_flight.iter().map(Recorder::body_capacity).sum();
    assert!((1..=2).contains(&in_flight.len()), "{} are in flight", in_flight.len());
    assert!(held as u64 <= 64 * KIB, "{held}");
    // Dropping a recording releases its memory.
    drop(in_flight);
    let mut next = start_recording(&memory, "/next", at(0)).unwrap();
    assert!(record_head(&mut next, None) && record_body(&mut next, 30_000));
    next.store();
    assert_eq!(memory.responses.get(&b"/next"[..]).unwrap().body().len(), 30_000);
    assert!(memory.responses.get(&b"/1"[..]).is_none());
}

#[test]
fn same_response_is_recorded_once_at_a_time() {
    let memory = rule_cache(64 * KIB, 32 * KIB);
    let first = start_recording(&memory, "/", at(0)).unwrap();
    assert!(start_recording(&memory, "/", at(1)).is_none());
    assert!(start_recording(&memory, "/other", at(1)).is_some());
    // After a while, a slow client's recording no longer prevents another, and its end does not affect that one.
    let second = start_recording(&memory, "/", at(60)).unwrap();
    drop(first);
    assert!(start_recording(&memory, "/", at(61)).is_none());
    drop(second);
    assert!(start_recording(&memory, "/", at(61)).is_some());
}

#[test]
fn response_with_too_large_content_length_is_not_recorded() {
    let memory = rule_cache(64 * KIB, 32 * KIB);
    for (length, fits) in
        [(Some(32 * KIB), false), (Some(30_000), true), (Some(u64::MAX), false), (None, true)]
    {
        let mut capture = start_recording(&memory, "/", at(0)).unwrap();
        assert_eq!(record_head(&mut capture, length), fits, "{length:?}");
    }
    let mut silent = start_recording(&memory, "/", at(0)).unwrap();
    assert!(record_head(&mut silent, None) && !record_body(&mut silent, 40_000), "larger than allowed");
}

#[test]
fn stored_response_is_recorded_again_once_it_is_not_fresh() {
    let memory = rule_cache(64 * KIB, 32 * KIB);
    let mut capture = start_recording(&memory, "/", at(0)).unwrap();
    assert!(record_head(&mut capture, Some(100)) && record_body(&mut capture, 100));
    capture.store();
    assert!(start_recording(&memory, "/", at(0)).is_none());
    assert!(start_recording(&memory, "/", at(1)).is_some());
}
