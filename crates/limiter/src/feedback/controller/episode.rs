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

/// Parts of a period that responses are counted in.
const PARTS: usize = 8;

/// Responses in the last period, to an eighth of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecentResponses {
    /// When the last part began.
    since: Timestamp,
    parts: [Counts; PARTS],
}

/// Number of responses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    admitted: u32,
    rejected: u32,
    /// Sum of the shares in force for admitted requests, in millionths.
    shares: u64,
}

impl Counts {
    const NONE: Self = Self { admitted: 0, rejected: 0, shares: 0 };

    const fn add(self, other: Self) -> Self {
        Self {
            admitted: self.admitted.saturating_add(other.admitted),
            rejected: self.rejected.saturating_add(other.rejected),
            shares: self.shares.saturating_add(other.shares),
        }
    }

    const fn total(self) -> u32 {
        self.admitted.saturating_add(self.rejected)
    }
}

impl RecentResponses {
    pub(super) const NONE: Self = Self { since: Timestamp::EPOCH, parts: [Counts::NONE; PARTS] };

    /// Counts requests that were decided at `share` and that the provider has admitted.
    pub(super) fn admit(&mut self, admitted: u32, share: LimitShare, now: Timestamp, period: Duration) {
        let shares = u64::from(admitted) * u64::from(share.millionths());
        self.count(Counts { admitted, rejected: 0, shares }, now, period);
    }

    /// Counts a rejection.
    pub(super) fn reject(&mut self, now: Timestamp, period: Duration) {
        self.count(Counts { rejected: 1, ..Counts::NONE }, now, period);
    }

    fn count(&mut self, counts: Counts, now: Timestamp, period: Duration) {
        let part = (period / PARTS as u32).max(Duration::from_nanos(1));
        for _ in 0..PARTS {
            if now.since(self.since) < part {
                break;
            }
            self.parts.rotate_left(1);
            self.parts[PARTS - 1] = Counts::NONE;
            self.since = self.since.saturating_add(part);
        }
        if now.since(self.since) >= part {
            self.since = now;
        }
        self.parts[PARTS - 1] = self.parts[PARTS - 1].add(counts);
    }

    fn sum(&self) -> Counts {
        self.parts.iter().fold(Counts::NONE, |sum, part| sum.add(*part))
    }

    /// Returns the number of responses.
    pub(super) fn total(&self) -> u32 {
        self.sum().total()
    }

    /// Returns the share that the provider has admitted.
    pub(super) fn admitted_share(&self) -> LimitShare {
        let sum = self.sum();
        let share = sum.shares / u64::from(sum.total().max(1));
        LimitShare::from_millionths(u32::try_from(share).unwrap_or(WHOLE))
    }

    /// Returns the part by which the share should fall, in millionths.
    pub(super) fn excess(&self) -> u32 {
        let (rejected, total) = (self.sum().rejected, self.total());
        if rejected == total {
            return WHOLE;
        }
        // One rejection may be due to the time that requests take on their way.
        let counted = u64::from(rejected.saturating_sub(1)) * u64::from(WHOLE);
        u32::try_from(counted / u64::from(total.max(1)) * GAIN).unwrap_or(u32::MAX)
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
    /// Whether the share was growing, so that the provider had admitted a test.
    is_growth: bool,
    /// Time between the decision about the first request and its rejection.
    delay: Duration,
    counts: Counts,
    /// The smallest share that the provider had admitted in the period before a rejection.
    admitted: LimitShare,
    /// Maximum part of a period in which the provider rejects everything, in millionths.
    closed_part: u32,
}

impl Episode {
    /// Begins at `now` with a rejection whose request was decided `delay` before, at the share `from`. `is_growth`: the
    /// share was growing.
    pub(super) fn begin(
        from: LimitShare,
        known: Option<LimitShare>,
        is_growth: bool,
        delay: Duration,
        now: Timestamp,
    ) -> Self {
        Self {
            began: now,
            from,
            known,
            is_growth,
            delay: delay.min(MAX_DELAY),
            counts: Counts::NONE,
            admitted: from,
            closed_part: 0,
        }
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
        self.good().filter(|known| !self.is_growth || self.from.is_near(*known))
    }

    /// Counts a rejection, which states that the provider rejects everything for this part of a period, in millionths.
    /// `admitted` is the share that it has admitted in the last period.
    pub(super) fn with_rejection(mut self, closed_part: u32, admitted: LimitShare) -> Self {
        self.counts.rejected = self.counts.rejected.saturating_add(1);
        self.closed_part = self.closed_part.max(closed_part);
        self.admitted = self.admitted.min(admitted);
        self
    }

    /// Counts admitted requests.
    pub(super) fn admit(&mut self, admitted: u32) {
        self.counts.admitted = self.counts.admitted.saturating_add(admitted);
    }

    /// Returns the share that the provider admits. `share` is in force and `little` the part of requests, in millionths,
    /// that may be rejected by chance. `is_repeated`: the episodes before were alike, so that it is not by chance.
    pub(super) fn ceiling(&self, share: LimitShare, little: u32, is_repeated: bool) -> LimitShare {
        let (rejected, total) = (self.counts.rejected, self.counts.total());
        let is_light =
            rejected == 1 || u64::from(rejected) * u64::from(WHOLE) <= u64::from(total) * u64::from(little);
        if let Some(known) = self.probed() {
            let beyond = self.from.millionths().saturating_sub(known.millionths());
            return LimitShare::from_millionths(
                known.millionths().saturating_add(beyond.min(little.saturating_mul(2)) / 4),
            );
        }
        if self.closed_part > little {
            return self.from.lowered(self.closed_part).max(share);
        }
        if is_light {
            return if is_repeated { share } else { self.from };
        }
        self.admitted.max(share).min(self.from)
    }

    /// Returns the rejected part of the requests.
    pub(super) fn rejected_part(&self) -> f64 {
        f64::from(self.counts.rejected) / f64::from(self.counts.total().max(1))
    }
}
