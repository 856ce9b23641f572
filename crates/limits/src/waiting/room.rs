//! When a limit without room is expected to have some.

use std::time::Duration;

use weir_limiter::algorithm::Outcome;
use weir_limiter::check_options::{CheckOptions, CounterRole};
use weir_limiter::decision::Verdict;
use weir_limiter::quota::Quota;

/// Time after which a request tries again to get units from the store, if the store has not reported when there are any.
const STORE_RETRY_INTERVAL: Duration = Duration::from_millis(10);
/// Minimum time after which it tries again otherwise.
const MIN_STORE_RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// When a limit is expected to have room.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    /// Time after which the request is to be decided again.
    pub(super) retry: Duration,
    /// Time for which it is then charged ahead.
    pub(super) ahead: Duration,
}

impl Room {
    /// Returns when the limit that rejects with this verdict may have room; `None` if that is not known.
    pub(super) fn of(verdict: &Verdict, options: Option<CheckOptions>) -> Option<Self> {
        let is_leased = verdict.quota().is_some_and(Quota::is_leased);
        let at = |retry| Some(Self { retry, ahead: Duration::ZERO });
        match (verdict.outcome, options.map(|options| options.role)) {
            (Outcome::Conform, _) => at(Duration::ZERO),
            // The request costs more than the limit ever admits.
            (Outcome::Exceed { retry_after: None }, _) => at(Duration::MAX),
            // The store has not reported a time.
            (Outcome::Exceed { retry_after: Some(wait) }, _) if is_leased && wait.as_nanos() <= 1 => {
                at(STORE_RETRY_INTERVAL)
            }
            (Outcome::Exceed { retry_after: Some(wait) }, _) if is_leased => {
                at(wait.max(MIN_STORE_RETRY_INTERVAL))
            }
            // Only reservations and permits of other requests are in the way.
            (Outcome::Exceed { retry_after: Some(Duration::ZERO) }, _) => None,
            (Outcome::Exceed { retry_after: Some(retry) }, Some(CounterRole::Delay(policy))) => {
                Some(Self { retry, ahead: policy.max_delay() })
            }
            (Outcome::Exceed { retry_after: Some(wait) }, _) => at(wait),
        }
    }
}
