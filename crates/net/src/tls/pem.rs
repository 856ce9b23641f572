//! Certificates and keys in PEM files (RFC 7468), and why they may be unusable.

use std::fmt;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::SigningKey;

use super::certificate::CertificateInfo;
use super::provider;

/// Why a file cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PemError {
    /// It contains no certificate.
    #[error("no PEM certificate in the file")]
    NoCertificate,
    /// The certificate of this number, from 1, cannot be parsed.
    #[error("not an X.509 certificate: number {0} of the file")]
    DamagedCertificate(usize),
    /// It contains no private key.
    #[error("no PEM private key in the file")]
    NoKey,
    /// The private key is encrypted, and a passphrase cannot be entered.
    #[error("the private key is encrypted")]
    EncryptedKey,
    /// The private key is of an unsupported kind.
    #[error("not a private key for RSA, ECDSA or Ed25519")]
    UnsupportedKey,
    /// The encoding is malformed.
    #[error("malformed PEM: {0}")]
    DamagedEncoding(Box<str>),
    /// The certificate of this number, from 1, cannot be used as a certificate authority.
    #[error("not a certificate authority: number {0} of the file")]
    NotAnAuthority(usize),
}

/// A certificate and its intermediate certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateChain {
    /// Certificates in DER, the end-entity certificate first.
    pub certificates: Vec<CertificateDer<'static>>,
    /// Fields of the end-entity certificate.
    pub info: CertificateInfo,
}

impl CertificateChain {
    /// Reads all certificates of a file; the first is the end-entity certificate.
    ///
    /// # Errors
    /// [`PemError`] if there is none, or one cannot be parsed.
    pub fn from_pem(content: &[u8]) -> Result<Self, PemError> {
        let (certificates, facts) = certificates(content)?;
        let facts = facts.into_iter().next().ok_or(PemError::NoCertificate)?;
        Ok(Self { certificates, info: facts })
    }
}

/// A private key. It is never formatted.
#[derive(Clone)]
pub struct PrivateKey(pub(super) Arc<dyn SigningKey>);

impl PrivateKey {
    /// Reads the first private key of a file: PKCS #8, PKCS #1 or SEC 1.
    ///
    /// # Errors
    /// [`PemError`] if there is none, or it is encrypted or unsupported.
    pub fn from_pem(content: &[u8]) -> Result<Self, PemError> {
        let says = |words: &[u8]| content.windows(words.len()).any(|found| found == words);
        // The older form of encryption is marked by a header inside the text.
        if says(b"-----BEGIN ENCRYPTED PRIVATE KEY-----") || says(b"Proc-Type: 4,ENCRYPTED") {
            return Err(PemError::EncryptedKey);
        }
        let key = match PrivateKeyDer::from_pem_slice(content) {
            Ok(key) => key,
            Err(rustls::pki_types::pem::Error::NoItemsFound) => return Err(PemError::NoKey),
            Err(error) => return Err(damaged(&error)),
        };
        let key = provider().key_provider.load_private_key(key).map_err(|_| PemError::UnsupportedKey)?;
        Ok(Self(key))
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key")
    }
}

/// Trusted certificate authorities.
#[derive(Clone, Debug)]
pub struct Authorities {
    /// Trust anchors for verification.
    pub store: Arc<RootCertStore>,
    /// Fields of each certificate; empty for those of the system.
    pub info: Vec<CertificateInfo>,
    certificates: Vec<CertificateDer<'static>>,
}

impl Authorities {
    /// Reads all certificates of a file.
    ///
    /// # Errors
    /// [`PemError`] if there is none, or one cannot be used as a certificate authority.
    pub fn from_pem(content: &[u8]) -> Result<Self, PemError> {
        let (certificates, facts) = certificates(content)?;
        let mut store = RootCertStore::empty();
        for (index, certificate) in certificates.iter().enumerate() {
            let added = store.add(certificate.clone());
            added.map_err(|_| PemError::NotAnAuthority(index.saturating_add(1)))?;
        }
        Ok(Self { store: Arc::new(store), info: facts, certificates })
    }

    /// Returns the fields of a certificate that is itself one of these.
    pub fn info_of(&self, certificate: &CertificateDer<'_>) -> Option<&CertificateInfo> {
        let index = self.certificates.iter().position(|own| own == certificate)?;
        self.info.get(index)
    }

