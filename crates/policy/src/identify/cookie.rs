//! Cookie values, normalised so that all spellings that a server may read as one value count as one.
//!
//! RFC 6265 defines no encoding for cookie values, and servers decode them differently:
//!
//! - PHP, Express, Rack and ASP.NET decode percent-encoding; Rack also reads `+` as a space.
//! - Express, Go and Java remove quotes.
//! - Python's `http.cookies` (Django, Flask) removes quotes and octal escapes.
//! - Django, Flask and older Express trim Unicode white space.
//! - Rack, PHP and older ASP.NET also decode names.
//!
//! Without normalisation a client could spell its session differently in each request, and have a fresh limit each
//! time. Where servers differ, values count as one if they only differ by what one of the servers removes.

use std::borrow::Cow;

use http::HeaderMap;
use http::header::COOKIE;
use percent_encoding::percent_decode;

use super::lookup::Ambiguity;
use super::path::hex;

/// Returns the value to count by, over all header lines.
///
/// Percent-encodings, quotes and backslashes are removed and pluses replaced by spaces, so the value is only suitable
/// for comparison with other keys.
///
/// # Errors
/// [`Ambiguity::Repeated`] if there are several values, [`Ambiguity::Quoted`] or [`Ambiguity::Spaced`] if servers
/// differ about where one ends.
pub fn canonical_value<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<Cow<'a, [u8]>>, Ambiguity> {
    only(headers, name, |value| {
        if !value.iter().any(|byte| matches!(byte, b'%' | b'"' | b'\\' | b'+')) {
            return Ok(Cow::Borrowed(value));
        }
        let mut key = PercentDecoder::default();
        for byte in without_quotes(value)?.iter() {
            key.push(*byte, |byte| match byte {
                b'"' | b'\\' => None,
                b'+' => Some(b' '),
                byte => Some(byte),
            });
        }
        Ok(Cow::Owned(key.0.trim_ascii().to_vec()))
    })
}

/// Returns the value as most servers read it, over all header lines: without quotes, their escapes, and
/// percent-encoding.
///
/// # Errors
/// [`Ambiguity::Repeated`] if there are several values, [`Ambiguity::Quoted`] or [`Ambiguity::Spaced`] if servers
/// differ about where one ends.
pub fn decoded<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<Cow<'a, [u8]>>, Ambiguity> {
    only(headers, name, |value| {
        if !value.iter().any(|byte| matches!(byte, b'%' | b'"')) {
            return Ok(Cow::Borrowed(value));
        }
        let mut decoded = PercentDecoder::default();
        without_quotes(value)?.iter().for_each(|byte| decoded.push(*byte, Some));
        Ok(Cow::Owned(decoded.0))
    })
}

/// Returns the value of the cookies of this name, if `read` returns the same for all of them.
fn only<'a>(
    headers: &'a HeaderMap,
    name: &str,
    read: impl Fn(&'a [u8]) -> Result<Cow<'a, [u8]>, Ambiguity>,
) -> Result<Option<Cow<'a, [u8]>>, Ambiguity> {
    let mut only = None;
    for line in headers.get_all(COOKIE) {
        for pair in line.as_bytes().split(|byte| *byte == b';') {
            let Some((given, value)) = split_pair(pair) else { continue };
            let is_the_one = |given: &[u8]| is_named(given, name.as_bytes());
            let is_wanted = is_the_one(given);
            let hidden_in_name = !is_wanted && behind_space(given).is_some_and(is_the_one);
            if hidden_in_name || hides_pair(value, |hidden| is_wanted || is_the_one(hidden)) {
                return Err(Ambiguity::Spaced);
            }
            if !is_wanted {
                continue;
            }
            let value = read(value)?;
            match &only {
                Some(only) if *only != value => return Err(Ambiguity::Repeated),
                _ => only = Some(value),
            }
        }
    }
    Ok(only)
}

/// Splits a pair into name and value.
fn split_pair(pair: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = pair.iter().position(|byte| *byte == b'=')?;
    Some((trimmed(&pair[..at]), trimmed(&pair[at + 1..])))
}

