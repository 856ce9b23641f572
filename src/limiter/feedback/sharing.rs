//! What instances that share a limit tell each other about the provider, through the store.
//!
//! A decrease begins an epoch, which has the time of the decrease on the store's clock. The later epoch applies with the
//! smaller share. Within an epoch the greater share applies: all instances raise it from the same value at the same
//! pace, so that together they do not raise it faster than one would. Of two pauses the later end applies.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::super::Limiter;
use super::super::key::KeyHash;
use super::super::timestamp::Timestamp;
use super::LimitShare;
use super::states::{KeyFeedback, RuleFeedback};

/// Maximum number of keys of a rule that an instance publishes.
const MAX_PUBLISHED: usize = 256;

/// State of one key, as the store has it or receives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedKeyState {
    /// The key.
    pub key: KeyHash,
    /// Share in force.
    pub share: LimitShare,
    /// Share at which the provider last rejected.
    pub ceiling: Option<LimitShare>,
    /// Epoch that the store has assigned to the last decrease, in its milliseconds; 0 if the store does not know it yet.
    pub epoch: u64,
    /// Time since the last decrease; `None` if there was none.
    pub decreased_ago: Option<Duration>,
    /// Time until a pause ends.
    pub paused_for: Duration,
}

impl RuleFeedback {
    /// Returns what other instances should know.
    pub fn published(&self, now: Timestamp) -> Vec<SharedKeyState> {
        let keys = self.keys.read();
        let active = keys.iter().filter(|(_, entry)| !entry.is_recovered(now));
        active.take(MAX_PUBLISHED).map(|(key, entry)| entry.published(*key, now)).collect()
    }

    /// Applies what the store returned for one key to a query that was sent at `sent_at`.
    pub fn adopt(&self, shared: &SharedKeyState, sent_at: Timestamp, now: Timestamp, limiter: &Limiter) {
        if shared.share.is_full() && shared.paused_for.is_zero() && !self.has_entry(shared.key) {
            return;
        }
        self.find_or_insert(shared.key, now).adopt(shared, sent_at, now);
        if !shared.paused_for.is_zero() {
            self.pause(shared.key, now.saturating_add(shared.paused_for), now, limiter);
        }
    }
}

impl KeyFeedback {
    fn published(&self, key: KeyHash, now: Timestamp) -> SharedKeyState {
        let state = self.state.lock();
        let decreased_at = state.controller.decreased_at();
        SharedKeyState {
            key,
            share: state.controller.share(),
            ceiling: state.controller.ceiling(),
            epoch: state.epoch,
            decreased_ago: (decreased_at > Timestamp::EPOCH).then(|| now.since(decreased_at)),
            paused_for: state.paused_until.since(now),
        }
    }

    fn adopt(&self, shared: &SharedKeyState, sent_at: Timestamp, now: Timestamp) {
        let mut state = self.state.lock();
        let is_unpublished = state.epoch == 0 && state.controller.decreased_at() > sent_at;
        if is_unpublished {
            state.controller.lower_to(shared.share);
        } else if shared.epoch > state.epoch {
            let decreased_at = now.saturating_sub(shared.decreased_ago.unwrap_or_default());
            state.controller.follow(shared.share, shared.ceiling, decreased_at, now);
            state.epoch = shared.epoch;
            self.used_at.fetch_max(now.as_nanos(), Ordering::Relaxed);
        } else if shared.epoch == state.epoch {
            state.controller.raise_to(shared.share, shared.ceiling);
        }
        self.share.store(state.controller.share().millionths(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::controller::ControllerSettings;
    use super::*;
    use crate::limiter::LimiterSettings;
    use crate::limiter::key::KeyHasher;
    use crate::limiter::percent::Percent;

    fn limiter() -> Limiter {
        Limiter::new(LimiterSettings { max_keys: 16, secret: [1, 2] })
    }

    fn key() -> KeyHash {
        KeyHasher::new([1, 2]).hash(b"key")
    }

    fn settings() -> ControllerSettings {
        let percent = |hundredths| Percent::from_hundredths(hundredths);
        ControllerSettings::new(LimitShare::MIN, percent(3000), percent(500), Duration::from_secs(1))
    }

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_secs(1000).saturating_add(Duration::from_millis(millis))
    }

    fn from_store(share: u32, epoch: u64) -> SharedKeyState {
        SharedKeyState {
            key: key(),
            share: LimitShare::from_millionths(share),
            ceiling: Some(LimitShare::FULL),
            epoch,
            decreased_ago: Some(Duration::ZERO),
            paused_for: Duration::ZERO,
        }
    }

    #[test]
    fn decrease_of_another_instance_applies_here() {
        let feedback = RuleFeedback::default();
        feedback.adopt(&from_store(700_000, 5), at(0), at(10), &limiter());
        assert_eq!(feedback.share(key()).millionths(), 700_000);
        assert_eq!(feedback.status(at(20)).share.millionths(), 700_000, "operators see it");
        // A rejection of a request that was sent before the decrease does not lower the share again.
        assert!(!feedback.record_rejection(key(), at(5), Duration::ZERO, at(2000), &settings()));
    }

    #[test]
    fn within_an_epoch_the_greater_share_applies() {
        let feedback = RuleFeedback::default();
        feedback.adopt(&from_store(700_000, 5), at(0), at(10), &limiter());
        feedback.adopt(&from_store(750_000, 5), at(20), at(30), &limiter());
        assert_eq!(feedback.share(key()).millionths(), 750_000);
        feedback.adopt(&from_store(710_000, 5), at(40), at(50), &limiter());
        assert_eq!(feedback.share(key()).millionths(), 750_000, "raised here since");
        feedback.adopt(&from_store(490_000, 6), at(60), at(70), &limiter());
        assert_eq!(feedback.share(key()).millionths(), 490_000);
        feedback.adopt(&from_store(900_000, 5), at(80), at(90), &limiter());
        assert_eq!(feedback.share(key()).millionths(), 490_000, "an earlier epoch is over");
    }

    #[test]
    fn decrease_since_the_query_is_kept_and_published_next() {
        let feedback = RuleFeedback::default();
        feedback.adopt(&from_store(900_000, 5), at(0), at(10), &limiter());
        assert!(feedback.record_rejection(key(), at(2000), Duration::ZERO, at(2050), &settings()));
        let lowered = feedback.share(key());
        feedback.adopt(&from_store(950_000, 6), at(2000), at(2100), &limiter());
        assert_eq!(feedback.share(key()), lowered);
        let published = feedback.published(at(2150));
        assert_eq!((published[0].epoch, published[0].decreased_ago), (0, Some(Duration::from_millis(100))));
    }

    #[test]
    fn recovered_keys_of_the_store_take_no_room() {
        let feedback = RuleFeedback::default();
        feedback.adopt(&from_store(1_000_000, 5), at(0), at(10), &limiter());
        assert!(feedback.published(at(20)).is_empty() && feedback.status(at(20)).keys == 0);
    }
}
