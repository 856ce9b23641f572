//! For which keys a rule is in force: a fixed share of them.
//!
//! The selection is a hash of the key's bytes under a seed that the configuration has, and of nothing else. So every
//! instance selects the same keys, before and after a restart. The limiter's secret has no part in it. It follows that
//! the selection can be computed by anyone who knows the seed.

use std::fmt;
use std::hash::Hasher as _;

use siphasher::sip::SipHasher24;

use crate::limiter::percent::Percent;

/// The seed of rules that name none. One for all rules, so that rules with the same key select the same clients.
pub const DEFAULT_SEED: &str = "weir";

/// The share of keys for which a rule is in force. For the others it is in shadow mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enforce {
    share: Percent,
    seed: Box<str>,
    /// The key of the hash: made of the seed once.
    key: [u64; 2],
}

impl Enforce {
    /// `share` of the keys, as `seed` selects them. A larger share with the same seed includes every smaller one.
    pub fn new(share: Percent, seed: &str) -> Self {
        Self { share, seed: seed.into(), key: [0, 1].map(|half| hash([half, 0], seed.as_bytes())) }
    }

    /// The share.
    pub const fn share(&self) -> Percent {
        self.share
    }

    /// The seed, where it is not the default.
    pub fn own_seed(&self) -> Option<&str> {
        (*self.seed != *DEFAULT_SEED).then_some(&self.seed)
    }

    /// Whether the rule is in force for every key.
    pub fn is_for_all(&self) -> bool {
        self.share == Percent::WHOLE
    }

    /// Whether the rule is in force for the key with this encoding.
    pub fn includes(&self, encoded: &[u8]) -> bool {
        self.is_for_all() || self.share.includes(hash(self.key, encoded))
    }
}

impl Default for Enforce {
    /// All keys.
    fn default() -> Self {
        Self::new(Percent::WHOLE, DEFAULT_SEED)
    }
}

impl fmt::Display for Enforce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.own_seed() {
            None => self.share.fmt(f),
            Some(seed) => write!(f, "{}, seed {seed}", self.share),
        }
    }
}

/// SipHash-2-4 (Aumasson and Bernstein 2012): defined to the bit, so that versions and machines agree.
fn hash([k0, k1]: [u64; 2], bytes: &[u8]) -> u64 {
    let mut hasher = SipHasher24::new_with_keys(k0, k1);
    hasher.write(bytes);
    hasher.finish()
}

#[cfg(test)]
mod tests;
