//! How the share of a limit changes: additive increase, multiplicative decrease, and a remembered ceiling.
//!
//! The share falls when the provider rejects, and rises while the limit is in use and nothing is rejected. An increase
//! that repeatedly runs into the provider's limit would waste a good part of it. So the share at which the provider
//! rejected is remembered, as in CUBIC (RFC 9438). The share returns to a little below that ceiling, stays there for a
//! while, and then probes slowly. `docs/design/031-provider-feedback.md` has the reasons and a simulation.

use std::time::Duration;

use super::super::percent::Percent;
use super::super::timestamp::Timestamp;
use super::{LimitShare, WHOLE, millionths};

/// Bounds of the interval in which the share rises by one `increase`.
const MIN_STEP: Duration = Duration::from_secs(1);
const MAX_STEP: Duration = Duration::from_secs(60);
/// Maximum time for which a decrease prevents the next one.
const MAX_HOLD: Duration = Duration::from_secs(10);
/// Steps for which the share stays below a known ceiling.
const PLATEAU_STEPS: u32 = 20;
/// Steps without a decrease after which a rejection below the ceiling means that the ceiling was right.
const SETTLED_STEPS: u32 = 10;
/// Minimum time between two increases, so that none is lost by rounding.
pub(super) const MIN_RISE_INTERVAL: Duration = Duration::from_millis(20);
/// Part of `decrease` by which the share falls at a ceiling that was right, and stays below one.
const GENTLE_PART: u32 = 10;
/// Part of `increase` by which the share rises beyond the plateau.
const PROBE_PART: u32 = 5;
/// Time without use after which what is known of the provider is forgotten.
pub const MAX_IDLE: Duration = Duration::from_secs(600);

/// Settings of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllerSettings {
    min: LimitShare,
    decrease: u32,
    increase: u32,
    step: Duration,
}

impl ControllerSettings {
    /// Creates settings for a limit with this period: the lower bound, the part by which a rejection lowers the share,
    /// and the part of the limit by which it rises in one period, at least a second and at most a minute.
    pub fn new(min: LimitShare, decrease: Percent, increase: Percent, period: Duration) -> Self {
        Self {
            min,
            decrease: millionths(decrease).min(WHOLE),
            increase: millionths(increase).min(WHOLE),
            step: period.clamp(MIN_STEP, MAX_STEP),
        }
    }

    /// Returns the lower bound.
    pub const fn min(&self) -> LimitShare {
        self.min
    }

    /// Time after a decrease in which further rejections do not lower the share.
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

    /// Returns the share at which `ceiling` has proved to be too low.
    fn beyond(&self, ceiling: LimitShare) -> LimitShare {
        let by = u64::from(ceiling.millionths()) * u64::from(self.gentle()) / u64::from(WHOLE);
        ceiling.raised(u32::try_from(by).unwrap_or(WHOLE))
    }
}

/// State of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareController {
    share: LimitShare,
    /// The share at which the provider last rejected, if it is still believed.
    ceiling: Option<LimitShare>,
    decreased_at: Timestamp,
    /// Up to when the increase has been applied.
    raised_at: Timestamp,
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
        Self { share, ceiling, decreased_at, raised_at }
    }

    /// Returns the share in force.
    pub const fn share(&self) -> LimitShare {
        self.share
    }

    /// Returns the share at which the provider last rejected, if it is still believed.
    pub const fn ceiling(&self) -> Option<LimitShare> {
        self.ceiling
    }

    /// Returns the time of the last decrease.
    pub const fn decreased_at(&self) -> Timestamp {
        self.decreased_at
    }

    /// Applies a rejection of a request that was sent at `sent_at`; returns whether the share was lowered.
    ///
    /// A request that was sent before the last decrease says nothing about the share since. Rejections that follow
    /// within one period may be due to the provider's window, which is used up whatever the rate is now.
    pub fn on_rejection(
        &mut self,
        sent_at: Timestamp,
        now: Timestamp,
        settings: &ControllerSettings,
    ) -> bool {
        let since = now.since(self.decreased_at);
        if sent_at <= self.decreased_at || since < settings.hold() {
            return false;
        }
        let is_confirmed = self.ceiling.is_some_and(|ceiling| self.share >= settings.plateau(ceiling));
        let is_settled = since >= settings.step * SETTLED_STEPS;
        let by = if is_confirmed && is_settled { settings.gentle() } else { settings.decrease };
        self.ceiling = Some(self.share);
        self.share = self.share.lowered(by).max(settings.min);
        (self.decreased_at, self.raised_at) = (now, now);
        true
    }

    /// Applies a response that is no rejection, while the limit is in use; returns whether the share rose.
    pub fn on_success(&mut self, now: Timestamp, settings: &ControllerSettings) -> bool {
        let elapsed = now.since(self.raised_at).min(settings.step);
        if elapsed < MIN_RISE_INTERVAL {
            return false;
        }
        self.raised_at = now;
        let (before, rise) = (self.share, part(settings.increase, elapsed, settings.step));
        let Some(ceiling) = self.ceiling else {
            self.share = before.raised(rise);
            return self.share > before;
        };
        let plateau = settings.plateau(ceiling);
        if before < plateau {
            self.share = before.raised(rise).min(plateau);
        } else if now.since(self.decreased_at) >= settings.step * PLATEAU_STEPS {
            self.share = before.raised(rise / PROBE_PART);
            if self.share >= settings.beyond(ceiling) {
                self.ceiling = None;
            }
        }
        self.share > before
    }

    /// Continues with a decrease of another instance.
    pub fn follow(
        &mut self,
        share: LimitShare,
        ceiling: Option<LimitShare>,
        decreased_at: Timestamp,
        now: Timestamp,
    ) {
        *self = Self { share, ceiling, decreased_at, raised_at: now };
    }

    /// Continues with the share to which another instance has raised the limit, unless it is higher here.
    pub fn raise_to(&mut self, share: LimitShare, ceiling: Option<LimitShare>) {
        if share > self.share {
            (self.share, self.ceiling) = (share, ceiling);
        }
    }

    /// Lowers the share to `share`, unless it is lower.
    pub fn lower_to(&mut self, share: LimitShare) {
        self.share = self.share.min(share);
    }
}

/// Returns `elapsed / step` of `whole`, which is at most one step.
fn part(whole: u32, elapsed: Duration, step: Duration) -> u32 {
    let part = u128::from(whole) * elapsed.as_nanos() / step.as_nanos().max(1);
    u32::try_from(part).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
