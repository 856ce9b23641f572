//! The certificate for a client, by the name that it asks for (RFC 6066 section 3) and what it can verify.

use std::sync::Arc;

use rustls::SignatureScheme;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::tls::certificate::Facts;

/// The certificates of a listener, in order of preference.
#[derive(Debug)]
pub(super) struct Choice {
    shown: Vec<Shown>,
}

#[derive(Debug)]
struct Shown {
    /// In lower case; perhaps with `*` for the first label.
    hosts: Vec<Box<str>>,
    certified: Arc<CertifiedKey>,
}

/// How well a certificate fits a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    /// It is for others.
    Not,
    /// Its wildcard covers the name.
    Wildcard,
    /// It has the name.
    Exact,
}

impl Choice {
    pub(super) fn new<'a>(pairs: impl Iterator<Item = (&'a Facts, Arc<CertifiedKey>)>) -> Self {
        let shown = pairs
            .map(|(facts, certified)| Shown { hosts: facts.hosts().map(Box::from).collect(), certified });
        Self { shown: shown.collect() }
    }

    /// The one that fits best among those that the client can verify; of equals the first. A client that can verify
    /// none gets the first all the same, and says itself what it lacks.
    fn of(&self, name: Option<&str>, schemes: &[SignatureScheme]) -> Option<&Arc<CertifiedKey>> {
        let usable = |shown: &&Shown| shown.certified.key.choose_scheme(schemes).is_some();
        let fit = |shown: &Shown| name.map_or(Fit::Not, |name| shown.fit(name));
        // `max_by_key` prefers the last of equals.
        let best = self.shown.iter().rev().filter(usable).max_by_key(|shown| fit(shown));
        best.or_else(|| self.shown.first()).map(|shown| &shown.certified)
    }
}

impl Shown {
    fn fit(&self, name: &str) -> Fit {
        self.hosts.iter().map(|host| fit(host, name)).max().unwrap_or(Fit::Not)
    }
}

/// A wildcard stands for exactly one label (RFC 6125 section 6.4.3).
fn fit(host: &str, name: &str) -> Fit {
    if host.eq_ignore_ascii_case(name) {
        return Fit::Exact;
    }
    match (host.strip_prefix("*."), name.split_once('.')) {
        (Some(parent), Some((label, rest))) if !label.is_empty() && parent.eq_ignore_ascii_case(rest) => {
            Fit::Wildcard
        }
        _ => Fit::Not,
    }
}

impl ResolvesServerCert for Choice {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.of(hello.server_name(), hello.signature_schemes()).cloned()
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ED25519, SignatureAlgorithm};

    use super::*;
    use crate::tls::pair::Pair;
    use crate::tls::pem::{Chain, Key};

    const ANY: [SignatureScheme; 2] = [SignatureScheme::ED25519, SignatureScheme::ECDSA_NISTP256_SHA256];

    fn pair(host: &str, algorithm: &'static SignatureAlgorithm) -> Pair {
        let key = KeyPair::generate_for(algorithm).unwrap();
        let certificate = CertificateParams::new([host.to_owned()]).unwrap().self_signed(&key).unwrap();
        let chain = Chain::from_pem(certificate.pem().as_bytes()).unwrap();
        let key = Key::from_pem(key.serialize_pem().as_bytes()).unwrap();
        Pair::new(Arc::new(chain), &key, host.into()).unwrap()
    }

    /// The place of what is shown.
    fn shown(pairs: &[Pair], name: Option<&str>, schemes: &[SignatureScheme]) -> usize {
        let choice = Choice::new(pairs.iter().map(|pair| (&pair.chain.facts, Arc::clone(&pair.certified))));
        let chosen = choice.of(name, schemes).unwrap();
        pairs.iter().position(|pair| Arc::ptr_eq(&pair.certified, chosen)).unwrap()
    }

    #[test]
    fn the_name_itself_goes_before_a_wildcard_and_the_first_is_for_everybody_else() {
        let pairs = ["first.example", "*.a.example", "b.a.example"].map(|host| pair(host, &PKCS_ED25519));
        let of = |name| shown(&pairs, Some(name), &ANY);
        assert_eq!((of("c.a.example"), of("B.a.example"), of("first.example")), (1, 2, 0));
        for other in ["a.example", "x.b.a.example", ".a.example", "unknown"] {
            assert_eq!(of(other), 0, "{other}");
        }
        assert_eq!(shown(&pairs, None, &ANY), 0);
    }

    #[test]
    fn a_client_gets_what_it_can_verify() {
        let pairs = [pair("a.example", &PKCS_ED25519), pair("a.example", &PKCS_ECDSA_P256_SHA256)];
        assert_eq!(shown(&pairs, Some("a.example"), &ANY), 0);
        assert_eq!(shown(&pairs, Some("a.example"), &ANY[1..]), 1);
        assert_eq!(shown(&pairs, Some("a.example"), &[SignatureScheme::RSA_PSS_SHA256]), 0);
    }
}
