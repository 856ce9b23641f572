//! Fuzz target for the state file.

use weir_limiter::saved::{Restored, Restorer, SavedPart};
use weir_limiter::timestamp::Timestamp;
use weir_store::state_file;

const MAX_KEYS: usize = 1024;
const NOW: Timestamp = Timestamp::from_nanos(1 << 60);

/// Any input is a valid state or an error, and a restored state can be saved and restored again.
pub fn state(data: &[u8]) {
    assert!(state_file::fuzzing::is_state(data, MAX_KEYS, NOW) <= data.len() as u64);
    // The same without checksums, which a fuzzer cannot guess: parts of one byte for the type, two for the length, and
    // the content.
    let mut restorer = Restorer::new(MAX_KEYS, NOW);
    let mut rest = data;
    while let [tag, high, low, tail @ ..] = rest {
        let length = usize::from(u16::from_be_bytes([*high, *low])).min(tail.len());
        let (content, tail) = tail.split_at(length);
        let Some(part) = SavedPart::from_tag(*tag) else { return };
        if restorer.read_part(part, content).is_err() {
            return;
        }
        rest = tail;
    }
    if let Ok(restored) = restorer.finish() {
        assert_round_trip(&restored);
    }
}

fn assert_round_trip(restored: &Restored) {
    let mut restorer = Restorer::new(MAX_KEYS, NOW);
    let saved = restored.limiter.save(NOW, |part, bytes| restorer.read_part(part, bytes));
    let saved = saved.unwrap_or_else(|error| panic!("the saved state gives {error:?}"));
    let again = restorer.finish().unwrap_or_else(|damage| panic!("the saved state is damaged: {damage}"));
    assert_eq!(again.counters, saved);
}
