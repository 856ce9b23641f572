//! State of each alert: pending, firing or resolved, and what the webhook has not received yet.
//!
//! Not notifications but alerts are queued. While the webhook is unreachable, an alert changes as often as it likes;
//! then the receiver gets its last state. So the memory is bounded by the number of alerts.

use std::collections::BTreeMap;
use std::time::Duration;

use super::conditions::{AlertCondition, AlertId};
use super::settings::AlertKind;
use weir_limiter::timestamp::Timestamp;

/// Maximum number of alerts at a time. More are one incident, and a receiver can do nothing with each.
pub(super) const MAX_ALERTS: usize = 100;

/// The alerts of the process.
#[derive(Debug, Default)]
pub(super) struct AlertTracker {
    alerts: BTreeMap<AlertId, AlertState>,
    /// Number of conditions of the last evaluation for which there was no room.
    truncated: usize,
}

#[derive(Debug)]
struct AlertState {
    summary: String,
    description: String,
    /// When the condition began.
    since: Timestamp,
    /// When the condition was met last.
    last_met: Timestamp,
    phase: AlertPhase,
    /// When the receiver got the present phase; `None` if it has not.
    sent: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AlertPhase {
    /// The condition has not held for long enough.
    Pending,
    /// Firing since this time.
    Firing(Timestamp),
    /// Fired from the first time to the second.
    Resolved(Timestamp, Timestamp),
}

/// An alert that is to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Notification {
    pub(super) id: AlertId,
    pub(super) summary: String,
    pub(super) description: String,
    pub(super) started_at: Timestamp,
    /// `None` while it is firing.
    pub(super) ended_at: Option<Timestamp>,
}

impl AlertTracker {
    /// Updates all alerts to the conditions that hold at `now`.
    pub(super) fn update(&mut self, conditions: Vec<AlertCondition>, now: Timestamp) {
        self.truncated = 0;
        for condition in conditions {
            if self.alerts.len() >= MAX_ALERTS && !self.alerts.contains_key(&condition.id) {
                self.truncated += 1;
                continue;
            }
            let AlertCondition { id, summary, description } = condition;
            let state = self.alerts.entry(id).or_insert_with(|| AlertState::new(now));
            (state.summary, state.description) = (summary, description);
            state.last_met = now;
        }
        self.alerts.retain(|id, state| state.advance(id.kind, now));
    }

    /// Returns the alerts to be sent at `now`: those that have changed, and those that fire and were last sent
    /// `repeat_interval` ago.
    pub(super) fn due(&self, now: Timestamp, repeat_interval: Duration) -> Vec<Notification> {
        let due = self.alerts.iter().filter_map(|(id, state)| {
            let (started_at, ended_at) = match state.phase {
                AlertPhase::Pending => return None,
                AlertPhase::Firing(since) => (since, None),
                AlertPhase::Resolved(since, until) => (since, Some(until)),
            };
            let is_due = state.sent.is_none_or(|sent| now.since(sent) >= repeat_interval);
            is_due.then(|| Notification {
                id: id.clone(),
                summary: state.summary.clone(),
                description: state.description.clone(),
                started_at,
                ended_at,
            })
        });
        due.collect()
    }

    /// Records that the receiver got these notifications. Resolved alerts are forgotten.
    pub(super) fn mark_sent(&mut self, notifications: &[Notification], now: Timestamp) {
        for notification in notifications {
            if notification.ended_at.is_some() {
                self.alerts.remove(&notification.id);
            } else if let Some(state) = self.alerts.get_mut(&notification.id) {
                state.sent = Some(now);
            }
        }
    }

    /// Returns the number of conditions of the last evaluation for which there was no room.
    pub(super) const fn truncated(&self) -> usize {
        self.truncated
    }

    pub(super) fn firing(&self, kind: AlertKind) -> usize {
        let is_firing = |state: &AlertState| matches!(state.phase, AlertPhase::Firing(_));
        self.alerts.iter().filter(|(id, state)| id.kind == kind && is_firing(state)).count()
    }
}

impl AlertState {
    const fn new(now: Timestamp) -> Self {
        Self {
            summary: String::new(),
            description: String::new(),
            since: now,
            last_met: now,
            phase: AlertPhase::Pending,
            sent: None,
        }
    }

