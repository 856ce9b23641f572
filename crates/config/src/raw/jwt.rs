//! JSON Web Tokens, as written in the configuration.

#[cfg(test)]
use std::borrow::Cow;

#[cfg(test)]
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;

use super::secret::SecretOrFile;
use super::values::{Duration, FileName, OneOrMany};
#[cfg(test)]
use crate::defaults;
#[cfg(test)]
use crate::parse::format_duration as shown;

/// JSON Web Tokens of clients: where a request has its token, and how tokens are verified.
#[derive(Clone, Debug, Default, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Jwt {
    /// Header with the token, alone or after a scheme such as `Bearer`.
    #[cfg_attr(test, schemars(extend("default" = "authorization")))]
    pub header: Option<String>,
    /// Cookie with the token, in place of a header.
    pub cookie: Option<String>,
    /// Secret with which tokens are signed: a text, a map with `file`, or a list of either. Exactly one of
    /// `jwt.secret`, `jwt.public_key`, `jwt.jwks` and `jwt.trusted` is required.
    pub secret: Option<OneOrMany<SecretOrFile>>,
    /// Public key with which signatures of tokens are verified: a map with `file`, or a list of them.
    pub public_key: Option<OneOrMany<FileName>>,
    /// JSON Web Key Set with which signatures of tokens are verified, as a map.
    pub jwks: Option<FileName>,
    /// Whether a gateway has already verified the tokens. If `true`, Weir does not check signatures.
    #[cfg_attr(test, schemars(extend("default" = false)))]
    pub trusted: Option<bool>,
    /// Signature algorithms that are accepted, one or a list: `HS256`, `HS384`, `HS512` with a secret; `RS256`,
    /// `RS384`, `RS512`, `PS256`, `PS384`, `PS512`, `ES256`, `ES384`, `EdDSA` with public keys. Default: all that the
    /// keys support.
    pub algorithms: Option<OneOrMany<SigningAlgorithm>>,
    /// Accepted issuers of tokens (`iss`), one or a list. Default: any issuer.
    pub issuer: Option<OneOrMany<String>>,
    /// Accepted audiences of tokens (`aud`), one or a list. Default: not checked.
    pub audience: Option<OneOrMany<String>>,
    /// Maximum difference between the clock of the issuer and that of Weir.
    #[cfg_attr(test, schemars(extend("default" = shown(defaults::JWT_LEEWAY))))]
    pub leeway: Option<Duration>,
}

/// Pattern for the value of a claim.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(untagged)]
pub enum ClaimPattern {
    /// Exact value, `true` or `false`.
    Flag(bool),
    /// Exact number.
    Number(u64),
    /// Exact text, `*` (present), `!present` (absent) or `~regex` (unanchored).
    Text(
        #[cfg_attr(test, schemars(extend("title" = "claim pattern", "examples" = ["pro", "*", "!present", "~regex"])))]
         String,
    ),
}

/// Signature algorithm of tokens (RFC 7518 section 3.1).
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(transparent)]
pub struct SigningAlgorithm(pub jsonwebtoken::Algorithm);

#[cfg(test)]
impl JsonSchema for SigningAlgorithm {
    fn schema_name() -> Cow<'static, str> {
        "SigningAlgorithm".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let names = [
            "HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256",
            "ES384", "EdDSA",
        ];
        let description = "Signature algorithm of tokens (RFC 7518 section 3.1).";
        json_schema!({ "type": "string", "enum": names, "description": description })
    }
}
