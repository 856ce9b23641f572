//! Applies reloaded configurations, and handles the signals that request a reload.

use std::cell::Cell;
use std::sync::Arc;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::central::CentralHandle;
use super::{AppError, RunningApp, alerts, thread};
use weir_config::Config;
use weir_config::reload::{Reload, Reloader, UnusableSetting};
use weir_telemetry::access_log::{AccessLog, AccessLogManager};

/// Follows the configuration file on a thread of its own.
pub(super) fn start(
    reloader: Reloader,
    running: &RunningApp,
    mut central: Option<CentralHandle>,
) -> Result<(), AppError> {
    let generations = Arc::clone(&running.generations);
    let shared = Arc::clone(&running.shared);
    let rls_runtime = running.rls_runtime.clone();
    let alert_settings = Arc::clone(&running.alert_settings);
    let deferred_thread = running.deferred_thread.clone();
    let (admin_token, is_admin_on_loopback) =
        (Arc::clone(&running.admin_token), running.is_admin_on_loopback);
    let follow = move || {
        // The access log of the configuration that is applied next.
        let access_log = Cell::new(None);
        let prepare = |config: &Config| {
            access_log.set(open_access_log(&shared.access_logs, config)?);
            Ok(())
        };
        reloader.run(
            || shared.clock.civil_now(),
            prepare,
            |reload| {
                let outcome = reload.outcome();
                let generation = match reload {
                    Reload::Applied { config, document, restart_fields: needs_restart, .. } => {
                        shared.metrics.set_config_restart_pending(needs_restart.len());
                        if let (Some(tracer), Some(settings)) = (&shared.tracer, &config.tracing) {
                            tracer.set_sampling_ratio(settings.sampling_ratio);
                        }
                        if let (Some(service), Some(options)) = (&rls_runtime, &config.rls) {
                            service.apply(options);
                        }
                        alerts::apply(&alert_settings, config.alerts.clone());
                        let before = admin_token.swap(config.admin.token.clone().map(Arc::new));
                        if before.is_some() && config.admin.token.is_none() && !is_admin_on_loopback {
                            tracing::warn!(
                                "the admin port has no token any more, and it is not on loopback: anyone who reaches it can read it"
                            );
                        }
                        let generation = generations.apply(&config, access_log.take().as_ref());
                        if let Some(thread) = &deferred_thread
                            && let Err(error) = thread.apply(&config)
                        {
                            tracing::error!(?error, "no calls are deferred");
                        }
                        if let (Some(central_handle), Some(settings), Some(document)) =
                            (&mut central, config.central, document)
                        {
                            central_handle.record_applied(settings, &document);
                        }
                        rls_runtime.iter().for_each(|service| service.apply_generation(&shared));
                        generation
                    }
                    Reload::Unchanged | Reload::Rejected { .. } => shared.generation.load().policy.generation,
                };
                shared.metrics.record_config_reload(outcome, generation, shared.clock.civil_now());
            },
            || generations.engine.drop_unused(),
        );
    };
    thread::start("reload", follow).map(drop)
}

/// Opens the access log of a new configuration, which may still be rejected.
fn open_access_log(logs: &AccessLogManager, config: &Config) -> Result<Option<AccessLog>, UnusableSetting> {
    let settings = config.access_log.as_ref();
    logs.open(settings).map_err(|error| {
        let sink = settings.map(|settings| settings.sink.to_string()).unwrap_or_default();
        UnusableSetting { key: "access_log", message: format!("cannot open {sink}: {error}") }
    })
}

/// The signals that request a reload, or that the access log is opened again.
///
/// Until the handlers are installed, these signals end the process. So they are installed before anything shows that it
/// is ready.
#[derive(Debug)]
pub(super) struct ReloadSignals {
    hangup: Signal,
    user: Signal,
}

impl ReloadSignals {
    /// Installs the signal handlers; must be called within a runtime.
    pub(super) fn listen() -> std::io::Result<Self> {
        Ok(Self { hangup: signal(SignalKind::hangup())?, user: signal(SignalKind::user_defined1())? })
    }
}

/// Reloads on SIGHUP and reopens the access log on SIGUSR1, for as long as it is polled.
pub(super) async fn handle_signals(running: &RunningApp, signals: ReloadSignals) {
    let ReloadSignals { mut hangup, mut user } = signals;
    loop {
        tokio::select! {
            _ = hangup.recv() => running.reload.request_reload(),
            _ = user.recv() => running.shared.access_logs.reopen(),
        }
    }
}
