//! Limits inside a stream: decides how much of the bytes that have arrived may pass on, and when the next part may.
//!
//! A part is charged before it passes, and its departure is fixed then. So a limit is never exceeded, and streams with one
//! key take turns, each with one part. The caller holds what may not pass yet, and reads no more meanwhile.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::rule_recorder::{StreamMetrics, StreamOutcome};
use super::view::LimitsView;
use weir_http::messages::{Framing, MessageScanner, StreamSegment};
use weir_limiter::decision::{Decision, Enforcement, Verdict};
use weir_limiter::quota::Quota;
use weir_limiter::reservation::Reservation;
use weir_limiter::timestamp::Timestamp;
use weir_limiter::{Check, Limiter};
use weir_policy::rules::stream_limit::{StreamDirection, StreamMeasure};
use weir_policy::rules::streams::{SelectedStream, StreamSettings};

/// Maximum bytes that are charged at once, so that streams with one key take turns.
const MAX_PART: usize = 16 * 1024;

/// Time after which a limit that has no room is checked again: its algorithm cannot say when this stream's turn is.
const MIN_WAIT: Duration = Duration::from_millis(1);

/// The limits on one direction of a stream.
#[derive(Debug)]
pub struct StreamLimiter {
    limits: SmallVec<[LimitOfStream; 2]>,
    /// Finds messages, if a limit counts them.
    scanner: Option<MessageScanner>,
    /// Maximum bytes of a part.
    max_part: usize,
    /// Bytes that may pass on, at the beginning of those that have not.
    granted: usize,
    /// What follows them: bytes of at most one message.
    segment: StreamSegment,
    /// The part of the segment that is charged.
    charged: Option<ChargedPart>,
}

/// How much of the bytes that have arrived may pass on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamRoom {
    /// This number of bytes.
    Available(usize),
    /// None, for this time.
    After(Duration),
}

/// A part that may pass on at its departure.
#[derive(Clone, Copy, Debug)]
struct ChargedPart {
    length: usize,
    starts_message: bool,
    charged_at: Timestamp,
    departure: Timestamp,
}

#[derive(Debug)]
struct LimitOfStream {
    measure: StreamMeasure,
    check: Check,
    burst: NonZeroU32,
    metrics: Option<Arc<StreamMetrics>>,
}

/// What the limits decide about a part.
enum Charge {
    /// It is charged, and may pass on after this time.
    Charged(Duration),
    /// It can be charged after this time.
    NoRoom(Duration),
    /// It was larger than what a limit can ever admit at once, and is to be charged in smaller parts.
    TooLarge,
}

impl StreamLimiter {
    /// Returns the limits on one direction of a stream whose messages have this framing; `None` if there are none.
    pub fn new(
        selected: &[SelectedStream],
        direction: StreamDirection,
        framing: Option<Framing>,
        view: &LimitsView,
    ) -> Option<Box<Self>> {
        let applies = |one: &&SelectedStream| match one.measure {
            StreamMeasure::Messages(sender, _) => sender == direction && framing.is_some(),
            StreamMeasure::Bytes(sender) => sender == direction,
        };
        let limits: SmallVec<[LimitOfStream; 2]> =
            selected.iter().filter(applies).map(|one| LimitOfStream::new(one, view)).collect();
        if limits.is_empty() {
            return None;
        }
        let counts_messages = limits.iter().any(|limit| !limit.counts_bytes());
        Some(Box::new(Self {
            scanner: framing.filter(|_| counts_messages).map(MessageScanner::new),
            max_part: max_part(&limits),
            limits,
            granted: 0,
            segment: StreamSegment { length: 0, starts_message: false },
            charged: None,
        }))
    }

    /// Returns how much of `bytes` may pass on. They are all that have arrived and not passed on.
    pub fn room(&mut self, bytes: &[u8], view: &LimitsView) -> StreamRoom {
        self.room_at(bytes, &view.limiter, view.clock.now())
    }

