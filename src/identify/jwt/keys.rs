//! Keys that tokens are verified with.
//!
//! A key knows for which algorithms it is: a public key never serves as the secret of an HMAC, whatever the header
//! of a token says (RFC 8725 section 3.1).

mod jwk;

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk};
use jsonwebtoken::{Algorithm, DecodingKey};

use super::compact::Header;
use crate::limiter::timestamp::Timestamp;

/// A token is tried with so many keys at most, where it or they have no names: each costs a verification.
pub const MOST_TRIES: usize = 4;

/// The sizes of an RSA modulus for which there are signatures to verify, in bits.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=8192;

const RSA: &[Algorithm] = &[
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
];
const HMAC: &[Algorithm] = &[Algorithm::HS256, Algorithm::HS384, Algorithm::HS512];

/// A key and what it is for.
#[derive(Clone, Debug)]
pub struct Key {
    /// Tokens name it by this; one without is tried for every token.
    id: Option<Box<str>>,
    algorithms: Box<[Algorithm]>,
    material: DecodingKey,
    expires: Option<Timestamp>,
}

/// The material is secret or comes from a file, and is compared there.
impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        (&self.id, &self.algorithms, self.expires) == (&other.id, &other.algorithms, other.expires)
    }
}

/// Why something is no key to verify with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// It is meant to be one, but is not.
    #[error("{0}")]
    Damaged(&'static str),
    /// It is for something else, or of a kind that is not known here.
    #[error("{0}")]
    Unsupported(String),
}

impl Key {
    /// A secret shared with the issuer; not empty.
    pub fn from_secret(secret: &[u8]) -> Self {
        Self::new(DecodingKey::from_secret(secret), HMAC)
    }

    /// A public key as OpenSSL writes it: `BEGIN PUBLIC KEY` or `BEGIN RSA PUBLIC KEY`.
    ///
    /// # Errors
    /// [`Unusable`] if it is something else.
    pub fn from_pem(pem: &str) -> Result<Self, Unusable> {
        let mut begins = pem.match_indices("-----BEGIN ").map(|(at, begin)| &pem[at + begin.len()..]);
        let label = begins.next().and_then(|rest| Some(rest.split_once("-----")?.0));
        match label {
            Some("PUBLIC KEY" | "RSA PUBLIC KEY") => {}
            Some("CERTIFICATE") => return Err(Unusable::Damaged("a certificate, expected a public key")),
            Some(label) if label.ends_with("PRIVATE KEY") => {
                return Err(Unusable::Damaged("a private key, expected a public key"));
            }
            _ => return Err(Unusable::Damaged("not a public key in PEM")),
        }
        if begins.next().is_some() {
            return Err(Unusable::Damaged("more than one key"));
        }
        let pem = pem.as_bytes();
        let material = DecodingKey::from_rsa_pem(pem)
            .or_else(|_| DecodingKey::from_ec_pem(pem))
            .or_else(|_| DecodingKey::from_ed_pem(pem))
            .map_err(|_| Unusable::Damaged("not a public key of RSA, P-256, P-384 or Ed25519"))?;
        Self::of_material(material)
    }

    /// One key of a set (RFC 7517): a JSON object.
    ///
    /// # Errors
    /// [`Unusable`] if it is not one to verify signatures with.
    pub fn from_jwk(json: &str) -> Result<Self, Unusable> {
        jwk::read(json)
    }

    /// The same for none but these algorithms; `None` if it is for none of them.
    pub fn only_for(mut self, algorithms: &[Algorithm]) -> Option<Self> {
        let both = self.algorithms.iter().copied().filter(|algorithm| algorithms.contains(algorithm));
        self.algorithms = both.collect();
        (!self.algorithms.is_empty()).then_some(self)
    }

    /// Its name.
    pub fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// The time from which on it does not hold.
    pub const fn expires(&self) -> Option<Timestamp> {
        self.expires
    }

    /// What it verifies.
    pub fn algorithms(&self) -> &[Algorithm] {
        &self.algorithms
    }

    /// Whether it verifies this.
    pub fn is_for(&self, algorithm: Algorithm) -> bool {
        self.algorithms.contains(&algorithm)
    }

    /// Whether it is a secret, with which everybody who can verify can sign.
    pub fn is_secret(&self) -> bool {
        self.algorithms.iter().any(|algorithm| HMAC.contains(algorithm))
    }

    pub(super) const fn material(&self) -> &DecodingKey {
        &self.material
    }

    fn new(material: DecodingKey, algorithms: &[Algorithm]) -> Self {
        Self { id: None, algorithms: algorithms.into(), material, expires: None }
    }

    /// Looks into what came out of a file before anybody relies on it.
    fn of_material(material: DecodingKey) -> Result<Self, Unusable> {
        let damaged = Unusable::Damaged("not a public key of RSA, P-256, P-384 or Ed25519");
        let looked_into = Jwk::from_decoding_key(&material, None).map_err(|_| damaged.clone())?;
        let algorithms = match looked_into.algorithm {
            AlgorithmParameters::RSA(rsa) => {
                let material =
                    DecodingKey::from_rsa_components(&rsa.n, &rsa.e).map_err(|_| damaged.clone())?;
                return Self::rsa(&rsa.n, material);
            }
            AlgorithmParameters::EllipticCurve(curve) => of_curve(&curve.curve),
            AlgorithmParameters::OctetKeyPair(pair) => of_curve(&pair.curve),
            _ => return Err(damaged),
        };
        Ok(Self::new(material, algorithms))
    }

    fn rsa(modulus: &str, material: DecodingKey) -> Result<Self, Unusable> {
        // Six bits in each character; what is left over is less than an octet.
        let bits = modulus.len() * 6 / 8 * 8;
        if !RSA_BITS.contains(&bits) {
            let (least, most) = (RSA_BITS.start(), RSA_BITS.end());
            return Err(Unusable::Unsupported(format!("an RSA key of {bits} bits, not {least} to {most}")));
        }
        Ok(Self::new(material, RSA))
    }
}

const fn of_curve(curve: &EllipticCurve) -> &'static [Algorithm] {
    match curve {
        EllipticCurve::P256 => &[Algorithm::ES256],
        EllipticCurve::P384 => &[Algorithm::ES384],
        EllipticCurve::Ed25519 => &[Algorithm::EdDSA],
        _ => &[],
    }
}

/// All keys of a configuration.
#[derive(Debug, Default, PartialEq)]
pub struct KeySet(Box<[Key]>);

impl FromIterator<Key> for KeySet {
    fn from_iter<I: IntoIterator<Item = Key>>(keys: I) -> Self {
        Self(keys.into_iter().collect())
    }
}

impl KeySet {
    /// The keys by which a token with this header may be signed.
    pub(super) fn candidates<'a>(
        &'a self,
        header: &'a Header,
        now: Timestamp,
    ) -> impl Iterator<Item = &'a Key> + 'a {
        let suits = move |key: &&Key| {
            let is_named = match (&key.id, &header.key) {
                (Some(id), Some(named)) => **id == **named,
                _ => true,
            };
            is_named && key.is_for(header.algorithm) && key.expires.is_none_or(|expires| now < expires)
        };
        self.0.iter().filter(suits).take(MOST_TRIES)
    }
}
