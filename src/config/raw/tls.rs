//! TLS of listeners and towards upstreams, and names in clients' certificates.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{HeaderPattern, OneOrMany};
use crate::config::defaults;

/// TLS of a listener. Files are read again when they change.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// The certificate and those that lead from it to an authority, in PEM.
    pub certificate: Option<String>,
    /// Its private key, in PEM, not encrypted.
    pub key: Option<String>,
    /// Further certificates, each shown to clients that ask for a name in it.
    pub certificates: Option<OneOrMany<Certificate>>,
    /// The authorities that issue clients' certificates, in PEM. Clients are asked for one if this is given.
    pub client_ca: Option<String>,
    /// Whether clients must have a certificate, or may.
    #[schemars(extend("default" = "required"))]
    pub client_auth: Option<ClientAuth>,
    /// How many handshakes each worker has under way at once; who comes next waits.
    #[schemars(range(min = 1, max = 100_000), extend("default" = defaults::HANDSHAKES))]
    pub handshakes: Option<usize>,
}

/// A certificate with its key.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Certificate {
    /// The certificate and those that lead from it to an authority, in PEM.
    #[schemars(required)]
    pub certificate: Option<String>,
    /// Its private key, in PEM, not encrypted.
    #[schemars(required)]
    pub key: Option<String>,
}

/// Whether clients must have a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ClientAuth {
    /// A client without one is turned away.
    Required,
    /// A client may have none.
    Optional,
}

/// TLS towards an upstream whose addresses begin with `https://`. Files are read again when they change.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct UpstreamTls {
    /// The authorities that issue its certificates, in PEM; those of the system unless given.
    pub ca: Option<String>,
    /// The certificate to show it if it asks for one, and those that lead from it to an authority, in PEM.
    pub certificate: Option<String>,
    /// The private key of that, in PEM, not encrypted.
    pub key: Option<String>,
    /// The name or address that its certificate must have, and that it is asked for; that of each address unless given.
    pub server_name: Option<String>,
    /// Whether its certificate is verified.
    #[schemars(extend("default" = true))]
    pub verify: Option<Verify>,
}

/// Whether a certificate is verified.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Verify {
    /// `true`.
    Switch(#[schemars(extend("const" = true))] bool),
    /// A word.
    Not(NotVerified),
}

/// Not at all.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum NotVerified {
    /// Whoever answers is believed.
    Insecure,
}

/// Names in a client's certificate, all of which must hold; a list means any of its items.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CertificateNames {
    /// Its only URI, if that is a SPIFFE identity.
    pub spiffe: Option<OneOrMany<HeaderPattern>>,
    /// Its subject, as RFC 4514 writes it, such as `CN=app,O=Example`.
    pub subject: Option<OneOrMany<HeaderPattern>>,
    /// Any host among its alternative names.
    pub dns: Option<OneOrMany<HeaderPattern>>,
}
