//! TLS termination, TLS origination, and names in client certificates, as written in the configuration.

#[cfg(test)]
use schemars::JsonSchema;
use serde::Deserialize;

use super::{HeaderPattern, OneOrMany};
#[cfg(test)]
use crate::defaults;

/// TLS termination on a listener. Files are reloaded when they change.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// File with the certificate in PEM, followed by the intermediate certificates that lead to an authority. Needs
    /// `key`. Either this pair or `certificates` is required.
    pub certificate: Option<String>,
    /// File with the private key of `certificate` in PEM, not encrypted: RSA, ECDSA or Ed25519.
    pub key: Option<String>,
    /// Further certificates with their keys, a map or a list. Clients that request a name in one of them (SNI)
    /// receive that one.
    pub certificates: Option<OneOrMany<Certificate>>,
    /// File with the certificate authorities that issue client certificates, in PEM. With it, Weir requests a
    /// certificate from clients (mTLS).
    pub client_ca: Option<String>,
    /// Whether clients must present a certificate: `required`, or `optional`. With `optional` a client may present
    /// none, but an invalid certificate still ends the connection. Needs `client_ca`.
    #[cfg_attr(test, schemars(extend("default" = "required")))]
    pub client_auth: Option<ClientAuth>,
    /// Maximum number of TLS handshakes in flight on each worker, from 1 to 100000. Further clients are queued.
    #[cfg_attr(test, schemars(range(min = 1, max = 100_000), extend("default" = defaults::MAX_HANDSHAKES)))]
    pub handshakes: Option<usize>,
}

/// A certificate and its private key.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Certificate {
    /// File with a further certificate in PEM, followed by the intermediate certificates that lead to an authority.
    #[cfg_attr(test, schemars(required))]
    pub certificate: Option<String>,
    /// File with the private key of `certificate` in PEM, not encrypted: RSA, ECDSA or Ed25519.
    #[cfg_attr(test, schemars(required))]
    pub key: Option<String>,
}

/// Whether clients must present a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ClientAuth {
    /// Connections without a client certificate are rejected.
    Required,
    /// Clients may connect without a certificate.
    Optional,
}

/// TLS settings for connections to an upstream or another service. Files are reloaded when they change.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct UpstreamTls {
    /// File with the certificate authorities that may issue the server's certificate, in PEM. Without it, Weir trusts
    /// the authorities of the system. Not allowed with `verify: insecure`. Default: the system's certificate
    /// authorities.
    pub ca: Option<String>,
    /// File with the certificate that Weir presents if the server requests one (mTLS), in PEM, followed by the
    /// intermediate certificates that lead to an authority. Needs `key`.
    pub certificate: Option<String>,
    /// File with the private key of `certificate` in PEM, not encrypted.
    pub key: Option<String>,
    /// Host name or IP address that the server's certificate must contain. A host name is also sent as SNI. For an
    /// upstream also `from_host`: the host of each request. Default: the host of the address.
    pub server_name: Option<String>,
    /// Whether the server's certificate is verified. `insecure` turns verification off, so that any server is
    /// trusted.
    #[cfg_attr(test, schemars(extend("default" = true)))]
    pub verify: Option<Verify>,
}

/// Whether the server's certificate is verified.
#[derive(Clone, Copy, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(untagged)]
pub enum Verify {
    /// `true`: the certificate is verified.
    Switch(#[cfg_attr(test, schemars(extend("const" = true)))] bool),
    /// `insecure`: the certificate is not verified.
    Disabled(NotVerified),
}

/// Value that turns verification off.
#[derive(Clone, Copy, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum NotVerified {
    /// The server's certificate is not verified, so that any server is trusted.
    Insecure,
}

/// Patterns for names in the client certificate. All given fields must match; within a list, one item is enough.
#[derive(Clone, Debug, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CertificateNames {
    /// Patterns for the SPIFFE identity in the client certificate: an exact value, `*` (present), `!present` (absent)
    /// or `~regex` (unanchored).
    pub spiffe: Option<OneOrMany<HeaderPattern>>,
    /// Patterns for the subject of the client certificate as RFC 4514 writes it, such as `CN=app,O=Example`: an exact
    /// value, `*` (present), `!present` (absent) or `~regex` (unanchored).
    pub subject: Option<OneOrMany<HeaderPattern>>,
    /// Patterns for the DNS names in the client certificate, of which one must match: an exact value, `*` (present),
    /// `!present` (absent) or `~regex` (unanchored).
    pub dns: Option<OneOrMany<HeaderPattern>>,
}
