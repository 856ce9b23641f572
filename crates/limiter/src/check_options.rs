//! Additional behaviour of a check, for rules that delay, mark, ban, or charge rejected requests.
//!
//! Most checks have none.

use std::fmt;
use std::time::Duration;

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::Deserialize;

use super::request_limit::RequestLimit;

/// Options of one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckOptions {
    /// Group of the check. The checks of one rule form a group; they are adjacent in the list of checks.
    pub group: u32,
    /// Purpose of the counter.
    pub role: CounterRole,
    /// Whether a rejected request is charged.
    pub on_denied: OnDenied,
    /// What becomes of a request for which the group has no room.
    pub without_room: WithoutRoom,
    /// Limit that the request states for its key; `None` if the limit is that of the installed quota.
    pub request_limit: Option<RequestLimit>,
}

impl CheckOptions {
    /// Returns the options of a check that rejects requests for which it has no room, and charges nothing for them.
    pub const fn new(group: u32, role: CounterRole) -> Self {
        Self {
            group,
            role,
            on_denied: OnDenied::Free,
            without_room: WithoutRoom::Reject,
            request_limit: None,
        }
    }
}

/// What becomes of a request for which a group of checks has no room. It is the same for all checks of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WithoutRoom {
    /// It is rejected.
    #[default]
    Reject,
    /// It passes, marked as one to be sent elsewhere, and is not charged to the group.
    Divert,
    /// As [`Self::Reject`]. But if the group's [`CounterRole::Seen`] has no room, the request passes and is not charged to
    /// the group. The number tells the values of one request apart.
    Distinct(u32),
    /// The next group of a set is tried. It is rejected if none of them has room, and charged to one only.
    TryNext(AlternativePlace),
}

/// Place of a group among those of which a request needs one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AlternativePlace {
    /// The set. Groups that are alternatives of each other have the same.
    pub set: u16,
    /// Groups with a lower rank are tried first.
    pub rank: u8,
}

/// Purpose of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterRole {
    /// Admits or rejects the request.
    Limit,
    /// May delay the request: an enforced limit until it has room, a marking limit for a fixed time.
    Delay(DelayPolicy),
    /// Admits or rejects the request by this limit, which is below that of the quota: an adaptive concurrency limit.
    Adaptive(u32),
    /// Rejects while a ban runs, which begins when a limit of the same group rejects.
    Ban,
    /// Has room for the first request with a value, so that the others are not charged to the group.
    Seen,
}

/// Maximum number of delayed requests per key, unless a rule sets it.
const DEFAULT_MAX_QUEUED: u32 = 10_000;

/// Whether a rejected request is charged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum OnDenied {
    /// It is charged to no rule.
    #[default]
    Free,
    /// It is charged to this rule.
    Charge,
}

/// Maximum delay, and maximum number of delayed requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DelayPolicy {
    /// Milliseconds, in 32 bits to keep a check small.
    max_delay_millis: u32,
    max_queued: u32,
}

impl DelayPolicy {
    /// A delay of at most `max_delay`, in whole milliseconds up to 49 days, for at most `queue` requests of a
    /// key at once.
    pub fn new(max_delay: Duration, queue: Option<u32>) -> Self {
        Self {
            max_delay_millis: u32::try_from(max_delay.as_millis()).unwrap_or(u32::MAX),
            max_queued: queue.unwrap_or(u32::MAX),
        }
    }

    /// Returns the maximum delay.
    pub const fn max_delay(self) -> Duration {
        Duration::from_millis(self.max_delay_millis as u64)
    }

    /// Returns this policy for a request that is already delayed by `by`.
    pub(super) fn reduced_by(self, by: Duration) -> Self {
        let millis = u32::try_from(by.as_millis()).unwrap_or(u32::MAX);
        Self { max_delay_millis: self.max_delay_millis.saturating_sub(millis), ..self }
    }

    /// Returns the maximum number of delayed requests per key; `None` if only [`Self::max_delay`] bounds
    /// them.
    pub const fn max_queued(self) -> Option<u32> {
        if self.max_queued == u32::MAX { None } else { Some(self.max_queued) }
    }

    /// Maximum number of units that delayed requests may owe, if each of them costs `cost` units.
    pub(super) const fn max_debt(self, cost: u32) -> u64 {
        let queue = if self.max_queued == u32::MAX { DEFAULT_MAX_QUEUED } else { self.max_queued };
        queue as u64 * cost as u64
    }
}

impl fmt::Display for DelayPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.max_delay())?;
        match self.max_queued() {
            Some(queue) => write!(f, ", queue {queue}"),
            None => Ok(()),
        }
    }
}
