//! Identity of a client according to its verified certificate.

use std::fmt::Write;

use aws_lc_rs::digest::{SHA256, digest};

use super::certificate::{CertificateInfo, InvalidCertificate, hexadecimal};

/// Names of a verified certificate's holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Subject in the format of RFC 4514; `None` if it is empty.
    pub subject: Option<Box<str>>,
    /// URIs among the subject alternative names.
    pub uris: Vec<Box<str>>,
    /// Hosts among the subject alternative names, in lower case.
    pub hosts: Vec<Box<str>>,
    /// SHA-256 of the certificate in DER, in lower-case hexadecimal digits.
    pub hash: Box<str>,
}

impl Identity {
    /// Reads the identity from a certificate in DER.
    ///
    /// # Errors
    /// [`InvalidCertificate`] if it cannot be parsed.
    pub fn from_der(der: &[u8]) -> Result<Self, InvalidCertificate> {
        let facts = CertificateInfo::from_der(der)?;
        Ok(Self {
            uris: facts.uris().map(Box::from).collect(),
            hosts: facts.hosts().map(Box::from).collect(),
            hash: hexadecimal(digest(&SHA256, der).as_ref()),
            subject: Some(facts.subject).filter(|subject| !subject.is_empty()),
        })
    }

    /// Returns the SPIFFE ID. A certificate has one if its only URI is a SPIFFE ID (X509-SVID section 2).
    pub fn spiffe(&self) -> Option<&str> {
        match &self.uris[..] {
            [only] if only.starts_with("spiffe://") => Some(only),
            _ => None,
        }
    }

    /// Formats the identity for `x-forwarded-client-cert` as Envoy does: hash, subject and each URI.
    pub fn to_forwarded_client_cert(&self) -> String {
        // In RFC 4514 format, quotes and backslashes in the subject are escaped already.
        let mut text = format!("Hash={};Subject=\"", self.hash);
        push_escaped(&mut text, self.subject.as_deref().unwrap_or_default());
        text.push('"');
        for uri in &self.uris {
            text.push_str(";URI=");
            // Quoted, so that a URI cannot inject another field.
            match uri.contains([',', ';', '=', '"', '\\', ' ']) {
                true => {
                    let escaped = uri.replace('\\', "\\\\").replace('"', "\\\"");
                    text.push('"');
                    push_escaped(&mut text, &escaped);
                    text.push('"');
                }
                false => text.push_str(uri),
            }
        }
        text
    }
}

/// Appends `value` with control characters escaped as hexadecimal digits, as in RFC 4514.
fn push_escaped(text: &mut String, value: &str) {
    for symbol in value.chars() {
        match symbol.is_ascii_control() {
            // Writing to a string cannot fail.
            true => drop(write!(text, "\\{:02X}", u32::from(symbol))),
            false => text.push(symbol),
        }
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};

    use super::*;

    fn identity(uris: &[&str], organisation: Option<&str>) -> Identity {
        let mut params = CertificateParams::new(["App.example".to_owned()]).unwrap();
        params.distinguished_name = DistinguishedName::new();
        if let Some(organisation) = organisation {
            params.distinguished_name.push(DnType::CountryName, "DE");
            params.distinguished_name.push(DnType::OrganizationName, organisation);
        }
        let uris = uris.iter().map(|uri| SanType::URI((*uri).try_into().unwrap()));
        params.subject_alt_names.extend(uris);
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        Identity::from_der(certificate.der()).unwrap()
    }

    #[test]
    fn spiffe_id_requires_a_single_uri() {
        assert_eq!(identity(&["spiffe://a/ns/b"], None).spiffe(), Some("spiffe://a/ns/b"));
        assert_eq!(identity(&["spiffe://a/b", "spiffe://a/c"], None).spiffe(), None);
        assert_eq!(identity(&["https://a/b"], None).spiffe(), None);
        assert_eq!(identity(&[], None).spiffe(), None);
    }

    #[test]
    fn x_forwarded_client_cert_has_the_format_of_envoy() {
        let one = identity(&["spiffe://a/b"], Some("Weirs"));
        assert_eq!(
            one.to_forwarded_client_cert(),
            format!("Hash={};Subject=\"O=Weirs,C=DE\";URI=spiffe://a/b", one.hash)
        );
        assert_eq!(one.hash.len(), 64);
        assert_eq!(*one.hosts, [Box::<str>::from("app.example")]);
        let none = identity(&[], None);
        assert_eq!(
            (none.subject.as_deref(), none.to_forwarded_client_cert()),
            (None, format!("Hash={};Subject=\"\"", none.hash))
        );
    }

    #[test]
    fn x_forwarded_client_cert_values_are_quoted() {
        let sly = identity(&["spiffe://a/b;URI=spiffe://root"], Some("x\";URI=spiffe://root"));
        let text = sly.to_forwarded_client_cert();
        let (_, subject) = text.split_once("Subject=\"").unwrap();
        assert!(subject.starts_with("O=x\\\"\\;URI=spiffe://root,C=DE\";URI=\""), "{text}");
        assert!(text.ends_with(";URI=\"spiffe://a/b;URI=spiffe://root\""), "{text}");
    }
}
