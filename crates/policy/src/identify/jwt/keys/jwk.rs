//! JSON Web Keys (RFC 7517, RFC 7518 section 6, RFC 8037).

use std::str::FromStr as _;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, DecodingKey};
use serde::Deserialize;
use serde_json::Value;

use super::{HMAC, KeyError, VerificationKey};
use crate::identify::jwt::compact::numeric_date;

#[derive(Deserialize)]
struct Raw {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    usage: Option<String>,
    key_ops: Option<Vec<String>>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
    k: Option<String>,
    /// Expiry of the key. Not in the RFC, but some issuers send it.
    exp: Option<Value>,
}

pub(super) fn read(json: &str) -> Result<VerificationKey, KeyError> {
    let raw: Raw = serde_json::from_str(json).map_err(|_| KeyError::Damaged("not a JSON Web Key"))?;
    if let Some(usage) = raw.usage.as_deref().filter(|usage| *usage != "sig") {
        return Err(KeyError::Unsupported(format!("a key for {usage:?}, not for signatures")));
    }
    if raw.key_ops.as_ref().is_some_and(|operations| !operations.iter().any(|one| one == "verify")) {
        return Err(KeyError::Unsupported("a key without the operation `verify`".to_owned()));
    }
    let mut key = material(&raw)?;
    if let Some(name) = &raw.alg {
        let algorithm = Algorithm::from_str(name);
        let narrowed = algorithm.ok().and_then(|algorithm| key.only_for(&[algorithm]));
        key = narrowed.ok_or_else(|| KeyError::Unsupported(format!("a key for the algorithm {name:?}")))?;
    }
    if let Some(expires) = &raw.exp {
        let expires = numeric_date(expires);
        key.expires = Some(expires.ok_or(KeyError::Damaged("`exp` is not a number of seconds"))?);
    }
    key.id = raw.kid.map(String::into_boxed_str);
    Ok(key)
}

fn material(raw: &Raw) -> Result<VerificationKey, KeyError> {
    const DAMAGED: KeyError = KeyError::Damaged("a part of the key is not base64url or has the wrong length");
    match (raw.kty.as_str(), raw.crv.as_deref()) {
        ("RSA", _) => {
            let (modulus, exponent) = (text(raw.n.as_ref(), 1)?, text(raw.e.as_ref(), 1)?);
            let material = DecodingKey::from_rsa_components(modulus, exponent).map_err(|_| DAMAGED)?;
            VerificationKey::rsa(modulus, material)
        }
        ("EC", Some(curve @ ("P-256" | "P-384"))) => {
            let (length, algorithm) = match curve {
                "P-256" => (32, Algorithm::ES256),
                _ => (48, Algorithm::ES384),
            };
            let (x, y) = (required_bytes(raw.x.as_ref(), length)?, required_bytes(raw.y.as_ref(), length)?);
            let material = DecodingKey::from_ec_components(x, y).map_err(|_| DAMAGED)?;
            Ok(VerificationKey::new(material, &[algorithm]))
        }
        ("OKP", Some("Ed25519")) => {
            let x = required_bytes(raw.x.as_ref(), 32)?;
            let material = DecodingKey::from_ed_components(x).map_err(|_| DAMAGED)?;
            Ok(VerificationKey::new(material, &[Algorithm::EdDSA]))
        }
        ("oct", _) => {
            let secret = URL_SAFE_NO_PAD.decode(text(raw.k.as_ref(), 1)?).map_err(|_| DAMAGED)?;
            Ok(VerificationKey::new(DecodingKey::from_secret(&secret), HMAC))
        }
        ("EC" | "OKP", Some(curve)) => Err(KeyError::Unsupported(format!("a key on the curve {curve:?}"))),
        ("EC" | "OKP", None) => Err(KeyError::Damaged("no `crv`")),
        (kind, _) => Err(KeyError::Unsupported(format!("a key of the type {kind:?}"))),
    }
}

/// Returns a member of at least `min_length` characters.
fn text(part: Option<&String>, min_length: usize) -> Result<&str, KeyError> {
    match part {
        Some(part) if part.len() >= min_length => Ok(part),
        _ => Err(KeyError::Damaged("a part of the key is missing")),
    }
}

/// Returns a member that decodes to `length` bytes.
fn required_bytes(part: Option<&String>, length: usize) -> Result<&str, KeyError> {
    let part = text(part, 1)?;
    let decoded = URL_SAFE_NO_PAD.decode(part).ok().filter(|bytes| bytes.len() == length);
    decoded
        .map(|_| part)
        .ok_or(KeyError::Damaged("a part of the key is not base64url or has the wrong length"))
}