/// Trims white space, including that of Unicode, which Django, Flask and older Express trim. Python decodes the header
/// as UTF-8, Node as ISO 8859-1.
fn trimmed(text: &[u8]) -> &[u8] {
    let text = text.trim_ascii();
    let is_plain = |byte: Option<&u8>| byte.is_none_or(u8::is_ascii);
    if is_plain(text.first()) && is_plain(text.last()) {
        return text;
    }
    if let Ok(text) = std::str::from_utf8(text) {
        return text.trim().as_bytes();
    }
    let is_space = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, 0x85 | 0xa0);
    let start = text.iter().position(|byte| !is_space(byte)).unwrap_or(text.len());
    let end = text.iter().rposition(|byte| !is_space(byte)).map_or(start, |last| last + 1);
    &text[start..end]
}

/// Whether a value contains white space followed by another pair whose name `is_match` accepts. For Python's
/// `http.cookies`, white space ends a value as a semicolon does.
fn hides_pair(value: &[u8], is_match: impl Fn(&[u8]) -> bool) -> bool {
    if !value.iter().any(|byte| is_space(*byte)) || is_one_string(value) {
        return false;
    }
    let Some(last) = value.iter().rposition(|byte| *byte == b'=') else { return false };
    value[..last].split(|byte| *byte == b'=').filter_map(behind_space).any(is_match)
}

/// Returns the last word, if white space precedes it.
fn behind_space(text: &[u8]) -> Option<&[u8]> {
    let text = text.trim_ascii_end();
    Some(&text[text.iter().rposition(|byte| is_space(*byte))? + 1..])
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// Whether all of it is one quoted string.
fn is_one_string(value: &[u8]) -> bool {
    let inner = value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
    inner.is_some_and(|inner| !inner.contains(&b'"'))
}

/// Whether a server may read the cookie name `given` as `name`. Names may be percent-encoded, and ASP.NET ignores case.
/// PHP replaces some characters by an underscore, skips leading spaces and ends a name at a zero byte.
fn is_named(given: &[u8], name: &[u8]) -> bool {
    if given == name {
        return true;
    }
    // No server makes a name longer.
    if given.len() < name.len() {
        return false;
    }
    let is_same = |(given, wanted): (u8, &u8)| {
        given.eq_ignore_ascii_case(wanted) || (*wanted == b'_' && matches!(given, b'.' | b' ' | b'+' | b'['))
    };
    let mut given = percent_decode(given).skip_while(|byte| matches!(byte, b' ' | b'+'));
    name.iter().all(|wanted| given.next().is_some_and(|given| is_same((given, wanted))))
        && given.next().is_none_or(|byte| byte == 0)
}

/// Removes the quotes and escapes of a quoted value.
fn without_quotes(value: &[u8]) -> Result<Cow<'_, [u8]>, Ambiguity> {
    let Some(rest) = value.strip_prefix(b"\"") else { return Ok(Cow::Borrowed(value)) };
    // Without a closing quote, some servers remove the last byte, and some read beyond the next semicolon.
    let inner = rest.strip_suffix(b"\"").ok_or(Ambiguity::Quoted)?;
    Ok(if inner.contains(&b'\\') { unescaped(inner).into() } else { inner.into() })
}

/// Removes the escapes of Python's `http.cookies`: three octal digits for a byte, or any other byte for itself.
fn unescaped(mut text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    while let [first, rest @ ..] = text {
        text = match (first, rest) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', rest @ ..]) => {
                out.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest
            }
            (b'\\', [escaped, rest @ ..]) => {
                out.push(*escaped);
                rest
            }
            (byte, rest) => {
                out.push(*byte);
                rest
            }
        };
    }
    out
}

/// Decodes percent-encoding repeatedly, so that a value encoded twice equals one encoded once.
#[derive(Debug, Default)]
struct PercentDecoder(Vec<u8>);

impl PercentDecoder {
    /// Appends a byte as mapped by `becomes`, and decodes any percent-encoding that it completes. Encodings do not
    /// overlap, so the order does not matter. Each decoding removes three bytes, so the total time is linear.
    fn push(&mut self, mut byte: u8, becomes: impl Fn(u8) -> Option<u8>) {
        while let Some(next) = becomes(byte) {
            self.0.push(next);
            let [rest @ .., b'%', high, low] = &self.0[..] else { return };
            let Some((high, low)) = hex(*high).zip(hex(*low)) else { return };
            byte = high << 4 | low;
            self.0.truncate(rest.len());
        }
    }
}

#[cfg(test)]
mod tests;
