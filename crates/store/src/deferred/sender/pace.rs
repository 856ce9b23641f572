//! When a sender takes calls and when it sends: pauses, the number of calls to take, and protection of an upstream that
//! fails.

use std::time::Duration;

use tokio::time::Instant;

use weir_net::jitter::{backoff, equal_jitter};

/// Maximum number of calls that are taken at once.
const MAX_TAKEN: usize = 32;
/// Pauses between looks at an empty stream.
const MIN_IDLE_PAUSE: Duration = Duration::from_millis(50);
const MAX_IDLE_PAUSE: Duration = Duration::from_secs(1);
/// Pauses after failed calls to the store.
const BASE_STORE_PAUSE: Duration = Duration::from_millis(100);
const MAX_STORE_PAUSE: Duration = Duration::from_secs(5);
/// Consecutive failures of the upstream after which calls are sent one at a time, with pauses.
const MAX_FAILURES: u32 = 5;
/// Maximum pause of the whole rule because the upstream fails or asks for a pause.
const MAX_UPSTREAM_PAUSE: Duration = Duration::from_secs(60);
/// Minimum pause before a further look at a limit without room.
const MIN_LIMIT_PAUSE: Duration = Duration::from_millis(1);
/// Pauses between looks at a limit that only calls in flight use up, unless one of them ends here.
const BASE_PERMIT_PAUSE: Duration = Duration::from_millis(100);
const MAX_PERMIT_PAUSE: Duration = Duration::from_secs(1);

/// State of a sender's pace.
#[derive(Debug)]
pub(super) struct SendPace {
    /// Nothing is sent before this time.
    paused_until: Instant,
    /// Nothing is sent before this time, or until a call in flight ends.
    permit_until: Instant,
    /// Consecutive decisions that only calls in flight use up the limit.
    permit_rejections: u32,
    /// Nothing is taken before this time.
    next_take: Instant,
    /// Number of calls to hold for sending: it grows while the sender runs dry, and shrinks while the limit has no room.
    target: usize,
    /// Consecutive looks at an empty stream.
    idle_takes: u32,
    /// Consecutive failed calls to the store.
    store_failures: u32,
    /// Consecutive failed attempts to send.
    failures: u32,
}

