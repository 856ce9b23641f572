//! Where a request carries its token.
//!
//! The service behind us takes the token out of a header in its own way, and many do so loosely: the second word of it,
//! or what stands behind `Bearer` wherever that is. So every header that leaves a choice is ambiguous.

use std::borrow::Cow;

use http::{HeaderMap, HeaderName};

use super::compact;
use crate::identify::cookie;
use crate::identify::lookup::{self, Ambiguity};

/// Where a request carries its token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// In this header, alone or behind a scheme such as `Bearer` (RFC 6750 section 2.1).
    Header(HeaderName),
    /// In the cookie of this name.
    Cookie(Box<str>),
}

impl Source {
    /// What may be a token; `None` if there is nothing.
    ///
    /// # Errors
    /// [`Ambiguity`] if there is more than one to choose from, or a cookie that servers read differently.
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

/// What stands behind the scheme, if there is one. Which it is makes no difference: many services never look, and
/// what is no token says nothing in any case.
fn without_scheme(line: &[u8]) -> Result<&[u8], Ambiguity> {
    // Some take other spaces for spaces, and none of those is ASCII.
    let is_gap = |byte: &u8| matches!(byte, b' ' | b'\t') || !byte.is_ascii();
    let Some(at) = line.iter().position(is_gap) else { return Ok(line) };
    let (scheme, rest) = line.split_at(at);
    // A scheme has no dots. A token has, and somebody may take the first word for it.
    if scheme.contains(&b'.') && compact::holds_token(scheme) {
        return Err(Ambiguity::Unreadable);
    }
    Ok(rest[1..].trim_ascii())
}
