//! How the share of a limit changes: a decrease by the part of requests that the provider rejects, and a remembered
//! ceiling.
//!
//! The share falls in proportion to the rejections in the last period, and rises while the limit is in use and nothing
//! is rejected. An increase that repeatedly runs into the provider's limit would waste a good part of it. So the share
//! that the provider admitted last is remembered, as in CUBIC (RFC 9438). The share returns to a little below that
//! ceiling, stays there for a while, and then rises faster and faster. `docs/design/031-provider-feedback.md` has the
//! reasons and a simulation.

mod episode;
mod probe;
mod stated;

use std::time::Duration;

use self::episode::{Episode, RecentResponses, ShareHistory};
use self::probe::{ProbeRecord, ProbeStage, RiseTime};
use self::stated::StatedLimits;
use super::super::percent::Percent;
use super::super::timestamp::Timestamp;
use super::{LimitShare, WHOLE, millionths};

/// Bounds of the step, the unit of time of the controller.
const MIN_STEP: Duration = Duration::from_secs(1);
const MAX_STEP: Duration = Duration::from_secs(60);
/// Maximum time for which rejections count as one episode.
const MAX_HOLD: Duration = Duration::from_secs(10);
/// Minimum time between two increases, so that none is lost by rounding.
pub(super) const MIN_RISE_INTERVAL: Duration = Duration::from_millis(20);
/// Part of `decrease` by which the share stays below the ceiling, and falls at least.
const GENTLE_PART: u32 = 60;
/// Part of `increase`, in one step, by which the share rises at least.
const MIN_RISE: u32 = 40;
/// Part of the distance to the last good share by which the share rises in one step.
const RECOVERY: f64 = 3.0;
/// Number of responses in a period that say whether the provider admits the share, and the maximum factor by which the
/// rise is slower with fewer of them.
const MIN_RESPONSES: u32 = 100;
const MAX_SPARSENESS: u32 = 3;
/// Number of episodes in a row without a probe that double the minimum decrease.
const MAX_DESCENTS: u32 = 5;
/// Time in which an instance leaves probing to the one that the provider has rejected.
const FOLLOWED_CALM: Duration = Duration::from_secs(30);
/// Time without use after which what is known of the provider is forgotten.
pub const MAX_IDLE: Duration = Duration::from_secs(600);

/// Settings of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllerSettings {
    min: LimitShare,
    decrease: u32,
    increase: u32,
    step: Duration,
    /// Time until all instances apply a change of the share.
    lag: Duration,
}

impl ControllerSettings {
    /// Creates settings for a limit with this period: the lower bound, the maximum part by which the share falls in one
    /// period, and the maximum part of the limit by which it rises in one, at least a second and at most a minute.
    pub fn new(min: LimitShare, decrease: Percent, increase: Percent, period: Duration) -> Self {
        Self {
            min,
            decrease: millionths(decrease).min(WHOLE),
            increase: millionths(increase).min(WHOLE),
            step: period.clamp(MIN_STEP, MAX_STEP),
            lag: Duration::ZERO,
        }
    }

    /// Returns these settings for a limit that instances share, to which a change of the share applies after `lag`.
    pub const fn with_lag(self, lag: Duration) -> Self {
        Self { lag, ..self }
    }

    /// Returns the lower bound.
    pub const fn min(&self) -> LimitShare {
        self.min
    }

    /// Time after the first rejection in which further rejections have the same cause.
    fn hold(&self) -> Duration {
        self.step.min(MAX_HOLD)
    }

    const fn gentle(&self) -> u32 {
        self.decrease / GENTLE_PART
    }

    /// Returns the share that stays below `ceiling`.
    fn plateau(&self, ceiling: LimitShare) -> LimitShare {
        ceiling.lowered(self.gentle()).max(self.min)
    }
}

/// State of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareController {
    share: LimitShare,
    /// The share that the provider admitted last, if it is still believed.
    ceiling: Option<LimitShare>,
    decreased_at: Timestamp,
    /// Up to when the increase has been applied.
    raised_at: Timestamp,
    /// From when the share may rise above what the provider is known to admit.
    probes_at: Timestamp,
    probe: ProbeStage,
    probes: ProbeRecord,
    /// Episodes in a row of few requests, none of which ended a probe.
    descents: u32,
    recent: RecentResponses,
    history: ShareHistory,
    stated: StatedLimits,
    /// The last rejections, while they count as one.
    episode: Option<Episode>,
}

impl Default for ShareController {
    fn default() -> Self {
        Self::new(LimitShare::FULL, None, Timestamp::EPOCH, Timestamp::EPOCH)
    }
}

