//! Certificates and keys out of PEM files (RFC 7468), and what may be wrong with them.

use std::fmt;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::SigningKey;

use super::certificate::Facts;
use super::provider;

/// Why nothing can be made of a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// There is none in it.
    #[error("no certificate in PEM in the file")]
    NoCertificate,
    /// The certificate of this number, from 1, cannot be read.
    #[error("not an X.509 certificate: number {0} of the file")]
    DamagedCertificate(usize),
    /// There is none in it.
    #[error("no private key in PEM in the file")]
    NoKey,
    /// It takes a password, which nobody is there to type.
    #[error("the private key is encrypted")]
    EncryptedKey,
    /// There is one, but not of a kind that can sign.
    #[error("not a private key for RSA, ECDSA or Ed25519")]
    UnsupportedKey,
    /// The encoding is broken.
    #[error("not readable as PEM: {0}")]
    DamagedEncoding(Box<str>),
    /// It cannot stand for an authority.
    #[error("not usable as an authority: number {0} of the file")]
    NotAnAuthority(usize),
}

/// A certificate and those that lead from it towards an authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// In DER, one's own first.
    pub certificates: Vec<CertificateDer<'static>>,
    /// What one's own says.
    pub facts: Facts,
}

impl Chain {
    /// All certificates of a file, the first being one's own.
    ///
    /// # Errors
    /// [`Unusable`] if there is none, or one cannot be read.
    pub fn from_pem(content: &[u8]) -> Result<Self, Unusable> {
        let (certificates, facts) = certificates(content)?;
        let facts = facts.into_iter().next().ok_or(Unusable::NoCertificate)?;
        Ok(Self { certificates, facts })
    }
}

/// A private key. Never shown.
#[derive(Clone)]
pub struct Key(pub(super) Arc<dyn SigningKey>);

