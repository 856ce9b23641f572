//! Applies reloaded configurations, and handles the signals that request a reload.

use std::sync::Arc;

use tokio::signal::unix::{SignalKind, signal};

use super::central::Keeper;
use super::{Error, Running, spawn_thread};
use crate::config::reload::{Reload, Reloader};

/// Follows the configuration file on a thread of its own.
pub(super) fn start(reloader: Reloader, running: &Running, mut central: Option<Keeper>) -> Result<(), Error> {
    let generations = Arc::clone(&running.generations);
    let shared = Arc::clone(&running.shared);
    let rate_limits = running.rate_limits.clone();
    let follow = move || {
        reloader.run(
            || shared.clock.civil_now(),
            |reload| {
                let outcome = reload.outcome();
                let generation = match reload {
                    Reload::Applied { config, document, needs_restart, .. } => {
                        shared.metrics.config_restart_pending(!needs_restart.is_empty());
                        if let (Some(tracer), Some(settings)) = (&shared.tracer, &config.tracing) {
                            tracer.set_sample(settings.sample);
                        }
                        if let (Some(service), Some(options)) = (&rate_limits, &config.rls) {
                            service.apply(options);
                        }
                        let generation = generations.apply(&config);
                        if let (Some(keeper), Some(settings), Some(document)) =
                            (&mut central, config.central, document)
                        {
                            keeper.applied(settings, &document);
                        }
                        rate_limits.iter().for_each(|service| service.renew(&shared));
                        generation
                    }
                    Reload::Unchanged | Reload::Rejected { .. } => shared.generation.load().policy.generation,
                };
                shared.metrics.config_reload(outcome, generation, shared.clock.civil_now());
            },
        );
    };
    spawn_thread("reload", follow).map(drop)
}

/// Reloads on SIGHUP and reopens the access log on SIGUSR1, for as long as it is polled.
pub(super) async fn on_signals(running: &Running) {
    let listen = |kind| signal(kind).map_err(|error| tracing::warn!(%error, "cannot listen for a signal"));
    let (Ok(mut hangup), Ok(mut user)) = (listen(SignalKind::hangup()), listen(SignalKind::user_defined1()))
    else {
        return std::future::pending().await;
    };
    loop {
        tokio::select! {
            _ = hangup.recv() => running.reload.request(),
            _ = user.recv() => {
                if let Some(log) = &running.shared.access_log {
                    log.reopen();
                }
            }
        }
    }
}
