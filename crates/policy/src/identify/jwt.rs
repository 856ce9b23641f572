//! Claims in JSON Web Tokens (RFC 7519) in compact serialisation.
//!
//! A token is read only if a rule uses one of its claims, and once per request. The result is cached under a keyed hash
//! of the token until the token or its key expires. A client that sends the same token again therefore costs a hash
//! instead of a signature verification. The module is pure: keys and the time are parameters.
//!
//! An invalid token counts as absent. A token that is malformed here, but that other parsers might accept, makes the
//! request ambiguous.

pub mod claim;
pub mod keys;
pub mod source;

mod cache;
mod compact;

use std::cell::OnceCell;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderName};
use serde_json::{Map, Value};

use self::cache::{Cache, VerifiedToken};
use self::claim::{ClaimName, Claims};
use self::compact::{Compact, TokenError};
use self::keys::KeySet;
use self::source::TokenSource;
use super::lookup::Ambiguity;
use weir_limiter::timestamp::Timestamp;

/// Maximum length of a token, in bytes. Longer ones are not verified: gateways reject them, and the cost is linear.
pub const MAX_TOKEN_LENGTH: usize = 8 << 10;

/// Settings for finding and validating tokens.
#[derive(Debug, PartialEq)]
pub struct JwtSettings {
    /// Location of the token in a request.
    pub source: TokenSource,
    /// How tokens are authenticated.
    pub trust: TokenTrust,
    /// Accepted issuers (`iss`); any if empty.
    pub issuers: Box<[Box<str>]>,
    /// Accepted audiences (`aud`), one of which must match; not checked if empty.
    pub audiences: Box<[Box<str>]>,
    /// Maximum difference between the issuer's clock and the local one.
    pub leeway: Duration,
}

/// How tokens are authenticated.
#[derive(Debug, PartialEq)]
pub enum TokenTrust {
    /// By a signature of one of these keys.
    Signed(KeySet),
    /// By the peer that forwarded them. The value may then be the payload alone, as with Envoy's
    /// `forward_payload_header`.
    PreVerified,
}

/// Validates tokens under one configuration, and caches the results.
#[derive(Debug)]
pub struct Verifier {
    settings: JwtSettings,
    /// Claims that rules use. No other part of a token is stored.
    claims: Box<[ClaimName]>,
    cache: Cache,
}

impl PartialEq for Verifier {
    fn eq(&self, other: &Self) -> bool {
        self.settings == other.settings && self.claims == other.claims
    }
}

/// Result of validating a token.
#[derive(Debug)]
enum Verification {
    /// It is not a token, or its key is unknown. Cheap to find out, so not cached.
    Foreign,
    /// Other parsers may accept it. Cheap to find out, so not cached.
    Unreadable,
    /// It is forged, expired, or issued by or for others, and stays invalid.
    Rejected,
    /// It is valid within its times.
    Accepted(VerifiedToken),
}

impl Verifier {
    /// Creates a verifier for rules that use `claims`. `secret` keys the hashes of tokens and must come from a source
    /// of randomness.
    pub fn new(settings: JwtSettings, claims: impl IntoIterator<Item = ClaimName>, secret: [u64; 2]) -> Self {
        let mut unique: Vec<ClaimName> = Vec::new();
        for claim in claims {
            if !unique.contains(&claim) {
                unique.push(claim);
            }
        }
        Self { settings, claims: unique.into(), cache: Cache::new(secret) }
    }

    /// Returns the header that carries tokens, if they are not in a cookie.
    pub const fn header(&self) -> Option<&HeaderName> {
        match &self.settings.source {
            TokenSource::Header(name) => Some(name),
            TokenSource::Cookie(_) => None,
        }
    }

    /// Returns the claims of the token in `headers`, if it is valid at `now`.
    ///
    /// # Errors
    /// [`Ambiguity`] if other parsers might find a valid token there.
    fn read(&self, headers: &HeaderMap, now: Timestamp) -> Result<Option<Arc<Claims>>, Ambiguity> {
        let Some(token) = self.settings.source.token(headers)? else { return Ok(None) };
        if token.len() > MAX_TOKEN_LENGTH {
            return if compact::holds_token(&token) { Err(Ambiguity::Unreadable) } else { Ok(None) };
        }
        let fingerprint = self.cache.hash_token(&token);
        if let Some(known) = self.cache.get(fingerprint) {
            return Ok(known.and_then(|known| known.at(now)));
        }
        match self.verify(&token, now) {
            Verification::Foreign => Ok(None),
            Verification::Unreadable => Err(Ambiguity::Unreadable),
            Verification::Rejected => {
                self.cache.reject(fingerprint);
                Ok(None)
            }
            Verification::Accepted(known) => {
                let claims = known.at(now);
                self.cache.accept(fingerprint, known);
                Ok(claims)
            }
        }
    }

