//! Samples the process every few seconds, and sends what has changed to the webhook.
//!
//! It runs on the main thread and never touches a request. While the webhook is unreachable, attempts back off and
//! alerts keep their last state.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use super::client;
use super::conditions::ConditionEvaluator;
use super::payload::{self, INSTANCE, Moment};
use super::sample::AlertSample;
use super::settings::{AlertKind, AlertSettings};
use super::spike::SLICE;
use super::tracker::AlertTracker;
use crate::metrics::{AlertMetrics, Metrics};
use weir_limiter::timestamp::Timestamp;
use weir_net::http_client::HttpClient;
use weir_net::jitter::backoff;
use weir_net::outage::Outage;

/// Pause after the first failed attempt, shorter than a slice so that the next sample repeats it; and the maximum pause.
const FIRST_RETRY: Duration = Duration::from_secs(4);
const MAX_RETRY: Duration = Duration::from_secs(300);

/// Evaluates alerts and sends them.
#[derive(Debug)]
struct AlertNotifier {
    instance: Box<str>,
    evaluator: ConditionEvaluator,
    tracker: AlertTracker,
    metrics: AlertMetrics,
    outage: Outage,
    /// Time of the last failed attempt.
    last_failure: Timestamp,
}

/// Evaluates and sends alerts for as long as it is polled. `settings` are `None` while alerts are not configured;
/// `sample` returns the state of the process, and `instance` is the name of this one in the label of that name.
pub async fn run(
    mut settings: watch::Receiver<Option<Arc<AlertSettings>>>,
    instance: Box<str>,
    metrics: &Metrics,
    sample: impl Fn() -> AlertSample,
) {
    let mut notifier: Option<AlertNotifier> = None;
    loop {
        let current = settings.borrow_and_update().clone();
        let started = current.and_then(|settings| {
            HttpClient::new(settings.webhook.clone(), client::MAX_RESPONSE_SIZE)
                .map_err(|error| tracing::error!(%error, "cannot set up TLS: alerts are not sent"))
                .map(|webhook| (settings, webhook))
                .ok()
        });
        let changed = match started {
            None => settings.changed().await,
            Some((alerts, mut webhook)) => {
                let notifier = notifier.get_or_insert_with(|| AlertNotifier::new(&instance, metrics));
                tokio::select! {
                    changed = settings.changed() => changed,
                    () = notifier.follow(&alerts, &mut webhook, &sample) => Ok(()),
                }
            }
        };
        if changed.is_err() {
            return std::future::pending().await;
        }
    }
}

impl AlertNotifier {
    fn new(instance: &str, metrics: &Metrics) -> Self {
        Self {
            instance: instance.into(),
            evaluator: ConditionEvaluator::default(),
            tracker: AlertTracker::default(),
            metrics: metrics.alerts(AlertKind::ALL.map(AlertKind::alert_name)),
            outage: Outage::default(),
            last_failure: Timestamp::EPOCH,
        }
    }

    /// Evaluates and sends alerts without end.
    async fn follow(
        &mut self,
        settings: &AlertSettings,
        webhook: &mut HttpClient,
        sample: impl Fn() -> AlertSample,
    ) {
        // Other settings deserve an attempt at once.
        self.outage = Outage::default();
        let mut ticks = interval(SLICE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let sample = sample();
            let conditions = self.evaluator.evaluate(&sample, settings.kinds);
            self.tracker.update(conditions, sample.now);
            for kind in AlertKind::ALL {
                self.metrics.set_firing(kind.alert_name(), self.tracker.firing(kind));
            }
            let pause = backoff(FIRST_RETRY, MAX_RETRY, self.outage.failures());
            if self.outage.is_over() || sample.now.since(self.last_failure) >= pause {
                let at = Moment { now: sample.now, wall_clock: sample.wall_clock };
                self.deliver(settings, webhook, at).await;
            }
        }
    }

    /// Sends what the receiver has not got yet.
    async fn deliver(&mut self, settings: &AlertSettings, webhook: &mut HttpClient, at: Moment) {
        let due = self.tracker.due(at.now, settings.repeat_interval);
        if due.is_empty() {
            return;
        }
        let mut labels = BTreeMap::from([(INSTANCE.to_owned(), self.instance.to_string())]);
        labels.extend(settings.labels.clone());
        let shared = payload::Common { labels: &labels, runbook_url: settings.runbook_url.as_deref() };
        let sent = match payload::message(&due, shared, self.tracker.truncated(), at) {
            Ok(body) => client::send(webhook, body).await,
            Err(error) => Err(error.to_string()),
        };
        let webhook = settings.webhook.url.origin();
        match sent {
            Ok(()) => {
                self.tracker.mark_sent(&due, at.now);
                self.metrics.record_sent(at.wall_clock);
                if self.outage.record_success() > 0 {
                    tracing::info!(%webhook, "the webhook of alerts can be reached again");
                }
            }
            Err(error) => {
                self.metrics.record_failed();
                if self.outage.record_failure() == 1 {
                    tracing::warn!(%webhook, %error, "cannot send alerts, will retry");
                }
                self.last_failure = at.now;
            }
        }
    }
}
