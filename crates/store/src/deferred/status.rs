//! What operators see of deferred calls.

use std::time::Duration;

/// State of the streams of all rules, as of the last refresh.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeferredStatus {
    /// The rules, by name.
    pub rules: Vec<DeferredRuleStatus>,
}

/// State of the stream of one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeferredRuleStatus {
    pub rule: Box<str>,
    /// Whether the configuration in force has the rule with `respond`. If not, its calls are kept and not sent.
    pub is_configured: bool,
    /// Stored calls, including those that are being sent.
    pub stored: u64,
    /// Calls that instances hold: about to be sent, or in flight.
    pub held: u64,
    /// Calls that wait for a retry.
    pub retrying: u64,
    /// Age of the oldest call; `None` if there is none.
    pub oldest_age: Option<Duration>,
    /// Dead letters.
    pub dead: u64,
    /// The newest of them.
    pub dead_letters: Vec<DeadLetter>,
}

/// A call that is not sent any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// ID of the entry in the dead-letter stream.
    pub entry: Box<str>,
    /// ID of the call, as in the response to its acceptance.
    pub call: Box<str>,
    /// Why it is not sent any more.
    pub reason: Box<str>,
    /// Failed attempts.
    pub attempts: u32,
    /// Last status code, if there was a response.
    pub status: Option<u16>,
}
