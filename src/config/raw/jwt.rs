//! Tokens as people write about them.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;

use super::secret::SecretOrFile;
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
    pub secret: Option<OneOrMany<SecretOrFile>>,
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
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(transparent)]
pub struct SigningAlgorithm(pub jsonwebtoken::Algorithm);

impl JsonSchema for SigningAlgorithm {
    fn schema_name() -> Cow<'static, str> {
        "SigningAlgorithm".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let names = [
            "HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256",
            "ES384", "EdDSA",
        ];
        let description = "A way to sign tokens (RFC 7518 section 3.1).";
        json_schema!({ "type": "string", "enum": names, "description": description })
    }
}