    fn room_at(&mut self, bytes: &[u8], limiter: &Limiter, now: Timestamp) -> StreamRoom {
        loop {
            if let Some(part) = self.charged {
                let left = part.departure.since(now);
                if !left.is_zero() {
                    return self.granted_or(left);
                }
                self.charged = None;
                self.granted += part.length;
            }
            if self.granted >= bytes.len() {
                return StreamRoom::Available(bytes.len());
            }
            if self.segment.length == 0 {
                self.segment = self.next_segment(&bytes[self.granted..]);
            }
            let length = self.segment.length.min(self.max_part);
            match self.charge(length, limiter, now) {
                Charge::Charged(delay) => {
                    let (starts_message, departure) =
                        (self.segment.starts_message, now.saturating_add(delay));
                    self.charged = Some(ChargedPart { length, starts_message, charged_at: now, departure });
                    self.segment.length -= length;
                    self.segment.starts_message = false;
                }
                Charge::NoRoom(wait) => return self.granted_or(wait),
                Charge::TooLarge => {}
            }
        }
    }

    /// Records that `count` of the bytes have passed on.
    pub fn passed(&mut self, count: usize) {
        self.granted = self.granted.saturating_sub(count);
    }

    /// Applies another configuration. Limits that it does not have hold nothing any longer.
    pub fn reload(&mut self, view: &LimitsView) {
        let rules = &view.policy.rules;
        self.limits.retain_mut(|limit| {
            let settings = rules.stream_settings(limit.check.handle);
            settings.inspect(|settings| limit.adopt(settings, view)).is_some()
        });
        self.max_part = max_part(&self.limits);
    }

    /// Lets a part that waits pass on earlier if its limits have got room, such as by a boost, a reset or a reload: no part
    /// waits longer than one that would be charged now.
    pub fn refresh(&mut self, view: &LimitsView) {
        self.refresh_at(&view.limiter, view.clock.now());
    }

    fn refresh_at(&mut self, limiter: &Limiter, now: Timestamp) {
        let Some(part) = self.charged else { return };
        let decision = limiter.peek(self.checks(part.length, part.starts_message), now);
        let wait = decision.verdicts().iter().map(|verdict| verdict.delay().max(verdict.retry_after())).max();
        let departure = part.departure.min(now.saturating_add(wait.unwrap_or_default()));
        self.charged = Some(ChargedPart { departure, ..part });
    }

    /// Gives back the charge of a part that waits and will not pass on, because its stream has ended.
    pub fn abandon(&mut self, view: &LimitsView) {
        self.abandon_at(&view.limiter, view.clock.now());
    }

    fn abandon_at(&mut self, limiter: &Limiter, now: Timestamp) {
        let Some(part) = self.charged.take().filter(|part| part.departure > now) else { return };
        for check in self.checks(part.length, part.starts_message) {
            if check.enforcement == Enforcement::Enforced {
                let mut reservation = Reservation::charged(&check, part.charged_at);
                let _ = limiter.settle(&mut reservation, 0, now);
            }
        }
    }

    fn granted_or(&self, wait: Duration) -> StreamRoom {
        match self.granted {
            0 => StreamRoom::After(wait.max(MIN_WAIT)),
            granted => StreamRoom::Available(granted),
        }
    }

    fn next_segment(&mut self, rest: &[u8]) -> StreamSegment {
        match &mut self.scanner {
            Some(scanner) => scanner.next_segment(rest),
            None => StreamSegment { length: rest.len(), starts_message: false },
        }
    }

    /// Charges the next part of the segment, of this number of bytes, to all limits or none.
    fn charge(&mut self, part: usize, limiter: &Limiter, now: Timestamp) -> Charge {
        let starts_message = self.segment.starts_message;
        let checks = self.checks(part, starts_message);
        if checks.is_empty() {
            return Charge::Charged(Duration::ZERO);
        }
        let decision = limiter.check(&checks, now);
        if decision.is_rejected() {
            return self.without_room(starts_message, &decision);
        }
        let charged = self.limits.iter().filter(|limit| limit.is_due(starts_message));
        for ((limit, check), verdict) in charged.zip(&checks).zip(decision.verdicts()) {
            limit.record(check.cost, verdict);
        }
        Charge::Charged(decision.verdicts().iter().map(Verdict::delay).max().unwrap_or_default())
    }

