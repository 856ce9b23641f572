//! Integers with a prefix of some bits (RFC 7541, section 5.1).

use super::decode_error::DecodeError;

/// Bytes that may follow the prefix. Five of them suffice for 32 bits.
const MAX_CONTINUATION_BYTES: usize = 5;

/// Decodes an integer whose first byte, without the bits of the representation, ends in `prefix` bits. Returns it with
/// the input that follows.
///
/// # Errors
/// Fails if the input ends within the integer, or if the integer does not fit 32 bits or has needless bytes beyond that.
#[inline]
pub(super) fn decode(input: &[u8], prefix: u32) -> Result<(u32, &[u8]), DecodeError> {
    let (first, rest) = input.split_first().ok_or(DecodeError::Truncated)?;
    let max = (1_u32 << prefix) - 1;
    let value = u32::from(*first) & max;
    if value < max { Ok((value, rest)) } else { decode_continuation(rest, value) }
}

fn decode_continuation(input: &[u8], prefix: u32) -> Result<(u32, &[u8]), DecodeError> {
    let mut value = u64::from(prefix);
    for (position, byte) in input.iter().take(MAX_CONTINUATION_BYTES).enumerate() {
        value += u64::from(byte & 0x7f) << (7 * position);
        if byte & 0x80 == 0 {
            let value = u32::try_from(value).map_err(|_| DecodeError::IntegerTooLarge)?;
            return Ok((value, &input[position + 1..]));
        }
    }
    Err(if input.len() < MAX_CONTINUATION_BYTES {
        DecodeError::Truncated
    } else {
        DecodeError::IntegerTooLarge
    })
}

/// Appends `value` with a prefix of `prefix` bits. `first` holds the bits before the prefix.
#[inline]
pub(super) fn encode(first: u8, prefix: u32, value: usize, out: &mut Vec<u8>) {
    let max = (1_usize << prefix) - 1;
    if value < max {
        out.push(first | value as u8);
    } else {
        out.push(first | max as u8);
        encode_continuation(value - max, out);
    }
}

fn encode_continuation(mut value: usize, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests;
