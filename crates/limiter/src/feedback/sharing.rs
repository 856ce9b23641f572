//! What instances that share a limit exchange about the provider, through the store.
//!
//! A decrease begins an epoch, which has the time of the decrease on the store's clock. The later epoch applies with the
//! smaller share. Within an epoch the greater share applies: all instances raise it from the same value at the same
//! pace, so that together they do not raise it faster than one would. Of two pauses the later end applies.
//!
//! A rule may have more keys than one call has room for. Then decreases and pauses that the store does not know go
//! first, and the other keys take turns.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::super::Limiter;
use super::super::key::KeyHash;
use super::super::timestamp::Timestamp;
use super::LimitShare;
use super::states::{KeyFeedback, RuleFeedback};

/// Time until other instances apply a change: one interval until it is published, and one until it is queried.
pub(super) const EXCHANGE_TIME: Duration = Duration::from_secs(2);
/// Maximum number of keys of a rule that an instance publishes at once.
const MAX_PUBLISHED: usize = 256;
/// Maximum number of them that the store does not know, so that the others are published, too.
const MAX_NEWS: usize = MAX_PUBLISHED / 4 * 3;
/// Difference from which the end of a pause is another one. The clocks of instances and rounding account for less.
const PAUSE_PRECISION: Duration = Duration::from_secs(1);

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

/// When a key is published: the smallest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PublishingTurn {
    /// Whether the store has the last decrease and the pause.
    is_known: bool,
    published_at: Timestamp,
}