    /// Loads the system's certificate authorities from the usual places (`SSL_CERT_FILE` and `SSL_CERT_DIR` override
    /// them); `None` if there are none. `facts` stays empty: there are many, and all of them are well known.
    pub fn from_system() -> Option<Self> {
        let mut certificates = rustls_native_certs::load_native_certs().certs;
        // The order of directory entries is not stable.
        certificates.sort_unstable_by(|one, other| one.as_ref().cmp(other.as_ref()));
        certificates.dedup();
        let mut store = RootCertStore::empty();
        // A certificate that cannot be used must not disable the others.
        let (usable, _) = store.add_parsable_certificates(certificates.iter().cloned());
        (usable > 0).then(|| Self { store: Arc::new(store), info: Vec::new(), certificates })
    }
}

impl PartialEq for Authorities {
    fn eq(&self, other: &Self) -> bool {
        self.certificates == other.certificates
    }
}

impl Eq for Authorities {}

fn certificates(content: &[u8]) -> Result<(Vec<CertificateDer<'static>>, Vec<CertificateInfo>), PemError> {
    let certificates: Vec<CertificateDer<'static>> =
        CertificateDer::pem_slice_iter(content).collect::<Result<_, _>>().map_err(|error| damaged(&error))?;
    if certificates.is_empty() {
        return Err(PemError::NoCertificate);
    }
    let facts = |(index, der): (usize, &CertificateDer<'_>)| {
        CertificateInfo::from_der(der).map_err(|_| PemError::DamagedCertificate(index.saturating_add(1)))
    };
    let facts = certificates.iter().enumerate().map(facts).collect::<Result<_, _>>()?;
    Ok((certificates, facts))
}

/// Describes the error without the content, which may be part of a key.
fn damaged(error: &rustls::pki_types::pem::Error) -> PemError {
    use rustls::pki_types::pem::Error;
    PemError::DamagedEncoding(
        match error {
            Error::MissingSectionEnd { .. } => "the end line is missing",
            Error::IllegalSectionStart { .. } => "invalid first line",
            Error::Base64Decode(_) => "not base64",
            _ => "invalid encoding",
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
    fn certificate_chain_is_read_in_order() {
        let ((one, _), (two, key)) = (pair(), pair());
        let chain = CertificateChain::from_pem(format!("{one}{key}{two}").as_bytes()).unwrap();
        assert_eq!(chain.certificates.len(), 2);
        assert_eq!(chain.info, CertificateInfo::from_der(&chain.certificates[0]).unwrap());
        assert_eq!(CertificateChain::from_pem(key.as_bytes()), Err(PemError::NoCertificate));
        assert_eq!(CertificateChain::from_pem(b""), Err(PemError::NoCertificate));
        let cut = &one[..one.len() / 2];
        assert!(matches!(CertificateChain::from_pem(cut.as_bytes()), Err(PemError::DamagedEncoding(_))));
        let other = key.replace("PRIVATE KEY", "CERTIFICATE");
        assert_eq!(CertificateChain::from_pem(other.as_bytes()), Err(PemError::DamagedCertificate(1)));
    }

    #[test]
    fn unusable_private_keys_are_classified() {
        let (certificate, key) = pair();
        assert!(PrivateKey::from_pem(key.as_bytes()).is_ok());
        let ed25519 = KeyPair::generate_for(&PKCS_ED25519).unwrap().serialize_pem();
        assert!(PrivateKey::from_pem(ed25519.as_bytes()).is_ok());
        let unusable = |content: &str| PrivateKey::from_pem(content.as_bytes()).unwrap_err();
        assert_eq!(unusable(&certificate), PemError::NoKey);
        let encrypted = key.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY");
        assert_eq!(unusable(&encrypted), PemError::EncryptedKey);
        let old = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n\nAAAA\n-----END RSA PRIVATE KEY-----\n";
        assert_eq!(unusable(old), PemError::EncryptedKey);
        let nonsense = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        assert_eq!(unusable(nonsense), PemError::UnsupportedKey);
    }

    #[test]
    fn authorities_are_compared_by_their_certificates() {
        let ((one, _), (two, _)) = (pair(), pair());
        let read = |text: &str| Authorities::from_pem(text.as_bytes()).unwrap();
        assert_eq!(read(&one), read(&format!("# a comment\n{one}")));
        assert_ne!(read(&one), read(&two));
        assert_eq!(read(&format!("{one}{two}")).info.len(), 2);
    }
}
