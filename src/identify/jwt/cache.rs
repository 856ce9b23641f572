//! What is known of tokens that have been seen before.
//!
//! A set-associative table of fixed size, a lock per set: no token can push out more than the few it shares a set
//! with, and refused ones have places of their own, so a flood of forged tokens does not make anybody else's be
//! verified again. Tokens are known by a keyed 128-bit hash; the text of none is kept.

use std::fmt;
use std::num::NonZeroU128;
use std::sync::Arc;

use parking_lot::Mutex;
use siphasher::sip128::SipHasher13;

use super::claim::Claims;
use crate::limiter::timestamp::Timestamp;

/// A power of two.
const SETS: usize = 1024;

/// Accepted tokens of a set.
const ACCEPTED: usize = 8;

/// Refused tokens of a set.
const REFUSED: usize = 4;

/// Claims with longer values are read anew each time: so many bytes for each of 8192 tokens is what clients can
/// make us keep.
const LARGEST: usize = 1 << 10;

/// A token by its hash.
pub(super) type Fingerprint = NonZeroU128;

/// An authentic token.
#[derive(Clone, Debug)]
pub(super) struct Known {
    /// It holds from then on,
    pub(super) not_before: Timestamp,
    /// and no longer at that time.
    pub(super) expires: Timestamp,
    pub(super) claims: Arc<Claims>,
}

impl Known {
    /// What it says at `now`, if it holds.
    pub(super) fn at(&self, now: Timestamp) -> Option<Arc<Claims>> {
        (self.not_before <= now && now < self.expires).then(|| Arc::clone(&self.claims))
    }
}

pub(super) struct Cache {
    secret: [u64; 2],
    sets: Box<[Mutex<Set>]>,
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cache(secret)")
    }
}

#[derive(Default)]
struct Set {
    accepted: [Option<(Fingerprint, Known)>; ACCEPTED],
    refused: [Option<Fingerprint>; REFUSED],
    next_accepted: usize,
    next_refused: usize,
}

impl Cache {
    pub(super) fn new(secret: [u64; 2]) -> Self {
        Self { secret, sets: (0..SETS).map(|_| Mutex::default()).collect() }
    }

    pub(super) fn fingerprint(&self, token: &[u8]) -> Fingerprint {
        let hash = SipHasher13::new_with_keys(self.secret[0], self.secret[1]).hash(token).as_u128();
        NonZeroU128::MIN | hash
    }

    /// What is known of a token: `None` if nothing, `Some(None)` if it was refused.
    pub(super) fn get(&self, token: Fingerprint) -> Option<Option<Known>> {
        let set = self.set(token).lock();
        let mut accepted = set.accepted.iter().flatten();
        match accepted.find(|(known, _)| *known == token) {
            Some((_, known)) => Some(Some(known.clone())),
            None => set.refused.contains(&Some(token)).then_some(None),
        }
    }

    /// The token is refused whenever it comes.
    pub(super) fn refuse(&self, token: Fingerprint) {
        let mut set = self.set(token).lock();
        let place = set.next_refused;
        set.refused[place] = Some(token);
        set.next_refused = (place + 1) % REFUSED;
    }

    /// The token is authentic; it takes the place of one that has expired, or else of the oldest.
    pub(super) fn keep(&self, token: Fingerprint, known: Known, now: Timestamp) {
        if known.claims.size() > LARGEST {
            return;
        }
        let mut set = self.set(token).lock();
        let is_free = |place: &Option<(Fingerprint, Known)>| match place {
            // Another worker may have been quicker.
            Some((other, known)) => *other == token || known.expires <= now,
            None => true,
        };
        let place = match set.accepted.iter().position(is_free) {
            Some(free) => free,
            None => {
                let oldest = set.next_accepted;
                set.next_accepted = (oldest + 1) % ACCEPTED;
                oldest
            }
        };
        set.accepted[place] = Some((token, known));
    }

    fn set(&self, token: Fingerprint) -> &Mutex<Set> {
        // The lowest bit is always set.
        &self.sets[(token.get() >> 1) as usize % SETS]
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value};

    use super::*;
    use crate::identify::jwt::claim::Claim;

    const NOW: Timestamp = Timestamp::from_secs(1000);

    fn known(expires: Timestamp, sub: &str) -> Known {
        let payload: Map<String, Value> = [("sub".to_owned(), sub.into())].into_iter().collect();
        let claims = Arc::new(Claims::of(&payload, &[Claim::new("sub").unwrap()]));
        Known { not_before: Timestamp::EPOCH, expires, claims }
    }

    fn tokens(cache: &Cache, name: &str, count: usize) -> Vec<Fingerprint> {
        (0..count).map(|n| cache.fingerprint(format!("{name}-{n}").as_bytes())).collect()
    }

    fn remembered(cache: &Cache, tokens: &[Fingerprint]) -> usize {
        tokens.iter().filter(|token| cache.get(**token).is_some()).count()
    }

    #[test]
    fn a_flood_of_forged_tokens_pushes_out_no_good_one() {
        let cache = Cache::new([1, 2]);
        let good = tokens(&cache, "good", 1000);
        good.iter().for_each(|token| cache.keep(*token, known(Timestamp::END, "ada"), NOW));
        let forged = tokens(&cache, "forged", 100_000);
        forged.iter().for_each(|token| cache.refuse(*token));
        assert!(good.iter().all(|token| matches!(cache.get(*token), Some(Some(_)))));
        let refused = remembered(&cache, &forged);
        assert!((3000..=SETS * REFUSED).contains(&refused), "{refused}");
    }

    #[test]
    fn no_more_is_kept_than_there_is_room_for() {
        let cache = Cache::new([1, 2]);
        let many = tokens(&cache, "good", 100_000);
        many.iter().for_each(|token| cache.keep(*token, known(Timestamp::END, "ada"), NOW));
        let kept = remembered(&cache, &many);
        assert!((SETS * ACCEPTED / 2..=SETS * ACCEPTED).contains(&kept), "{kept}");
        let long = cache.fingerprint(b"long");
        cache.keep(long, known(Timestamp::END, &"x".repeat(LARGEST + 1)), NOW);
        assert!(cache.get(long).is_none());
    }

    #[test]
    fn what_has_expired_makes_room_first() {
        let cache = Cache::new([1, 2]);
        let stale = tokens(&cache, "stale", SETS * ACCEPTED);
        stale.iter().for_each(|token| cache.keep(*token, known(NOW, "eve"), Timestamp::EPOCH));
        let fresh = tokens(&cache, "fresh", 500);
        fresh.iter().for_each(|token| cache.keep(*token, known(Timestamp::END, "ada"), NOW));
        assert_eq!(remembered(&cache, &fresh), fresh.len());
    }

    #[test]
    fn hashes_depend_on_the_secret() {
        let hash = |secret| Cache::new(secret).fingerprint(b"token");
        assert_eq!(hash([1, 2]), hash([1, 2]));
        assert_ne!(hash([1, 2]), hash([1, 3]));
    }
}
