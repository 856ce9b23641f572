//! Reading of bytes: searches eight bytes at a time, numbers, escapes, and a cursor over one line.

use std::net::{IpAddr, Ipv4Addr};

use memchr::memchr2;
use weir_policy::identify::words::{HIGH_BITS, filled_up, repeat, zero_bytes};

/// Length of the longest IPv4 address.
const MAX_IPV4_LENGTH: usize = "255.255.255.255".len();

/// Returns the index of the first `byte` in `text`.
#[inline]
pub(crate) fn find(text: &[u8], byte: u8) -> Option<usize> {
    let pattern = repeat(byte);
    let (words, rest) = text.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        let zeros = zero_bytes(u64::from_le_bytes(*word) ^ pattern);
        if zeros != 0 {
            return Some(index * 8 + zeros.trailing_zeros() as usize / 8);
        }
    }
    let at = rest.iter().position(|other| *other == byte)?;
    Some(words.len() * 8 + at)
}

/// Returns the index of the first `one` or `other` in `text`, where it is expected to be near.
#[inline(never)]
pub(super) fn find_either_near(text: &[u8], one: u8, other: u8) -> Option<usize> {
    let (first, second) = (repeat(one), repeat(other));
    if let Some(head) = text.first_chunk::<16>() {
        for (index, word) in head.as_chunks::<8>().0.iter().enumerate() {
            let word = u64::from_le_bytes(*word);
            let zeros = zero_bytes(word ^ first) | zero_bytes(word ^ second);
            if zeros != 0 {
                return Some(index * 8 + zeros.trailing_zeros() as usize / 8);
            }
        }
        return memchr2(one, other, &text[16..]).map(|at| at + 16);
    }
    text.iter().position(|byte| *byte == one || *byte == other)
}

/// What a request target has, as far as its bytes tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TargetBytes {
    /// Whether there is a space or a control character of ASCII.
    pub(crate) has_space_or_control: bool,
    /// Index of the first `?` or `#`.
    pub(crate) path_end: Option<usize>,
}

impl TargetBytes {
    /// Examines `text`.
    #[inline]
    pub(crate) fn of(text: &[u8]) -> Self {
        let (words, rest) = text.as_chunks::<8>();
        let last = match text.last_chunk::<8>() {
            // Overlaps with the last word.
            Some(last) => u64::from_le_bytes(*last),
            None => filled_up(rest),
        };
        let is_usual = |word: &[u8; 8]| !has_rare_byte(u64::from_le_bytes(*word));
        if words.iter().all(is_usual) && !has_rare_byte(last) {
            return Self { has_space_or_control: false, path_end: None };
        }
        Self {
            has_space_or_control: text.iter().any(|byte| *byte <= b' ' || *byte == 0x7f),
            path_end: memchr2(b'?', b'#', text),
        }
    }
}

/// Whether a word has a space, a control character, `?`, `#`, or one of the few other characters up to `#`.
#[inline(always)]
const fn has_rare_byte(word: u64) -> bool {
    let low = word.wrapping_sub(repeat(b'#' + 1)) & !word & HIGH_BITS;
    // `?` and the last control character differ in one bit.
    let high = zero_bytes((word | repeat(0x40)) ^ repeat(0x7f));
    (low | high) != 0
}

/// Parses digits; `None` if there are none, anything else, or the number is too large.
#[inline]
pub(super) fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 19 {
        return None;
    }
    let mut value = 0_u64;
    for byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value * 10 + u64::from(digit);
    }
    Some(value)
}

/// Parses an address, with or without a port.
#[inline]
pub(crate) fn address(text: &[u8]) -> Option<IpAddr> {
    if let Some(v4) = ipv4(text) {
        return Some(IpAddr::V4(v4));
    }
    weir_policy::identify::forwarded::parse_hop(text)
}

/// Parses the usual form of an IPv4 address. Anything else is left to the general parser.
#[inline]
fn ipv4(text: &[u8]) -> Option<Ipv4Addr> {
    if text.len() > MAX_IPV4_LENGTH {
        return None;
    }
    let (mut bits, mut dots) = (0_u32, 0);
    let (mut value, mut digits) = (0_u32, 0);
    for byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit <= 9 {
            value = value.wrapping_mul(10).wrapping_add(digit.into());
            digits += 1;
        } else if *byte == b'.' {
            bits = bits << 8 | octet(value, digits)?;
            (dots, value, digits) = (dots + 1, 0, 0);
        } else {
            return None;
        }
    }
    let last = octet(value, digits)?;
    (dots == 3).then(|| Ipv4Addr::from_bits(bits << 8 | last))
}

/// Returns the value of an octet, unless it has no digits, too many, or a leading zero, which could mean octal.
#[inline(always)]
fn octet(value: u32, digits: usize) -> Option<u32> {
    const MIN_VALUES: [u32; 4] = [u32::MAX, 0, 10, 100];
    (value <= 255 && value >= *MIN_VALUES.get(digits)?).then_some(value)
}

/// Decodes `\xNN`, `\"` and `\\` in place, and returns the new length. Other backslashes are kept.
pub(super) fn decode_hex_escapes(text: &mut [u8]) -> usize {
    let (mut from, mut to) = (0, 0);
    while from < text.len() {
        let (byte, length) = match text[from..] {
            [b'\\', b'x', high, low, ..] => match (hex_digit(high), hex_digit(low)) {
                (Some(high), Some(low)) => (high << 4 | low, 4),
                _ => (b'\\', 1),
            },
            [b'\\', quoted @ (b'"' | b'\\'), ..] => (quoted, 2),
            [byte, ..] => (byte, 1),
            [] => break,
        };
        text[to] = byte;
        (from, to) = (from + length, to + 1);
    }
    to
}

