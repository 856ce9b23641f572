//! The parts of a configuration that a reload compares: for the summary of changes, and for the keys that need
//! another process. Rules are not among them, because [`super::changes`] describes what becomes of their counters.

use super::Config;
use weir_net::listener::ListenerSettings;
use weir_policy::rules::shared_limit::SharedLimit;
use weir_rls::options::{RlsOptions, RlsPorts};

/// Top-level keys that change together, and whether they differ between two configurations.
pub(super) type ComparedSection = (&'static str, fn(&Config, &Config) -> bool);

/// Sections that take effect at once. A key is also in [`AT_STARTUP`] if only some of its settings do.
pub(super) const RELOADED: &[ComparedSection] = &[
    ("config", |old, new| old.central != new.central),
    ("alerts", |old, new| old.alerts != new.alerts),
    ("upstreams", |old, new| old.upstreams != new.upstreams || old.policy.routes != new.policy.routes),
    ("classes, criticality_header", |old, new| old.policy.classes != new.policy.classes),
    ("client_ip, geo, jwt, via", |old, new| old.policy.identify != new.policy.identify),
    ("access_log", |old, new| old.access_log != new.access_log),
    ("log_keys", |old, new| old.log_keys != new.log_keys),
    ("elastic", |old, new| old.elastic_signals != new.elastic_signals),
    ("ratelimit_headers, ietf_headers, header_names", |old, new| old.policy.response != new.policy.response),
    ("rate limit services of rules", |old, new| !has_same_services(old, new)),
    ("rls", |old, new| rls_options_of_both(old, new).is_some_and(|(old, new)| new.differs_in_settings(old))),
    ("rules of rls", |old, new| {
        rls_options_of_both(old, new).is_some_and(|(old, new)| new.has_different_rules(old))
    }),
    ("plans", |old, new| old.content_hashes.plans != new.content_hashes.plans),
    ("jwt.secret", |old, new| old.content_hashes.secrets != new.content_hashes.secrets),
    ("listeners", |old, new| !listeners(old).eq(listeners(new))),
    ("admin", |old, new| {
        (&old.admin.allowed_hosts, old.admin.address, old.admin.probe_address)
            != (&new.admin.allowed_hosts, new.admin.address, new.admin.probe_address)
    }),
    ("drain", |old, new| old.drain != new.drain),
    ("overload", |old, new| old.overload != new.overload),
    ("limiter.max_keys", |old, new| old.max_keys != new.max_keys),
    ("tracing", |old, new| old.tracing != new.tracing),
    ("admin.token", |old, new| old.content_hashes.admin_token != new.content_hashes.admin_token),
];

/// Sections that take effect only at startup. A reload that changes one starts another process, which takes over.
pub(super) const AT_STARTUP: &[ComparedSection] = &[
    ("workers", |old, new| old.workers != new.workers),
    ("rls", |old, new| ports_and_scope(old) != ports_and_scope(new)),
    ("state", |old, new| old.state_file != new.state_file),
    ("store", |old, new| old.store != new.store),
];

/// Returns the keys of the sections that differ.
pub(super) fn changed_keys(
    sections: &[ComparedSection],
    old: &Config,
    new: &Config,
) -> impl Iterator<Item = &'static str> {
    sections.iter().filter(|(_, differs)| differs(old, new)).map(|(keys, _)| *keys)
}

/// Returns the settings of each listener, apart from TLS and the forward proxy, whose files are followed.
fn listeners(config: &Config) -> impl Iterator<Item = &ListenerSettings> {
    config.listeners.iter().map(|listener| &listener.settings)
}

/// The rate limit service's options of both configurations. If only one has the service, that is listed as a
/// change of addresses.
fn rls_options_of_both<'c>(old: &'c Config, new: &'c Config) -> Option<(&'c RlsOptions, &'c RlsOptions)> {
    old.rls.as_ref().zip(new.rls.as_ref())
}

/// Returns the addresses of the rate limit service and how it shares limits.
fn ports_and_scope(config: &Config) -> Option<(&RlsPorts, Option<&SharedLimit>)> {
    config.rls.as_ref().map(|rls| (&rls.ports, rls.shared_limit.as_ref()))
}

/// Whether both use the same services with the same settings, in any order.
fn has_same_services(old: &Config, new: &Config) -> bool {
    let all_of = |one: &Config, other: &Config| {
        one.remote_services.iter().all(|service| other.remote_services.contains(service))
    };
    all_of(old, new) && all_of(new, old)
}
