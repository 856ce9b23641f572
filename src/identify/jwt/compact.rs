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

impl<'a> Compact<'a> {
    /// Takes a token apart; `None` if it is none, or signed in a way that nobody here understands. `none` is no
    /// algorithm.
    pub(super) fn parse(token: &'a [u8]) -> Option<Self> {
        let (message, signature) = std::str::from_utf8(token).ok()?.rsplit_once('.')?;
        let (header, payload) = message.split_once('.')?;
        let RawHeader { alg, kid, crit } = serde_json::from_slice(&decode(header)?).ok()?;
        if crit.is_some() || payload.contains('.') {
            return None;
        }
        let header = Header { algorithm: Algorithm::from_str(&alg).ok()?, key: kid };
        Some(Self { header, message, payload, signature })
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

/// The payload of a token that somebody else has verified; it may come alone and padded.
pub(super) fn payload(token: &[u8]) -> Option<Map<String, Value>> {
    let token = std::str::from_utf8(token).ok()?;
    match token.split('.').collect::<Vec<_>>()[..] {
        [payload] => object(payload.trim_end_matches('=')),
        [_, payload, _] => object(payload),
        _ => None,
    }
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
    serde_json::from_slice(&decode(encoded)?).ok()
}

fn decode(encoded: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(encoded).ok()
}
