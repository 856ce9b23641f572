//! What a running instance keeps of the configuration that it started with.

use crate::{Config, ListenerConfig};
use weir_policy::engine::PolicySpec;
use weir_rls::options::RlsOptions;

/// Returns `config` without its lists and databases, so that it can be kept without using much memory.
pub(super) fn without_data(config: &Config) -> Config {
    Config {
        policy: PolicySpec::default(),
        listeners: config.listeners.iter().map(without_files).collect(),
        upstreams: Vec::new(),
        rls: config.rls.clone().map(RlsOptions::without_data),
        ..config.clone()
    }
}

fn without_files(listener: &ListenerConfig) -> ListenerConfig {
    let (settings, decide) = (listener.settings.clone(), listener.decide);
    ListenerConfig { settings, tls: None, forward_proxy: None, decide, own_limits: None }
}
