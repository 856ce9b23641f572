//! A certificate with its private key, for either side of a handshake.

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

impl PartialEq for CertificateKeyPair {
    fn eq(&self, other: &Self) -> bool {
        // The key is determined by the certificate, whatever its encoding.
        self.chain == other.chain && self.file == other.file
    }
}

impl Eq for CertificateKeyPair {}
