//! TLS certificates and private keys.

use super::{DataFileError, DataFileKind};
use crate::diagnostic::ValueError;
use weir_net::tls::pem::{Authorities, CertificateChain, PemError, PrivateKey};

/// Maximum size in bytes: four times a bundle of all public authorities.
const MAX_SIZE: u64 = 1 << 20;

pub(crate) const CERTIFICATE_CHAIN: DataFileKind<CertificateChain> = DataFileKind {
    name: "certificate",
    max_size: MAX_SIZE,
    parse: |content| CertificateChain::from_pem(&content).map_err(|unusable| pem_errors(&unusable)),
};

pub(crate) const PRIVATE_KEY: DataFileKind<PrivateKey> = DataFileKind {
    name: "private key",
    max_size: MAX_SIZE,
    parse: |content| PrivateKey::from_pem(&content).map_err(|unusable| pem_errors(&unusable)),
};

pub(crate) const AUTHORITIES: DataFileKind<Authorities> = DataFileKind {
    name: "authorities",
    max_size: MAX_SIZE,
    parse: |content| Authorities::from_pem(&content).map_err(|unusable| pem_errors(&unusable)),
};

fn pem_errors(error: &PemError) -> Vec<DataFileError> {
    let described = ValueError::new(error.to_string());
    vec![DataFileError::for_file(match error {
        PemError::EncryptedKey => described.with_hint("decrypt it with `openssl pkey -in FILE -out PLAIN`"),
        PemError::NoKey | PemError::NoCertificate => described.with_hint("PEM begins with `-----BEGIN`"),
        _ => described,
    })]
}
