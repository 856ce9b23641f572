//! What is known about a provider, for a process that replaces this one.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::LimitShare;
use super::sharing::SharedKeyState;
use super::states::RuleFeedback;
use crate::Limiter;
use crate::key::KeyHash;
use crate::timestamp::Timestamp;

/// Share of one key, with times relative to now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LearnedShare {
    key: [u64; 2],
    /// Share in force, in millionths.
    share: u32,
    /// Share at which the provider last rejected, in millionths.
    ceiling: Option<u32>,
    /// Epoch of the last decrease, as [`SharedKeyState`] has it.
    epoch: u64,
    decreased_ago: Option<Duration>,
    paused_for: Duration,
}

impl RuleFeedback {
    /// Returns the shares of all keys whose limits are reduced or paused.
    pub fn learned(&self, now: Timestamp) -> Vec<LearnedShare> {
        let keys = self.keys.read();
        let active = keys.iter().filter(|(_, entry)| !entry.is_recovered(now));
        active.map(|(key, entry)| LearnedShare::from(entry.publish(*key, now))).collect()
    }

    /// Continues with the shares of another process.
    pub fn restore(&self, learned: &[LearnedShare], now: Timestamp, limiter: &Limiter) {
        for known in learned {
            let key = KeyHash::from_words(known.key);
            let share = LimitShare::from_millionths(known.share);
            let ceiling = known.ceiling.map(LimitShare::from_millionths);
            let decreased_at = known.decreased_ago.map_or(Timestamp::EPOCH, |ago| now.saturating_sub(ago));
            self.find_or_insert(key, now).change(now, |state| {
                state.controller.follow(share, ceiling, decreased_at, now);
                state.epoch = known.epoch;
            });
            if !known.paused_for.is_zero() {
                self.pause(key, now.saturating_add(known.paused_for), now, limiter);
            }
        }
    }
}

impl From<SharedKeyState> for LearnedShare {
    fn from(state: SharedKeyState) -> Self {
        Self {
            key: state.key.words(),
            share: state.share.millionths(),
            ceiling: state.ceiling.map(LimitShare::millionths),
            epoch: state.epoch,
            decreased_ago: state.decreased_ago,
            paused_for: state.paused_for,
        }
    }
}