impl ShareController {
    /// Creates the state with these values. `raised_at` is the time from which the share rises.
    pub const fn new(
        share: LimitShare,
        ceiling: Option<LimitShare>,
        decreased_at: Timestamp,
        raised_at: Timestamp,
    ) -> Self {
        let (recent, history) = (RecentResponses::NONE, ShareHistory::new(share, raised_at));
        Self {
            share,
            ceiling,
            decreased_at,
            raised_at,
            probes_at: raised_at,
            probe: ProbeStage::None,
            probes: ProbeRecord::NONE,
            descents: 0,
            recent,
            history,
            stated: StatedLimits::NONE,
            episode: None,
        }
    }

    /// Returns the share in force.
    pub const fn share(&self) -> LimitShare {
        self.share
    }

    /// Returns the share that the provider admitted last, if it is still believed.
    pub const fn ceiling(&self) -> Option<LimitShare> {
        self.ceiling
    }

    /// Returns the time of the last decrease.
    pub const fn decreased_at(&self) -> Timestamp {
        self.decreased_at
    }

    /// Counts requests that the provider has admitted.
    pub fn count_admitted(
        &mut self,
        admitted: u32,
        decided_at: Timestamp,
        now: Timestamp,
        settings: &ControllerSettings,
    ) {
        self.recent.admit(admitted, self.history.at(decided_at), now, settings.hold());
        if let Some(episode) = &mut self.episode {
            episode.admit(admitted);
        }
    }

    /// Applies a rejection of a request that was decided at `decided_at`, which states that the provider rejects others
    /// for `closed_for`; returns whether the share was lowered.
    ///
    /// The share falls by twice the part of requests that were rejected in the last period, so that one among a thousand
    /// costs little. A provider that counts in windows rejects for the rest of its window, whatever the rate is now. So
    /// the rejections of one period lower the share by `decrease` at most. A request that was decided before the last
    /// decrease says nothing about the share since.
    pub fn on_rejection(
        &mut self,
        decided_at: Timestamp,
        closed_for: Duration,
        now: Timestamp,
        settings: &ControllerSettings,
    ) -> bool {
        self.recent.reject(now, settings.hold());
        self.end_episode(now, settings);
        let is_first = self.episode.is_none();
        if is_first && decided_at <= self.decreased_at {
            return false;
        }
        let episode = self.episode.unwrap_or_else(|| self.begin_episode(decided_at, now));
        let episode = episode.with_rejection(part(closed_for, settings.step), self.recent.admitted_share());
        self.episode = Some(episode);
        let gentle = settings.gentle() << self.descents.saturating_sub(1).min(MAX_DESCENTS);
        let by = self
            .recent
            .excess()
            .max(episode.closed_part())
            .clamp(gentle.min(settings.decrease), settings.decrease);
        // A probe that fails returns to the share that is known to be good, and only the next episode can lower that.
        let good = |ceiling: Option<LimitShare>| {
            ceiling.map(|ceiling| settings.plateau(ceiling).lowered(settings.gentle()).max(settings.min))
        };
        let lowered = episode.from().lowered(by).min(good(episode.probed()).unwrap_or(LimitShare::FULL));
        let target = lowered.max(good(episode.good()).unwrap_or(settings.min)).max(settings.min);
        // Further decreases have a minimum size, so that there are few of them.
        let is_lower = target < self.share
            && (is_first || target <= self.share.lowered(settings.gentle()) || by == settings.decrease);
        if is_lower {
            (self.share, self.decreased_at) = (target, now);
            self.history.record(target, now);
        }
        (self.raised_at, self.probe) = (now, ProbeStage::None);
        is_lower
    }

    /// Applies the response to a request that was decided at `decided_at`, which is no rejection, while the limit is in
    /// use; returns whether the share rose.
    pub fn on_success(
        &mut self,
        decided_at: Timestamp,
        now: Timestamp,
        settings: &ControllerSettings,
    ) -> bool {
        self.end_episode(now, settings);
        if self.episode.is_some() || decided_at <= self.decreased_at {
            self.raised_at = now;
            return false;
        }
        let (unused, delay) = (now.since(self.raised_at), now.since(decided_at));
        if unused < MIN_RISE_INTERVAL {
            return false;
        }
        let step = self.rise_step(delay, settings);
        let elapsed = unused.min(settings.step);
        self.raised_at = now;
        let before = self.share;
        let plateau = self.ceiling.map_or(settings.min, |ceiling| settings.plateau(ceiling));
        if before < plateau {
            let steps = elapsed.as_secs_f64() / step.as_secs_f64();
            self.share = before.raised(recovery(before, plateau, steps, settings)).min(plateau);
        } else if now >= self.probes_at {
            self.descents = 0;
            let delay = delay.saturating_add(settings.lag);
            let time = RiseTime { elapsed, delay, is_after_pause: unused > step * 2 };
            self.rise_beyond(plateau, time, now, settings);
        }
        self.history.record(self.share, now);
        self.share > before
    }

