//! Look-up of single values in headers and query parameters that may be repeated.
//!
//! If values are repeated, it is unknown which of them the upstream uses: some servers use the first, some the last.
//! So equal values are accepted, and different values make the request ambiguous.

use std::borrow::Cow;

use http::header::{
    ACCEPT, ACCEPT_CHARSET, ACCEPT_ENCODING, ACCEPT_LANGUAGE, ACCESS_CONTROL_REQUEST_HEADERS, CACHE_CONTROL,
    CONNECTION, CONTENT_ENCODING, CONTENT_LANGUAGE, COOKIE, FORWARDED, IF_MATCH, IF_NONE_MATCH, PRAGMA, TE,
    TRAILER, TRANSFER_ENCODING, UPGRADE, VIA, WARNING,
};
use http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::percent_decode;
use smallvec::SmallVec;
use weir_bodies::Unreadable;

/// Why an attribute cannot be read unambiguously from a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ambiguity {
    /// A value that must be unique occurs several times with different contents.
    #[error("several different values of an attribute that must be unique")]
    Repeated,
    /// A cookie has an opening quote without a closing one. Servers differ about where its value ends.
    #[error("unterminated quote in a cookie")]
    Quoted,
    /// A cookie's value contains white space followed by another pair. Some servers read that as a second cookie.
    #[error("white space followed by another pair in the value of a cookie")]
    Spaced,
    /// A token is malformed in a way that other parsers might accept.
    #[error("malformed token")]
    Unreadable,
    /// The fields of the body are unknown.
    #[error(transparent)]
    Body(Unreadable),
    /// The body has not been read yet.
    #[error("unread body")]
    UnreadBody,
}

impl Ambiguity {
    /// Returns the text for a client whose request identifies it in more than one way.
    pub const fn reply_text(self) -> &'static str {
        match self {
            Self::Repeated => {
                "bad request: a header, cookie or query parameter that must be unique has several values\n"
            }
            Self::Spaced => "bad request: a cookie value has white space followed by another cookie\n",
            Self::Quoted => "bad request: unterminated quote in a cookie\n",
            Self::Unreadable => "bad request: malformed token\n",
            Self::Body(reason) => body_reply_text(reason),
            Self::UnreadBody => "bad request: unread body\n",
        }
    }
}

/// Returns the text for a client whose request has a body with unknown fields.
const fn body_reply_text(reason: Unreadable) -> &'static str {
    match reason {
        Unreadable::Invalid => "bad request: the body is not valid JSON in UTF-8\n",
        Unreadable::TooDeep => "bad request: the body is nested too deep\n",
        Unreadable::Duplicate => "bad request: a field of the body that must be unique has several values\n",
        Unreadable::TooLong => "bad request: the body is too long to find its fields\n",
        Unreadable::TooManyElements => "bad request: the batch has too many elements\n",
        Unreadable::ContentType => "bad request: the content type of the body is not one of its fields\n",
        Unreadable::Coding => "bad request: the body cannot be decoded\n",
        Unreadable::Graphql => "bad request: no valid GraphQL operation\n",
        Unreadable::GraphqlTooLarge => "bad request: the GraphQL operation is too deep or too long\n",
    }
}

/// Headers whose lines form one list (RFC 9110, section 5.3), in addition to those that begin with `x-forwarded-`.
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

/// Returns the value of a header. Several lines of a list-valued header are joined.
///
/// # Errors
/// [`Ambiguity::Repeated`] if a header that is not a list has several different lines.
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

/// Returns the decoded value of a query parameter.
///
/// # Errors
/// [`Ambiguity::Repeated`] if it has several different values.
pub fn parameter(query: &str, name: &str) -> Result<Option<SmallVec<[u8; 64]>>, Ambiguity> {
    only(query.as_bytes().split(|byte| *byte == b'&').filter_map(|pair| {
        let (given, value) = split_once(pair, b'=').unwrap_or((pair, b""));
        is_named(given, name).then(|| form_decoded(value).collect())
    }))
}

/// Whether `given`, as written in a query, is the parameter `name`.
pub fn is_parameter(given: &str, name: &str) -> bool {
    is_named(given.as_bytes(), name)
}

fn is_named(given: &[u8], name: &str) -> bool {
    form_decoded(given).eq(name.bytes())
}

/// Returns the value that all of `values` are equal to; `None` if there are none.
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

/// Returns the separator for joining the lines of a header; `None` if the header is not a list.
fn separator(name: &HeaderName) -> Option<&'static [u8]> {
    if *name == COOKIE {
        // RFC 9113, section 8.2.3: HTTP/2 clients may split the header into several.
        return Some(b"; ");
    }
    let is_list = LISTS.contains(name) || name.as_str().starts_with("x-forwarded-");
    is_list.then_some(b", ")
}

/// Returns the text before and after the first `separator`.
fn split_once(text: &[u8], separator: u8) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|byte| *byte == separator)?;
    Some((&text[..at], &text[at + 1..]))
}

/// Decodes a name or value of `application/x-www-form-urlencoded`: `+` is a space, `%2B` is a plus.
fn form_decoded(text: &[u8]) -> impl Iterator<Item = u8> + '_ {
    let mut words = text.split(|byte| *byte == b'+');
    let first = words.next().unwrap_or_default();
    percent_decode(first).chain(words.flat_map(|word| std::iter::once(b' ').chain(percent_decode(word))))
}