impl RuleFeedback {
    /// Returns what other instances should know, of some keys if there are many.
    pub fn publish(&self, now: Timestamp) -> Vec<SharedKeyState> {
        let keys = self.keys.read();
        let active = keys.iter().filter(|(_, entry)| !entry.is_recovered(now));
        let mut queue: Vec<_> = active.map(|(key, entry)| (entry.turn(), *key, entry)).collect();
        if queue.len() > MAX_PUBLISHED {
            queue.sort_unstable_by_key(|(turn, key, _)| (*turn, key.words()));
            let news = queue.iter().take_while(|(turn, ..)| !turn.is_known).count();
            if let Some(waiting) = queue.get_mut(MAX_NEWS.min(news)..) {
                waiting.sort_unstable_by_key(|(turn, key, _)| (turn.published_at, key.words()));
            }
            queue.truncate(MAX_PUBLISHED);
        }
        queue.into_iter().map(|(_, key, entry)| entry.publish(key, now)).collect()
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
    fn turn(&self) -> PublishingTurn {
        let state = self.state.lock();
        let is_decrease_known = state.epoch > 0 || state.controller.decreased_at() == Timestamp::EPOCH;
        let is_pause_known = state.paused_until.since(state.shared_pause) <= PAUSE_PRECISION;
        PublishingTurn { is_known: is_decrease_known && is_pause_known, published_at: state.published_at }
    }

    pub(super) fn publish(&self, key: KeyHash, now: Timestamp) -> SharedKeyState {
        let mut state = self.state.lock();
        state.published_at = now;
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
        let decreased_at = state.controller.decreased_at();
        let was_published = state.published_at == sent_at && decreased_at <= sent_at;
        state.shared_pause = state.shared_pause.max(now.saturating_add(shared.paused_for));
        if state.epoch == 0 && decreased_at > Timestamp::EPOCH && !was_published {
            state.controller.lower_to(shared.share, now);
        } else if shared.epoch > state.epoch {
            let decreased_at = now.saturating_sub(shared.decreased_ago.unwrap_or_default());
            state.controller.follow(shared.share, shared.ceiling, decreased_at, now);
            state.epoch = shared.epoch;
            self.used_at.fetch_max(now.as_nanos(), Ordering::Relaxed);
        } else if shared.epoch == state.epoch {
            state.controller.raise_to(shared.share, shared.ceiling, now);
        }
        self.share.store(state.controller.share().millionths(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::controller::ControllerSettings;
    use super::*;
    use crate::LimiterSettings;
    use crate::key::KeyHasher;
    use crate::percent::Percent;

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
        let published = feedback.publish(at(2150));
        assert_eq!((published[0].epoch, published[0].decreased_ago), (0, Some(Duration::from_millis(100))));
    }

    fn numbered_key(number: usize) -> KeyHash {
        KeyHasher::new([1, 2]).hash(&number.to_le_bytes())
    }

    /// Returns what the store returns for a key that it did not know before.
    fn reply(published: SharedKeyState, epoch: u64) -> SharedKeyState {
        SharedKeyState { epoch: if published.epoch == 0 { epoch } else { published.epoch }, ..published }
    }

    #[test]
    fn all_keys_are_published_in_turn_and_new_rejections_first() {
        let (feedback, limiter) = (RuleFeedback::default(), limiter());
        for number in 0..1000 {
            feedback.record_rejection(numbered_key(number), at(1), Duration::ZERO, at(1), &settings());
        }
        for round in 1..20 {
            let mut published = HashSet::new();
            for call in 0..6 {
                let sent_at = at(round * 10_000 + call * 1000);
                let fresh = numbered_key(2000 + usize::try_from(round * 10 + call).unwrap());
                feedback.record_rejection(fresh, sent_at, Duration::ZERO, sent_at, &settings());
                let states = feedback.publish(sent_at);
                assert!(states.len() <= MAX_PUBLISHED);
                assert!(states.iter().any(|state| state.key == fresh), "round {round}, call {call}");
                for state in states {
                    published.insert(state.key);
                    feedback.adopt(&reply(state, round), sent_at, sent_at, &limiter);
                }
            }
            let left = (0..1000).filter(|number| !published.contains(&numbered_key(*number))).count();
            assert_eq!(left, 0, "round {round}");
        }
    }

    #[test]
    fn keys_that_the_store_does_not_accept_leave_room_for_others() {
        let (feedback, limiter) = (RuleFeedback::default(), limiter());
        for number in 0..1000 {
            feedback.record_rejection(numbered_key(number), at(1), Duration::ZERO, at(1), &settings());
        }
        let known = |number: usize| number < 200;
        for number in (0..1000).filter(|number| known(*number)) {
            let state = SharedKeyState { key: numbered_key(number), ..from_store(700_000, 5) };
            feedback.find_or_insert(state.key, at(2)).publish(state.key, at(2));
            feedback.adopt(&state, at(2), at(3), &limiter);
        }
        let mut published = HashSet::new();
        for call in 0..20 {
            published.extend(feedback.publish(at(1000 + call)).iter().map(|state| state.key));
        }
        assert!((0..1000).all(|number| published.contains(&numbered_key(number))));
    }

    #[test]
    fn decrease_that_was_not_published_is_not_replaced() {
        let (feedback, limiter) = (RuleFeedback::default(), limiter());
        feedback.record_rejection(key(), at(0), Duration::ZERO, at(0), &settings());
        let lowered = feedback.share(key());
        // The reply to a call that did not contain the key.
        feedback.adopt(&from_store(900_000, 5), at(100), at(110), &limiter);
        assert_eq!(feedback.share(key()), lowered);
        let [published] = feedback.publish(at(200))[..] else { panic!() };
        assert_eq!(published.epoch, 0);
        feedback.adopt(&from_store(900_000, 6), at(200), at(210), &limiter);
        assert_eq!(feedback.share(key()).millionths(), 900_000, "the store has merged both");
    }

    #[test]
    fn recovered_keys_of_the_store_take_no_room() {
        let feedback = RuleFeedback::default();
        feedback.adopt(&from_store(1_000_000, 5), at(0), at(10), &limiter());
        assert!(feedback.publish(at(20)).is_empty() && feedback.status(at(20)).keys == 0);
    }
}
