//! Entry point for fuzzing the state file's reader.

use super::frames;
use weir_limiter::timestamp::Timestamp;

/// Returns the number of counters in a file with this content; 0 if it is not a valid state file.
pub fn is_state(content: &[u8], max_keys: usize, now: Timestamp) -> u64 {
    frames::read(content, max_keys, now).map_or(0, |restored| restored.counters)
}
