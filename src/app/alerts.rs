//! Samples the process for alerts, and runs their evaluation.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

use tokio::sync::watch;

use super::RunningApp;
use weir_config::Config;
use weir_net::tls::key_pair::{CertificateValidity, validity_by_file};
use weir_store as store;
use weir_telemetry::alerts::notifier;
use weir_telemetry::alerts::sample::{AlertSample, UpstreamSample};
use weir_telemetry::alerts::settings::AlertSettings;
use weir_telemetry::metrics::{DecisionCounts, DecisionOutcome, ReloadOutcome};

/// The settings in force; `None` while alerts are not configured.
pub(super) type AlertSettingsSender = watch::Sender<Option<Arc<AlertSettings>>>;

/// Outcomes with which a rule rejects a request.
const REJECTIONS: [DecisionOutcome; 3] =
    [DecisionOutcome::Limited, DecisionOutcome::Banned, DecisionOutcome::Denied];

/// Creates the sender of the settings of `config`.
pub(super) fn settings_sender(config: &Config) -> AlertSettingsSender {
    watch::Sender::new(config.alerts.clone().map(Arc::new))
}

/// Passes on the settings of a new configuration if they differ.
pub(super) fn apply(sender: &AlertSettingsSender, settings: Option<AlertSettings>) {
    sender.send_if_modified(|current| {
        let differs = current.as_deref() != settings.as_ref();
        if differs {
            *current = settings.map(Arc::new);
        }
        differs
    });
}

/// Evaluates and sends alerts for as long as it is polled.
pub(super) async fn run(running: &RunningApp) {
    // The name of the host is that of the pod in Kubernetes.
    let instance = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let settings = running.alert_settings.subscribe();
    notifier::run(settings, instance.trim().into(), &running.shared.metrics, || sample(running)).await;
}

fn sample(running: &RunningApp) -> AlertSample {
    let shared = &running.shared;
    let rejected = |decisions: DecisionCounts| decisions.sum_of(&REJECTIONS);
    let now = shared.clock.now();
    let rules = shared.metrics.all_decisions().into_iter();
    let countries = shared.metrics.country_decisions().into_iter();
    let upstreams =
        shared.generation.load().upstreams.iter().map(|upstream| upstream.view(now)).collect::<Vec<_>>();
    AlertSample {
        now,
        wall_clock: shared.clock.civil_time_at(now),
        rejections_by_rule: rules.map(|(rule, decisions)| (rule, rejected(decisions))).collect(),
        rejections_by_country: countries.map(|(country, decisions)| (country, decisions.rejected)).collect(),
        is_store_unreachable: shared.store.as_ref().map(store::handle::StoreHandle::is_unreachable),
        reload_problem: reload_problem(running),
        table_overflows: shared.limiter.overflows(),
        certificates: certificates(running),
        upstreams: upstreams
            .into_iter()
            .map(|view| UpstreamSample {
                endpoints: view.hosts.len(),
                healthy: view.hosts.iter().filter(|host| host.is_healthy()).count(),
                name: view.name,
            })
            .collect(),
    }
}

/// Returns the first problem of the last configuration, if it was rejected.
fn reload_problem(running: &RunningApp) -> Option<String> {
    let attempt = running.reload.last_attempt()?;
    let is_rejected = attempt.outcome == ReloadOutcome::Rejected;
    is_rejected.then(|| attempt.problems.into_iter().next().unwrap_or_default())
}

/// Returns the validity of each certificate file.
fn certificates(running: &RunningApp) -> BTreeMap<Box<str>, CertificateValidity> {
    let generation = running.shared.generation.load();
    let servers = generation.tls.iter().flatten().flat_map(|server| &server.settings().key_pairs);
    let clients: Vec<_> = generation.upstreams.iter().filter_map(|upstream| upstream.tls()).collect();
    let of_clients = clients.iter().filter_map(|client| client.settings().key_pair.as_ref());
    validity_by_file(servers.chain(of_clients))
}