    /// Returns the checks of a part of this length.
    fn checks(&self, length: usize, starts_message: bool) -> SmallVec<[Check; 2]> {
        let bytes = u32::try_from(length).unwrap_or(u32::MAX);
        let due = self.limits.iter().filter(|limit| limit.is_due(starts_message));
        due.map(|limit| limit.check_of(bytes)).collect()
    }

    /// Returns why a part is not charged. A reload may have made a burst smaller than it: the next one is no larger.
    fn without_room(&mut self, starts_message: bool, decision: &Decision) -> Charge {
        let (mut wait, mut is_too_large) = (Duration::ZERO, false);
        let due = self.limits.iter_mut().filter(|limit| limit.is_due(starts_message));
        for (limit, verdict) in due.zip(decision.verdicts()).filter(|(_, verdict)| verdict.rejects()) {
            wait = wait.max(verdict.retry_after());
            let Some(burst) = verdict.quota().map(Quota::burst) else { continue };
            let most = if limit.counts_bytes() { self.max_part } else { limit.check.cost as usize };
            if most <= burst.get() as usize {
                continue;
            }
            is_too_large = true;
            match limit.measure {
                StreamMeasure::Bytes(_) => self.max_part = part_of_burst(burst),
                StreamMeasure::Messages(..) => limit.check.cost = burst.get(),
            }
        }
        if is_too_large { Charge::TooLarge } else { Charge::NoRoom(wait) }
    }
}

/// Returns the maximum bytes of a part: the least burst of the limits that count bytes.
fn max_part(limits: &[LimitOfStream]) -> usize {
    let bursts = limits.iter().filter(|limit| limit.counts_bytes()).map(|limit| limit.burst);
    bursts.min().map_or(usize::MAX, part_of_burst)
}

fn part_of_burst(burst: NonZeroU32) -> usize {
    usize::try_from(burst.get()).unwrap_or(MAX_PART).min(MAX_PART)
}

impl LimitOfStream {
    fn new(selected: &SelectedStream, view: &LimitsView) -> Self {
        let metrics = view.recorder(selected.rule).and_then(|recorder| recorder.streams.clone());
        let SelectedStream { measure, check, burst, .. } = *selected;
        Self { measure, check, burst, metrics }
    }

    /// Adopts the settings of another configuration. A share of keys that it enforces is applied to new streams.
    fn adopt(&mut self, settings: &StreamSettings, view: &LimitsView) {
        self.metrics = view.recorder(settings.rule).and_then(|recorder| recorder.streams.clone());
        (self.measure, self.burst) = (settings.measure, settings.burst);
        if let StreamMeasure::Messages(..) = settings.measure {
            self.check.cost = settings.measure.units();
        }
        match settings.is_enforced {
            Some(true) => self.check.enforcement = Enforcement::Enforced,
            Some(false) => self.check.enforcement = Enforcement::Shadow,
            None => {}
        }
    }

    const fn counts_bytes(&self) -> bool {
        matches!(self.measure, StreamMeasure::Bytes(_))
    }

    /// Whether a part is charged to this limit. One that counts messages charges the part with which a message starts.
    const fn is_due(&self, starts_message: bool) -> bool {
        self.counts_bytes() || starts_message
    }

    /// Returns the check of a part with this number of bytes.
    const fn check_of(&self, bytes: u32) -> Check {
        let cost = if self.counts_bytes() { bytes } else { self.check.cost };
        Check { cost, ..self.check }
    }

    fn record(&self, units: u32, verdict: &Verdict) {
        let Some(metrics) = &self.metrics else { return };
        let delay = verdict.delay();
        let outcome = match verdict.enforcement {
            Enforcement::Shadow if verdict.exceeds() => StreamOutcome::Shadow,
            _ if delay.is_zero() => StreamOutcome::Allowed,
            _ => StreamOutcome::Delayed,
        };
        metrics.record(self.measure, outcome, units, delay);
    }
}

#[cfg(test)]
mod tests;