impl Key {
    /// The first private key of a file: PKCS #8, PKCS #1 or SEC 1.
    ///
    /// # Errors
    /// [`Unusable`] if there is none, it is encrypted, or nothing can be signed by it.
    pub fn from_pem(content: &[u8]) -> Result<Self, Unusable> {
        let says = |words: &[u8]| content.windows(words.len()).any(|found| found == words);
        // The older of the two ways is told by a header within the text.
        if says(b"-----BEGIN ENCRYPTED PRIVATE KEY-----") || says(b"Proc-Type: 4,ENCRYPTED") {
            return Err(Unusable::EncryptedKey);
        }
        let key = match PrivateKeyDer::from_pem_slice(content) {
            Ok(key) => key,
            Err(rustls::pki_types::pem::Error::NoItemsFound) => return Err(Unusable::NoKey),
            Err(error) => return Err(damaged(&error)),
        };
        let key = provider().key_provider.load_private_key(key).map_err(|_| Unusable::UnsupportedKey)?;
        Ok(Self(key))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

/// Authorities to believe.
#[derive(Clone, Debug)]
pub struct Authorities {
    /// As certificates are verified by.
    pub store: Arc<RootCertStore>,
    /// What each says.
    pub facts: Vec<Facts>,
    certificates: Vec<CertificateDer<'static>>,
}

impl Authorities {
    /// All certificates of a file.
    ///
    /// # Errors
    /// [`Unusable`] if there is none, or one cannot stand for an authority.
    pub fn from_pem(content: &[u8]) -> Result<Self, Unusable> {
        let (certificates, facts) = certificates(content)?;
        let mut store = RootCertStore::empty();
        for (index, certificate) in certificates.iter().enumerate() {
            let added = store.add(certificate.clone());
            added.map_err(|_| Unusable::NotAnAuthority(index.saturating_add(1)))?;
        }
        Ok(Self { store: Arc::new(store), facts, certificates })
    }

    /// Those that this system believes, where its programs look for them (`SSL_CERT_FILE` and `SSL_CERT_DIR` name other
    /// places); `None` if there are none. What they say is left out: there are many, and all of them well known.
    pub fn of_system() -> Option<Self> {
        let mut certificates = rustls_native_certs::load_native_certs().certs;
        // A directory has no order that lasts.
        certificates.sort_unstable_by(|one, other| one.as_ref().cmp(other.as_ref()));
        certificates.dedup();
        let mut store = RootCertStore::empty();
        // One that cannot be used is no reason to believe none.
        let (usable, _) = store.add_parsable_certificates(certificates.iter().cloned());
        (usable > 0).then(|| Self { store: Arc::new(store), facts: Vec::new(), certificates })
    }
}

impl PartialEq for Authorities {
    fn eq(&self, other: &Self) -> bool {
        self.certificates == other.certificates
    }
}

impl Eq for Authorities {}

fn certificates(content: &[u8]) -> Result<(Vec<CertificateDer<'static>>, Vec<Facts>), Unusable> {
    let certificates: Vec<CertificateDer<'static>> =
        CertificateDer::pem_slice_iter(content).collect::<Result<_, _>>().map_err(|error| damaged(&error))?;
    if certificates.is_empty() {
        return Err(Unusable::NoCertificate);
    }
    let facts = |(index, der): (usize, &CertificateDer<'_>)| {
        Facts::of(der).map_err(|_| Unusable::DamagedCertificate(index.saturating_add(1)))
    };
    let facts = certificates.iter().enumerate().map(facts).collect::<Result<_, _>>()?;
    Ok((certificates, facts))
}

/// Without the content, which may be a key's.
fn damaged(error: &rustls::pki_types::pem::Error) -> Unusable {
    use rustls::pki_types::pem::Error;
    Unusable::DamagedEncoding(
        match error {
            Error::MissingSectionEnd { .. } => "its end is missing",
            Error::IllegalSectionStart { .. } => "its first line",
            Error::Base64Decode(_) => "not base64",
            _ => "the encoding is broken",
        }
        .into(),
    )
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, PKCS_ED25519};

    use super::*;

    fn pair() -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new(["a.example".to_owned()]).unwrap().self_signed(&key).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    #[test]
    fn a_chain_is_all_certificates_of_a_file_in_order() {
        let ((one, _), (two, key)) = (pair(), pair());
        let chain = Chain::from_pem(format!("{one}{key}{two}").as_bytes()).unwrap();
        assert_eq!(chain.certificates.len(), 2);
        assert_eq!(chain.facts, Facts::of(&chain.certificates[0]).unwrap());
        assert_eq!(Chain::from_pem(key.as_bytes()), Err(Unusable::NoCertificate));
        assert_eq!(Chain::from_pem(b""), Err(Unusable::NoCertificate));
        let cut = &one[..one.len() / 2];
        assert!(matches!(Chain::from_pem(cut.as_bytes()), Err(Unusable::DamagedEncoding(_))));
        let other = key.replace("PRIVATE KEY", "CERTIFICATE");
        assert_eq!(Chain::from_pem(other.as_bytes()), Err(Unusable::DamagedCertificate(1)));
    }

    #[test]
    fn a_key_that_nobody_can_sign_with_is_told_apart() {
        let (certificate, key) = pair();
        assert!(Key::from_pem(key.as_bytes()).is_ok());
        let ed25519 = KeyPair::generate_for(&PKCS_ED25519).unwrap().serialize_pem();
        assert!(Key::from_pem(ed25519.as_bytes()).is_ok());
        let unusable = |content: &str| Key::from_pem(content.as_bytes()).unwrap_err();
        assert_eq!(unusable(&certificate), Unusable::NoKey);
        let encrypted = key.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY");
        assert_eq!(unusable(&encrypted), Unusable::EncryptedKey);
        let old = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n\nAAAA\n-----END RSA PRIVATE KEY-----\n";
        assert_eq!(unusable(old), Unusable::EncryptedKey);
        let nonsense = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        assert_eq!(unusable(nonsense), Unusable::UnsupportedKey);
    }

    #[test]
    fn authorities_are_the_same_if_their_certificates_are() {
        let ((one, _), (two, _)) = (pair(), pair());
        let read = |text: &str| Authorities::from_pem(text.as_bytes()).unwrap();
        assert_eq!(read(&one), read(&format!("# a comment\n{one}")));
        assert_ne!(read(&one), read(&two));
        assert_eq!(read(&format!("{one}{two}")).facts.len(), 2);
    }
}
