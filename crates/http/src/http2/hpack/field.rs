//! Decoded fields, and the rules of RFC 9113 for each of them alone.

use std::str;

use bytes::Bytes;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderName, HeaderValue, Method, StatusCode};

use super::{FIELD_OVERHEAD, common_values};
use crate::http2::malformation::Malformation;

/// Value of the pseudo-header `:protocol`, which an extended CONNECT request carries (RFC 8441, section 4). Cloning
/// does not copy it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Protocol(Bytes);

/// A value of `:protocol` that is not a token (RFC 9110, section 5.6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid :protocol: not a token")]
pub struct InvalidProtocol;

impl Protocol {
    /// Returns a protocol without copying its name, which must be a token.
    #[must_use]
    pub const fn from_static(name: &'static str) -> Self {
        Self(Bytes::from_static(name.as_bytes()))
    }

    /// Name of the protocol, such as `websocket`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // Every constructor has checked it.
        str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl From<&str> for Protocol {
    /// Copies the name, which must be a token.
    fn from(name: &str) -> Self {
        Self(Bytes::copy_from_slice(name.as_bytes()))
    }
}

impl TryFrom<Bytes> for Protocol {
    type Error = InvalidProtocol;

    fn try_from(name: Bytes) -> Result<Self, Self::Error> {
        if !name.is_empty() && name.iter().all(|byte| is_token_byte(*byte)) {
            Ok(Self(name))
        } else {
            Err(InvalidProtocol)
        }
    }
}

/// Whether `byte` may occur in a token (RFC 9110, section 5.6.2).
const fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'!' | b'#'
                | b'$'
                | b'%'
                | b'&'
                | b'\''
                | b'*'
                | b'+'
                | b'-'
                | b'.'
                | b'/'
                | b'^'
                | b'_'
                | b'`'
                | b'|'
                | b'~'
        )
}

/// A decoded field. It is parsed once, when it enters the dynamic table, so that a reference to it costs a clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderField {
    /// `:method`.
    Method(Method),
    /// `:scheme`.
    Scheme(Scheme),
    /// `:scheme` with a valid value that is no scheme of RFC 3986, or is empty.
    OtherScheme,
    /// `:authority`.
    Authority(Authority),
    /// `:authority` with a valid value that is no authority of RFC 3986, or is empty.
    OtherAuthority,
    /// `:path`: `*`, or a path that begins with a slash. As the `http` crate does, it drops a fragment.
    Path(PathAndQuery),
    /// `:protocol` (RFC 8441).
    Protocol(Protocol),
    /// `:status`.
    Status(StatusCode),
    /// Any field that is no pseudo-header. A value that the peer sent as never indexed is sensitive.
    Header(HeaderName, HeaderValue),
    /// A field that RFC 9113, sections 8.2 and 8.3, forbids: an unknown pseudo-header, a name with an upper-case
    /// letter, an invalid value. It keeps its place in the dynamic table.
    Malformed(Malformation),
}

/// Name of a field, valid or not. Cloning does not copy it: fields that refer to an entry of a table share its name.
#[derive(Clone, Debug)]
pub(super) enum Name {
    Method,
    Scheme,
    Authority,
    Path,
    Protocol,
    Status,
    Header(HeaderName),
    Malformed(Bytes),
}

impl Name {
    pub(super) fn parse(raw: &[u8]) -> Self {
        if raw.first() == Some(&b':') {
            return Self::parse_pseudo_header(raw);
        }
        match HeaderName::from_lowercase(raw) {
            // The `http` crate accepts a quotation mark in HTTP/2, which no token has (RFC 9110 section 5.6.2). An HTTP/1.1
            // upstream would reject it.
            Ok(name) if !raw.contains(&b'"') => Self::Header(name),
            _ => Self::malformed(raw),
        }
    }

    fn parse_pseudo_header(raw: &[u8]) -> Self {
        match raw {
            b":method" => Self::Method,
            b":scheme" => Self::Scheme,
            b":authority" => Self::Authority,
            b":path" => Self::Path,
            b":protocol" => Self::Protocol,
            b":status" => Self::Status,
            _ => Self::malformed(raw),
        }
    }

    fn malformed(raw: &[u8]) -> Self {
        Self::Malformed(Bytes::copy_from_slice(raw))
    }

