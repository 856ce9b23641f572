//! What adaptive limits have learned, for a process that replaces this one.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{AdaptiveLimits, KeyController, SlotIndex, load};
use crate::adaptive::AdaptiveRange;
use crate::adaptive::controller::{LearnedController, LimitController};

/// What the limit of one key has learned.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LearnedLimit {
    slot: u16,
    /// Tag of the slot's key; zero for the slot that several keys share.
    tag: u64,
    controller: LearnedController,
}

impl AdaptiveLimits {
    /// Returns what all limits have learned.
    pub fn learned(&self) -> Vec<LearnedLimit> {
        let control = self.control.lock();
        let known = control.controllers.iter();
        known
            .map(|(index, known)| LearnedLimit {
                slot: index.0,
                tag: self.tag(*index).map_or(0, load),
                controller: known.controller.learned(),
            })
            .collect()
    }

    /// Continues with what the limits of another process have learned. No request may have been admitted here.
    pub fn restore(&self, learned: &[LearnedLimit], range: AdaptiveRange) {
        let mut control = self.control.lock();
        for LearnedLimit { slot: index, tag, controller } in learned {
            let index = SlotIndex(*index);
            let (Some(slot), own_tag) = (self.slot(index), self.tag(index)) else { continue };
            // The rule has a key now and had none before, or the other way round.
            if own_tag.is_some() != (*tag != 0) {
                continue;
            }
            if let Some(own_tag) = own_tag {
                own_tag.store(*tag, Ordering::Release);
            }
            let controller = LimitController::from_learned(*controller, range, self.tolerance, *tag);
            slot.limit.store(controller.state(range).limit, Ordering::Relaxed);
            control.controllers.insert(index, KeyController { controller, idle: Duration::ZERO });
        }
    }
}
