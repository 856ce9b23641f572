//! Client-side throttling: calls that a server would reject anyway are rejected before they are sent.
//!
//! While the server accepts at least one of [`FACTOR`] calls, all are sent. Below, calls are rejected with the
//! probability max(0, (requests − [`FACTOR`] · accepts) ÷ (requests + 1)) over the last two minutes (Site Reliability
//! Engineering, chapter 21). Calls that are rejected here count as requests, so that the probability follows the demand.

use std::time::Duration;

use parking_lot::Mutex;

use crate::timestamp::Timestamp;

/// Multiple of the accepted calls that are sent. With 2, the server learns of a half that it rejects, and recovery is
/// noticed soon.
const FACTOR: u64 = 2;
/// Length of one of the [`SLOTS`] into which the time is divided.
const SLOT: Duration = Duration::from_secs(10);
const SLOTS: usize = 12;

/// The calls of the last two minutes to one server.
#[derive(Debug, Default)]
pub struct AdaptiveThrottle(Mutex<CallHistory>);

#[derive(Debug, Default)]
struct CallHistory {
    /// Number of the present slot.
    number: u64,
    slots: [CallCounts; SLOTS],
    sum: CallCounts,
}

#[derive(Clone, Copy, Debug, Default)]
struct CallCounts {
    requests: u64,
    accepts: u64,
}

impl AdaptiveThrottle {
    /// Returns whether a call may be sent; `random` is evenly distributed. One that may not is counted.
    pub fn admits(&self, random: u64, now: Timestamp) -> bool {
        let mut history = self.0.lock();
        history.advance(now);
        let rejected = history.sum.excess();
        // The multiplication is exact in 128 bits.
        let drawn = (u128::from(random) * u128::from(history.sum.requests.saturating_add(1))) >> 64;
        let is_admitted = drawn >= u128::from(rejected);
        if !is_admitted {
            history.add(CallCounts { requests: 1, accepts: 0 });
        }
        is_admitted
    }

    /// Records the end of a call that was sent, and whether the server accepted it.
    pub fn record(&self, is_accepted: bool, now: Timestamp) {
        let mut history = self.0.lock();
        history.advance(now);
        history.add(CallCounts { requests: 1, accepts: u64::from(is_accepted) });
    }

    /// Returns the probability with which a call is rejected, from 0 to 1.
    pub fn probability(&self, now: Timestamp) -> f64 {
        let mut history = self.0.lock();
        history.advance(now);
        history.sum.excess() as f64 / history.sum.requests.saturating_add(1) as f64
    }
}

impl CallHistory {
    /// Drops what is older than two minutes.
    fn advance(&mut self, now: Timestamp) {
        let number = now.as_secs() / SLOT.as_secs();
        let passed = number.saturating_sub(self.number).min(SLOTS as u64);
        for offset in 1..=passed {
            let index = (self.number.saturating_add(offset) % SLOTS as u64) as usize;
            let old = std::mem::take(&mut self.slots[index]);
            self.sum.requests = self.sum.requests.saturating_sub(old.requests);
            self.sum.accepts = self.sum.accepts.saturating_sub(old.accepts);
        }
        if passed == SLOTS as u64 {
            (self.slots, self.sum) = Default::default();
        }
        self.number = self.number.max(number);
    }

    fn add(&mut self, counts: CallCounts) {
        let index = (self.number % SLOTS as u64) as usize;
        for sum in [&mut self.slots[index], &mut self.sum] {
            sum.requests = sum.requests.saturating_add(counts.requests);
            sum.accepts = sum.accepts.saturating_add(counts.accepts);
        }
    }
}

impl CallCounts {
    /// Returns the requests beyond those that are sent.
    const fn excess(self) -> u64 {
        self.requests.saturating_sub(self.accepts.saturating_mul(FACTOR))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_secs(1_000_000_000 + seconds)
    }

    /// Sends calls to a server that accepts up to so many of each ten; returns how many of the last 10 000 were sent.
    fn sent(throttle: &AdaptiveThrottle, accepts: u64, now: Timestamp) -> u64 {
        let mut random = fastrand::Rng::with_seed(7);
        let mut left = accepts;
        let mut call = |number: u64| {
            if number.is_multiple_of(10) {
                left = accepts;
            }
            let is_sent = throttle.admits(random.u64(..), now);
            if is_sent {
                throttle.record(left > 0, now);
                left = left.saturating_sub(1);
            }
            u64::from(is_sent)
        };
        let _: u64 = (0..20_000).map(&mut call).sum();
        (0..10_000).map(call).sum()
    }

    #[test]
    fn all_calls_are_sent_while_half_of_them_are_accepted() {
        let throttle = AdaptiveThrottle::default();
        assert!(throttle.admits(0, at(0)));
        assert_eq!(sent(&throttle, 10, at(0)), 10_000);
        assert_eq!(sent(&AdaptiveThrottle::default(), 5, at(0)), 10_000);
        assert_eq!(throttle.probability(at(0)), 0.0);
    }

    #[test]
    fn most_calls_to_a_server_that_rejects_everything_are_not_sent() {
        let throttle = AdaptiveThrottle::default();
        assert!(sent(&throttle, 0, at(0)) < 20);
        assert!(throttle.probability(at(0)) > 0.99);
        // Twice as many are sent as are accepted.
        let share = sent(&AdaptiveThrottle::default(), 2, at(0));
        assert!((3200..4400).contains(&share), "{share}");
    }

    #[test]
    fn rejections_are_forgotten_after_two_minutes() {
        let throttle = AdaptiveThrottle::default();
        sent(&throttle, 0, at(0));
        assert!(throttle.probability(at(100)) > 0.99);
        assert_eq!(throttle.probability(at(121)), 0.0);
        assert!(throttle.admits(0, at(121)));
        // A clock that steps back changes nothing.
        throttle.record(false, at(50));
        assert!(throttle.probability(at(50)) > 0.0);
    }
}
