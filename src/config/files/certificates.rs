//! Certificates and private keys of TLS.

use super::{Flaw, Kind};
use crate::config::problem::Fault;
use crate::tls::pem::{Authorities, Chain, Key, Unusable};

/// A bundle of every authority there is takes a quarter of it.
const LARGEST: u64 = 1 << 20;

/// A certificate and those that lead from it to an authority.
pub(in crate::config) const CHAIN: Kind<Chain> = Kind {
    name: "certificate",
    largest: LARGEST,
    parse: |content| Chain::from_pem(&content).map_err(|unusable| flaws(&unusable)),
};

/// A private key.
pub(in crate::config) const KEY: Kind<Key> = Kind {
    name: "private key",
    largest: LARGEST,
    parse: |content| Key::from_pem(&content).map_err(|unusable| flaws(&unusable)),
};

/// Those who issue certificates.
pub(in crate::config) const AUTHORITIES: Kind<Authorities> = Kind {
    name: "authorities",
    largest: LARGEST,
    parse: |content| Authorities::from_pem(&content).map_err(|unusable| flaws(&unusable)),
};

fn flaws(unusable: &Unusable) -> Vec<Flaw> {
    let fault = Fault::new(unusable.to_string());
    vec![Flaw::whole(match unusable {
        Unusable::EncryptedKey => {
            fault.hint("`openssl pkey -in FILE -out PLAIN` writes it without a password")
        }
        Unusable::NoKey | Unusable::NoCertificate => fault.hint("PEM begins with `-----BEGIN`"),
        _ => fault,
    })]
}
