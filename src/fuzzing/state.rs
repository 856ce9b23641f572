//! The state file.

use crate::limiter::saved::{Part, Restored, Restorer};
use crate::limiter::timestamp::Timestamp;
use crate::snapshot;

const MAX_KEYS: usize = 1024;
const NOW: Timestamp = Timestamp::from_nanos(1 << 60);

/// Whatever a file says, it is a state or it is not; and a state that was read is written and read again.
pub fn state(data: &[u8]) {
    assert!(snapshot::fuzzing::is_state(data, MAX_KEYS, NOW) <= data.len() as u64);
    // The same without checksums, which no fuzzer guesses: parts of a byte that says which, two for the length, and
    // the content.
    let mut restorer = Restorer::new(MAX_KEYS, NOW);
    let mut rest = data;
    while let [tag, high, low, tail @ ..] = rest {
        let length = usize::from(u16::from_be_bytes([*high, *low])).min(tail.len());
        let (content, tail) = tail.split_at(length);
        let Some(part) = Part::from_tag(*tag) else { return };
        if restorer.take(part, content).is_err() {
            return;
        }
        rest = tail;
    }
    if let Ok(restored) = restorer.finish() {
        again(&restored);
    }
}

fn again(restored: &Restored) {
    let mut restorer = Restorer::new(MAX_KEYS, NOW);
    let saved = restored.limiter.save(NOW, |part, bytes| restorer.take(part, bytes));
    let saved = saved.unwrap_or_else(|error| panic!("what we write is {error:?}"));
    let again = restorer.finish().unwrap_or_else(|damage| panic!("what we write is damaged: {damage}"));
    assert_eq!(again.counters, saved);
}
