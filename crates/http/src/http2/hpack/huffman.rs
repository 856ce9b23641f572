//! HpackDecoder of the Huffman code (RFC 7541, section 5.2 and appendix B).
//!
//! The code is canonical: among codes of the same length, greater symbols have greater codes, and every code is greater
//! than all shorter ones. So its lengths determine it, and a long code is decoded by comparing it with the greatest
//! code of each length. A table finds the codes of up to eight bits, which nearly all text consists of.

use super::decode_error::DecodeError;

/// Lengths of the codes of all bytes, and of EOS, in bits.
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28,
    28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6,
    6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7,
    8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7,
    15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24,
    23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23,
    23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26,
    26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20,
    21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27,
    27, 27, 26, 30,
];

const EOS: u16 = 256;
const MAX_LENGTH: usize = 30;
/// Codes of at most this many bits are found in the table.
const TABLE_BITS: usize = 8;

/// The code, arranged for decoding.
struct HuffmanCode {
    /// For every eight bits: the symbol whose code they begin with, and its length. Length 0: the code is longer.
    short: [(u8, u8); 1 << TABLE_BITS],
    /// For every length: the first code that is greater than all codes of this length, left-aligned in 32 bits.
    ends: [u32; MAX_LENGTH + 1],
    /// For every length: what to add to a code to get its place in `symbols`. Wraps around.
    offsets: [u32; MAX_LENGTH + 1],
    /// All symbols in the order of their codes.
    symbols: [u16; 257],
}

static CODE: HuffmanCode = HuffmanCode::new();

impl HuffmanCode {
    const fn new() -> Self {
        let mut code = Self {
            short: [(0, 0); 1 << TABLE_BITS],
            ends: [0; MAX_LENGTH + 1],
            offsets: [0; MAX_LENGTH + 1],
            symbols: [0; 257],
        };
        let (mut next, mut place, mut length) = (0_u32, 0, 1);
        while length <= MAX_LENGTH {
            next <<= 1;
            code.offsets[length] = (place as u32).wrapping_sub(next);
            let mut symbol = 0;
            while symbol < LENGTHS.len() {
                if LENGTHS[symbol] as usize == length {
                    code.symbols[place] = symbol as u16;
                    code.add_short(next, symbol as u8, length);
                    place += 1;
                    next += 1;
                }
                symbol += 1;
            }
            // EOS consists of ones only. The end of the greatest length does not fit, and is never needed.
            code.ends[length] = if length == MAX_LENGTH { u32::MAX } else { next << (32 - length) };
            length += 1;
        }
        code
    }

    /// Fills all places of the table that begin with `bits`.
    const fn add_short(&mut self, bits: u32, symbol: u8, length: usize) {
        if length > TABLE_BITS {
            return;
        }
        let mut index = (bits as usize) << (TABLE_BITS - length);
        let end = index + (1 << (TABLE_BITS - length));
        while index < end {
            self.short[index] = (symbol, length as u8);
            index += 1;
        }
    }

    /// Returns the symbol whose code `window` begins with, and the length of that code.
    fn find(&self, window: u32) -> (u16, u32) {
        match self.short[(window >> (32 - TABLE_BITS)) as usize] {
            (_, 0) => self.find_long(window),
            (symbol, length) => (symbol.into(), length.into()),
        }
    }

    fn find_long(&self, window: u32) -> (u16, u32) {
        let mut length = TABLE_BITS + 1;
        while length < MAX_LENGTH && window >= self.ends[length] {
            length += 1;
        }
        let place = (window >> (32 - length)).wrapping_add(self.offsets[length]);
        (self.symbols[place as usize], length as u32)
    }
}

/// Most bytes that `encoded` bytes can represent: the shortest codes have five bits.
pub(super) const fn max_decoded_len(encoded: usize) -> usize {
    encoded * 8 / 5
}

/// Decodes `input` to `output`, whose length must be at least [`max_decoded_len`]. Returns the number of bytes written.
///
/// # Errors
/// Fails if EOS occurs, or if the bits after the last symbol are not a prefix of EOS shorter than a byte.
pub(super) fn decode(input: &[u8], output: &mut [u8]) -> Result<usize, DecodeError> {
    let mut bits = Bits { window: 0, count: 0, input };
    let mut len = 0;
    loop {
        bits.refill();
        // Nearly all text. A code in the table is not longer than what is left, and not EOS.
        while bits.count >= TABLE_BITS as u32 {
            let (symbol, length) = CODE.short[(bits.window >> (64 - TABLE_BITS)) as usize];
            if length == 0 {
                break;
            }
            *output.get_mut(len).ok_or(DecodeError::InvalidHuffman)? = symbol;
            len += 1;
            bits.skip(length.into());
        }
        if bits.count < TABLE_BITS as u32 && !bits.input.is_empty() {
            continue;
        }
        bits.refill();
        let (symbol, length) = CODE.find((bits.window >> 32) as u32);
        // No code of less than a byte consists of ones only, so padding always seems to begin a longer code.
        if length > bits.count || symbol == EOS {
            return if bits.are_padding() { Ok(len) } else { Err(DecodeError::InvalidHuffman) };
        }
        *output.get_mut(len).ok_or(DecodeError::InvalidHuffman)? = symbol as u8;
        len += 1;
        bits.skip(length);
    }
}

/// Input as a queue of bits.
struct Bits<'a> {
    /// The next bits, left-aligned. Those after `count` are zeros, or the next bits of `input`.
    window: u64,
    /// Number of bits in `window` that are not in `input` any more.
    count: u32,
    input: &'a [u8],
}

impl Bits<'_> {
    /// Ensures that `window` has more than 56 bits, or all that are left.
    #[inline]
    fn refill(&mut self) {
        let Some(bytes) = self.input.first_chunk() else { return self.refill_end() };
        self.window |= u64::from_be_bytes(*bytes) >> self.count;
        let taken = (63 - self.count) / 8;
        self.count += taken * 8;
        self.input = &self.input[taken as usize..];
    }

    fn refill_end(&mut self) {
        while self.count <= 56
            && let Some((byte, rest)) = self.input.split_first()
        {
            self.window |= u64::from(*byte) << (56 - self.count);
            self.count += 8;
            self.input = rest;
        }
    }

    #[inline]
    const fn skip(&mut self, count: u32) {
        self.window <<= count;
        self.count -= count;
    }

    /// Whether the bits left are a prefix of EOS, shorter than a byte.
    const fn are_padding(&self) -> bool {
        self.count < 8 && self.window.leading_ones() == self.count
    }
}

#[cfg(test)]
mod tests;
