//! Who a client says it is by its certificate, once that has been verified.

use std::fmt::Write;

use aws_lc_rs::digest::{SHA256, digest};

use super::certificate::{Facts, NotACertificate, hexadecimal};

/// What a verified certificate says of its holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// As RFC 4514 writes it; `None` where it is empty.
    pub subject: Option<Box<str>>,
    /// URIs among its alternative names.
    pub uris: Vec<Box<str>>,
    /// Hosts among its alternative names, in lower case.
    pub hosts: Vec<Box<str>>,
    /// SHA-256 of the certificate in DER, in lower-case hexadecimal digits.
    pub hash: Box<str>,
}

impl Identity {
    /// Of the holder of the certificate in `der`.
    ///
    /// # Errors
    /// [`NotACertificate`] if it cannot be read.
    pub fn of(der: &[u8]) -> Result<Self, NotACertificate> {
        let facts = Facts::of(der)?;
        Ok(Self {
            uris: facts.uris().map(Box::from).collect(),
            hosts: facts.hosts().map(Box::from).collect(),
            hash: hexadecimal(digest(&SHA256, der).as_ref()),
            subject: Some(facts.subject).filter(|subject| !subject.is_empty()),
        })
    }

    /// The SPIFFE identity: a certificate has one if it has exactly one URI and that is one (X509-SVID section 2).
    pub fn spiffe(&self) -> Option<&str> {
        match &self.uris[..] {
            [only] if only.starts_with("spiffe://") => Some(only),
            _ => None,
        }
    }

    /// As Envoy writes it into `x-forwarded-client-cert`: hash, subject and each URI.
    pub fn forwarded(&self) -> String {
        // RFC 4514 has escaped quotes and backslashes in the subject already.
        let mut text = format!("Hash={};Subject=\"", self.hash);
        show(&mut text, self.subject.as_deref().unwrap_or_default());
        text.push('"');
        for uri in &self.uris {
            text.push_str(";URI=");
            // Nothing that a name holds may be taken for another field.
            match uri.contains([',', ';', '=', '"', '\\', ' ']) {
                true => {
                    let escaped = uri.replace('\\', "\\\\").replace('"', "\\\"");
                    text.push('"');
                    show(&mut text, &escaped);
                    text.push('"');
                }
                false => text.push_str(uri),
            }
        }
        text
    }
}

/// Appends `value` as RFC 4514 writes it: what cannot be shown in hexadecimal digits.
fn show(text: &mut String, value: &str) {
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
        Identity::of(certificate.der()).unwrap()
    }

    #[test]
    fn a_spiffe_identity_is_the_only_uri() {
        assert_eq!(identity(&["spiffe://a/ns/b"], None).spiffe(), Some("spiffe://a/ns/b"));
        assert_eq!(identity(&["spiffe://a/b", "spiffe://a/c"], None).spiffe(), None);
        assert_eq!(identity(&["https://a/b"], None).spiffe(), None);
        assert_eq!(identity(&[], None).spiffe(), None);
    }

    #[test]
    fn a_forwarded_certificate_is_written_as_envoy_writes_it() {
        let one = identity(&["spiffe://a/b"], Some("Weirs"));
        assert_eq!(one.forwarded(), format!("Hash={};Subject=\"O=Weirs,C=DE\";URI=spiffe://a/b", one.hash));
        assert_eq!(one.hash.len(), 64);
        assert_eq!(*one.hosts, [Box::<str>::from("app.example")]);
        let none = identity(&[], None);
        assert_eq!(
            (none.subject.as_deref(), none.forwarded()),
            (None, format!("Hash={};Subject=\"\"", none.hash))
        );
    }

    #[test]
    fn no_name_passes_for_another_field() {
        let sly = identity(&["spiffe://a/b;URI=spiffe://root"], Some("x\";URI=spiffe://root"));
        let text = sly.forwarded();
        let (_, subject) = text.split_once("Subject=\"").unwrap();
        assert!(subject.starts_with("O=x\\\"\\;URI=spiffe://root,C=DE\";URI=\""), "{text}");
        assert!(text.ends_with(";URI=\"spiffe://a/b;URI=spiffe://root\""), "{text}");
    }
}
