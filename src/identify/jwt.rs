//! What a token says about the client: JSON Web Tokens (RFC 7519) in their compact form.
//!
//! A token is looked at only when a rule asks for one of its claims, and once per request. What came of it is
//! remembered under a keyed hash of the token for as long as it and the key that signed it hold, so a client that
//! sends the same token again costs a hash and not a signature. Pure: keys are handed in, and so is the time.
//!
//! A token that does not hold says nothing. One that others might read where we cannot makes the request ambiguous.

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

use self::cache::{Cache, Known};
use self::claim::{Claim, Claims};
use self::compact::{Compact, Unread};
use self::keys::KeySet;
use self::source::Source;
use super::lookup::Ambiguity;
use crate::limiter::timestamp::Timestamp;

/// Longer tokens are not verified: no gateway lets them through, and each costs time in proportion.
pub const LONGEST_TOKEN: usize = 8 << 10;

/// How tokens are found and judged.
#[derive(Debug, PartialEq)]
pub struct Settings {
    /// Where a request carries its token.
    pub source: Source,
    /// Why a token is believed.
    pub trust: Trust,
    /// Who may have issued it (`iss`); anybody if empty.
    pub issuers: Box<[Box<str>]>,
    /// Whom it may be for (`aud`), one of these; not looked at if empty.
    pub audiences: Box<[Box<str>]>,
    /// By how much the issuer's clock may differ from ours.
    pub leeway: Duration,
}

/// Why a token is believed.
#[derive(Debug, PartialEq)]
pub enum Trust {
    /// One of these keys has signed it.
    Signed(KeySet),
    /// Whoever sent it here has verified it. It may then be the payload alone, as Envoy's
    /// `forward_payload_header` has it.
    Verified,
}

/// Judges tokens under one configuration, and remembers what came of it.
#[derive(Debug)]
pub struct Verifier {
    settings: Settings,
    /// The claims that rules ask for; nothing else of a token is kept.
    claims: Box<[Claim]>,
    cache: Cache,
}

impl PartialEq for Verifier {
    fn eq(&self, other: &Self) -> bool {
        self.settings == other.settings && self.claims == other.claims
    }
}

/// What came of looking at a token.
#[derive(Debug)]
enum Judgement {
    /// It is none, or names no key of ours: seen at a glance and not worth remembering.
    Foreign,
    /// Others may read it: seen at a glance as well.
    Unreadable,
    /// It is forged, stale, or not for us, and always will be.
    Refused,
    /// It holds within its times.
    Accepted(Known),
}

impl Verifier {
    /// Judges by `settings` for rules that ask for `claims`. `secret` keys the hashes of tokens and must come
    /// from a source of randomness.
    pub fn new(settings: Settings, claims: impl IntoIterator<Item = Claim>, secret: [u64; 2]) -> Self {
        let mut unique: Vec<Claim> = Vec::new();
        for claim in claims {
            if !unique.contains(&claim) {
                unique.push(claim);
            }
        }
        Self { settings, claims: unique.into(), cache: Cache::new(secret) }
    }

    /// The header that tokens are in, if they are in one.
    pub const fn header(&self) -> Option<&HeaderName> {
        match &self.settings.source {
            Source::Header(name) => Some(name),
            Source::Cookie(_) => None,
        }
    }

    /// What the token among `headers` says at `now`; `None` if there is none that holds.
    ///
    /// # Errors
    /// [`Ambiguity`] if somebody else might find one there that holds.
    fn read(&self, headers: &HeaderMap, now: Timestamp) -> Result<Option<Arc<Claims>>, Ambiguity> {
        let Some(token) = self.settings.source.token(headers)? else { return Ok(None) };
        if token.len() > LONGEST_TOKEN {
            return if compact::holds_token(&token) { Err(Ambiguity::Unreadable) } else { Ok(None) };
        }
        let fingerprint = self.cache.fingerprint(&token);
        if let Some(known) = self.cache.get(fingerprint) {
            return Ok(known.and_then(|known| known.at(now)));
        }
        match self.judge(&token, now) {
            Judgement::Foreign => Ok(None),
            Judgement::Unreadable => Err(Ambiguity::Unreadable),
            Judgement::Refused => {
                self.cache.reject(fingerprint);
                Ok(None)
            }
            Judgement::Accepted(known) => {
                let claims = known.at(now);
                self.cache.accept(fingerprint, known);
                Ok(claims)
            }
        }
    }

    fn judge(&self, token: &[u8], now: Timestamp) -> Judgement {
        let read = match &self.settings.trust {
            Trust::Verified => compact::payload(token).map(|payload| Some((payload, None))),
            Trust::Signed(keys) => Compact::parse(token).and_then(|token| {
                let mut candidates = keys.candidates(&token.header, now).peekable();
                if candidates.peek().is_none() {
                    return Err(Unread::Foreign);
                }
                let signer = candidates.find(|key| token.is_signed_by(key));
                Ok(signer.and_then(|key| Some((token.payload()?, key.expires()))))
            }),
        };
        let known = match read {
            Ok(authentic) => authentic.and_then(|(payload, key_expires)| self.accept(&payload, key_expires)),
            Err(Unread::Foreign) => return Judgement::Foreign,
            Err(Unread::Unreadable) => return Judgement::Unreadable,
        };
        match known {
            // Time does not run backwards.
            Some(known) if now < known.expires => Judgement::Accepted(known),
            _ => Judgement::Refused,
        }
    }

    /// What is to be remembered of an authentic token; `None` if it is not for us or makes no sense.
    fn accept(&self, payload: &Map<String, Value>, key_expires: Option<Timestamp>) -> Option<Known> {
        let Settings { issuers, audiences, leeway, .. } = &self.settings;
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
        (issued && addressed).then(|| Known {
            not_before,
            expires: expires.min(key_expires.unwrap_or(Timestamp::END)),
            claims: Arc::new(Claims::of(payload, &self.claims)),
        })
    }
}

/// A request's token, read when somebody first asks for it.
#[derive(Clone, Debug)]
pub(super) struct Token<'a> {
    verifier: Option<&'a Verifier>,
    claims: OnceCell<Result<Option<Arc<Claims>>, Ambiguity>>,
}

impl<'a> Token<'a> {
    /// Nobody has asked yet.
    pub(super) fn unread(verifier: Option<&'a Arc<Verifier>>) -> Self {
        Self { verifier: verifier.map(|verifier| &**verifier), claims: OnceCell::new() }
    }

    /// The value of `claim` in canonical form.
    ///
    /// # Errors
    /// [`Ambiguity`] if somebody else might find another token than we do.
    pub(super) fn claim(
        &self,
        claim: &Claim,
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
