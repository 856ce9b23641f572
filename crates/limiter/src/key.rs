//! Hashed keys: 128 bits that identify a counter.
//!
//! Keys are stored as fingerprints under a secret key (SipHash-1-3, Aumasson and Bernstein 2012). A table entry has the
//! same size whatever clients send, and without the secret a client cannot make two keys collide or fill one region of
//! the table. All keys longer than 32 bits have a hash of 128 bits.

use std::fmt;
use std::hash::{Hash, Hasher};

use siphasher::sip128::Hasher128;
use siphasher::{sip, sip128};

/// Number of rounds of the cipher of fingerprints. Four make it a pseudorandom permutation in both directions.
const FEISTEL_ROUNDS: u8 = 4;

/// Bits of a fingerprint that select the shard, however large the table is.
const SHARD_BITS: u64 = 0xffff;
/// Those of them that differ between the limits of one key. More shards for it than one, so that a small table also has
/// room for many limits that all requests share.
const LIMIT_SHARDS: u64 = 0b11;

/// Hashes keys under a secret, which is drawn per process or restored with the saved state.
#[derive(Clone, Copy)]
pub struct KeyHasher {
    secret: [u64; 2],
}

impl KeyHasher {
    /// Returns a hasher under `secret`, which must come from a source of randomness.
    pub const fn new(secret: [u64; 2]) -> Self {
        Self { secret }
    }

    /// Returns the secret.
    pub const fn secret(&self) -> [u64; 2] {
        self.secret
    }

    /// Returns the hash of an injective encoding of a key.
    #[inline]
    pub fn hash(&self, encoded: &[u8]) -> KeyHash {
        let hash = sip128::SipHasher13::new_with_keys(self.secret[0], self.secret[1]).hash(encoded);
        KeyHash([hash.h1, hash.h2])
    }

    /// Returns the hash of a key of any type. Keys that feed the same bytes to a hasher are the same key, so the hash is
    /// only comparable with that of keys of the same type.
    #[inline]
    pub fn hash_of<K: Hash + ?Sized>(&self, key: &K) -> KeyHash {
        let mut hasher = sip128::SipHasher13::new_with_keys(self.secret[0], self.secret[1]);
        key.hash(&mut hasher);
        let hash = hasher.finish128();
        KeyHash([hash.h1, hash.h2])
    }

    /// Returns the hash of a 32-bit key, such as an IPv4 address. 64 bits are a hash, which gives the position in the
    /// table; the others are the key itself, so two such keys never have the same hash.
    #[inline]
    pub fn hash_u32(&self, key: u32) -> KeyHash {
        let mut hasher = sip::SipHasher13::new_with_keys(self.secret[0], self.secret[1]);
        hasher.write_u32(key);
        KeyHash([hasher.finish(), key.into()])
    }

    /// Returns the fingerprint by which operators name `key`: 32 hexadecimal digits, from which
    /// [`Self::key_of_fingerprint`] restores it under the same secret. Unlike the hash, it does not contain the key: it is
    /// the hash encrypted by a Feistel network of four rounds with SipHash (Luby and Rackoff 1988).
    pub fn fingerprint(&self, key: KeyHash) -> String {
        let [left, right] = (0..FEISTEL_ROUNDS)
            .fold(key.0, |[left, right], round| [right, left ^ self.feistel_word(round, right)]);
        format!("{left:016x}{right:016x}")
    }

    /// Returns the key with this fingerprint.
    ///
    /// # Errors
    /// [`InvalidFingerprint`] unless `text` is 32 hexadecimal digits.
    pub fn key_of_fingerprint(&self, text: &str) -> Result<KeyHash, InvalidFingerprint> {
        let is_valid = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let (left, right) = text.split_at_checked(16).filter(|_| is_valid).ok_or(InvalidFingerprint)?;
        let word = |digits| u64::from_str_radix(digits, 16).map_err(|_| InvalidFingerprint);
        let words = (0..FEISTEL_ROUNDS).rev().fold([word(left)?, word(right)?], |[left, right], round| {
            [right ^ self.feistel_word(round, left), left]
        });
        Ok(KeyHash(words))
    }

    fn feistel_word(&self, round: u8, half: u64) -> u64 {
        let mut hasher = sip::SipHasher13::new_with_keys(!self.secret[0], self.secret[1]);
        hasher.write_u8(round);
        hasher.write_u64(half);
        hasher.finish()
    }

    /// Returns a pseudonym of `key` within `scope`, for clients to see. It is not the hash itself, which may contain
    /// the key and would reveal which keys are adjacent in the table.
    pub fn opaque_id(&self, key: KeyHash, scope: &str) -> [u8; 8] {
        let mut hasher = sip::SipHasher13::new_with_keys(self.secret[1], !self.secret[0]);
        key.0.into_iter().for_each(|word| hasher.write_u64(word));
        hasher.write(scope.as_bytes());
        hasher.finish().to_le_bytes()
    }
}

