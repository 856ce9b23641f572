//! The parts of a configuration that take effect only at startup.

use crate::config::Config;
use crate::engine::PolicySpec;
use crate::rls::options::{Options, Ports};
use crate::rules::shared_limit::SharedLimit;
use crate::telemetry::spans;

/// Returns `config` without its lists and databases, so that it can be kept without using much memory.
pub(super) fn without_data(config: &Config) -> Config {
    Config {
        policy: PolicySpec::default(),
        tls: Vec::new(),
        upstream_tls: Vec::new(),
        rls: config.rls.clone().map(Options::without_data),
        ..config.clone()
    }
}

/// Returns the keys that differ between two configurations and take effect only at startup.
pub fn restart_fields(old: &Config, new: &Config) -> Vec<&'static str> {
    let differs = [
        ("listeners", old.listeners != new.listeners),
        ("workers", old.workers != new.workers),
        (
            "admin",
            (&old.admin.hosts, old.admin.address, old.admin.probes)
                != (&new.admin.hosts, new.admin.address, new.admin.probes),
        ),
        ("drain", old.drain != new.drain),
        ("overload", old.overload != new.overload),
        ("access_log", old.access_log != new.access_log),
        ("tracing", !is_same_tracing(old.tracing.as_ref(), new.tracing.as_ref())),
        ("rls", placed(old.rls.as_ref()) != placed(new.rls.as_ref())),
        ("limiter.max_keys", old.max_keys != new.max_keys),
        ("state", old.state != new.state),
        ("store", old.store != new.store),
    ];
    differs.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
}

/// Returns the addresses of the service and how it shares limits.
fn placed(rls: Option<&Options>) -> Option<(&Ports, Option<&SharedLimit>)> {
    rls.map(|rls| (&rls.ports, rls.scope.as_ref()))
}

/// Compares the settings except the sampling share, which takes effect at once.
fn is_same_tracing(old: Option<&spans::Settings>, new: Option<&spans::Settings>) -> bool {
    match (old, new) {
        (Some(old), Some(new)) => old.is_same_but_for_sample(new),
        (old, new) => old.is_none() && new.is_none(),
    }
}
