//! Single values out of the lists of them that a request carries.
//!
//! Which of several values the service behind us goes by, nobody here can know: some take the first, some the last.
//! So a value that comes again is no matter, and one that comes beside another makes the request ambiguous.

use std::borrow::Cow;

use http::header::{
    ACCEPT, ACCEPT_CHARSET, ACCEPT_ENCODING, ACCEPT_LANGUAGE, ACCESS_CONTROL_REQUEST_HEADERS, CACHE_CONTROL,
    CONNECTION, CONTENT_ENCODING, CONTENT_LANGUAGE, COOKIE, FORWARDED, IF_MATCH, IF_NONE_MATCH, PRAGMA, TE,
    TRAILER, TRANSFER_ENCODING, UPGRADE, VIA, WARNING,
};
use http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::percent_decode;
use smallvec::SmallVec;

/// Why a request does not say plainly who the client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ambiguity {
    /// What can be there once is there several times with different values.
    #[error("different values of what may be given once")]
    Repeated,
    /// A cookie opens a quote and does not close it: servers differ about where its value ends.
    #[error("open quote in a cookie")]
    Quoted,
    /// A cookie's value has white space and a further pair behind it: for some servers that is another cookie.
    #[error("white space and a pair in the value of a cookie")]
    Spaced,
    /// There is a token that others might read, but not without guessing.
    #[error("unreadable token")]
    Unreadable,
}

/// Headers whose lines are the parts of one list (RFC 9110 section 5.3), beside those that begin with `x-forwarded-`.
const LISTS: [HeaderName; 19] = [
    ACCEPT,
    ACCEPT_CHARSET,
    ACCEPT_ENCODING,
    ACCEPT_LANGUAGE,
    ACCESS_CONTROL_REQUEST_HEADERS,
    CACHE_CONTROL,
    CONNECTION,
    CONTENT_ENCODING,
    CONTENT_LANGUAGE,
    FORWARDED,
    IF_MATCH,
    IF_NONE_MATCH,
    PRAGMA,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    VIA,
    WARNING,
];

/// The value of a header; lines of a list are joined as HTTP has it.
///
/// # Errors
/// [`Ambiguity::Repeated`] if there are several lines that differ, of a header that is no list.
pub fn header<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<Cow<'a, [u8]>>, Ambiguity> {
    let lines = headers.get_all(name);
    let mut others = lines.iter();
    let Some(first) = others.next() else { return Ok(None) };
    if others.next().is_none() {
        return Ok(Some(Cow::Borrowed(first.as_bytes())));
    }
    match separator(name) {
        Some(separator) => {
            let lines: SmallVec<[&[u8]; 8]> = lines.iter().map(HeaderValue::as_bytes).collect();
            Ok(Some(Cow::Owned(lines.join(separator))))
        }
        None => Ok(only(lines.iter().map(HeaderValue::as_bytes))?.map(Cow::Borrowed)),
    }
}

/// The value of a query parameter, decoded.
///
/// # Errors
/// [`Ambiguity::Repeated`] if it has several values.
pub fn parameter(query: &str, name: &str) -> Result<Option<SmallVec<[u8; 64]>>, Ambiguity> {
    only(query.as_bytes().split(|byte| *byte == b'&').filter_map(|pair| {
        let (given, value) = split_once(pair, b'=').unwrap_or((pair, b""));
        form_decoded(given).eq(name.bytes()).then(|| form_decoded(value).collect())
    }))
}

/// The value that all of `values` are; `None` of none.
///
/// # Errors
/// [`Ambiguity::Repeated`] if they differ.
pub fn only<T: PartialEq>(mut values: impl Iterator<Item = T>) -> Result<Option<T>, Ambiguity> {
    let first = values.next();
    match &first {
        Some(first) if values.any(|other| other != *first) => Err(Ambiguity::Repeated),
        _ => Ok(first),
    }
}

/// What stands between the lines of a list once they are joined; `None` if the header is no list.
fn separator(name: &HeaderName) -> Option<&'static [u8]> {
    if *name == COOKIE {
        // RFC 9113 section 8.2.3: HTTP/2 may send it in pieces.
        return Some(b"; ");
    }
    let is_list = LISTS.contains(name) || name.as_str().starts_with("x-forwarded-");
    is_list.then_some(b", ")
}

/// What stands before and behind the first `separator`.
fn split_once(text: &[u8], separator: u8) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|byte| *byte == separator)?;
    Some((&text[..at], &text[at + 1..]))
}

/// A name or value of application/x-www-form-urlencoded: `+` is a space, an encoded one is a plus.
fn form_decoded(text: &[u8]) -> impl Iterator<Item = u8> + '_ {
    let mut words = text.split(|byte| *byte == b'+');
    let first = words.next().unwrap_or_default();
    percent_decode(first).chain(words.flat_map(|word| std::iter::once(b' ').chain(percent_decode(word))))
}
