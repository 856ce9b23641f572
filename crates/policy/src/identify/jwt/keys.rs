//! Keys that verify tokens.
//!
//! Each key is bound to its algorithms: a public key never serves as an HMAC secret, whatever the header of a token
//! contains (RFC 8725, section 3.1).

mod jwk;

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk};
use jsonwebtoken::{Algorithm, DecodingKey};
use x509_cert::der::Decode;
use x509_cert::der::oid::ObjectIdentifier;
use x509_cert::spki::SubjectPublicKeyInfoRef;

use super::compact::TokenHeader;
use weir_limiter::timestamp::Timestamp;

/// Maximum number of keys tried for a token, if the keys or the token have no `kid`. Each try costs a verification.
pub const MAX_KEYS_TRIED: usize = 4;

/// Supported sizes of an RSA modulus, in bits.
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

const UNREADABLE_KEY: KeyError = KeyError::Damaged("not a public key of RSA, P-256, P-384 or Ed25519");

/// Algorithms of public keys: RFC 3279 (sections 2.3.1 and 2.3.5) and RFC 8410.
const RSA_ENCRYPTION: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.1");
const EC_PUBLIC_KEY: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.2.1");
const ED_25519: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.101.112");

/// A key and the algorithms it is for.
#[derive(Clone, Debug)]
pub struct VerificationKey {
    /// The key's `kid`. A key without one is tried for every token.
    id: Option<Box<str>>,
    algorithms: Box<[Algorithm]>,
    material: DecodingKey,
    expires: Option<Timestamp>,
}

/// Leaves out the material, which is secret or comes from a file that is compared itself.
impl PartialEq for VerificationKey {
    fn eq(&self, other: &Self) -> bool {
        (&self.id, &self.algorithms, self.expires) == (&other.id, &other.algorithms, other.expires)
    }
}

/// Why a key cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// It is malformed.
    #[error("{0}")]
    Damaged(&'static str),
    /// It has another purpose or an unsupported type.
    #[error("{0}")]
    Unsupported(String),
}

impl VerificationKey {
    /// Creates a key from a secret shared with the issuer, which must not be empty.
    pub fn from_secret(secret: &[u8]) -> Self {
        Self::new(DecodingKey::from_secret(secret), HMAC)
    }

    /// Reads a public key in PEM: `BEGIN PUBLIC KEY` or `BEGIN RSA PUBLIC KEY`.
    ///
    /// # Errors
    /// [`KeyError`] if it is anything else.
    pub fn from_pem(pem: &str) -> Result<Self, KeyError> {
        let mut begins = pem.match_indices("-----BEGIN ").map(|(at, begin)| &pem[at + begin.len()..]);
        let label = begins.next().and_then(|rest| Some(rest.split_once("-----")?.0));
        match label {
            Some("PUBLIC KEY" | "RSA PUBLIC KEY") => {}
            Some("CERTIFICATE") => return Err(KeyError::Damaged("a certificate, expected a public key")),
            Some(label) if label.ends_with("PRIVATE KEY") => {
                return Err(KeyError::Damaged("a private key, expected a public key"));
            }
            _ => return Err(KeyError::Damaged("not a public key in PEM")),
        }
        if begins.next().is_some() {
            return Err(KeyError::Damaged("more than one key"));
        }
        Self::from_material(read_public_key(pem).ok_or(UNREADABLE_KEY)?)
    }

    /// Reads one key of a JSON Web Key Set (RFC 7517): a JSON object.
    ///
    /// # Errors
    /// [`KeyError`] if it cannot verify signatures.
    pub fn from_jwk(json: &str) -> Result<Self, KeyError> {
        jwk::read(json)
    }

    /// Restricts the key to these algorithms; `None` if it supports none of them.
    pub fn only_for(mut self, algorithms: &[Algorithm]) -> Option<Self> {
        let both = self.algorithms.iter().copied().filter(|algorithm| algorithms.contains(algorithm));
        self.algorithms = both.collect();
        (!self.algorithms.is_empty()).then_some(self)
    }

    /// Returns the key's `kid`.
    pub fn id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// Returns the time at which the key expires.
    pub const fn expires(&self) -> Option<Timestamp> {
        self.expires
    }

