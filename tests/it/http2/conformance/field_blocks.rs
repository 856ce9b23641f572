//! Inspection of the field blocks that Weir sends (RFC 7541), without decoding their strings.

/// Returns whether a field block refers to a dynamic table: to an entry of it, by a whole field or by a name.
pub(super) fn refers_to_dynamic_table(block: &[u8]) -> bool {
    let mut rest = block;
    while let Some(&first) = rest.first() {
        let (bits, is_literal) = match first {
            0x80.. => (7, false),
            0x40.. => (6, true),
            0x20.. => (5, false),
            _ => (4, true),
        };
        let index;
        (index, rest) = take_integer(rest, bits);
        if index > 61 && first & 0xe0 != 0x20 {
            return true;
        }
        for _ in 0..if !is_literal {
            0
        } else if index == 0 {
            2
        } else {
            1
        } {
            let length;
            (length, rest) = take_integer(rest, 7);
            rest = &rest[length..];
        }
    }
    false
}

/// Decodes an integer with a prefix of `bits` bits (RFC 7541 section 5.1).
fn take_integer(bytes: &[u8], bits: u32) -> (usize, &[u8]) {
    let max = (1_usize << bits) - 1;
    let prefix = usize::from(bytes[0]) & max;
    if prefix < max {
        return (prefix, &bytes[1..]);
    }
    let (mut value, mut shift, mut at) = (max, 0, 1);
    loop {
        value += usize::from(bytes[at] & 0x7f) << shift;
        shift += 7;
        at += 1;
        if bytes[at - 1] & 0x80 == 0 {
            return (value, &bytes[at..]);
        }
    }
}