    fn verify(&self, token: &[u8], now: Timestamp) -> Verification {
        let read = match &self.settings.trust {
            TokenTrust::PreVerified => compact::payload(token).map(|payload| Some((payload, None))),
            TokenTrust::Signed(keys) => Compact::parse(token).and_then(|token| {
                let mut candidates = keys.candidates(&token.header, now).peekable();
                if candidates.peek().is_none() {
                    return Err(TokenError::Foreign);
                }
                let signer = candidates.find(|key| token.is_signed_by(key));
                Ok(signer.and_then(|key| Some((token.payload()?, key.expires()))))
            }),
        };
        let known = match read {
            Ok(authentic) => authentic.and_then(|(payload, key_expires)| self.accept(&payload, key_expires)),
            Err(TokenError::Foreign) => return Verification::Foreign,
            Err(TokenError::Unreadable) => return Verification::Unreadable,
        };
        match known {
            // Time does not run backwards, so an expired token stays invalid.
            Some(known) if now < known.expires => Verification::Accepted(known),
            _ => Verification::Rejected,
        }
    }

    /// Returns the cache entry of an authentic token; `None` if its issuer, audience or dates are not acceptable.
    fn accept(&self, payload: &Map<String, Value>, key_expires: Option<Timestamp>) -> Option<VerifiedToken> {
        let JwtSettings { issuers, audiences, leeway, .. } = &self.settings;
        let is_among = |list: &[Box<str>], value: &Value| {
            value.as_str().is_some_and(|value| list.iter().any(|known| **known == *value))
        };
        let issued = issuers.is_empty() || is_among(issuers, payload.get("iss")?);
        let addressed = audiences.is_empty()
            || match payload.get("aud")? {
                Value::Array(several) => several.iter().any(|one| is_among(audiences, one)),
                one => is_among(audiences, one),
            };
        let date = |name| payload.get(name).map(compact::numeric_date);
        let expires = match date("exp") {
            Some(date) => date?.saturating_add(*leeway),
            None => Timestamp::END,
        };
        let not_before = match date("nbf") {
            Some(date) => date?.saturating_sub(*leeway),
            None => Timestamp::EPOCH,
        };
        (issued && addressed).then(|| VerifiedToken {
            not_before,
            expires: expires.min(key_expires.unwrap_or(Timestamp::END)),
            claims: Arc::new(Claims::from_payload(payload, &self.claims)),
        })
    }
}

/// The token of a request, read on first use.
#[derive(Clone, Debug)]
pub(super) struct RequestToken<'a> {
    verifier: Option<&'a Verifier>,
    claims: OnceCell<Result<Option<Arc<Claims>>, Ambiguity>>,
}

impl<'a> RequestToken<'a> {
    /// Creates a token that has not been read yet.
    pub(super) fn new(verifier: Option<&'a Arc<Verifier>>) -> Self {
        Self { verifier: verifier.map(|verifier| &**verifier), claims: OnceCell::new() }
    }

    /// Returns the value of `claim` in canonical form.
    ///
    /// # Errors
    /// [`Ambiguity`] if other parsers might find another token.
    pub(super) fn claim(
        &self,
        claim: &ClaimName,
        headers: &HeaderMap,
        now: Timestamp,
    ) -> Result<Option<&str>, Ambiguity> {
        let Some(verifier) = self.verifier else { return Ok(None) };
        let claims = match self.claims.get_or_init(|| verifier.read(headers, now)) {
            Ok(Some(claims)) => claims,
            Ok(None) => return Ok(None),
            Err(ambiguity) => return Err(*ambiguity),
        };
        let position = verifier.claims.iter().position(|known| known == claim);
        Ok(position.and_then(|position| claims.get(position)))
    }
}

#[cfg(test)]
mod tests;
