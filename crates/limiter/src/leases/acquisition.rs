//! Units for a request whose counters are out of them: from whatever source the caller has, decided again with each.
//!
//! The proxy, the rate limit service and explanations of decisions have different requests and sources, and the same
//! steps. Units that one request has obtained may go to another before it decides again, so it makes several attempts.

use std::time::Duration;

use smallvec::SmallVec;

use crate::decision::Verdict;

/// Maximum attempts of a request to take units; other requests may take them first.
const MAX_ATTEMPTS: usize = 4;

/// Minimum `retry-after` of a limit that rejects because the store is unreachable.
pub const MIN_RETRY_AFTER: Duration = Duration::from_secs(1);

/// Result for one counter that is out of units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseDecision {
    /// Units are available; decide again.
    Available,
    /// The store is being queried, and the request waits.
    Pending,
    /// No units are available before this time has elapsed; zero if that is unknown.
    Rejected(Duration),
    /// The store is unreachable, or has not responded in time, and the configured fallback applies.
    Unavailable,
}

/// A request with counters of shared limits.
pub trait LeasedRequest {
    /// One of its counters.
    type Counter: Copy;

    /// Returns the counters that are out of units and may get some; none if the request is decided.
    fn counters_without_units(&mut self) -> SmallVec<[Self::Counter; 2]>;

    /// Gets units for a counter.
    fn acquire(&mut self, counter: Self::Counter) -> LeaseDecision;

    /// Replaces the limit of a counter by the one for an unreachable store, or rejects if there is none.
    fn use_store_loss_fallback(&mut self, counter: Self::Counter);

    /// Rejects the counters for which there are no units, each for this time. Returns whether the request is decided by
    /// these and earlier rejections.
    fn reject(&mut self, rejected: &[(Self::Counter, Duration)]) -> bool;

    /// Decides again, unless [`Self::counters_without_units`] does.
    fn decide_again(&mut self) {}
}

/// Whether a limit rejects the request for another reason than a lack of units.
pub fn is_rejected_otherwise(verdicts: &[Verdict]) -> bool {
    verdicts.iter().any(|verdict| verdict.rejects() && !verdict.awaits_lease())
}

/// Returns the positions of the checks that reject a request only for a lack of units. A request that another limit
/// rejects needs none.
pub fn checks_without_units(verdicts: &[Verdict]) -> SmallVec<[usize; 2]> {
    if is_rejected_otherwise(verdicts) {
        return SmallVec::new();
    }
    let awaiting = verdicts.iter().enumerate().filter(|(_, verdict)| verdict.awaits_lease());
    awaiting.map(|(position, _)| position).collect()
}

/// Gets units for the counters of `request` that are out of them, and decides again until all have some. Returns whether
/// the request must wait for the store.
pub fn acquire_units<R: LeasedRequest>(request: &mut R) -> bool {
    for _ in 0..MAX_ATTEMPTS {
        let counters = request.counters_without_units();
        if counters.is_empty() {
            return false;
        }
        let mut must_wait = false;
        let mut rejected = SmallVec::<[(R::Counter, Duration); 2]>::new();
        for counter in counters {
            match request.acquire(counter) {
                LeaseDecision::Available => {}
                LeaseDecision::Pending => must_wait = true,
                LeaseDecision::Rejected(wait) => rejected.push((counter, wait)),
                LeaseDecision::Unavailable => request.use_store_loss_fallback(counter),
            }
        }
        if request.reject(&rejected) {
            return false;
        }
        if must_wait {
            return true;
        }
        request.decide_again();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_secs(3);

    /// A request that records what happens to it. Each counter has the results of its attempts.
    #[derive(Debug, Default)]
    struct Recorded {
        results: Vec<Vec<LeaseDecision>>,
        rejected: Vec<(usize, Duration)>,
        fallbacks: Vec<usize>,
        decisions: usize,
        is_decided_by_rejection: bool,
    }

    impl LeasedRequest for Recorded {
        type Counter = usize;

        fn counters_without_units(&mut self) -> SmallVec<[usize; 2]> {
            (0..self.results.len()).filter(|counter| !self.results[*counter].is_empty()).collect()
        }

        fn acquire(&mut self, counter: usize) -> LeaseDecision {
            self.results[counter].remove(0)
        }

        fn use_store_loss_fallback(&mut self, counter: usize) {
            self.fallbacks.push(counter);
        }

        fn reject(&mut self, rejected: &[(usize, Duration)]) -> bool {
            self.rejected.extend(rejected);
            self.is_decided_by_rejection && !self.rejected.is_empty()
        }

        fn decide_again(&mut self) {
            self.decisions += 1;
        }
    }

    fn request(results: &[&[LeaseDecision]]) -> Recorded {
        Recorded { results: results.iter().map(|one| one.to_vec()).collect(), ..Recorded::default() }
    }

    #[test]
    fn request_is_decided_again_after_each_attempt_until_nothing_is_missing() {
        use LeaseDecision::{Available, Unavailable};
        let mut request = request(&[&[Available, Available], &[Unavailable]]);
        assert!(!acquire_units(&mut request));
        assert_eq!((request.decisions, request.fallbacks), (2, vec![1]));
    }

    #[test]
    fn request_whose_units_others_take_makes_four_attempts() {
        let mut request = request(&[&[LeaseDecision::Available; 9]]);
        assert!(!acquire_units(&mut request));
        assert_eq!((request.decisions, request.results[0].len()), (4, 5));
    }

    #[test]
    fn request_waits_once_all_its_counters_have_asked() {
        use LeaseDecision::{Pending, Rejected};
        let mut request = request(&[&[Pending], &[Rejected(WAIT)], &[Pending]]);
        assert!(acquire_units(&mut request));
        assert!(request.results.iter().all(Vec::is_empty));
        assert_eq!((request.decisions, request.rejected), (0, vec![(1, WAIT)]));
    }

    #[test]
    fn request_that_a_rejection_decides_waits_for_nothing() {
        use LeaseDecision::{Pending, Rejected};
        let mut request = request(&[&[Pending], &[Rejected(WAIT)]]);
        request.is_decided_by_rejection = true;
        assert!(!acquire_units(&mut request));
        assert_eq!(request.decisions, 0);
    }
}
