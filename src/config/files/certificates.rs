//! TLS certificates and private keys.

use super::{Flaw, Kind};
use crate::config::problem::Fault;
use crate::tls::pem::{Authorities, CertificateChain, PemError, PrivateKey};

/// Maximum size in bytes: four times a bundle of all public authorities.
const LARGEST: u64 = 1 << 20;

/// A certificate chain.
pub(in crate::config) const CHAIN: Kind<CertificateChain> = Kind {
    name: "certificate",
    largest: LARGEST,
    parse: |content| CertificateChain::from_pem(&content).map_err(|unusable| flaws(&unusable)),
};

/// A private key.
pub(in crate::config) const KEY: Kind<PrivateKey> = Kind {
    name: "private key",
    largest: LARGEST,
    parse: |content| PrivateKey::from_pem(&content).map_err(|unusable| flaws(&unusable)),
};

/// Certificate authorities.
pub(in crate::config) const AUTHORITIES: Kind<Authorities> = Kind {
    name: "authorities",
    largest: LARGEST,
    parse: |content| Authorities::from_pem(&content).map_err(|unusable| flaws(&unusable)),
};

fn flaws(unusable: &PemError) -> Vec<Flaw> {
    let fault = Fault::new(unusable.to_string());
    vec![Flaw::whole(match unusable {
        PemError::EncryptedKey => fault.hint("decrypt it with `openssl pkey -in FILE -out PLAIN`"),
        PemError::NoKey | PemError::NoCertificate => fault.hint("PEM begins with `-----BEGIN`"),
        _ => fault,
    })]
}
