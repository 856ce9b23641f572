//! Keys that verify tokens: public keys, secrets, and sets of keys.

use std::fmt;

use serde::Deserialize;
use serde_json::error::Category;
use serde_json::value::RawValue;

use super::{DataFileError, DataFileKind, truncate_errors};
use crate::diagnostic::ValueError;
use weir_policy::identify::jwt::keys::{KeyError, VerificationKey};

/// Maximum size in bytes, far above the sets of the largest issuers.
const MAX_SIZE: u64 = 1 << 20;

/// A public key in PEM format.
pub(crate) const PUBLIC_KEY: DataFileKind<VerificationKey> =
    DataFileKind { name: "public key", max_size: MAX_SIZE, parse: parse_public_key };

/// A secret: the whole content, without a line break at its end.
pub(crate) const SECRET: DataFileKind<SecretBytes> =
    DataFileKind { name: "secret", max_size: MAX_SIZE, parse: parse_secret };

/// A JSON Web Key Set (RFC 7517 section 5).
pub(crate) const JWKS: DataFileKind<Jwks> =
    DataFileKind { name: "set of keys", max_size: MAX_SIZE, parse: parse_jwks };

/// A secret from a file; its `Debug` output does not show it.
pub(crate) struct SecretBytes(pub(crate) Vec<u8>);

impl fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretBytes")
    }
}

/// A set of keys, each with its line and column.
#[derive(Debug)]
pub(crate) struct Jwks {
    pub(crate) keys: Vec<(VerificationKey, (usize, usize))>,
    /// Keys that cannot be used here, with the reasons.
    pub(crate) skipped: Vec<DataFileError>,
}

fn parse_public_key(content: Vec<u8>) -> Result<VerificationKey, Vec<DataFileError>> {
    let text = super::decode_utf8(content)?;
    VerificationKey::from_pem(&text).map_err(|unusable| {
        let error = ValueError::new(unusable.to_string());
        let command = if text.contains("PRIVATE KEY") {
            Some("`openssl pkey -in FILE -pubout` prints its public key")
        } else if text.contains("BEGIN CERTIFICATE") {
            Some("`openssl x509 -in FILE -noout -pubkey` prints its public key")
        } else {
            None
        };
        vec![DataFileError::for_file(match command {
            Some(command) => error.with_hint(command),
            None => error,
        })]
    })
}

fn parse_secret(mut content: Vec<u8>) -> Result<SecretBytes, Vec<DataFileError>> {
    if content.ends_with(b"\n") {
        content.pop();
        if content.ends_with(b"\r") {
            content.pop();
        }
    }
    if content.is_empty() {
        return Err(vec![DataFileError::for_file("empty, expected a secret")]);
    }
    Ok(SecretBytes(content))
}

#[derive(Deserialize)]
struct RawJwks<'a> {
    #[serde(borrow)]
    keys: Vec<&'a RawValue>,
}

fn parse_jwks(content: Vec<u8>) -> Result<Jwks, Vec<DataFileError>> {
    let text = super::decode_utf8(content)?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let raw: RawJwks<'_> = serde_json::from_str(text).map_err(|error| {
        // Messages of this category could quote secrets.
        let message = match error.classify() {
            Category::Data => "not a set of keys, expected an object with a list `keys`",
            Category::Eof => "not valid JSON: unexpected end of file",
            Category::Syntax | Category::Io => "not valid JSON",
        };
        vec![DataFileError::at_position(error.line(), error.column().max(1), message)]
    })?;
    let mut set = Jwks { keys: Vec::new(), skipped: Vec::new() };
    let mut errors = Vec::new();
    for raw in raw.keys {
        let (line, column) = position_of(raw.get(), text);
        match VerificationKey::from_jwk(raw.get()) {
            Ok(key) => set.keys.push((key, (line, column))),
            Err(KeyError::Damaged(what)) => errors.push(DataFileError::at_position(line, column, what)),
            Err(KeyError::Unsupported(what)) => {
                set.skipped.push(DataFileError::at_position(line, column, format!("not used: {what}")));
            }
        }
    }
    if !errors.is_empty() {
        return Err(truncate_errors(errors));
    }
    if set.keys.is_empty() {
        let mut flaws = vec![DataFileError::for_file("no usable key for verifying tokens")];
        flaws.append(&mut set.skipped);
        return Err(truncate_errors(flaws));
    }
    set.skipped = truncate_errors(set.skipped);
    Ok(set)
}

/// Returns line and column, from 1, of `part`, which must be a slice of `text`.
fn position_of(part: &str, text: &str) -> (usize, usize) {
    let at = (part.as_ptr() as usize).saturating_sub(text.as_ptr() as usize);
    let before = text.get(..at).unwrap_or_default();
    let line = before.rsplit('\n').next().unwrap_or_default();
    (before.matches('\n').count() + 1, line.chars().count() + 1)
}

#[cfg(test)]
mod tests;
