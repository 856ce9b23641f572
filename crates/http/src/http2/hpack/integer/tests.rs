use proptest::prelude::*;

use super::{DecodeError, decode, encode};

fn encoded(first: u8, prefix: u32, value: usize) -> Vec<u8> {
    let mut out = Vec::new();
    encode(first, prefix, value, &mut out);
    out
}

#[test]
fn the_examples_of_the_rfc_are_encoded_and_decoded() {
    // Appendix C.1.
    for (prefix, value, bytes) in [(5, 10, &[0x0a][..]), (5, 1337, &[0x1f, 0x9a, 0x0a]), (8, 42, &[0x2a])] {
        assert_eq!(encoded(0, prefix, value), bytes);
        assert_eq!(decode(bytes, prefix), Ok((value as u32, &[][..])));
    }
}

#[test]
fn an_integer_that_ends_early_is_truncated() {
    assert_eq!(decode(&[], 7), Err(DecodeError::Truncated));
    assert_eq!(decode(&[0x7f], 7), Err(DecodeError::Truncated));
    assert_eq!(decode(&[0x7f, 0x80, 0x80, 0x80, 0x80], 7), Err(DecodeError::Truncated));
}

#[test]
fn an_integer_beyond_32_bits_is_too_large() {
    let max = encoded(0, 7, u32::MAX as usize);
    assert_eq!(decode(&max, 7), Ok((u32::MAX, &[][..])));
    let beyond = encoded(0, 7, u32::MAX as usize + 1);
    assert_eq!(decode(&beyond, 7), Err(DecodeError::IntegerTooLarge));
    assert_eq!(decode(&[0x7f, 0xff, 0xff, 0xff, 0xff, 0x7f], 7), Err(DecodeError::IntegerTooLarge));
}

#[test]
fn an_integer_with_more_than_five_continuation_bytes_is_too_large() {
    assert_eq!(decode(&[0x7f, 0x80, 0x80, 0x80, 0x80, 0x00], 7), Ok((127, &[][..])));
    assert_eq!(decode(&[0x7f, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00], 7), Err(DecodeError::IntegerTooLarge));
}

proptest! {
    #[test]
    fn an_encoded_integer_is_decoded_to_itself(value: u32, prefix in 4_u32..8, rest: Vec<u8>, first: u8) {
        let first = (u32::from(first) << prefix) as u8;
        let mut bytes = encoded(first, prefix, value as usize);
        prop_assert_eq!((u32::from(bytes[0]) >> prefix) << prefix, u32::from(first));
        bytes.extend_from_slice(&rest);
        prop_assert_eq!(decode(&bytes, prefix), Ok((value, &rest[..])));
    }

    #[test]
    fn arbitrary_bytes_are_an_integer_or_an_error(bytes: Vec<u8>, prefix in 4_u32..9) {
        let _ = decode(&bytes, prefix);
    }
}
