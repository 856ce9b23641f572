//! States of a request that is held before its limits decide, and what it waits for.

use std::time::Duration;

use super::waiting::turn::Turn;
use weir_limiter::timestamp::Timestamp;
use weir_limiter::wait_queue::{Evicted, WaitingMemory};
use weir_policy::rules::RuleIndex;

/// State of a held request.
#[derive(Debug)]
pub enum HeldProgress {
    /// It waits.
    Wait(Wait),
    /// It is admitted, after this delay. Nothing is left of the delay if that was part of the wait.
    Admitted(Option<HeldDelay>),
    /// It is not admitted.
    NotAdmitted(NotAdmitted),
}

/// What a held request waits for.
#[derive(Debug)]
pub enum Wait {
    /// Responses of the store.
    Lease,
    /// Its turn in a queue.
    Turn(Turn),
}

/// End of a wait.
#[derive(Clone, Copy, Debug)]
pub struct Woken {
    /// Time of the end.
    pub at: Timestamp,
    /// Whether the request has kept its place in the queue.
    pub place: Result<(), Evicted>,
}

/// Why a held request is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAdmitted {
    /// A rule rejects it, with this `retry-after`.
    Rejected(RuleIndex, Duration),
    /// The configuration does not have one of its limits any more. The request is to be decided again.
    Superseded,
}

/// Time for which an admitted request is still to be delayed, and its memory meanwhile if it was counted before.
#[derive(Debug)]
pub struct HeldDelay {
    /// The time.
    pub time: Duration,
    /// The memory of a request that has waited.
    pub memory: Option<WaitingMemory>,
}