    /// Moves to the phase at `now`; returns `false` for a condition that has ended before it was an alert.
    fn advance(&mut self, kind: AlertKind, now: Timestamp) -> bool {
        let is_met = self.last_met == now;
        match self.phase {
            AlertPhase::Pending if !is_met => return false,
            AlertPhase::Pending if now.since(self.since) >= kind.hold_time() => {
                self.phase = AlertPhase::Firing(now);
            }
            AlertPhase::Firing(since) if !is_met && now.since(self.last_met) >= kind.keep_firing_time() => {
                (self.phase, self.sent) = (AlertPhase::Resolved(since, now), None);
            }
            // The receiver does not know that it was resolved in between.
            AlertPhase::Resolved(since, _) if is_met => self.phase = AlertPhase::Firing(since),
            AlertPhase::Pending | AlertPhase::Firing(_) | AlertPhase::Resolved(..) => {}
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::settings::AlertSeverity;
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_secs(1_795_248_000 + seconds)
    }

    fn condition(kind: AlertKind, subject: &str) -> AlertCondition {
        AlertCondition {
            id: AlertId { kind, severity: AlertSeverity::Warning, subject: subject.into() },
            summary: "s".to_owned(),
            description: "d".to_owned(),
        }
    }

    /// Evaluates one condition at a time; returns start and end of what is sent, which always succeeds.
    fn step(tracker: &mut AlertTracker, kind: Option<AlertKind>, seconds: u64) -> Vec<(u64, Option<u64>)> {
        tracker.update(kind.map(|kind| condition(kind, "")).into_iter().collect(), at(seconds));
        let due = tracker.due(at(seconds), HOUR);
        tracker.mark_sent(&due, at(seconds));
        let second = |time: Timestamp| time.as_secs() - at(0).as_secs();
        due.iter().map(|it| (second(it.started_at), it.ended_at.map(second))).collect()
    }

    #[test]
    fn alert_is_sent_when_it_fires_repeated_and_sent_when_it_is_resolved() {
        let (mut tracker, reload) = (AlertTracker::default(), Some(AlertKind::ReloadFailed));
        assert_eq!(step(&mut tracker, reload, 0), [(0, None)]);
        assert_eq!(step(&mut tracker, reload, 3599), []);
        assert_eq!(step(&mut tracker, reload, 3600), [(0, None)]);
        assert_eq!(step(&mut tracker, None, 3605), [(0, Some(3605))]);
        assert_eq!(step(&mut tracker, None, 3610), []);
        assert_eq!(step(&mut tracker, reload, 3615), [(3615, None)]);
    }

    #[test]
    fn condition_must_hold_for_its_time() {
        let (mut tracker, store) = (AlertTracker::default(), Some(AlertKind::StoreLost));
        assert_eq!(step(&mut tracker, store, 0), []);
        assert_eq!(step(&mut tracker, None, 5), []);
        assert_eq!(step(&mut tracker, store, 10), []);
        assert_eq!(step(&mut tracker, store, 39), []);
        assert_eq!(step(&mut tracker, store, 40), [(40, None)]);
    }

    #[test]
    fn flapping_condition_is_one_alert() {
        let (mut tracker, store) = (AlertTracker::default(), Some(AlertKind::StoreLost));
        step(&mut tracker, store, 0);
        assert_eq!(step(&mut tracker, store, 30), [(30, None)]);
        for second in (35..600).step_by(10) {
            assert_eq!(step(&mut tracker, None, second), []);
            assert_eq!(step(&mut tracker, store, second + 5), []);
        }
        assert_eq!(step(&mut tracker, None, 600 + 60), [(30, Some(660))]);
    }

    #[test]
    fn unreachable_webhook_gets_the_last_state() {
        let mut tracker = AlertTracker::default();
        let reload = || vec![condition(AlertKind::ReloadFailed, "")];
        tracker.update(reload(), at(0));
        tracker.update(Vec::new(), at(5));
        tracker.update(reload(), at(10));
        let due = tracker.due(at(10), HOUR);
        assert_eq!(due.iter().map(|it| (it.started_at, it.ended_at)).collect::<Vec<_>>(), [(at(0), None)]);
        tracker.update(Vec::new(), at(15));
        assert_eq!(tracker.due(at(15), HOUR)[0].ended_at, Some(at(15)));
    }

    #[test]
    fn alerts_beyond_the_maximum_are_counted() {
        let mut tracker = AlertTracker::default();
        let many = (0..MAX_ALERTS + 7).map(|rule| condition(AlertKind::RejectionSpike, &rule.to_string()));
        tracker.update(many.collect(), at(0));
        assert_eq!((tracker.due(at(0), HOUR).len(), tracker.truncated()), (MAX_ALERTS, 7));
        assert_eq!(tracker.firing(AlertKind::RejectionSpike), MAX_ALERTS);
    }

    proptest! {
        /// Whatever happens and whichever notifications are lost, the receiver ends with the state of the alert.
        #[test]
        fn receiver_learns_the_final_state(steps in proptest::collection::vec((any::<bool>(), any::<bool>()), 1..60)) {
            let mut tracker = AlertTracker::default();
            let mut is_firing = false;
            let mut second = 0;
            let mut deliver = |tracker: &mut AlertTracker, is_met: bool, arrives: bool, second: u64| {
                let met = is_met.then(|| condition(AlertKind::UpstreamDown, "app"));
                tracker.update(met.into_iter().collect(), at(second));
                let due = tracker.due(at(second), HOUR);
                if arrives && let Some(last) = due.last() {
                    is_firing = last.ended_at.is_none();
                    tracker.mark_sent(&due, at(second));
                }
                is_firing
            };
            for (is_met, arrives) in steps {
                second += 7;
                deliver(&mut tracker, is_met, arrives, second);
            }
            for is_met in [true, false] {
                let mut known = !is_met;
                for _ in 0..20 {
                    second += 7;
                    known = deliver(&mut tracker, is_met, true, second);
                }
                prop_assert_eq!(known, is_met);
                prop_assert_eq!(tracker.firing(AlertKind::UpstreamDown), usize::from(is_met));
            }
        }
    }
}
