//! Names of a client in its verified certificate.

use std::fmt;

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::Deserialize;

/// Names of the certificate's holder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientCertificate {
    /// SPIFFE ID.
    pub spiffe: Option<Box<str>>,
    /// Subject, in the format of RFC 4514.
    pub subject: Option<Box<str>>,
    /// Hosts among the subject alternative names, in lower case and in order.
    pub dns: Vec<Box<str>>,
}

/// Kind of name in a client's certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum CertificateName {
    /// The only URI, if it is a SPIFFE ID.
    Spiffe,
    /// The subject in the format of RFC 4514, such as `CN=app,O=Example`.
    Subject,
    /// A host among the subject alternative names.
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

impl ClientCertificate {
    /// Returns the names of one kind. There may be several hosts, but at most one name of the other kinds.
    pub fn names(&self, name: CertificateName) -> &[Box<str>] {
        match name {
            CertificateName::Spiffe => self.spiffe.as_slice(),
            CertificateName::Subject => self.subject.as_slice(),
            CertificateName::Dns => &self.dns,
        }
    }
}
