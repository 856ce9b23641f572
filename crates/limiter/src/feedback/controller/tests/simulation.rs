//! A provider, and callers that send all that the limit in force permits, in virtual time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use super::super::{ControllerSettings, MIN_RISE_INTERVAL, ShareController};
use crate::timestamp::Timestamp;

const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1000 * MILLISECOND;
/// Maximum time on the way to the provider; half of it is the mean.
const JITTER: u64 = 10 * MILLISECOND;
/// Time on the way back.
const RETURN: u64 = 5 * MILLISECOND;

/// How the provider enforces its limit. It does not charge rejected calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// At most the limit in any second.
    Sliding,
    /// At most the limit in each second of its clock.
    Fixed,
    /// A bucket that holds a tenth of the limit, at least 2 calls.
    Bucket,
}

pub(super) const KINDS: [Kind; 3] = [Kind::Sliding, Kind::Fixed, Kind::Bucket];

/// A provider, a limit before it, and calls on their way. Times are in nanoseconds.
pub(super) struct Simulation {
    pub(super) kind: Kind,
    /// Calls a second that the provider admits.
    pub(super) provider: f64,
    /// Calls a second as configured.
    pub(super) limit: f64,
    /// Time between the decision about a call and its departure.
    pub(super) queue: u64,
    /// Whether rejections state the time until the provider admits another call, in milliseconds.
    pub(super) has_headers: bool,
    /// The part of its limit that admitted calls state.
    pub(super) stated: Option<f64>,
    pub(super) settings: ControllerSettings,
    pub(super) controller: ShareController,
    now: u64,
    /// Theoretical arrival time of the next call.
    next: u64,
    paused_until: u64,
    random: u64,
    log: VecDeque<u64>,
    window: u64,
    used: f64,
    counted_at: u64,
    /// Admitted calls that the controller has not counted.
    uncounted: u32,
    told_at: u64,
    arrivals: BinaryHeap<Reverse<(u64, u64)>>,
    /// Arrival of the response, decision about the call, whether it was rejected, and the time that the response states.
    responses: VecDeque<(u64, u64, bool, u64)>,
}

/// What has happened in some time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outcome {
    /// Admitted part of what the provider would have admitted.
    pub(super) used: f64,
    pub(super) rejections: u64,
    /// Rejected part of the calls.
    pub(super) rejected: f64,
}

impl Simulation {
    pub(super) fn new(kind: Kind, limit: f64, provider: f64, settings: ControllerSettings) -> Self {
        let now = 1_000_000 * SECOND + 300 * MILLISECOND;
        Self {
            kind,
            provider,
            limit,
            queue: 0,
            has_headers: false,
            stated: None,
            settings,
            controller: ShareController::default(),
            now,
            next: now,
            paused_until: 0,
            random: 7,
            log: VecDeque::new(),
            window: 0,
            used: 0.0,
            counted_at: now,
            uncounted: 0,
            told_at: 0,
            arrivals: BinaryHeap::new(),
            responses: VecDeque::new(),
        }
    }

    /// Runs for some time.
    pub(super) fn run(&mut self, seconds: f64) -> Outcome {
        let end = self.now + (seconds * SECOND as f64) as u64;
        let (mut admitted, mut rejections) = (0_u64, 0_u64);
        while self.now < end {
            // The bucket is empty after a pause.
            let decided = self.next.max(self.now).max(self.paused_until);
            let arrival = self.arrivals.peek().map_or(u64::MAX, |Reverse((at, _))| *at);
            let response = self.responses.front().map_or(u64::MAX, |(at, ..)| *at);
            self.now = decided.min(arrival).min(response);
            if response <= self.now {
                self.respond();
            } else if arrival <= self.now {
                let is_admitted = self.arrive();
                admitted += u64::from(is_admitted);
                rejections += u64::from(!is_admitted);
            } else {
                self.depart();
            }
        }
        let possible = self.provider.min(self.limit) * seconds;
        Outcome {
            used: admitted as f64 / possible,
            rejections,
            rejected: rejections as f64 / (admitted + rejections).max(1) as f64,
        }
    }

    fn depart(&mut self) {
        let interval = SECOND as f64 / (self.limit * self.controller.share().fraction());
        self.next = self.now + interval as u64;
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let way = (self.random >> 33) % JITTER;
        self.arrivals.push(Reverse((self.now + self.queue + way, self.now)));
    }

    fn arrive(&mut self) -> bool {
        let Some(Reverse((now, decided))) = self.arrivals.pop() else { return false };
        let (is_admitted, wait) = match self.kind {
            Kind::Sliding => self.arrive_sliding(now),
            Kind::Fixed => {
                if now / SECOND != self.window {
                    (self.window, self.used) = (now / SECOND, 0.0);
                }
                self.used += 1.0;
                (self.used <= self.provider, SECOND - now % SECOND)
            }
            Kind::Bucket => {
                let refill = (now - self.counted_at) as f64 / SECOND as f64 * self.provider;
                self.used = (self.used - refill).max(0.0);
                self.counted_at = now;
                let is_admitted = self.used + 1.0 <= (self.provider / 10.0).max(2.0);
                self.used += if is_admitted { 1.0 } else { 0.0 };
                (is_admitted, (SECOND as f64 / self.provider) as u64)
            }
        };
        self.responses.push_back((now + RETURN, decided, !is_admitted, wait));
        is_admitted
    }

    fn arrive_sliding(&mut self, now: u64) -> (bool, u64) {
        while self.log.front().is_some_and(|oldest| oldest + SECOND <= now) {
            self.log.pop_front();
        }
        let is_admitted = (self.log.len() as f64) < self.provider;
        if is_admitted {
            self.log.push_back(now);
        }
        (is_admitted, self.log.front().map_or(0, |oldest| oldest + SECOND - now))
    }

    /// Applies a response as `RuleFeedback` does.
    fn respond(&mut self) {
        let Some((at, decided, is_rejected, wait)) = self.responses.pop_front() else { return };
        let (now, decided) = (Timestamp::from_nanos(at), Timestamp::from_nanos(decided));
        // Nothing is counted before the first rejection.
        let is_known = self.controller != ShareController::default();
        if !is_rejected {
            self.uncounted += u32::from(is_known);
            if at - self.told_at < MIN_RISE_INTERVAL.as_nanos() as u64 {
                return;
            }
        }
        self.told_at = at;
        self.controller.count_admitted(std::mem::take(&mut self.uncounted), decided, now, &self.settings);
        if is_rejected {
            let closed_for = if self.has_headers { wait.next_multiple_of(MILLISECOND) } else { 0 };
            let closed_for = Duration::from_nanos(closed_for);
            self.controller.on_rejection(decided, closed_for, now, &self.settings);
            if self.has_headers {
                self.paused_until = self.paused_until.max(at + wait.next_multiple_of(MILLISECOND));
            }
        } else if is_known {
            if let Some(part) = self.stated {
                self.controller.record_stated((self.provider * part) as u64, now);
            }
            self.controller.on_success(decided, now, &self.settings);
        }
    }
}

pub(super) const fn millis(millis: u64) -> u64 {
    millis * MILLISECOND
}
