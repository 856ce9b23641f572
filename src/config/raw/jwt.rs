//! Tokens as people write about them.

use std::fmt;

use schemars::JsonSchema;
use serde::Deserialize;

use super::values::{Duration, FileName, OneOrMany};
use crate::config::defaults;
use crate::config::parse::duration_text as shown;

/// Tokens that clients carry (JSON Web Tokens): where they are, and why they are believed.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Jwt {
    /// The header they are in, alone or behind `Bearer`.
    #[schemars(extend("default" = "authorization"))]
    pub header: Option<String>,
    /// The cookie they are in, instead of a header.
    pub cookie: Option<String>,
    /// The secret they are signed with; several while one takes the place of another.
    pub secret: Option<OneOrMany<Secret>>,
    /// The public key they are signed with, in PEM; several while one takes the place of another.
    pub public_key: Option<OneOrMany<FileName>>,
    /// A JSON Web Key Set with the keys they are signed with.
    pub jwks: Option<FileName>,
    /// Whether a gateway has verified them already: then no signature is checked.
    #[schemars(extend("default" = false))]
    pub trusted: Option<bool>,
    /// How they may be signed; every way that suits the keys unless given.
    pub algorithms: Option<OneOrMany<SigningAlgorithm>>,
    /// Who must have issued them (`iss`), one of these; anybody unless given.
    pub issuer: Option<OneOrMany<String>>,
    /// Whom they must be for (`aud`), one of these; not looked at unless given.
    pub audience: Option<OneOrMany<String>>,
    /// By how much the issuer's clock may differ from ours.
    #[schemars(extend("default" = shown(defaults::JWT_LEEWAY)))]
    pub leeway: Option<Duration>,
}

/// A secret.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Secret {
    /// As it is.
    Text(SecretText),
    /// What a file holds, without a line break at its end.
    File(FileName),
}

/// A secret as it is; better from the environment, as in `${JWT_SECRET}`.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("writeOnly" = true))]
pub struct SecretText(pub String);

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretText")
    }
}

/// What a claim is held against.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum ClaimPattern {
    /// This truth.
    Flag(bool),
    /// This number.
    Number(u64),
    /// A text, `*` for any value, `!present` for none, or `~regex`.
    Text(
        #[schemars(extend("title" = "claim pattern", "examples" = ["pro", "*", "!present", "~regex"]))]
        String,
    ),
}

/// A way to sign tokens (RFC 7518 section 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
pub enum SigningAlgorithm {
    /// HMAC with SHA-256.
    HS256,
    /// HMAC with SHA-384.
    HS384,
    /// HMAC with SHA-512.
    HS512,
    /// RSA (PKCS #1 v1.5) with SHA-256.
    RS256,
    /// RSA (PKCS #1 v1.5) with SHA-384.
    RS384,
    /// RSA (PKCS #1 v1.5) with SHA-512.
    RS512,
    /// RSA (PSS) with SHA-256.
    PS256,
    /// RSA (PSS) with SHA-384.
    PS384,
    /// RSA (PSS) with SHA-512.
    PS512,
    /// ECDSA on P-256 with SHA-256.
    ES256,
    /// ECDSA on P-384 with SHA-384.
    ES384,
    /// Ed25519.
    EdDSA,
}
