//! A certificate and the key that belongs to it, as either side of a handshake shows them.

use std::sync::Arc;

use rustls::InconsistentKeys;
use rustls::sign::CertifiedKey;

use super::pem::{Chain, Key};

/// A certificate with its key.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The certificate and what leads to an authority.
    pub chain: Arc<Chain>,
    /// The file it was read from, for people.
    pub file: Box<str>,
    pub(super) certified: Arc<CertifiedKey>,
}

/// A key is not that of the certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the key is not that of the certificate")]
pub struct Mismatch;

impl Pair {
    /// Puts both together.
    ///
    /// # Errors
    /// [`Mismatch`] if they do not belong together.
    pub fn new(chain: Arc<Chain>, key: &Key, file: Box<str>) -> Result<Self, Mismatch> {
        let certified = CertifiedKey::new(chain.certificates.clone(), Arc::clone(&key.0));
        match certified.keys_match() {
            Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => {}
            Err(_) => return Err(Mismatch),
        }
        Ok(Self { chain, file, certified: Arc::new(certified) })
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Self) -> bool {
        // The key is the certificate's, whatever bytes it is written in.
        self.chain == other.chain && self.file == other.file
    }
}

impl Eq for Pair {}
