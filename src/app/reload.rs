//! Applies reloaded configurations, and handles the signals that request a reload.

use std::cell::Cell;
use std::sync::Arc;

use tokio::runtime::Handle;

use super::central::CentralHandle;
use super::replacement::Replacer;
use super::signals::ReceivedSignals;
use super::{AppError, RunningApp, alerts, resource_limits, service_manager, thread};
use weir_config::Config;
use weir_config::reload::{Preparation, Reload, Reloader, UnusableSetting};

/// Follows the configuration file on a thread of its own.
pub(super) fn start(
    reloader: Reloader,
    running: &RunningApp,
    mut central: Option<CentralHandle>,
    replacer: &Arc<Replacer>,
) -> Result<(), AppError> {
    let generations = Arc::clone(&running.generations);
    let sockets = Arc::clone(&running.sockets);
    // The connections of removed listeners are timed there.
    let runtime = Handle::current();
    let shared = Arc::clone(&running.shared);
    let rls_runtime = running.rls_runtime.clone();
    let alert_settings = Arc::clone(&running.alert_settings);
    let deferred_thread = running.deferred_thread.clone();
    let replacer = Arc::clone(replacer);
    let follow = move || {
        let _entered = runtime.enter();
        // What the configuration that is applied next needs.
        let prepared = Cell::new(None);
        let mut overload = None;
        let prepare = |config: &Config, at_startup: &[&str]| {
            if !at_startup.is_empty() {
                return take_over(&replacer, at_startup);
            }
            // Sockets come first: the parts of a generation have the positions of listeners.
            let plan = sockets.prepare(config)?;
            prepared.set(Some((plan, generations.prepare(config)?)));
            Ok(Preparation::Ready)
        };
        reloader.run(
            || shared.clock.civil_now(),
            prepare,
            |reload| {
                let outcome = reload.outcome();
                let generation = match reload {
                    Reload::Applied { config, document, .. } => {
                        let Some((plan, parts)) = prepared.take() else { return };
                        if let (Some(service), Some(options)) = (&rls_runtime, &config.rls) {
                            service.apply(options);
                        }
                        if Some(config.overload) != overload {
                            resource_limits::apply(&config.overload, &shared.overload, &shared.limiter);
                            overload = Some(config.overload);
                        }
                        if config.max_keys != shared.limiter.max_keys() {
                            shared.limiter.set_max_keys(config.max_keys);
                        }
                        alerts::apply(&alert_settings, config.alerts.clone());
                        let generation = generations.apply(&config, parts);
                        // The generation comes first: it has the TLS settings of new listeners.
                        sockets.apply(plan, &config, &shared.generation.load());
                        generations.set_own_addresses(sockets.addresses());
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
                    Reload::TakenOver => return,
                    Reload::Unchanged | Reload::Rejected { .. } => shared.generation.load().policy.generation,
                };
                shared.metrics.record_config_reload(outcome, generation, shared.clock.civil_now());
                service_manager::ready();
            },
            || generations.engine.drop_unused(),
        );
    };
    thread::start("reload", follow).map(drop)
}

/// Replaces this process by one with the configuration as it is now, which has other values of these keys.
fn take_over(replacer: &Arc<Replacer>, keys: &[&str]) -> Result<Preparation, UnusableSetting> {
    let keys = keys.join(", ");
    tracing::info!(keys, "only a start applies these keys: another process takes over");
    let replaced = replacer.start_with_new_configuration();
    replaced.map(|()| Preparation::TakenOver).map_err(|error| UnusableSetting {
        message: format!("no process with the new value could take over: {error}"),
        key: keys,
    })
}

/// Reloads on SIGHUP, reopens the access log on SIGUSR1 and is replaced on SIGUSR2, for as long as it is polled.
pub(super) async fn handle_signals(
    running: &RunningApp,
    signals: &ReceivedSignals,
    replacer: &Arc<Replacer>,
) {
    loop {
        tokio::select! {
            () = signals.hangup.notified() => {
                service_manager::reloading();
                running.reload.request_reload();
            }
            () = signals.user.notified() => running.shared.access_logs.reopen(),
            () = signals.replace.notified() => replacer.start(),
        }
    }
}