/// Returns the value of a hexadecimal digit.
pub(super) const fn hex_digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    }
}

/// Position in a line of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct LineCursor<'a> {
    /// The block up to the end of the line.
    pub(super) block: &'a [u8],
    pub(super) at: usize,
    /// Whether a text with a backslash has been read.
    pub(super) has_escapes: bool,
}

impl<'a> LineCursor<'a> {
    /// Starts at the beginning of the line.
    pub(super) fn new(block: &'a [u8], line: &std::ops::Range<usize>) -> Self {
        let block = block.get(..line.end).unwrap_or(block);
        Self { block, at: line.start, has_escapes: false }
    }

    #[inline]
    pub(super) fn rest(&self) -> &'a [u8] {
        self.block.get(self.at..).unwrap_or_default()
    }

    /// Returns the next byte without reading it.
    #[inline]
    pub(super) fn peek(&self) -> Option<u8> {
        self.block.get(self.at).copied()
    }

    /// Reads `byte`, if it is next.
    #[inline]
    pub(super) fn skip(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    /// Reads up to `byte` and the byte itself; returns the positions before it.
    #[inline]
    pub(super) fn until(&mut self, byte: u8) -> Option<std::ops::Range<usize>> {
        let start = self.at;
        let end = start + find(self.rest(), byte)?;
        self.at = end + 1;
        Some(start..end)
    }

    /// Reads a word, which ends at a space or at the end of the line, and the space.
    #[inline]
    pub(super) fn word(&mut self) -> Option<&'a [u8]> {
        let rest = self.rest();
        let length = find(rest, b' ').unwrap_or(rest.len());
        self.at += length + usize::from(length < rest.len());
        (length > 0).then(|| &rest[..length])
    }

    /// Reads a quoted text and a space behind it; returns the positions between the quotes. A quote behind a backslash
    /// does not end the text.
    #[inline]
    pub(super) fn quoted(&mut self) -> Option<std::ops::Range<usize>> {
        self.skip(b'"')?;
        let start = self.at;
        loop {
            let stop = self.at + memchr2(b'"', b'\\', self.rest())?;
            if self.block[stop] == b'"' {
                self.at = stop + 1;
                let _ = self.skip(b' ');
                return Some(start..stop);
            }
            self.has_escapes = true;
            self.at = (stop + 2).min(self.block.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn fast_searches_find_what_slow_ones_find(text in proptest::collection::vec(0_u8..6, 0..40)) {
            prop_assert_eq!(find(&text, 3), text.iter().position(|byte| *byte == 3));
            let either = text.iter().position(|byte| [2, 5].contains(byte));
            prop_assert_eq!(find_either_near(&text, 2, 5), either);
        }

        #[test]
        fn ends_of_paths_and_controls_are_found_in_any_text(text in "[ -~]{0,20}", at in 0_usize..20, byte in any::<u8>()) {
            let mut text = text.replace(' ', "é").into_bytes();
            prop_assert!(!TargetBytes::of(&text).has_space_or_control);
            text.insert(at.min(text.len()), byte);
            let path_end = text.iter().position(|byte| matches!(byte, b'?' | b'#'));
            let has_space_or_control = byte <= b' ' || byte == 0x7f;
            prop_assert_eq!(TargetBytes::of(&text), TargetBytes { has_space_or_control, path_end });
        }

        #[test]
        fn fast_addresses_are_those_of_the_general_parser(text in "[0-9]{1,4}(\\.[0-9]{0,4}){2,4}") {
            prop_assert_eq!(ipv4(text.as_bytes()), text.parse::<Ipv4Addr>().ok());
        }
    }

    #[test]
    fn addresses_may_have_ports_and_be_mapped() {
        for (text, wanted) in [
            ("192.0.2.1", "192.0.2.1"),
            ("192.0.2.1:4711", "192.0.2.1"),
            ("[2001:db8::1]:80", "2001:db8::1"),
            ("::ffff:192.0.2.1", "192.0.2.1"),
        ] {
            assert_eq!(address(text.as_bytes()), wanted.parse().ok(), "{text}");
        }
        for bad in ["", "-", "host.test", "1.2.3", "01.2.3.4", "1.2.3.256"] {
            assert_eq!(address(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn escapes_are_decoded_in_place() {
        for (escaped, decoded) in
            [("a\\x22b", "a\"b"), ("\\\\x41\\x4", "\\x41\\x4"), ("\\\"\\q\\", "\"\\q\\"), ("", "")]
        {
            let mut text = escaped.as_bytes().to_vec();
            let length = decode_hex_escapes(&mut text);
            assert_eq!(&text[..length], decoded.as_bytes(), "{escaped}");
        }
    }

    #[test]
    fn numbers_are_digits_only() {
        assert_eq!(number(b"18446744073"), Some(18_446_744_073));
        for bad in ["", "-", "+1", "1.5", "99999999999999999999"] {
            assert_eq!(number(bad.as_bytes()), None, "{bad}");
        }
    }
}
