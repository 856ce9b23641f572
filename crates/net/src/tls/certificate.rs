//! Parser of certificates (RFC 5280).

use std::fmt::Write;
use std::net::IpAddr;

use x509_cert::certificate::{CertificateInner, Raw};
use x509_cert::der::Decode;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

/// Fields of a certificate that operators and rules use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateInfo {
    /// Serial number in lower-case hexadecimal digits.
    pub serial: Box<str>,
    /// Subject in the format of RFC 4514; may be empty.
    pub subject: Box<str>,
    /// Subject alternative names.
    pub names: Vec<AltName>,
    /// Start of validity, in seconds since 1970.
    pub valid_from: u64,
    /// End of validity (inclusive), in seconds since 1970.
    pub expires: u64,
}

/// A subject alternative name (RFC 5280 section 4.2.1.6) of a supported kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AltName {
    /// Host name in lower case; the first label may be `*`.
    Dns(Box<str>),
    /// URI, such as a SPIFFE ID.
    Uri(Box<str>),
    /// IP address.
    Ip(IpAddr),
    /// Mail address.
    Email(Box<str>),
}

/// Error: not a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a certificate in DER")]
pub struct InvalidCertificate;

impl CertificateInfo {
    /// Parses a certificate in DER. Its signature is not verified.
    ///
    /// # Errors
    /// [`InvalidCertificate`] if it cannot be parsed.
    pub fn from_der(der: &[u8]) -> Result<Self, InvalidCertificate> {
        // `Raw` accepts serial numbers longer than RFC 5280 permits, which exist in practice.
        let certificate = CertificateInner::<Raw>::from_der(der).map_err(|_| InvalidCertificate)?;
        let certificate = certificate.tbs_certificate();
        let names = certificate.get_extension::<SubjectAltName>().map_err(|_| InvalidCertificate)?;
        let names = names.map_or_else(Vec::new, |(_, names)| names.0.iter().filter_map(alt_name).collect());
        let validity = certificate.validity();
        Ok(Self {
            serial: hexadecimal(certificate.serial_number().as_bytes()),
            subject: certificate.subject().to_string().into(),
            names,
            valid_from: validity.not_before.to_unix_duration().as_secs(),
            expires: validity.not_after.to_unix_duration().as_secs(),
        })
    }

    /// Returns the hosts among the subject alternative names.
    pub fn hosts(&self) -> impl Iterator<Item = &str> {
        self.names.iter().filter_map(|name| match name {
            AltName::Dns(host) => Some(&**host),
            AltName::Uri(_) | AltName::Ip(_) | AltName::Email(_) => None,
        })
    }

    /// Returns the URIs among the subject alternative names.
    pub fn uris(&self) -> impl Iterator<Item = &str> {
        self.names.iter().filter_map(|name| match name {
            AltName::Uri(uri) => Some(&**uri),
            AltName::Dns(_) | AltName::Ip(_) | AltName::Email(_) => None,
        })
    }
}

fn alt_name(name: &GeneralName) -> Option<AltName> {
    match name {
        GeneralName::DnsName(host) => Some(AltName::Dns(host.as_str().to_ascii_lowercase().into())),
        GeneralName::UniformResourceIdentifier(uri) => Some(AltName::Uri(uri.as_str().into())),
        GeneralName::Rfc822Name(email) => Some(AltName::Email(email.as_str().into())),
        GeneralName::IpAddress(bytes) => {
            let v4 = <[u8; 4]>::try_from(bytes.as_bytes()).map(IpAddr::from);
            let v6 = <[u8; 16]>::try_from(bytes.as_bytes()).map(IpAddr::from);
            v4.or(v6).ok().map(AltName::Ip)
        }
        _ => None,
    }
}

/// Formats bytes as lower-case hexadecimal digits.
pub(super) fn hexadecimal(bytes: &[u8]) -> Box<str> {
    let mut text = String::with_capacity(bytes.len().saturating_mul(2));
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text.into()
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair, SanType, SerialNumber};

    use super::*;

    #[test]
    fn certificate_info_has_names_subject_and_validity() {
        let mut params = CertificateParams::new(["A.example".to_owned(), "192.0.2.7".to_owned()]).unwrap();
        params.subject_alt_names.push(SanType::URI("spiffe://a/b".try_into().unwrap()));
        params.serial_number = Some(SerialNumber::from_slice(&[1, 0xab]));
        params.distinguished_name.push(DnType::OrganizationName, "Weirs, Inc");
        params.not_before = rcgen::date_time_ymd(2026, 1, 2);
        params.not_after = rcgen::date_time_ymd(2036, 1, 2);
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let facts = CertificateInfo::from_der(certificate.der()).unwrap();
        assert_eq!((&*facts.serial, facts.valid_from, facts.expires), ("01ab", 1_767_312_000, 2_082_844_800));
        assert!(facts.subject.contains("O=Weirs\\, Inc"), "{}", facts.subject);
        let names = [
            AltName::Dns("a.example".into()),
            AltName::Ip([192, 0, 2, 7].into()),
            AltName::Uri("spiffe://a/b".into()),
        ];
        assert_eq!(facts.names, names);
        assert_eq!(facts.hosts().collect::<Vec<_>>(), ["a.example"]);
        assert_eq!(facts.uris().collect::<Vec<_>>(), ["spiffe://a/b"]);
    }

    #[test]
    fn truncated_certificate_is_rejected() {
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new(["a.example".to_owned()]).unwrap().self_signed(&key).unwrap();
        for end in 0..certificate.der().len() {
            assert_eq!(
                CertificateInfo::from_der(&certificate.der()[..end]),
                Err(InvalidCertificate),
                "{end}"
            );
        }
    }
}
