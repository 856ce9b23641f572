//! Metrics of the alerts that are sent to a webhook.

use std::collections::BTreeMap;

use metrics::{Counter, Gauge};

use super::families::{self, Family};
use weir_limiter::timestamp::Timestamp;

/// Metrics of alerts, written by the task that evaluates and sends them.
#[derive(Debug)]
pub struct AlertMetrics {
    firing: BTreeMap<&'static str, Gauge>,
    sent: Counter,
    failed: Counter,
    success_time: Gauge,
}

impl AlertMetrics {
    /// Creates the metrics of the alerts with these names; `gauge` and `counter` register them.
    pub(super) fn new(
        names: impl IntoIterator<Item = &'static str>,
        gauge: impl Fn(&Family, &[(&'static str, &str)]) -> Gauge,
        counter: impl Fn(&Family, &[(&'static str, &str)]) -> Counter,
    ) -> Self {
        let firing = |name| (name, gauge(&families::ALERTS_FIRING, &[("alertname", name)]));
        let notifications = |outcome| counter(&families::ALERT_NOTIFICATIONS, &[("outcome", outcome)]);
        Self {
            firing: names.into_iter().map(firing).collect(),
            sent: notifications("sent"),
            failed: notifications("failed"),
            success_time: gauge(&families::ALERT_SUCCESS_TIME, &[]),
        }
    }

    pub fn set_firing(&self, name: &str, alerts: usize) {
        if let Some(gauge) = self.firing.get(name) {
            gauge.set(alerts as f64);
        }
    }

    /// Records a notification that the webhook accepted.
    pub fn record_sent(&self, now: Timestamp) {
        self.sent.increment(1);
        self.success_time.set(now.as_secs_f64());
    }

    /// Records a notification that the webhook did not accept.
    pub fn record_failed(&self) {
        self.failed.increment(1);
    }
}
