//! Share of the keys for which a rule is enforced (canary roll-out).
//!
//! The selection is a hash of the key's bytes under a configured seed, and depends on nothing else. Every instance
//! therefore selects the same keys, before and after a restart. It does not use the limiter's secret, so anyone with
//! the seed can compute the selection.

use std::fmt;
use std::hash::Hasher as _;

use siphasher::sip::SipHasher24;

use weir_limiter::percent::Percent;

/// Seed of rules that configure none. It is the same for all rules, so that rules with the same key select the same
/// clients.
pub const DEFAULT_SEED: &str = "weir";

/// The share of keys for which a rule is enforced. For the others it is in shadow mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnforcedShare {
    share: Percent,
    seed: Box<str>,
    /// Key of the hash, derived from the seed.
    key: [u64; 2],
}

impl EnforcedShare {
    /// Selects `share` of the keys under `seed`. A larger share with the same seed includes every smaller one.
    pub fn new(share: Percent, seed: &str) -> Self {
        Self { share, seed: seed.into(), key: [0, 1].map(|half| hash([half, 0], seed.as_bytes())) }
    }

    pub const fn share(&self) -> Percent {
        self.share
    }

    /// Returns the seed, unless it is the default.
    pub fn own_seed(&self) -> Option<&str> {
        (*self.seed != *DEFAULT_SEED).then_some(&self.seed)
    }

    /// Whether the rule is enforced for every key.
    pub fn is_for_all(&self) -> bool {
        self.share == Percent::ONE_HUNDRED
    }

    /// Whether the rule is enforced for the key with this encoding.
    pub fn includes(&self, encoded: &[u8]) -> bool {
        self.is_for_all() || self.share.includes(hash(self.key, encoded))
    }
}

impl Default for EnforcedShare {
    /// All keys.
    fn default() -> Self {
        Self::new(Percent::ONE_HUNDRED, DEFAULT_SEED)
    }
}

impl fmt::Display for EnforcedShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.own_seed() {
            None => self.share.fmt(f),
            Some(seed) => write!(f, "{}, seed {seed}", self.share),
        }
    }
}

/// SipHash-2-4 (Aumasson and Bernstein 2012). It is fully specified, so that versions and machines agree.
fn hash([k0, k1]: [u64; 2], bytes: &[u8]) -> u64 {
    let mut hasher = SipHasher24::new_with_keys(k0, k1);
    hasher.write(bytes);
    hasher.finish()
}

#[cfg(test)]
mod tests;
