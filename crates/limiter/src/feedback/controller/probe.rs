//! How the share rises beyond what the provider is known to admit.
//!
//! A probe has two stages. A *test* exceeds the ceiling by very little, for more than a period, so that a provider whose
//! limit is unchanged rejects a few requests at most, however it counts. If it rejects none, its limit is
//! another one, and the share *grows* exponentially. A growth that finds the old limit after all was a false alarm, and
//! the next one is slower.

use std::time::Duration;

use super::super::super::timestamp::Timestamp;
use super::super::{LimitShare, WHOLE};
use super::episode::Episode;
use super::{ControllerSettings, MIN_RISE, ShareController, rounded};

/// Requests by which a test exceeds the ceiling in one period.
const TESTED_REQUESTS: f64 = 1.5;
/// Duration of a test, in steps. A window of one step that begins in the first half of a test ends before the test does.
const TEST_STEPS: f64 = 1.5;
/// Part of the distance from the ceiling by which the share grows in one step.
const GROWTH: f64 = 4.0;
/// Number of false alarms that halve the growth.
const MAX_FALSE_ALARMS: u32 = 5;
/// Requests that the provider admits for each that it rejects, while the share is probed again and again.
const ADMITTED_PER_REJECTION: f64 = 1200.0;
/// Number of confirmations of a ceiling after which that holds; before, each doubles it.
const CONFIRMATIONS: u32 = 6;
/// Maximum time until the next probe doubles with each confirmation, from one step on.
const MAX_DOUBLINGS: u32 = 5;
/// Number of responses in a period with fewer of which that time is longer.
const FEW_RESPONSES: u32 = 5;

/// Where a probe is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProbeStage {
    /// The share is at most that of a test.
    None,
    /// The share is that of a test, since then.
    Test(Timestamp),
    /// A test has passed.
    Growth,
}

/// What earlier probes have shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ProbeRecord {
    /// Episodes since the ceiling has changed much.
    confirmations: u32,
    /// Those of them that ended a growth.
    false_alarms: u32,
}

/// How much time a rise is for.
#[derive(Clone, Copy, Debug)]
pub(super) struct RiseTime {
    /// Time since the last rise.
    pub(super) elapsed: Duration,
    /// Time between a change of the share and the responses that show its effect.
    pub(super) delay: Duration,
    /// Whether the limit has not been in use for a while.
    pub(super) is_after_pause: bool,
}

impl ProbeRecord {
    pub(super) const NONE: Self = Self { confirmations: 0, false_alarms: 0 };

    /// Records the end of an episode, which has found `ceiling`; returns the ceiling to believe.
    pub(super) fn record(&mut self, episode: &Episode, ceiling: LimitShare) -> LimitShare {
        let Some(known) = episode.known().filter(|known| ceiling.is_near(*known)) else {
            *self = Self::NONE;
            return ceiling;
        };
        self.confirmations = self.confirmations.saturating_add(1);
        let is_false_alarm = episode.good().is_some() && episode.probed().is_none();
        if !is_false_alarm {
            return ceiling;
        }
        self.false_alarms = self.false_alarms.saturating_add(1);
        // The provider has admitted the test.
        ceiling.max(known)
    }

    /// Returns the time after an episode in which the share does not rise above what the provider is known to admit.
    /// Once that is confirmed, rejections become rare among the requests that the provider admits.
    pub(super) fn calm(self, episode: &Episode, responses: u32, settings: &ControllerSettings) -> Duration {
        let doublings = CONFIRMATIONS.saturating_sub(self.confirmations);
        let admitted = ADMITTED_PER_REJECTION / f64::from(1_u32 << doublings);
        let time = settings.hold().as_secs_f64() * admitted * episode.rejected_part();
        let scarcity = (FEW_RESPONSES / responses.max(1)).max(1);
        let step = settings.step.saturating_add(episode.delay());
        let most = step.saturating_mul(scarcity << self.confirmations.min(MAX_DOUBLINGS));
        Duration::try_from_secs_f64(time).unwrap_or(most).clamp(settings.step.min(most), most)
    }

    /// Factor of the growth.
    fn caution(self) -> f64 {
        1.0 / f64::from(1_u32 << self.false_alarms.min(MAX_FALSE_ALARMS))
    }
}

impl ShareController {
    /// Raises the share above what the provider is known to admit, if it admits the test.
    pub(super) fn rise_beyond(
        &mut self,
        plateau: LimitShare,
        time: RiseTime,
        now: Timestamp,
        settings: &ControllerSettings,
    ) {
        let steps = time.elapsed.as_secs_f64() / settings.step.saturating_add(time.delay).as_secs_f64();
        match self.probe {
            ProbeStage::None => {
                let level = self.ceiling.map_or(self.share, |ceiling| self.test_level(ceiling, settings));
                let most = rounded(f64::from(settings.increase) * steps);
                self.share = self.share.max(self.share.raised(most).min(level));
                if self.share >= level {
                    self.probe = ProbeStage::Test(now);
                }
            }
            ProbeStage::Test(_) if time.is_after_pause => self.probe = ProbeStage::Test(now),
            ProbeStage::Test(since) => {
                let duration = settings.step.mul_f64(TEST_STEPS).saturating_add(time.delay);
                if now.since(since) >= duration {
                    self.ceiling = Some(self.share);
                    self.probe = ProbeStage::Growth;
                    self.stated.ceiling_confirmed();
                }
            }
            ProbeStage::Growth => {
                let by = growth(self.share, plateau, steps, self.probes.caution(), settings);
                self.share = self.share.raised(by);
                if self.share.is_full() {
                    self.probe = ProbeStage::Test(now);
                }
            }
        }
    }

    /// Returns the share of a test: one or two requests more than the ceiling in a period, at least half a per cent.
    fn test_level(&self, ceiling: LimitShare, settings: &ControllerSettings) -> LimitShare {
        let periods = settings.step.as_secs_f64() / settings.hold().as_secs_f64();
        let requests = TESTED_REQUESTS / (f64::from(self.recent.total().max(1)) * periods);
        let part = requests.max(f64::from(settings.gentle()) / f64::from(WHOLE));
        ceiling.raised(rounded(f64::from(ceiling.millionths()) * part))
    }
}

/// Returns by how much the share grows in `steps`: faster and faster, up to `increase`.
fn growth(
    share: LimitShare,
    plateau: LimitShare,
    steps: f64,
    caution: f64,
    settings: &ControllerSettings,
) -> u32 {
    let distance = f64::from(share.millionths().saturating_sub(plateau.millionths()));
    let least = f64::from(settings.increase / MIN_RISE) * share.fraction();
    rounded(((distance * GROWTH + least) * caution).min(f64::from(settings.increase)) * steps)
}
