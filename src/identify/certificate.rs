//! What is known of a client by its certificate, once that has been verified.

use std::fmt;

use schemars::JsonSchema;
use serde::Deserialize;

/// Names of the holder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Certificate {
    /// Its SPIFFE identity.
    pub spiffe: Option<Box<str>>,
    /// Its subject, as RFC 4514 writes it.
    pub subject: Option<Box<str>>,
    /// Its hosts, in lower case and in order.
    pub dns: Vec<Box<str>>,
}

/// A name in a client's certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CertificateName {
    /// Its only URI, if that is a SPIFFE identity.
    Spiffe,
    /// Its subject, as RFC 4514 writes it, such as `CN=app,O=Example`.
    Subject,
    /// A host among its alternative names.
    Dns,
}

impl fmt::Display for CertificateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Spiffe => "spiffe",
            Self::Subject => "subject",
            Self::Dns => "dns",
        })
    }
}

impl Certificate {
    /// The names of one kind; only of hosts there may be several.
    pub fn names(&self, name: CertificateName) -> &[Box<str>] {
        match name {
            CertificateName::Spiffe => self.spiffe.as_slice(),
            CertificateName::Subject => self.subject.as_slice(),
            CertificateName::Dns => &self.dns,
        }
    }
}