    /// Records the limit that the provider states. If it is greater than before, the share returns to a ceiling that is
    /// greater in proportion.
    pub fn record_stated(&mut self, limit: u64, now: Timestamp) {
        // An episode ends with a ceiling of its own.
        if self.episode.is_none()
            && let Some(ceiling) = self.ceiling
            && let Some(rise) = self.stated.record(limit, now)
        {
            (self.ceiling, self.probe) = (Some(rise.applied(ceiling)), ProbeStage::None);
        }
    }

    /// Returns the step of a rise. The more time there is between a decision and its response, the slower the share has
    /// to rise. Few responses in a period say little, so that it has to rise slower, too.
    fn rise_step(&self, delay: Duration, settings: &ControllerSettings) -> Duration {
        let sparseness = (MIN_RESPONSES / self.recent.total().max(1)).clamp(1, MAX_SPARSENESS);
        (settings.step * sparseness).saturating_add(delay)
    }

    /// Begins an episode with the rejection of a request that was decided at `decided_at`.
    fn begin_episode(&mut self, decided_at: Timestamp, now: Timestamp) -> Episode {
        let from = self.history.at(decided_at).min(self.share);
        let delay = now.since(decided_at);
        let episode = Episode::begin(from, self.ceiling, self.probe == ProbeStage::Growth, delay, now);
        let is_descent = episode.good().is_none() && self.recent.total() < MIN_RESPONSES;
        self.descents = if is_descent { self.descents.saturating_add(1) } else { 0 };
        episode
    }

    /// Ends the episode if a period has elapsed since it began.
    fn end_episode(&mut self, now: Timestamp, settings: &ControllerSettings) {
        let Some(episode) = self
            .episode
            .take_if(|episode| now.since(episode.began()) >= settings.hold().saturating_add(episode.delay()))
        else {
            return;
        };
        let ceiling = episode.ceiling(self.share, settings.gentle(), self.descents > 1);
        if episode.known().is_some_and(|known| ceiling.is_near(known)) {
            self.stated.ceiling_confirmed();
        } else {
            self.stated.ceiling_replaced();
        }
        self.ceiling = Some(self.probes.record(&episode, ceiling));
        let calm = self.probes.calm(&episode, self.recent.total(), settings);
        self.probes_at = now.saturating_add(calm);
    }

    /// Continues with a decrease of another instance, which also is the first to probe.
    pub fn follow(
        &mut self,
        share: LimitShare,
        ceiling: Option<LimitShare>,
        decreased_at: Timestamp,
        now: Timestamp,
    ) {
        let (recent, probes_at) = (self.recent, now.saturating_add(FOLLOWED_CALM));
        let (mut history, mut stated) = (self.history, self.stated);
        history.record(share, now);
        stated.ceiling_replaced();
        let followed = Self::new(share, ceiling, decreased_at, now);
        *self = Self { recent, probes_at, history, stated, ..followed };
    }

    /// Continues with the share to which another instance has raised the limit, unless it is higher here.
    pub fn raise_to(&mut self, share: LimitShare, ceiling: Option<LimitShare>, now: Timestamp) {
        if share > self.share {
            (self.share, self.ceiling) = (share, ceiling);
            self.history.record(share, now);
            if matches!(self.probe, ProbeStage::Test(_)) {
                // It was one of another share. A growth remains one: the provider has admitted a test.
                self.probe = ProbeStage::None;
            }
        }
    }

    /// Lowers the share to `share`, unless it is lower.
    pub fn lower_to(&mut self, share: LimitShare, now: Timestamp) {
        if share < self.share {
            self.share = share;
            self.history.record(share, now);
        }
    }
}

/// Returns `time` as a part of `step`, in millionths.
fn part(time: Duration, step: Duration) -> u32 {
    let part = time.as_nanos().saturating_mul(WHOLE.into()) / step.as_nanos().max(1);
    u32::try_from(part).unwrap_or(u32::MAX)
}

/// Returns by how much the share rises in `steps` while it is below what the provider is known to admit.
fn recovery(share: LimitShare, plateau: LimitShare, steps: f64, settings: &ControllerSettings) -> u32 {
    let distance = f64::from(plateau.millionths().saturating_sub(share.millionths()));
    let least = f64::from(settings.increase / MIN_RISE);
    rounded(((distance * RECOVERY).max(least) * steps).min(distance))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a cast of a float saturates")]
fn rounded(millionths: f64) -> u32 {
    millionths.round() as u32
}

#[cfg(test)]
mod tests;