    /// Returns what is wrong with a field of this name that is malformed.
    fn malformation(&self) -> Malformation {
        match self {
            Self::Method => Malformation::Method,
            Self::Scheme => Malformation::Scheme,
            Self::Authority => Malformation::Authority,
            Self::Path => Malformation::Path,
            Self::Protocol => Malformation::Protocol,
            Self::Status => Malformation::Status,
            Self::Header(_) => Malformation::FieldValue,
            Self::Malformed(raw) if raw.first() == Some(&b':') => Malformation::PseudoHeaders,
            Self::Malformed(_) => Malformation::FieldName,
        }
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Method => b":method",
            Self::Scheme => b":scheme",
            Self::Authority => b":authority",
            Self::Path => b":path",
            Self::Protocol => b":protocol",
            Self::Status => b":status",
            Self::Header(name) => name.as_str().as_bytes(),
            Self::Malformed(raw) => raw,
        }
    }
}

/// A field as a table stores it: one that is malformed has a name, too, because later fields may refer to it. That name
/// is not parsed again.
#[derive(Debug)]
pub(super) enum Parsed {
    Valid(HeaderField),
    Malformed(Name),
}

impl Parsed {
    /// Parses `value` by the rules for `name`. The result owns exactly the memory that it needs.
    pub(super) fn new(name: Name, value: &[u8], is_sensitive: bool) -> Self {
        let field = match &name {
            Name::Method => Method::from_bytes(value).ok().map(HeaderField::Method),
            Name::Scheme => parse_scheme(value)
                .map(HeaderField::Scheme)
                .or_else(|| is_field_value(value).then_some(HeaderField::OtherScheme)),
            Name::Authority => Authority::try_from(value)
                .map(HeaderField::Authority)
                .ok()
                .or_else(|| is_field_value(value).then_some(HeaderField::OtherAuthority)),
            Name::Path => parse_path(value).map(HeaderField::Path),
            Name::Protocol => {
                Protocol::try_from(Bytes::copy_from_slice(value)).ok().map(HeaderField::Protocol)
            }
            Name::Status => StatusCode::from_bytes(value).ok().map(HeaderField::Status),
            Name::Header(_) => return Self::header(name, value, is_sensitive),
            Name::Malformed(_) => None,
        };
        field.map_or(Self::Malformed(name), Self::Valid)
    }

    fn header(name: Name, value: &[u8], is_sensitive: bool) -> Self {
        let value = common_values::find(value).map_or_else(|| HeaderValue::from_bytes(value), Ok);
        match (name, value) {
            (Name::Header(name), Ok(mut value)) => {
                value.set_sensitive(is_sensitive);
                Self::Valid(HeaderField::Header(name, value))
            }
            (name, _) => Self::Malformed(name),
        }
    }

    pub(super) fn name(&self) -> Name {
        match self {
            Self::Valid(HeaderField::Method(_)) => Name::Method,
            Self::Valid(HeaderField::Scheme(_) | HeaderField::OtherScheme) => Name::Scheme,
            Self::Valid(HeaderField::Authority(_) | HeaderField::OtherAuthority) => Name::Authority,
            Self::Valid(HeaderField::Path(_)) => Name::Path,
            Self::Valid(HeaderField::Protocol(_)) => Name::Protocol,
            Self::Valid(HeaderField::Status(_)) => Name::Status,
            Self::Valid(HeaderField::Header(name, _)) => Name::Header(name.clone()),
            Self::Valid(HeaderField::Malformed(_)) => Name::Malformed(Bytes::new()),
            Self::Malformed(name) => name.clone(),
        }
    }

    #[inline]
    pub(super) fn field(&self) -> HeaderField {
        match self {
            Self::Valid(field) => field.clone(),
            Self::Malformed(name) => HeaderField::Malformed(name.malformation()),
        }
    }

    #[inline]
    pub(super) fn into_field(self) -> HeaderField {
        match self {
            Self::Valid(field) => field,
            Self::Malformed(name) => HeaderField::Malformed(name.malformation()),
        }
    }
}

/// Whether a value has only bytes that a field may have (RFC 9110, section 5.5).
fn is_field_value(value: &[u8]) -> bool {
    HeaderValue::from_bytes(value).is_ok()
}

fn parse_scheme(value: &[u8]) -> Option<Scheme> {
    // RFC 3986, section 3.1. The `http` crate checks only the set of characters.
    value.first().filter(|first| first.is_ascii_alphabetic())?;
    Scheme::try_from(value).ok()
}

fn parse_path(value: &[u8]) -> Option<PathAndQuery> {
    if value != b"*" && value.first() != Some(&b'/') {
        return None;
    }
    PathAndQuery::try_from(value).ok()
}

/// Size of a field as both tables and limits count it, in bytes (RFC 7541, section 4.1).
pub(super) const fn size(name: &[u8], value: &[u8]) -> usize {
    name.len() + value.len() + FIELD_OVERHEAD
}
