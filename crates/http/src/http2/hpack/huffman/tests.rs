use proptest::collection::vec;
use proptest::prelude::*;

use super::{CODE, DecodeError, EOS, LENGTHS, decode, max_decoded_len};

/// The code of `symbol`, and its length.
fn code(symbol: usize) -> (u64, u32) {
    let place = CODE.symbols.iter().position(|found| usize::from(*found) == symbol).unwrap() as u32;
    let length = LENGTHS[symbol];
    (u64::from(place.wrapping_sub(CODE.offsets[usize::from(length)])), length.into())
}

/// Encodes `symbols`, then `padding` ones until the last byte is complete.
fn encode(symbols: impl IntoIterator<Item = usize>) -> Vec<u8> {
    let mut bits: Vec<bool> = Vec::new();
    for symbol in symbols {
        let (code, length) = code(symbol);
        bits.extend((0..length).rev().map(|bit| code >> bit & 1 == 1));
    }
    bits.resize(bits.len().next_multiple_of(8), true);
    bits.chunks(8).map(|byte| byte.iter().fold(0, |byte, bit| byte << 1 | u8::from(*bit))).collect()
}

fn decoded(input: &[u8]) -> Result<Vec<u8>, DecodeError> {
    let mut output = vec![0; max_decoded_len(input.len())];
    let len = decode(input, &mut output)?;
    output.truncate(len);
    Ok(output)
}

#[test]
fn the_codes_are_those_of_the_rfc() {
    // A selection of appendix B with each kind of length.
    for (symbol, expected) in [
        (usize::from(b'0'), (0x0, 5)),
        (usize::from(b't'), (0x9, 5)),
        (usize::from(b' '), (0x14, 6)),
        (usize::from(b':'), (0x5c, 7)),
        (usize::from(b'z'), (0x7b, 7)),
        (usize::from(b'Z'), (0xfd, 8)),
        (usize::from(b'!'), (0x3f8, 10)),
        (usize::from(b'|'), (0x7fc, 11)),
        (usize::from(b'>'), (0xffb, 12)),
        (0, (0x1ff8, 13)),
        (usize::from(b'{'), (0x7ffe, 15)),
        (usize::from(b'\\'), (0x7fff0, 19)),
        (128, (0xfffe6, 20)),
        (1, (0x7fffd8, 23)),
        (199, (0x1ffffec, 25)),
        (255, (0x3ffffee, 26)),
        (254, (0x7fffff0, 27)),
        (2, (0xfffffe2, 28)),
        (249, (0xffffffe, 28)),
        (10, (0x3ffffffc, 30)),
        (22, (0x3ffffffe, 30)),
        (256, (0x3fffffff, 30)),
    ] {
        assert_eq!(code(symbol), expected, "symbol {symbol}");
    }
}

#[test]
fn every_byte_is_decoded() {
    let all: Vec<u8> = (0..=255).collect();
    assert_eq!(decoded(&encode(0..256)), Ok(all));
    for byte in 0..=255 {
        assert_eq!(decoded(&encode([usize::from(byte)])), Ok(vec![byte]));
    }
}

#[test]
fn nothing_is_decoded_to_nothing() {
    assert_eq!(decoded(&[]), Ok(vec![]));
}

#[test]
fn eos_is_an_error() {
    assert_eq!(decoded(&[0xff; 4]), Err(DecodeError::InvalidHuffman));
    assert_eq!(decoded(&encode([97, usize::from(EOS), 97])), Err(DecodeError::InvalidHuffman));
}

#[test]
fn padding_of_a_byte_or_more_is_an_error() {
    assert_eq!(decoded(&[0xff]), Err(DecodeError::InvalidHuffman));
    // 'a' is 00011.
    assert_eq!(decoded(&[0b0001_1111]), Ok(b"a".to_vec()));
    assert_eq!(decoded(&[0b0001_1111, 0xff]), Err(DecodeError::InvalidHuffman));
}

#[test]
fn padding_with_a_zero_is_an_error() {
    assert_eq!(decoded(&[0b0001_1110]), Err(DecodeError::InvalidHuffman));
    assert_eq!(decoded(&[0b0001_1011]), Err(DecodeError::InvalidHuffman));
}

proptest! {
    #[test]
    fn encoded_bytes_are_decoded_to_themselves(bytes: Vec<u8>) {
        prop_assert_eq!(decoded(&encode(bytes.iter().map(|byte| usize::from(*byte)))), Ok(bytes));
    }

    #[test]
    fn what_can_be_decoded_is_the_only_encoding(bytes in vec(any::<u8>(), 0..40)) {
        if let Ok(output) = decoded(&bytes) {
            prop_assert_eq!(encode(output.iter().map(|byte| usize::from(*byte))), bytes);
        }
    }

    #[test]
    fn text_is_decoded_to_itself(text in "[ -~]{0,80}") {
        prop_assert_eq!(decoded(&encode(text.bytes().map(usize::from))), Ok(text.into_bytes()));
    }
}
