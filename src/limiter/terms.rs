//! What a check asks beyond "is there room?": for the rules that delay, mark, ban, or charge what they refuse.
//!
//! A plain check has no terms, and one look tells.

use std::fmt;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

/// The particulars of one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Which checks of a request belong together: those of one rule. They stand side by side.
    pub group: u32,
    /// What the counter is for.
    pub role: Role,
    /// What becomes of the counter when the request is refused.
    pub on_denied: OnDenied,
}

/// What a counter is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Has room for the request or has not.
    Limit,
    /// May ask the request to wait: an enforced limit until it has room, a marking one for a fixed time.
    Delay(Slack),
    /// Remembers that the limits of its group have refused, and refuses for them.
    Ban,
}

/// Requests of a key that wait at once, unless a rule says how many.
const MOST_WAITING: u32 = 10_000;

/// Whether a refused request is charged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnDenied {
    /// To nobody.
    #[default]
    Free,
    /// To this rule all the same.
    Charge,
}

/// How long requests may be held back, and how many at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slack {
    /// Milliseconds: a check stays small that way.
    most: u32,
    queue: u32,
}

impl Slack {
    /// At most `most`, in whole milliseconds up to 49 days, and at most `queue` requests of a key at once.
    pub fn new(most: Duration, queue: Option<u32>) -> Self {
        Self { most: u32::try_from(most.as_millis()).unwrap_or(u32::MAX), queue: queue.unwrap_or(u32::MAX) }
    }

    /// The longest wait.
    pub const fn most(self) -> Duration {
        Duration::from_millis(self.most as u64)
    }

    /// The most requests of a key that wait at once; `None` where only [`Self::most`] bounds them.
    pub const fn queue(self) -> Option<u32> {
        if self.queue == u32::MAX { None } else { Some(self.queue) }
    }

    /// The most units that may be owed by requests that wait, where each of them costs as much as one of `cost`.
    pub(super) const fn most_owed(self, cost: u32) -> u64 {
        let queue = if self.queue == u32::MAX { MOST_WAITING } else { self.queue };
        queue as u64 * cost as u64
    }
}

impl fmt::Display for Slack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.most())?;
        match self.queue() {
            Some(queue) => write!(f, ", queue {queue}"),
            None => Ok(()),
        }
    }
}
