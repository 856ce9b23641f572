//! What the provider has rejected lately: the part of all requests in the last period, and the rejections of one cause.

use std::time::Duration;

use super::super::super::timestamp::Timestamp;
use super::super::{LimitShare, WHOLE};

/// Factor between the part of requests that are rejected and the part by which the share falls. Requests that are sent
/// while the share already falls dilute the former.
const GAIN: u64 = 2;
/// Number of samples of the share, and the minimum time between two.
const SAMPLES: usize = 10;
const SAMPLE_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum time between a decision and a rejection that counts.
const MAX_DELAY: Duration = Duration::from_secs(30);

/// Responses in about one period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecentResponses {
    since: Timestamp,
    current: Counts,
    /// Responses in the period before `since`.
    before: Counts,
    /// Part of `before` that is in the last period, in millionths.
    weight: u32,
}

/// Number of responses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    admitted: u32,
    rejected: u32,
}

impl Counts {
    const NONE: Self = Self { admitted: 0, rejected: 0 };

    fn add(&mut self, admitted: u32, rejected: u32) {
        self.admitted = self.admitted.saturating_add(admitted);
        self.rejected = self.rejected.saturating_add(rejected);
    }

    const fn total(self) -> u32 {
        self.admitted.saturating_add(self.rejected)
    }
}

impl RecentResponses {
    pub(super) const NONE: Self =
        Self { since: Timestamp::EPOCH, current: Counts::NONE, before: Counts::NONE, weight: 0 };

    /// Counts responses that arrived at `now`.
    pub(super) fn count(&mut self, admitted: u32, rejected: u32, now: Timestamp, period: Duration) {
        let elapsed = now.since(self.since);
        if elapsed >= period {
            let is_next = elapsed < period * 2;
            self.before = if is_next { self.current } else { Counts::NONE };
            self.current = Counts::NONE;
            self.since = if is_next { self.since.saturating_add(period) } else { now };
        }
        let left = period.saturating_sub(now.since(self.since));
        let weight = left.as_nanos() * u128::from(WHOLE) / period.as_nanos().max(1);
        self.weight = u32::try_from(weight).unwrap_or(WHOLE);
        self.current.add(admitted, rejected);
    }

    /// Returns the number of responses in the last whole period, or since if there are more.
    pub(super) const fn total(&self) -> u32 {
        let (before, current) = (self.before.total(), self.current.total());
        if before > current { before } else { current }
    }

    /// Returns the part by which the share should fall, in millionths.
    pub(super) fn excess(&self) -> u32 {
        let of = |current: u32, before: u32| {
            u64::from(current) * u64::from(WHOLE) + u64::from(before) * u64::from(self.weight)
        };
        let rejected = of(self.current.rejected, self.before.rejected);
        let total = of(self.current.total(), self.before.total());
        if rejected == total {
            return WHOLE;
        }
        // One rejection may be due to the time that requests take on their way.
        let counted = rejected.saturating_sub(WHOLE.into());
        let part = u128::from(counted) * u128::from(WHOLE) / u128::from(total.max(1));
        u32::try_from(part.saturating_mul(GAIN.into())).unwrap_or(u32::MAX)
    }
}

/// Shares of the last seconds: a response tells about the share with which its request was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ShareHistory {
    /// The latest sample is the last one.
    samples: [ShareSample; SAMPLES],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ShareSample {
    at: Timestamp,
    share: LimitShare,
}

impl ShareHistory {
    pub(super) const fn new(share: LimitShare, now: Timestamp) -> Self {
        Self { samples: [ShareSample { at: now, share }; SAMPLES] }
    }

    /// Records that `share` is in force from `now` on.
    pub(super) fn record(&mut self, share: LimitShare, now: Timestamp) {
        let [.., before, _] = self.samples;
        if now.since(before.at) >= SAMPLE_INTERVAL {
            self.samples.rotate_left(1);
        }
        self.samples[SAMPLES - 1] = ShareSample { at: now, share };
    }

