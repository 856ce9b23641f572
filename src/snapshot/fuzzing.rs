//! The reader of the state file, for fuzzing.

use super::frames;
use crate::limiter::timestamp::Timestamp;

/// How many counters there are in a file of this content; none if it is no state.
pub(crate) fn is_state(content: &[u8], max_keys: usize, now: Timestamp) -> u64 {
    frames::read(content, max_keys, now).map_or(0, |restored| restored.counters)
}