impl SendPace {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            paused_until: now,
            permit_until: now,
            permit_rejections: 0,
            next_take: now,
            target: 1,
            idle_takes: 0,
            store_failures: 0,
            failures: 0,
        }
    }

    pub(super) const fn target(&self) -> usize {
        self.target
    }

    pub(super) const fn next_take(&self) -> Instant {
        self.next_take
    }

    pub(super) fn paused_until(&self) -> Instant {
        self.paused_until.max(self.permit_until)
    }

    pub(super) fn may_take(&self, now: Instant) -> bool {
        now >= self.next_take
    }

    /// Whether a call may be sent while `in_flight` others are in flight. While the upstream fails, only one is sent.
    pub(super) fn may_send(&self, now: Instant, in_flight: usize) -> bool {
        now >= self.paused_until() && (self.failures < MAX_FAILURES || in_flight == 0)
    }

    /// Records that calls were appended by this instance.
    pub(super) fn calls_appended(&mut self, now: Instant) {
        if self.store_failures == 0 {
            self.idle_takes = 0;
            self.next_take = self.next_take.min(now);
        }
    }

    /// Records a look at the stream: `taken` of `requested` calls were there, and the next retry is due later.
    pub(super) fn taken(
        &mut self,
        now: Instant,
        requested: usize,
        taken: usize,
        ran_dry: bool,
        next_retry: Option<Duration>,
    ) {
        self.store_failures = 0;
        if taken >= requested {
            self.idle_takes = 0;
            self.next_take = now;
            if ran_dry && now >= self.paused_until {
                self.target = (self.target * 2).min(MAX_TAKEN);
            }
            return;
        }
        self.idle_takes = if taken == 0 { self.idle_takes.saturating_add(1) } else { 0 };
        let pause = equal_jitter(backoff(MIN_IDLE_PAUSE, MAX_IDLE_PAUSE, self.idle_takes));
        self.next_take = now + next_retry.map_or(pause, |due| due.max(MIN_LIMIT_PAUSE).min(pause));
    }

    /// Records that the store could not be queried. The calls may have been too many for the timeout.
    pub(super) fn take_failed(&mut self, now: Instant) {
        self.target = (self.target / 2).max(1);
        self.store_failures = self.store_failures.saturating_add(1);
        self.next_take = now + equal_jitter(backoff(BASE_STORE_PAUSE, MAX_STORE_PAUSE, self.store_failures));
    }

    /// Records that the limit has no room for `wait`; zero if only calls in flight use it up.
    pub(super) fn limit_reached(&mut self, now: Instant, wait: Duration) {
        self.target = (self.target / 2).max(1);
        if wait.is_zero() {
            self.permit_rejections = self.permit_rejections.saturating_add(1);
            let pause = backoff(BASE_PERMIT_PAUSE, MAX_PERMIT_PAUSE, self.permit_rejections);
            self.permit_until = now + equal_jitter(pause);
            return;
        }
        self.pause_until(now + wait.max(MIN_LIMIT_PAUSE));
    }

    /// Records that a call that was in flight has ended.
    pub(super) const fn call_ended(&mut self, now: Instant) {
        (self.permit_until, self.permit_rejections) = (now, 0);
    }

    /// Records that the upstream asks for a pause.
    pub(super) fn upstream_limited(&mut self, now: Instant, pause: Duration) {
        self.pause_until(now + pause.min(MAX_UPSTREAM_PAUSE));
    }

    /// Records a response that shows that the upstream works.
    pub(super) const fn responded(&mut self) {
        self.failures = 0;
    }

    /// Records a failed attempt. After several, the rule pauses: otherwise every stored call would use up its attempts
    /// while the upstream is down.
    pub(super) fn failed(&mut self, now: Instant, first_backoff: Duration, max_backoff: Duration) {
        self.failures = self.failures.saturating_add(1);
        if self.failures >= MAX_FAILURES {
            let max = max_backoff.min(MAX_UPSTREAM_PAUSE);
            let pause = backoff(first_backoff.min(max), max, self.failures - MAX_FAILURES + 1);
            self.pause_until(now + equal_jitter(pause));
        }
    }

    fn pause_until(&mut self, until: Instant) {
        self.paused_until = self.paused_until.max(until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_sender_that_runs_dry_takes_more_and_one_without_room_takes_less() {
        let now = Instant::now();
        let mut pace = SendPace::new(now);
        for _ in 0..10 {
            pace.taken(now, pace.target(), pace.target(), true, None);
        }
        assert_eq!(pace.target(), MAX_TAKEN);
        for _ in 0..10 {
            pace.limit_reached(now, SECOND);
        }
        assert_eq!(pace.target(), 1);
        assert!(!pace.may_send(now, 0) && pace.may_send(now + SECOND, 0));
    }

    #[test]
    fn limit_that_calls_in_flight_use_up_is_decided_again_when_one_ends() {
        let now = Instant::now();
        let mut pace = SendPace::new(now);
        pace.limit_reached(now, Duration::ZERO);
        assert!(!pace.may_send(now + SECOND / 25, 1) && pace.may_send(now + SECOND / 10, 1));
        (0..10).for_each(|_| pace.limit_reached(now, Duration::ZERO));
        assert!(!pace.may_send(now + SECOND / 3, 1) && pace.may_send(now + SECOND, 1));
        pace.call_ended(now);
        assert!(pace.may_send(now, 1));
    }

    #[test]
    fn calls_that_could_not_be_taken_are_taken_in_smaller_numbers() {
        let now = Instant::now();
        let mut pace = SendPace::new(now);
        (0..10).for_each(|_| pace.taken(now, pace.target(), pace.target(), true, None));
        pace.take_failed(now);
        assert_eq!(pace.target(), MAX_TAKEN / 2);
    }

    #[test]
    fn an_upstream_that_fails_gets_one_call_at_a_time_with_pauses() {
        let now = Instant::now();
        let mut pace = SendPace::new(now);
        (1..MAX_FAILURES).for_each(|_| pace.failed(now, SECOND, 300 * SECOND));
        assert!(pace.may_send(now, 100));
        pace.failed(now, SECOND, 300 * SECOND);
        assert!(!pace.may_send(now, 0));
        assert!(pace.may_send(now + SECOND, 0) && !pace.may_send(now + SECOND, 1));
        pace.responded();
        assert!(pace.may_send(now + SECOND, 100));
    }

    #[test]
    fn next_retry_shortens_the_pause_of_an_idle_sender() {
        let now = Instant::now();
        let mut pace = SendPace::new(now);
        (0..10).for_each(|_| pace.taken(now, 1, 0, true, None));
        assert!(pace.next_take() >= now + SECOND / 2);
        pace.taken(now, 1, 0, true, Some(SECOND / 10));
        assert_eq!(pace.next_take(), now + SECOND / 10);
    }
}
