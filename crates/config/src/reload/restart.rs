//! The parts of a configuration that take effect only at startup.

use crate::{Config, ListenerConfig};
use weir_net::listener::ListenerSettings;
use weir_policy::engine::PolicySpec;
use weir_policy::rules::shared_limit::SharedLimit;
use weir_rls::options::{RlsOptions, RlsPorts};
use weir_telemetry::spans;

/// Returns what takes effect only at startup of each listener.
fn listeners(config: &Config) -> impl Iterator<Item = &ListenerSettings> {
    config.listeners.iter().map(|listener| &listener.settings)
}

/// Returns `config` without its lists and databases, so that it can be kept without using much memory.
pub(super) fn without_data(config: &Config) -> Config {
    Config {
        policy: PolicySpec::default(),
        listeners: listeners(config).map(without_files).collect(),
        upstreams: Vec::new(),
        rls: config.rls.clone().map(RlsOptions::without_data),
        ..config.clone()
    }
}

fn without_files(settings: &ListenerSettings) -> ListenerConfig {
    ListenerConfig { settings: settings.clone(), tls: None, forward_proxy: None }
}

/// Returns the keys that differ between two configurations and take effect only at startup.
pub fn restart_fields(old: &Config, new: &Config) -> Vec<&'static str> {
    let differs = [
        ("listeners", !listeners(old).eq(listeners(new))),
        ("workers", old.workers != new.workers),
        (
            "admin",
            (&old.admin.allowed_hosts, old.admin.address, old.admin.probe_address)
                != (&new.admin.allowed_hosts, new.admin.address, new.admin.probe_address),
        ),
        ("drain", old.drain != new.drain),
        ("overload", old.overload != new.overload),
        ("tracing", !is_same_tracing(old.tracing.as_ref(), new.tracing.as_ref())),
        ("rls", ports_and_scope(old.rls.as_ref()) != ports_and_scope(new.rls.as_ref())),
        ("limiter.max_keys", old.max_keys != new.max_keys),
        ("state", old.state_file != new.state_file),
        ("store", old.store != new.store),
    ];
    differs.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
}

/// Returns the addresses of the service and how it shares limits.
fn ports_and_scope(rls: Option<&RlsOptions>) -> Option<(&RlsPorts, Option<&SharedLimit>)> {
    rls.map(|rls| (&rls.ports, rls.shared_limit.as_ref()))
}

/// Compares the settings except the sampling share, which takes effect at once.
fn is_same_tracing(old: Option<&spans::TracingSettings>, new: Option<&spans::TracingSettings>) -> bool {
    match (old, new) {
        (Some(old), Some(new)) => old.is_same_except_sampling_ratio(new),
        (old, new) => old.is_none() && new.is_none(),
    }
}
