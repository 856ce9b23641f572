//! Selection of a certificate by the client's SNI (RFC 6066 section 3) and its signature schemes.

use std::sync::Arc;

use rustls::SignatureScheme;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::tls::certificate::CertificateInfo;

/// Certificates of a listener, in order of preference.
#[derive(Debug)]
pub(super) struct CertificateResolver {
    candidates: Vec<Candidate>,
}

#[derive(Debug)]
struct Candidate {
    /// Host names in lower case; the first label may be `*`.
    hosts: Vec<Box<str>>,
    certified: Arc<CertifiedKey>,
}

/// How well a certificate fits a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum NameMatch {
    /// It does not contain the name.
    NoMatch,
    /// A wildcard of it covers the name.
    Wildcard,
    /// It contains the name.
    Exact,
}

impl CertificateResolver {
    pub(super) fn new<'a>(pairs: impl Iterator<Item = (&'a CertificateInfo, Arc<CertifiedKey>)>) -> Self {
        let shown = pairs
            .map(|(facts, certified)| Candidate { hosts: facts.hosts().map(Box::from).collect(), certified });
        Self { candidates: shown.collect() }
    }

    /// Returns the certificate that fits best among those that the client can verify, the first of equals. If the
    /// client can verify none, it gets the first certificate and reports the error itself.
    fn select(&self, name: Option<&str>, schemes: &[SignatureScheme]) -> Option<&Arc<CertifiedKey>> {
        let usable = |shown: &&Candidate| shown.certified.key.choose_scheme(schemes).is_some();
        let fit = |shown: &Candidate| name.map_or(NameMatch::NoMatch, |name| shown.best_match(name));
        // `max_by_key` returns the last of equals.
        let best = self.candidates.iter().rev().filter(usable).max_by_key(|shown| fit(shown));
        best.or_else(|| self.candidates.first()).map(|shown| &shown.certified)
    }
}

impl Candidate {
    fn best_match(&self, name: &str) -> NameMatch {
        self.hosts.iter().map(|host| match_name(host, name)).max().unwrap_or(NameMatch::NoMatch)
    }
}

/// Returns how a certificate's host name fits. A wildcard stands for exactly one label (RFC 6125 section 6.4.3).
fn match_name(host: &str, name: &str) -> NameMatch {
    if host.eq_ignore_ascii_case(name) {
        return NameMatch::Exact;
    }
    match (host.strip_prefix("*."), name.split_once('.')) {
        (Some(parent), Some((label, rest))) if !label.is_empty() && parent.eq_ignore_ascii_case(rest) => {
            NameMatch::Wildcard
        }
        _ => NameMatch::NoMatch,
    }
}

impl ResolvesServerCert for CertificateResolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.select(hello.server_name(), hello.signature_schemes()).cloned()
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ED25519, SignatureAlgorithm};

    use super::*;
    use crate::tls::key_pair::CertificateKeyPair;
    use crate::tls::pem::{CertificateChain, PrivateKey};

    const ANY: [SignatureScheme; 2] = [SignatureScheme::ED25519, SignatureScheme::ECDSA_NISTP256_SHA256];

    fn key_pair(host: &str, algorithm: &'static SignatureAlgorithm) -> CertificateKeyPair {
        let key = KeyPair::generate_for(algorithm).unwrap();
        let certificate = CertificateParams::new([host.to_owned()]).unwrap().self_signed(&key).unwrap();
        let chain = CertificateChain::from_pem(certificate.pem().as_bytes()).unwrap();
        let key = PrivateKey::from_pem(key.serialize_pem().as_bytes()).unwrap();
        CertificateKeyPair::new(Arc::new(chain), &key, host.into()).unwrap()
    }

    fn selected_index(
        pairs: &[CertificateKeyPair],
        name: Option<&str>,
        schemes: &[SignatureScheme],
    ) -> usize {
        let choice = CertificateResolver::new(
            pairs.iter().map(|pair| (&pair.chain.info, Arc::clone(&pair.certified))),
        );
        let chosen = choice.select(name, schemes).unwrap();
        pairs.iter().position(|pair| Arc::ptr_eq(&pair.certified, chosen)).unwrap()
    }

    #[test]
    fn sni_prefers_exact_names_then_wildcards_then_the_first_certificate() {
        let pairs = ["first.example", "*.a.example", "b.a.example"].map(|host| key_pair(host, &PKCS_ED25519));
        let of = |name| selected_index(&pairs, Some(name), &ANY);
        assert_eq!((of("c.a.example"), of("B.a.example"), of("first.example")), (1, 2, 0));
        for other in ["a.example", "x.b.a.example", ".a.example", "unknown"] {
            assert_eq!(of(other), 0, "{other}");
        }
        assert_eq!(selected_index(&pairs, None, &ANY), 0);
    }

    #[test]
    fn certificate_is_selected_by_signature_scheme() {
        let pairs = [key_pair("a.example", &PKCS_ED25519), key_pair("a.example", &PKCS_ECDSA_P256_SHA256)];
        assert_eq!(selected_index(&pairs, Some("a.example"), &ANY), 0);
        assert_eq!(selected_index(&pairs, Some("a.example"), &ANY[1..]), 1);
        assert_eq!(selected_index(&pairs, Some("a.example"), &[SignatureScheme::RSA_PSS_SHA256]), 0);
    }
}
