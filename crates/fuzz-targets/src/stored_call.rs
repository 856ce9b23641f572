//! Fuzz target for stored calls.

use weir_store::deferred;

/// Any input is a call or invalid, and a call is the same after encoding and decoding it again.
pub fn stored_call(data: &[u8]) {
    deferred::fuzzing::check_call(data);
}
