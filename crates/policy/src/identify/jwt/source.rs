//! Location of the token in a request.
//!
//! Upstreams parse the header in different ways, many of them loosely: some use the second word, some whatever follows
//! `Bearer`. So every header that allows more than one reading is ambiguous.

use std::borrow::Cow;

use http::{HeaderMap, HeaderName};

use super::compact;
use crate::identify::cookie;
use crate::identify::lookup::{self, Ambiguity};

/// Location of the token in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenSource {
    /// This header, with or without a scheme such as `Bearer` (RFC 6750, section 2.1).
    Header(HeaderName),
    /// The cookie of this name.
    Cookie(Box<str>),
}

impl TokenSource {
    /// Returns the text that may be a token; `None` if there is none.
    ///
    /// # Errors
    /// [`Ambiguity`] if there are several candidates, or a cookie that servers read differently.
    pub(super) fn token<'a>(&self, headers: &'a HeaderMap) -> Result<Option<Cow<'a, [u8]>>, Ambiguity> {
        let token = match self {
            Self::Header(name) => {
                let line = lookup::only(headers.get_all(name).iter())?;
                line.map(|line| without_scheme(line.as_bytes())).transpose()?.map(Cow::Borrowed)
            }
            Self::Cookie(name) => cookie::decoded(headers, name)?,
        };
        Ok(token.filter(|token| !token.is_empty()))
    }
}

/// Returns the text after the scheme, if there is one. The scheme itself is ignored, as many services do: text that is
/// not a token has no claims anyway.
fn without_scheme(line: &[u8]) -> Result<&[u8], Ambiguity> {
    // Some parsers also split at non-ASCII white space.
    let is_gap = |byte: &u8| matches!(byte, b' ' | b'\t') || !byte.is_ascii();
    let Some(at) = line.iter().position(is_gap) else { return Ok(line) };
    let (scheme, rest) = line.split_at(at);
    // A scheme has no dots, but a token has: some parsers use the first word as the token.
    if scheme.contains(&b'.') && compact::holds_token(scheme) {
        return Err(Ambiguity::Unreadable);
    }
    Ok(rest[1..].trim_ascii())
}