impl fmt::Debug for KeyHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHasher(secret)")
    }
}

/// Hashed key of a request, before the salt of a limit is applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyHash([u64; 2]);

impl Hash for KeyHash {
    /// The first word is a hash already, so the second one would add nothing.
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0[0]);
    }
}

/// Error: not 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not 32 hexadecimal digits")]
pub struct InvalidFingerprint;

impl KeyHash {
    /// Returns the two words of the hash. The first one is uniformly distributed, whatever clients send.
    pub const fn words(self) -> [u64; 2] {
        self.0
    }

    /// Returns the key with these words, as [`Self::words`] returns them.
    pub const fn from_words(words: [u64; 2]) -> Self {
        Self(words)
    }

    /// Returns the difference of two salts, which converts a fingerprint under one to that under the other; see
    /// [`Fingerprint::resalted`].
    pub(super) const fn salt_difference(self, other: Self) -> Self {
        Self([self.0[0] ^ other.0[0], self.0[1] ^ other.0[1]])
    }

    /// Returns this salt, changed so that the counters of one key are in at most four shards, whatever limits they belong
    /// to. A request with many limits then locks few shards, and requests of different keys rarely the same ones. Salts of
    /// shared limits must not be changed, because all instances derive the same ones.
    pub(super) const fn in_few_shards(self) -> Self {
        Self([self.0[0] & !SHARD_BITS | self.0[0] & LIMIT_SHARDS, self.0[1]])
    }

    /// A salt that changes nothing.
    pub(super) const NO_SALT: Self = Self([0; 2]);

    /// Returns the fingerprint of this key under the limit with this salt.
    pub(super) const fn salted(self, salt: Self) -> Fingerprint {
        // A first word of zero marks a free slot. The other 127 bits distinguish keys well enough.
        Fingerprint([(self.0[0] ^ salt.0[0]) | 1 << 63, self.0[1] ^ salt.0[1]])
    }
}

/// Identifies a counter in the queues of requests that wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CounterId(pub(super) [u64; 2]);

/// The identity of one counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Fingerprint([u64; 2]);

impl Fingerprint {
    pub(super) const fn words(self) -> [u64; 2] {
        self.0
    }

    /// Returns the fingerprint of the same key under the other of two salts, given their difference.
    pub(super) const fn resalted(self, salts: KeyHash) -> Self {
        Self([(self.0[0] ^ salts.0[0]) | 1 << 63, self.0[1] ^ salts.0[1]])
    }

    /// Returns the fingerprint with these words; `None` if they are not valid.
    pub(super) const fn from_words(words: [u64; 2]) -> Option<Self> {
        if words[0] >> 63 == 1 { Some(Self(words)) } else { None }
    }

    /// Returns the shard of this counter; `shards` is a power of two.
    pub(super) const fn shard(self, shards: usize) -> usize {
        (self.0[0] as usize) & (shards - 1)
    }
}

#[cfg(test)]
impl Fingerprint {
    /// Returns the fingerprint with these words, for tests that control positions in the table.
    pub(super) const fn with_words([first, second]: [u64; 2]) -> Self {
        Self([first | 1 << 63, second])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprint_restores_the_key_under_the_same_secret() {
        let hasher = KeyHasher::new([1, 2]);
        for key in [hasher.hash(b"acme"), hasher.hash_u32(7), KeyHash([0, u64::MAX])] {
            let fingerprint = hasher.fingerprint(key);
            assert_eq!(hasher.key_of_fingerprint(&fingerprint), Ok(key));
            assert_ne!(KeyHasher::new([1, 3]).key_of_fingerprint(&fingerprint), Ok(key));
        }
        let not_ascii = "é".repeat(16);
        for text in ["", "0", &"0".repeat(31), &"0".repeat(33), &"g".repeat(32), &"+1".repeat(16), &not_ascii]
        {
            assert_eq!(hasher.key_of_fingerprint(text), Err(InvalidFingerprint), "{text}");
        }
    }

    #[test]
    fn fingerprint_of_an_address_does_not_contain_it() {
        let hasher = KeyHasher::new([1, 2]);
        let fingerprints: Vec<_> =
            [0xcb00_7107, 0xcb00_7108].map(|address| hasher.fingerprint(hasher.hash_u32(address))).into();
        assert!(!fingerprints[0].contains("cb007107"), "{fingerprints:?}");
        assert_ne!(fingerprints[0][16..24], fingerprints[1][16..24]);
    }
}
