//! The ways in which a provider enforces its limit.

use std::collections::VecDeque;

/// Microseconds in a second.
pub(crate) const SECOND: u64 = 1_000_000;

/// Kind of limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// At most the limit in any second.
    Sliding,
    /// At most the limit in each second of the wall clock.
    Fixed,
    /// A token bucket that holds a tenth of the limit.
    Bucket,
}

impl Kind {
    pub(crate) const ALL: [(&'static str, Self); 3] =
        [("sliding", Self::Sliding), ("fixed", Self::Fixed), ("bucket", Self::Bucket)];

    pub(crate) fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().find(|(name, _)| *name == text).map(|(_, kind)| *kind)
    }
}

/// Decision about one call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Verdict {
    pub(crate) is_admitted: bool,
    pub(crate) remaining: u64,
    /// Time until another call is admitted, in microseconds.
    pub(crate) reset: u64,
}

/// A limit of calls a second. Rejected calls are not charged.
#[derive(Debug)]
pub(crate) struct Enforcement {
    kind: Kind,
    limit: u64,
    /// Times of the last admissions, for [`Kind::Sliding`].
    log: VecDeque<u64>,
    /// Second of the wall clock and the admissions in it, for [`Kind::Fixed`].
    second: u64,
    used: u64,
    /// Tokens and when they were counted, for [`Kind::Bucket`].
    tokens: f64,
    counted_at: u64,
}

impl Enforcement {
    pub(crate) fn new(kind: Kind, limit: u64) -> Self {
        Self { kind, limit, log: VecDeque::new(), second: 0, used: 0, tokens: capacity(limit), counted_at: 0 }
    }

    pub(crate) const fn limit(&self) -> u64 {
        self.limit
    }

    pub(crate) fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// Decides a call at `now`, in microseconds since the epoch.
    pub(crate) fn decide(&mut self, now: u64) -> Verdict {
        match self.kind {
            Kind::Sliding => self.decide_sliding(now),
            Kind::Fixed => self.decide_fixed(now),
            Kind::Bucket => self.decide_bucket(now),
        }
    }

    fn decide_sliding(&mut self, now: u64) -> Verdict {
        while self.log.front().is_some_and(|oldest| oldest + SECOND <= now) {
            self.log.pop_front();
        }
        let is_admitted = (self.log.len() as u64) < self.limit;
        if is_admitted {
            self.log.push_back(now);
        }
        let oldest = self.log.front().map_or(0, |oldest| (oldest + SECOND).saturating_sub(now));
        Verdict { is_admitted, remaining: self.limit.saturating_sub(self.log.len() as u64), reset: oldest }
    }

    fn decide_fixed(&mut self, now: u64) -> Verdict {
        if now / SECOND != self.second {
            (self.second, self.used) = (now / SECOND, 0);
        }
        let is_admitted = self.used < self.limit;
        self.used += u64::from(is_admitted);
        Verdict { is_admitted, remaining: self.limit.saturating_sub(self.used), reset: SECOND - now % SECOND }
    }

    fn decide_bucket(&mut self, now: u64) -> Verdict {
        let elapsed = now.saturating_sub(self.counted_at) as f64 / SECOND as f64;
        self.tokens = (self.tokens + elapsed * self.limit as f64).min(capacity(self.limit));
        self.counted_at = now;
        let is_admitted = self.tokens >= 1.0;
        if is_admitted {
            self.tokens -= 1.0;
        }
        let missing = (1.0 - self.tokens).max(0.0) / self.limit.max(1) as f64;
        Verdict { is_admitted, remaining: self.tokens as u64, reset: (missing * SECOND as f64).ceil() as u64 }
    }
}

/// Returns the number of tokens that a full bucket holds.
fn capacity(limit: u64) -> f64 {
    (limit / 10).max(1) as f64
}
