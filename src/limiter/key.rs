//! Which counter a request falls on, as 128 bits.
//!
//! Keys are stored as fingerprints under a secret key (SipHash-1-3, Aumasson and Bernstein 2012): a table entry
//! has one size whatever clients send, and nobody without the secret can make two keys meet or pile them onto
//! one place of the table. All but the shortest have a hash of 128 bits.

use std::hash::Hasher;

use siphasher::{sip, sip128};

/// The secret under which keys are hashed; drawn per process, or kept with the saved state.
#[derive(Clone, Copy)]
pub struct KeyHasher {
    secret: [u64; 2],
}

impl KeyHasher {
    /// A hasher under `secret`, which must come from a source of randomness.
    pub const fn new(secret: [u64; 2]) -> Self {
        Self { secret }
    }

    /// The secret.
    pub const fn secret(&self) -> [u64; 2] {
        self.secret
    }

    /// The hash of an injective encoding of a key.
    #[inline]
    pub fn hash(&self, encoded: &[u8]) -> KeyHash {
        let hash = sip128::SipHasher13::new_with_keys(self.secret[0], self.secret[1]).hash(encoded);
        KeyHash([hash.h1, hash.h2])
    }

    /// The hash of a key that is these 32 bits and no more, as IPv4 addresses are: 64 bits say where it belongs, and
    /// it is told apart by itself. No two such keys have the same.
    #[inline]
    pub fn hash_u32(&self, key: u32) -> KeyHash {
        let mut hasher = sip::SipHasher13::new_with_keys(self.secret[0], self.secret[1]);
        hasher.write_u32(key);
        KeyHash([hasher.finish(), key.into()])
    }

    /// A name for whom `key` stands in `scope` that says nothing about it, for clients to see. Not the hash itself: that
    /// may hold the key, and would say which keys fall together in the table.
    pub fn alias(&self, key: KeyHash, scope: &str) -> [u8; 8] {
        let mut hasher = sip::SipHasher13::new_with_keys(self.secret[1], !self.secret[0]);
        key.0.into_iter().for_each(|word| hasher.write_u64(word));
        hasher.write(scope.as_bytes());
        hasher.finish().to_le_bytes()
    }
}

impl std::fmt::Debug for KeyHasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyHasher(secret)")
    }
}

/// The hashed key of a request, before it is told apart by limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyHash([u64; 2]);

impl KeyHash {
    /// What takes a fingerprint under either of two salts to that under the other.
    pub(super) const fn and_other(self, other: Self) -> Self {
        Self([self.0[0] ^ other.0[0], self.0[1] ^ other.0[1]])
    }

    /// A salt that changes nothing.
    pub(super) const NONE: Self = Self([0; 2]);

    /// The fingerprint of this key under the limit that `salt` stands for.
    pub(super) const fn salted(self, salt: Self) -> Fingerprint {
        // A word of zero marks a free slot. The other 127 bits tell keys apart well enough.
        Fingerprint([(self.0[0] ^ salt.0[0]) | 1 << 63, self.0[1] ^ salt.0[1]])
    }
}

/// The identity of one counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Fingerprint([u64; 2]);

impl Fingerprint {
    pub(super) const fn words(self) -> [u64; 2] {
        self.0
    }

    /// The same key under the other of two salts.
    pub(super) const fn under(self, salts: KeyHash) -> Self {
        Self([(self.0[0] ^ salts.0[0]) | 1 << 63, self.0[1] ^ salts.0[1]])
    }

    /// The fingerprint of which these are the words; `None` where they are none.
    pub(super) const fn from_words(words: [u64; 2]) -> Option<Self> {
        if words[0] >> 63 == 1 { Some(Self(words)) } else { None }
    }

    /// Spreads counters over `shards`, a power of two.
    pub(super) const fn shard(self, shards: usize) -> usize {
        (self.0[0] as usize) & (shards - 1)
    }
}

#[cfg(test)]
impl Fingerprint {
    /// For tests that care where in a table an entry belongs.
    pub(super) const fn of([first, second]: [u64; 2]) -> Self {
        Self([first | 1 << 63, second])
    }
}