    /// Returns the share at `at`, to the sample; the earliest one that is known if that is too long ago.
    pub(super) fn at(&self, at: Timestamp) -> LimitShare {
        let known = self.samples.iter().rev().find(|sample| sample.at <= at);
        known.unwrap_or(&self.samples[0]).share
    }
}

/// Rejections within one period, which have one cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Episode {
    began: Timestamp,
    /// Share in force when it began.
    from: LimitShare,
    /// Share that the provider was known to admit.
    known: Option<LimitShare>,
    /// Time between the decision about the first request and its rejection.
    delay: Duration,
    counts: Counts,
    /// Sum of the shares in force for admitted requests, in millionths.
    admitted_shares: u64,
    /// Maximum part of a period in which the provider rejects everything, in millionths.
    closed_part: u32,
}

impl Episode {
    /// Begins with the rejection at `now` of a request that was decided at `decided_at`.
    pub(super) fn begin(
        from: LimitShare,
        known: Option<LimitShare>,
        decided_at: Timestamp,
        now: Timestamp,
    ) -> Self {
        let delay = now.since(decided_at).min(MAX_DELAY);
        Self { began: now, from, known, delay, counts: Counts::NONE, admitted_shares: 0, closed_part: 0 }
    }

    pub(super) const fn began(&self) -> Timestamp {
        self.began
    }

    pub(super) const fn from(&self) -> LimitShare {
        self.from
    }

    pub(super) const fn known(&self) -> Option<LimitShare> {
        self.known
    }

    pub(super) const fn delay(&self) -> Duration {
        self.delay
    }

    pub(super) const fn closed_part(&self) -> u32 {
        self.closed_part
    }

    /// Returns the share that the provider was known to admit, if this episode is the end of a rise beyond.
    pub(super) fn good(&self) -> Option<LimitShare> {
        self.known.filter(|known| self.from > *known)
    }

    /// Returns the share that the provider was known to admit, if this episode is the end of a rise a little beyond.
    pub(super) fn probed(&self) -> Option<LimitShare> {
        self.good().filter(|known| self.from.is_near(*known))
    }

    /// Counts a rejection, which states that the provider rejects everything for this part of a period, in millionths.
    pub(super) fn reject(&mut self, closed_part: u32) {
        self.counts.add(0, 1);
        self.closed_part = self.closed_part.max(closed_part);
    }

    /// Counts admitted requests that were decided at `share`.
    pub(super) fn admit(&mut self, admitted: u32, share: LimitShare) {
        self.counts.add(admitted, 0);
        let shares = u64::from(admitted) * u64::from(share.millionths());
        self.admitted_shares = self.admitted_shares.saturating_add(shares);
    }

    /// Returns the share that the provider admits. `share` is in force and `little` the part of requests, in millionths,
    /// that may be rejected by chance.
    pub(super) fn ceiling(&self, share: LimitShare, little: u32) -> LimitShare {
        let (rejected, total) = (self.counts.rejected, self.counts.total());
        let is_light =
            rejected == 1 || u64::from(rejected) * u64::from(WHOLE) <= u64::from(total) * u64::from(little);
        if let Some(known) = self.probed() {
            let beyond = self.from.millionths().saturating_sub(known.millionths());
            return LimitShare::from_millionths(known.millionths().saturating_add(beyond / 4));
        }
        if self.closed_part > little {
            return self.from.lowered(self.closed_part).max(share);
        }
        if is_light {
            return self.from;
        }
        let admitted = self.admitted_shares / u64::from(total.max(1));
        LimitShare::from_millionths(u32::try_from(admitted).unwrap_or(WHOLE)).max(share).min(self.from)
    }

    /// Returns the rejected part of the requests.
    pub(super) fn rejected_part(&self) -> f64 {
        f64::from(self.counts.rejected) / f64::from(self.counts.total().max(1))
    }
}
