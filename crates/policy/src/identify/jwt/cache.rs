//! Verification results of tokens seen before.
//!
//! Accepted and rejected tokens have separate caches of fixed size, so a flood of forged tokens evicts no accepted one.
//! Tokens are identified by a keyed 128-bit hash; their text is not stored.

use std::fmt;
use std::sync::Arc;

use quick_cache::sync::Cache as Bounded;
use siphasher::sip128::SipHasher13;

use super::claim::Claims;
use weir_limiter::timestamp::Timestamp;

/// Maximum number of accepted tokens.
const MAX_ACCEPTED: usize = 8192;

/// Maximum number of rejected tokens.
const MAX_REJECTED: usize = 4096;

/// Maximum size of a token's claims, in bytes. Tokens with more are verified on every request. Multiplied by
/// [`MAX_ACCEPTED`], it bounds the memory that clients can make the cache use.
const MAX_CLAIMS_SIZE: usize = 1 << 10;

/// Hash that identifies a token.
pub(super) type TokenHash = u128;

/// Cache entry of an authentic token.
#[derive(Clone, Debug)]
pub(super) struct VerifiedToken {
    /// Start of validity, inclusive.
    pub(super) not_before: Timestamp,
    /// End of validity, exclusive.
    pub(super) expires: Timestamp,
    pub(super) claims: Arc<Claims>,
}

impl VerifiedToken {
    /// Returns the claims, if the token is valid at `now`.
    pub(super) fn at(&self, now: Timestamp) -> Option<Arc<Claims>> {
        (self.not_before <= now && now < self.expires).then(|| Arc::clone(&self.claims))
    }
}

pub(super) struct Cache {
    secret: [u64; 2],
    accepted: Bounded<TokenHash, VerifiedToken>,
    rejected: Bounded<TokenHash, ()>,
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cache(secret)")
    }
}

impl Cache {
    pub(super) fn new(secret: [u64; 2]) -> Self {
        Self { secret, accepted: Bounded::new(MAX_ACCEPTED), rejected: Bounded::new(MAX_REJECTED) }
    }

    pub(super) fn hash_token(&self, token: &[u8]) -> TokenHash {
        SipHasher13::new_with_keys(self.secret[0], self.secret[1]).hash(token).as_u128()
    }

    /// Returns the result for a token: `None` if it is not cached, `Some(None)` if it was rejected.
    pub(super) fn get(&self, token: TokenHash) -> Option<Option<VerifiedToken>> {
        match self.accepted.get(&token) {
            Some(known) => Some(Some(known)),
            None => self.rejected.get(&token).map(|()| None),
        }
    }

    /// Caches that the token is rejected at any time.
    pub(super) fn reject(&self, token: TokenHash) {
        self.rejected.insert(token, ());
    }

    /// Caches an authentic token.
    pub(super) fn accept(&self, token: TokenHash, known: VerifiedToken) {
        if known.claims.size() <= MAX_CLAIMS_SIZE {
            self.accepted.insert(token, known);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value};

    use super::*;
    use crate::identify::jwt::claim::ClaimName;

    const NOW: Timestamp = Timestamp::from_secs(1000);

    fn verified_token(expires: Timestamp, sub: &str) -> VerifiedToken {
        let payload: Map<String, Value> = [("sub".to_owned(), sub.into())].into_iter().collect();
        let claims = Arc::new(Claims::from_payload(&payload, &[ClaimName::new("sub").unwrap()]));
        VerifiedToken { not_before: Timestamp::EPOCH, expires, claims }
    }

    fn tokens(cache: &Cache, name: &str, count: usize) -> Vec<TokenHash> {
        (0..count).map(|n| cache.hash_token(format!("{name}-{n}").as_bytes())).collect()
    }

    fn cached_count(cache: &Cache, tokens: &[TokenHash]) -> usize {
        tokens.iter().filter(|token| cache.get(**token).is_some()).count()
    }

    #[test]
    fn rejected_tokens_never_evict_accepted_ones() {
        let cache = Cache::new([1, 2]);
        let good = tokens(&cache, "good", 1000);
        good.iter().for_each(|token| cache.accept(*token, verified_token(Timestamp::END, "ada")));
        let forged = tokens(&cache, "forged", 100_000);
        forged.iter().for_each(|token| cache.reject(*token));
        assert!(good.iter().all(|token| matches!(cache.get(*token), Some(Some(_)))));
        let rejected = cached_count(&cache, &forged);
        assert!((3000..=MAX_REJECTED).contains(&rejected), "{rejected}");
    }

    #[test]
    fn token_cache_is_bounded() {
        let cache = Cache::new([1, 2]);
        let many = tokens(&cache, "good", 100_000);
        many.iter().for_each(|token| cache.accept(*token, verified_token(Timestamp::END, "ada")));
        let cached = cached_count(&cache, &many);
        assert!((MAX_ACCEPTED / 2..=MAX_ACCEPTED).contains(&cached), "{cached}");
        let long = cache.hash_token(b"long");
        cache.accept(long, verified_token(Timestamp::END, &"x".repeat(MAX_CLAIMS_SIZE + 1)));
        assert!(cache.get(long).is_none());
    }

    #[test]
    fn token_cache_evicts_unused_tokens_first() {
        let cache = Cache::new([1, 2]);
        let stale = tokens(&cache, "stale", MAX_ACCEPTED);
        stale.iter().for_each(|token| cache.accept(*token, verified_token(NOW, "eve")));
        let fresh = tokens(&cache, "fresh", 500);
        for _ in 0..3 {
            let missing = fresh.iter().filter(|token| cache.get(**token).is_none());
            missing.for_each(|token| cache.accept(*token, verified_token(Timestamp::END, "ada")));
        }
        assert_eq!(cached_count(&cache, &fresh), fresh.len());
    }

    #[test]
    fn token_hash_depends_on_the_secret() {
        let hash = |secret| Cache::new(secret).hash_token(b"token");
        assert_eq!(hash([1, 2]), hash([1, 2]));
        assert_ne!(hash([1, 2]), hash([1, 3]));
    }
}