    /// Returns the algorithms that the key verifies.
    pub fn algorithms(&self) -> &[Algorithm] {
        &self.algorithms
    }

    /// Whether the key verifies `algorithm`.
    pub fn is_for(&self, algorithm: Algorithm) -> bool {
        self.algorithms.contains(&algorithm)
    }

    /// Whether it is a shared secret, which can sign as well as verify.
    pub fn is_secret(&self) -> bool {
        self.algorithms.iter().any(|algorithm| HMAC.contains(algorithm))
    }

    pub(super) const fn material(&self) -> &DecodingKey {
        &self.material
    }

    fn new(material: DecodingKey, algorithms: &[Algorithm]) -> Self {
        Self { id: None, algorithms: algorithms.into(), material, expires: None }
    }

    /// Derives the algorithms from the material, and checks it.
    fn from_material(material: DecodingKey) -> Result<Self, KeyError> {
        let looked_into = Jwk::from_decoding_key(&material, None).map_err(|_| UNREADABLE_KEY)?;
        let algorithms = match looked_into.algorithm {
            AlgorithmParameters::RSA(rsa) => {
                let material =
                    DecodingKey::from_rsa_components(&rsa.n, &rsa.e).map_err(|_| UNREADABLE_KEY)?;
                return Self::rsa(&rsa.n, material);
            }
            AlgorithmParameters::EllipticCurve(curve) => algorithms_of_curve(&curve.curve),
            AlgorithmParameters::OctetKeyPair(pair) => algorithms_of_curve(&pair.curve),
            _ => return Err(UNREADABLE_KEY),
        };
        Ok(Self::new(material, algorithms))
    }

    fn rsa(modulus: &str, material: DecodingKey) -> Result<Self, KeyError> {
        // Each character encodes six bits; the remainder is less than a byte.
        let bits = modulus.len() * 6 / 8 * 8;
        if !RSA_BITS.contains(&bits) {
            let (least, most) = (RSA_BITS.start(), RSA_BITS.end());
            return Err(KeyError::Unsupported(format!("an RSA key of {bits} bits, not {least} to {most}")));
        }
        Ok(Self::new(material, RSA))
    }
}

/// Reads the key in a PEM block, whose label has been checked.
fn read_public_key(pem: &str) -> Option<DecodingKey> {
    let block = pem::parse(pem).ok()?;
    if block.tag() == "RSA PUBLIC KEY" {
        return Some(DecodingKey::from_rsa_der(block.contents()));
    }
    let key = SubjectPublicKeyInfoRef::from_der(block.contents()).ok()?;
    let bytes = key.subject_public_key.as_bytes()?;
    match key.algorithm.oid {
        RSA_ENCRYPTION => Some(DecodingKey::from_rsa_der(bytes)),
        EC_PUBLIC_KEY => Some(DecodingKey::from_ec_der(bytes)),
        ED_25519 => Some(DecodingKey::from_ed_der(bytes)),
        _ => None,
    }
}

const fn algorithms_of_curve(curve: &EllipticCurve) -> &'static [Algorithm] {
    match curve {
        EllipticCurve::P256 => &[Algorithm::ES256],
        EllipticCurve::P384 => &[Algorithm::ES384],
        EllipticCurve::Ed25519 => &[Algorithm::EdDSA],
        _ => &[],
    }
}

/// All keys of a configuration.
#[derive(Debug, Default, PartialEq)]
pub struct KeySet(Box<[VerificationKey]>);

impl FromIterator<VerificationKey> for KeySet {
    fn from_iter<I: IntoIterator<Item = VerificationKey>>(keys: I) -> Self {
        Self(keys.into_iter().collect())
    }
}

impl KeySet {
    /// Returns the keys that may have signed a token with this header.
    pub(super) fn candidates<'a>(
        &'a self,
        header: &'a TokenHeader,
        now: Timestamp,
    ) -> impl Iterator<Item = &'a VerificationKey> + 'a {
        let suits = move |key: &&VerificationKey| {
            let is_named = match (&key.id, &header.key) {
                (Some(id), Some(named)) => **id == **named,
                _ => true,
            };
            is_named && key.is_for(header.algorithm) && key.expires.is_none_or(|expires| now < expires)
        };
        self.0.iter().filter(suits).take(MAX_KEYS_TRIED)
    }
}
