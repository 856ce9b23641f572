//! The parts of a configuration that a reload compares: one table for the summary of changes and for the keys that need
//! a restart. Rules are not among them, because [`super::changes`] describes what becomes of their counters.

use super::Config;
use weir_net::listener::ListenerSettings;
use weir_policy::rules::shared_limit::SharedLimit;
use weir_rls::options::{RlsOptions, RlsPorts};

/// Top-level keys that change together.
struct Section {
    keys: &'static str,
    /// Whether a change takes effect only at startup.
    needs_restart: bool,
    differs: fn(old: &Config, new: &Config) -> bool,
}

const fn reloaded(keys: &'static str, differs: fn(&Config, &Config) -> bool) -> Section {
    Section { keys, needs_restart: false, differs }
}

const fn at_startup(keys: &'static str, differs: fn(&Config, &Config) -> bool) -> Section {
    Section { keys, needs_restart: true, differs }
}

/// A key is in both kinds if only some of its settings take effect at once.
const SECTIONS: &[Section] = &[
    reloaded("config", |old, new| old.central != new.central),
    reloaded("alerts", |old, new| old.alerts != new.alerts),
    reloaded("upstreams", |old, new| {
        old.upstreams != new.upstreams || old.policy.routes != new.policy.routes
    }),
    reloaded("client_ip, geo, jwt, via", |old, new| old.policy.identify != new.policy.identify),
    reloaded("access_log", |old, new| old.access_log != new.access_log),
    reloaded("log_keys", |old, new| old.log_keys != new.log_keys),
    reloaded("elastic", |old, new| old.elastic_signals != new.elastic_signals),
    reloaded("ratelimit_headers, ietf_headers, header_names", |old, new| {
        old.policy.response != new.policy.response
    }),
    reloaded("rate limit services of rules", |old, new| !has_same_services(old, new)),
    reloaded("rls", |old, new| {
        rls_options_of_both(old, new).is_some_and(|(old, new)| new.differs_in_settings(old))
    }),
    reloaded("rules of rls", |old, new| {
        rls_options_of_both(old, new).is_some_and(|(old, new)| new.has_different_rules(old))
    }),
    reloaded("plans", |old, new| old.content_hashes.plans != new.content_hashes.plans),
    reloaded("jwt.secret", |old, new| old.content_hashes.secrets != new.content_hashes.secrets),
    reloaded("admin.token", |old, new| old.content_hashes.admin_token != new.content_hashes.admin_token),
    at_startup("listeners", |old, new| !listeners(old).eq(listeners(new))),
    at_startup("workers", |old, new| old.workers != new.workers),
    at_startup("admin", |old, new| {
        (&old.admin.allowed_hosts, old.admin.address, old.admin.probe_address)
            != (&new.admin.allowed_hosts, new.admin.address, new.admin.probe_address)
    }),
    at_startup("drain", |old, new| old.drain != new.drain),
    at_startup("overload", |old, new| old.overload != new.overload),
    at_startup("tracing", |old, new| !is_same_tracing(old, new)),
    at_startup("rls", |old, new| ports_and_scope(old) != ports_and_scope(new)),
    at_startup("limiter.max_keys", |old, new| old.max_keys != new.max_keys),
    at_startup("state", |old, new| old.state_file != new.state_file),
    at_startup("store", |old, new| old.store != new.store),
];

/// Returns the keys that differ and take effect at once.
pub(super) fn reloaded_keys(old: &Config, new: &Config) -> impl Iterator<Item = &'static str> {
    changed_keys(old, new, false)
}

/// Returns the keys that differ and take effect only at startup.
pub(super) fn restart_keys(old: &Config, new: &Config) -> impl Iterator<Item = &'static str> {
    changed_keys(old, new, true)
}

fn changed_keys(old: &Config, new: &Config, needs_restart: bool) -> impl Iterator<Item = &'static str> {
    let sections = SECTIONS.iter().filter(move |section| section.needs_restart == needs_restart);
    sections.filter(|section| (section.differs)(old, new)).map(|section| section.keys)
}

/// Returns what takes effect only at startup of each listener.
fn listeners(config: &Config) -> impl Iterator<Item = &ListenerSettings> {
    config.listeners.iter().map(|listener| &listener.settings)
}

/// The rate limit service's options of both configurations. If only one has the service, that is listed as a
/// change that needs a restart.
fn rls_options_of_both<'c>(old: &'c Config, new: &'c Config) -> Option<(&'c RlsOptions, &'c RlsOptions)> {
    old.rls.as_ref().zip(new.rls.as_ref())
}

/// Returns the addresses of the rate limit service and how it shares limits.
fn ports_and_scope(config: &Config) -> Option<(&RlsPorts, Option<&SharedLimit>)> {
    config.rls.as_ref().map(|rls| (&rls.ports, rls.shared_limit.as_ref()))
}

/// Compares the settings except the sampling share, which takes effect at once.
fn is_same_tracing(old: &Config, new: &Config) -> bool {
    match (&old.tracing, &new.tracing) {
        (Some(old), Some(new)) => old.is_same_except_sampling_ratio(new),
        (old, new) => old.is_none() && new.is_none(),
    }
}

/// Whether both use the same services with the same settings, in any order.
fn has_same_services(old: &Config, new: &Config) -> bool {
    let all_of = |one: &Config, other: &Config| {
        one.remote_services.iter().all(|service| other.remote_services.contains(service))
    };
    all_of(old, new) && all_of(new, old)
}
