//! Trace of decisions in the log: one line per decision of a rule, for `-l trace` or the target `weir::decision`.

use std::time::Duration;

use weir_policy::rules::outcome::DecisionOutcome;

/// Target of the lines; `weir::decision=trace` enables them alone.
const TARGET: &str = "weir::decision";

/// One decision of a rule.
#[derive(Clone, Copy, Debug)]
pub struct TracedDecision<'a> {
    /// Method of the request, if known.
    pub method: Option<&'a str>,
    /// Normalised path of the request.
    pub path: &'a str,
    pub rule: &'a str,
    /// Key of the request under the rule, if it has one.
    pub key: Option<&'a str>,
    /// What the rule did.
    pub outcome: DecisionOutcome,
    /// Units that the tightest limit of the rule has left.
    pub remaining: Option<u32>,
    /// Time after which the client may retry.
    pub retry_after: Duration,
}

/// Whether decisions are traced. If not, this is one relaxed load.
#[inline]
pub fn is_enabled() -> bool {
    tracing::enabled!(target: TARGET, tracing::Level::TRACE)
}

/// Writes one line.
pub fn write(decision: &TracedDecision<'_>) {
    let TracedDecision { method, path, rule, key, outcome, remaining, retry_after } = *decision;
    let (outcome, retry_after) = (outcome.as_str(), retry_after.as_secs_f64());
    tracing::trace!(target: TARGET, method, path, rule, key, outcome, remaining, retry_after, "decision");
}
