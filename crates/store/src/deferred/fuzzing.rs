//! Entry point for fuzzing the decoder of stored calls.

use bytes::Bytes;

use super::call::StoredCall;

/// Decodes a call. One that is valid is the same after encoding and decoding it again.
pub fn check_call(text: &[u8]) {
    if let Some(call) = StoredCall::decode(&Bytes::copy_from_slice(text)) {
        assert_eq!(StoredCall::decode(&call.encode().into()), Some(call));
    }
}
