//! Tests of eight bytes at a time, as a word in little-endian order.

const LOW_BITS: u64 = 0x0101_0101_0101_0101;
/// The highest bit of every byte.
pub const HIGH_BITS: u64 = 0x8080_8080_8080_8080;

/// Returns a word of eight times `byte`.
#[inline(always)]
pub const fn repeat(byte: u8) -> u64 {
    LOW_BITS * byte as u64
}

/// Sets the highest bit of every byte that is zero. Bits above the lowest of them may be wrong.
#[inline(always)]
pub const fn zero_bytes(word: u64) -> u64 {
    word.wrapping_sub(LOW_BITS) & !word & HIGH_BITS
}

/// Returns fewer than eight bytes as a word, filled up with letters.
#[inline(always)]
pub fn filled_up(bytes: &[u8]) -> u64 {
    bytes.iter().rfold(repeat(b'x'), |word, byte| word << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lowest_zero_byte_is_marked() {
        for (bytes, index) in [(b"\0abcdefg", 0), (b"abc\0\x01\0fg", 3), (b"abcdefg\0", 7)] {
            assert_eq!(zero_bytes(u64::from_le_bytes(*bytes)).trailing_zeros() / 8, index);
        }
        assert_eq!(zero_bytes(u64::from_le_bytes(*b"\x01\x7f\x80\xff/.%x")), 0);
    }

    #[test]
    fn short_texts_are_filled_up_at_their_end() {
        assert_eq!(filled_up(b"/a%").to_le_bytes(), *b"/a%xxxxx");
        assert_eq!(filled_up(b"").to_le_bytes(), *b"xxxxxxxx");
    }
}
