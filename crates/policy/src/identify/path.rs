//! Path normalisation, so that a rule on `/admin` also applies to `/x/..//%61dmin`.
//!
//! Percent-encodings are decoded once (RFC 3986, section 6.2.2.2); empty and dot segments are removed (section 5.2.4).
//! Encodings that would change the meaning are kept, in upper case: `%2F` and `%5C`, which only some servers treat as
//! separators; `%25`, so that `%252F` and `%2F` remain different; and bytes that are not UTF-8. The normal form is for
//! rules only: the upstream receives the target as received.

use std::borrow::Cow;

use super::MalformedPath;
use super::words::{filled_up, repeat, zero_bytes};

/// Returns the normal form of a request path, borrowed if the path is normal already.
///
/// # Errors
/// [`MalformedPath`] for `%00`, and for a `%` without two hexadecimal digits.
pub fn normalise(path: &str) -> Result<Cow<'_, str>, MalformedPath> {
    if is_normal(path.as_bytes()) {
        return Ok(Cow::Borrowed(path));
    }
    let decoded = decode(path.as_bytes())?;
    Ok(Cow::Owned(remove_dots(&decoded)))
}

/// Whether there is nothing to decode, merge or remove. Looks at eight bytes at a time.
fn is_normal(path: &[u8]) -> bool {
    let (words, rest) = path.as_chunks::<8>();
    let mut before = 0;
    for word in words {
        let word = u64::from_le_bytes(*word);
        if is_abnormal(word, before) {
            return false;
        }
        before = word >> 56;
    }
    let last = match path.last_chunk::<8>() {
        // Overlaps with the last word, in which the byte before it is.
        Some(last) => return rest.is_empty() || !is_abnormal(u64::from_le_bytes(*last), 0),
        None => filled_up(rest),
    };
    !is_abnormal(last, 0)
}

/// Whether eight bytes contain a percent sign, or a dot or slash behind a slash. `before` is the byte before them.
#[inline(always)]
const fn is_abnormal(word: u64, before: u64) -> bool {
    const SLASHES: u64 = repeat(b'/');
    // Dots and slashes differ in the lowest bit.
    let pairs = ((word << 8 | before) ^ SLASHES) | ((word | repeat(1)) ^ SLASHES);
    zero_bytes(pairs) != 0 || zero_bytes(word ^ repeat(b'%')) != 0
}

fn decode(path: &[u8]) -> Result<String, MalformedPath> {
    let mut decoded = Vec::with_capacity(path.len());
    let mut rest = path;
    while let [first, tail @ ..] = rest {
        if *first != b'%' {
            decoded.push(*first);
            rest = tail;
            continue;
        }
        let [high, low, tail @ ..] = tail else { return Err(MalformedPath) };
        let (high, low) = hex(*high).zip(hex(*low)).ok_or(MalformedPath)?;
        let octet = high << 4 | low;
        match octet {
            0 => return Err(MalformedPath),
            b'/' | b'\\' | b'%' => push_encoded(&mut decoded, octet),
            _ => decoded.push(octet),
        }
        rest = tail;
    }
    Ok(match String::from_utf8(decoded) {
        Ok(text) => text,
        Err(error) => encode_invalid(error.as_bytes()),
    })
}

/// Converts to text, percent-encoding bytes that are not valid UTF-8.
fn encode_invalid(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() + 8);
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        let mut encoded = Vec::new();
        for octet in chunk.invalid() {
            push_encoded(&mut encoded, *octet);
        }
        text.extend(encoded.iter().map(|byte| char::from(*byte)));
    }
    text
}

/// Removes dot segments (RFC 3986, section 5.2.4) and empty segments; never climbs above the root.
fn remove_dots(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(kept.pop()),
            segment => kept.push(segment),
        }
    }
    let last = path.rsplit('/').next().unwrap_or("");
    let mut normal = String::with_capacity(path.len() + 1);
    for segment in &kept {
        normal.push('/');
        normal.push_str(segment);
    }
    if matches!(last, "" | "." | "..") {
        normal.push('/');
    }
    normal
}

fn push_encoded(out: &mut Vec<u8>, octet: u8) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    out.extend_from_slice(&[b'%', DIGITS[usize::from(octet >> 4)], DIGITS[usize::from(octet & 15)]]);
}

/// Returns the value of a hexadecimal digit.
pub(super) fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn normal_paths_are_recognised(path in "[/.%a-é]{0,30}") {
            let pairs = path.as_bytes().windows(2);
            let is_abnormal = path.contains('%') || pairs.clone().any(|pair| matches!(pair, b"//" | b"/."));
            prop_assert_eq!(is_normal(path.as_bytes()), !is_abnormal);
        }
    }

    #[test]
    fn equivalent_paths_are_normalised_alike() {
        for (given, normal) in [
            ("/", "/"),
            ("/admin", "/admin"),
            ("/admin/", "/admin/"),
            ("//admin", "/admin"),
            ("/a/../admin", "/admin"),
            ("/a/%2e%2e/admin", "/admin"),
            ("/./admin/.", "/admin/"),
            ("/../../admin", "/admin"),
            ("/a/..", "/"),
            ("/%61dmin", "/admin"),
            ("/a;/../admin", "/admin"),
            ("/a%2fb", "/a%2Fb"),
            ("/a%252fb", "/a%252fb"),
            ("/a%5cb", "/a%5Cb"),
            ("/%C3%A4", "/ä"),
            ("/%c0%ae%c0%ae/", "/%C0%AE%C0%AE/"),
            ("/.hidden", "/.hidden"),
            ("/...", "/..."),
        ] {
            assert_eq!(normalise(given).unwrap(), normal, "{given}");
        }
    }

    #[test]
    fn path_normalisation_is_idempotent() {
        for path in ["/a%252fb", "/%25%32%46", "/x//%2e/y", "/%c0%ae", "/a b"] {
            let once = normalise(path).unwrap().into_owned();
            assert_eq!(normalise(&once).unwrap(), once, "{path}");
        }
    }

    #[test]
    fn malformed_path_encoding_is_rejected() {
        for path in ["/%", "/%4", "/%zz", "/%00", "/a%0", "/%+1"] {
            assert_eq!(normalise(path), Err(MalformedPath), "{path}");
        }
    }

    #[test]
    fn normalised_path_is_borrowed() {
        assert!(matches!(normalise("/users/42/orders.json"), Ok(Cow::Borrowed(_))));
    }
}
