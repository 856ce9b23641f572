//! A token taken apart: `header.payload.signature` (RFC 7515 section 7.1).

use std::str::FromStr as _;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, crypto};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::keys::Key;
use crate::limiter::timestamp::Timestamp;

/// A token of which only the header has been read.
#[derive(Debug)]
pub(super) struct Compact<'a> {
    pub(super) header: Header,
    /// Header and payload, as signed.
    message: &'a str,
    payload: &'a str,
    signature: &'a str,
}

/// How a token says it is signed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) algorithm: Algorithm,
    /// The name of the key.
    pub(super) key: Option<String>,
}

#[derive(Deserialize)]
struct RawHeader {
    alg: String,
    kid: Option<String>,
    /// What whoever does not understand it must refuse (RFC 7515 section 4.1.11).
    crit: Option<Value>,
}

/// Why nothing can be said about a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unread {
    /// It is none, or signed in a way that nobody here understands.
    Foreign,
    /// There is one in it that somebody who reads loosely may find.
    Unreadable,
}

impl Unread {
    /// Why nothing can be said about `text`.
    fn of(text: &[u8]) -> Self {
        if holds_token(text) { Self::Unreadable } else { Self::Foreign }
    }
}

impl<'a> Compact<'a> {
    /// Takes a token apart. `none` is no algorithm.
    ///
    /// # Errors
    /// [`Unread`] if it is none, or not as it is to be written. Who signs a token decides how its first two parts are
    /// spelt, but who carries it can change the third, and there are libraries that pass over what does not belong.
    pub(super) fn parse(token: &'a [u8]) -> Result<Self, Unread> {
        Self::strictly(token).ok_or_else(|| Unread::of(token))
    }

    fn strictly(token: &'a [u8]) -> Option<Self> {
        let (message, signature) = std::str::from_utf8(token).ok()?.rsplit_once('.')?;
        let (header, payload) = message.split_once('.')?;
        let is_whole = !payload.contains('.') && decode(signature.as_bytes()).is_some();
        is_whole.then_some(Self { header: Header::parse(header.as_bytes())?, message, payload, signature })
    }

    pub(super) fn is_signed_by(&self, key: &Key) -> bool {
        let signed =
            crypto::verify(self.signature, self.message.as_bytes(), key.material(), self.header.algorithm);
        signed.unwrap_or(false)
    }

    pub(super) fn payload(&self) -> Option<Map<String, Value>> {
        object(self.payload)
    }
}

impl Header {
    /// `None` if it is none, or says something that nobody here understands.
    fn parse(encoded: &[u8]) -> Option<Self> {
        let RawHeader { alg, kid, crit } = serde_json::from_slice(&decode(encoded)?).ok()?;
        let algorithm = Algorithm::from_str(&alg).ok()?;
        crit.is_none().then_some(Self { algorithm, key: kid })
    }
}

/// Whether there is the beginning of a token in `text`, wherever it may begin.
pub(super) fn holds_token(text: &[u8]) -> bool {
    let is_of_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    text.split(|byte| !is_of_token(byte)).any(|word| {
        let mut parts = word.split(|byte| *byte == b'.');
        let header = parts.next().and_then(Header::parse);
        header.is_some() && parts.next().is_some()
    })
}

/// The payload of a token that somebody else has verified; it may come alone and padded.
///
/// # Errors
/// [`Unread`] if there is none.
pub(super) fn payload(token: &[u8]) -> Result<Map<String, Value>, Unread> {
    let payload = std::str::from_utf8(token).ok().and_then(|token| {
        let mut parts = token.split('.');
        match [parts.next(), parts.next(), parts.next(), parts.next()] {
            [Some(payload), None, ..] => object(payload.trim_end_matches('=')),
            [_, Some(payload), Some(_), None] => object(payload),
            _ => None,
        }
    });
    payload.ok_or_else(|| Unread::of(token))
}

/// Seconds since the epoch, with or without a fraction (RFC 7519 section 2).
pub(super) fn numeric_date(value: &Value) -> Option<Timestamp> {
    let number = value.as_number()?;
    if let Some(seconds) = number.as_u64() {
        return Some(Timestamp::from_secs(seconds));
    }
    // What is before the epoch or beyond the end of time saturates.
    number.as_f64().map(|seconds| Timestamp::from_nanos((seconds * 1e9) as u64))
}

fn object(encoded: &str) -> Option<Map<String, Value>> {
    serde_json::from_slice(&decode(encoded.as_bytes())?).ok()
}

fn decode(encoded: &[u8]) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(encoded).ok()
}
