//! Single values out of the lists of them that a request carries.

use http::HeaderValue;
use http::header::GetAll;

/// The value of a cookie (RFC 6265 section 4.2.1), from the first pair of that name over all `lines`.
pub fn cookie<'a>(lines: GetAll<'a, HeaderValue>, name: &str) -> Option<&'a [u8]> {
    lines.into_iter().flat_map(|line| line.as_bytes().split(|byte| *byte == b';')).find_map(|pair| {
        let (given, value) = split_once(pair.trim_ascii(), b'=')?;
        (given == name.as_bytes()).then_some(value)
    })
}

/// What stands before and behind the first `separator`.
pub fn split_once(text: &[u8], separator: u8) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|byte| *byte == separator)?;
    Some((&text[..at], &text[at + 1..]))
}
