//! A certificate with its private key, for either side of a handshake.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustls::InconsistentKeys;
use rustls::sign::CertifiedKey;

use super::pem::{CertificateChain, PrivateKey};

/// A certificate with its private key.
#[derive(Clone, Debug)]
pub struct CertificateKeyPair {
    /// Certificate and intermediate certificates.
    pub chain: Arc<CertificateChain>,
    /// File it was read from, for display.
    pub file: Box<str>,
    pub(super) certified: Arc<CertifiedKey>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CertificateValidity {
    /// Its start, in seconds since 1970.
    pub not_before: u64,
    /// Its end, in seconds since 1970.
    pub expires: u64,
}

/// Error: the key does not belong to the certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the key does not match the certificate")]
pub struct KeyMismatch;

impl CertificateKeyPair {
    /// Combines a certificate and its key.
    ///
    /// # Errors
    /// [`KeyMismatch`] if the key does not belong to the certificate.
    pub fn new(chain: Arc<CertificateChain>, key: &PrivateKey, file: Box<str>) -> Result<Self, KeyMismatch> {
        let certified = CertifiedKey::new(chain.certificates.clone(), Arc::clone(&key.0));
        match certified.keys_match() {
            Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => {}
            Err(_) => return Err(KeyMismatch),
        }
        Ok(Self { chain, file, certified: Arc::new(certified) })
    }
}

/// Returns the validity of each certificate file; of several certificates in one file, that of the first to expire.
pub fn validity_by_file<'a>(
    pairs: impl Iterator<Item = &'a CertificateKeyPair>,
) -> BTreeMap<Box<str>, CertificateValidity> {
    let mut files: BTreeMap<Box<str>, CertificateValidity> = BTreeMap::new();
    for pair in pairs {
        let info = &pair.chain.info;
        let validity = CertificateValidity { not_before: info.valid_from, expires: info.expires };
        let first = files.entry(pair.file.clone()).or_insert(validity);
        if validity.expires < first.expires {
            *first = validity;
        }
    }
    files
}

impl PartialEq for CertificateKeyPair {
    fn eq(&self, other: &Self) -> bool {
        // The key is determined by the certificate, whatever its encoding.
        self.chain == other.chain && self.file == other.file
    }
}

impl Eq for CertificateKeyPair {}
