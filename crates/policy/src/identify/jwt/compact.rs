//! Parser of the compact serialisation `header.payload.signature` (RFC 7515, section 7.1).

use std::str::FromStr as _;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, crypto};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::keys::VerificationKey;
use weir_limiter::timestamp::Timestamp;

/// A token whose header has been parsed.
#[derive(Debug)]
pub(super) struct Compact<'a> {
    pub(super) header: TokenHeader,
    /// Header and payload, as signed.
    message: &'a str,
    payload: &'a str,
    signature: &'a str,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct TokenHeader {
    pub(super) algorithm: Algorithm,
    /// `kid` of the key.
    pub(super) key: Option<String>,
}

#[derive(Deserialize)]
struct RawHeader {
    alg: String,
    kid: Option<String>,
    /// Extensions that a recipient must reject if it does not support them (RFC 7515, section 4.1.11).
    crit: Option<Value>,
}

/// Why a token cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenError {
    /// It is not a token, or is signed in an unsupported way.
    Foreign,
    /// It contains a token that a lenient parser may accept.
    Unreadable,
}

impl TokenError {
    /// Returns why `text` cannot be read.
    fn for_text(text: &[u8]) -> Self {
        if holds_token(text) { Self::Unreadable } else { Self::Foreign }
    }
}

impl<'a> Compact<'a> {
    /// Parses a token. The algorithm `none` is not supported.
    ///
    /// # Errors
    /// [`TokenError`] if it is not a token, or not in its strict form. The signer fixes the encoding of the first two
    /// parts, but a client can change that of the third, and some libraries ignore invalid characters.
    pub(super) fn parse(token: &'a [u8]) -> Result<Self, TokenError> {
        Self::strictly(token).ok_or_else(|| TokenError::for_text(token))
    }

    fn strictly(token: &'a [u8]) -> Option<Self> {
        let (message, signature) = std::str::from_utf8(token).ok()?.rsplit_once('.')?;
        let (header, payload) = message.split_once('.')?;
        let is_whole = !payload.contains('.') && decode(signature.as_bytes()).is_some();
        is_whole.then_some(Self {
            header: TokenHeader::parse(header.as_bytes())?,
            message,
            payload,
            signature,
        })
    }

    pub(super) fn is_signed_by(&self, key: &VerificationKey) -> bool {
        let signed =
            crypto::verify(self.signature, self.message.as_bytes(), key.material(), self.header.algorithm);
        signed.unwrap_or(false)
    }

    pub(super) fn payload(&self) -> Option<Map<String, Value>> {
        object(self.payload)
    }
}

impl TokenHeader {
    /// Parses a header; `None` if it is malformed or unsupported.
    fn parse(encoded: &[u8]) -> Option<Self> {
        let RawHeader { alg, kid, crit } = serde_json::from_slice(&decode(encoded)?).ok()?;
        let algorithm = Algorithm::from_str(&alg).ok()?;
        crit.is_none().then_some(Self { algorithm, key: kid })
    }
}

/// Whether `text` contains the start of a token at any position.
pub(super) fn holds_token(text: &[u8]) -> bool {
    let is_of_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    text.split(|byte| !is_of_token(byte)).any(|word| {
        let mut parts = word.split(|byte| *byte == b'.');
        let header = parts.next().and_then(TokenHeader::parse);
        header.is_some() && parts.next().is_some()
    })
}

/// Returns the payload of a token that the peer has verified. It may be the payload alone, with padding.
///
/// # Errors
/// [`TokenError`] if there is no payload.
pub(super) fn payload(token: &[u8]) -> Result<Map<String, Value>, TokenError> {
    let payload = std::str::from_utf8(token).ok().and_then(|token| {
        let mut parts = token.split('.');
        match [parts.next(), parts.next(), parts.next(), parts.next()] {
            [Some(payload), None, ..] => object(payload.trim_end_matches('=')),
            [_, Some(payload), Some(_), None] => object(payload),
            _ => None,
        }
    });
    payload.ok_or_else(|| TokenError::for_text(token))
}

/// Reads seconds since the epoch, with or without a fraction (RFC 7519, section 2).
pub(super) fn numeric_date(value: &Value) -> Option<Timestamp> {
    let number = value.as_number()?;
    if let Some(seconds) = number.as_u64() {
        return Some(Timestamp::from_secs(seconds));
    }
    // Casts saturate, for dates before the epoch or beyond the range of timestamps.
    number.as_f64().map(|seconds| Timestamp::from_nanos((seconds * 1e9) as u64))
}

fn object(encoded: &str) -> Option<Map<String, Value>> {
    serde_json::from_slice(&decode(encoded.as_bytes())?).ok()
}

fn decode(encoded: &[u8]) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(encoded).ok()
}
