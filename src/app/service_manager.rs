//! What systemd, or a service manager like it, is told of the process (`sd_notify(3)`): that it is ready, reloads or stops,
//! and that it still works. Without a service manager, nothing is sent.

use std::time::Duration;

use sd_notify::NotifyState;
use tokio::time::MissedTickBehavior;

/// Reports that all sockets are bound and served.
pub(super) fn ready() {
    notify(&[NotifyState::Ready]);
}

/// Reports that a signal has asked for a reload. [`ready`] ends it.
pub(super) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!(%error, "cannot report a reload to the service manager"),
    }
}

/// Reports that the process drains.
pub(super) fn stopping() {
    notify(&[NotifyState::Stopping]);
}

/// Reports that the process with this number is the service from now on. Also ends a reload, because later messages of this
/// process do not count.
pub(super) fn replaced_by(process: u32) {
    notify(&[NotifyState::Ready, NotifyState::MainPid(process)]);
}

/// Reports, twice as often as the service manager asks for it, that this thread still works, for as long as it is polled.
pub(super) async fn run_watchdog() {
    let Some(timeout) = sd_notify::watchdog_enabled().filter(|timeout| !timeout.is_zero()) else {
        return std::future::pending().await;
    };
    let mut interval = tokio::time::interval((timeout / 2).max(Duration::from_millis(1)));
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        notify(&[NotifyState::Watchdog]);
    }
}

fn notify(states: &[NotifyState<'_>]) {
    // Also succeeds without a service manager.
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot notify the service manager");
    }
}
