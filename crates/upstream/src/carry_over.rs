//! State that an upstream takes over from its predecessor when a reload changes its settings.
//!
//! The new upstream has hosts and limits of its own, because requests in flight continue with the old ones. The new
//! hosts start with the state of the old ones: ejected for the remaining time, and unhealthy until a check succeeds. A
//! name keeps its addresses until it is resolved again.

use std::sync::Arc;

use super::host::{ConnectTarget, FAILED_CHECK, Hosts, UpstreamHost};
use super::settings::UpstreamSettings;

/// Returns the initial hosts of an upstream with these settings. `before` are the predecessor's hosts, and
/// `were_checked` is whether it checked their health.
pub(super) fn hosts(settings: &UpstreamSettings, before: &[Arc<UpstreamHost>], were_checked: bool) -> Hosts {
    let again = |host: &Arc<UpstreamHost>| {
        let host = host.carried_over(were_checked);
        if settings.health_check.is_none() {
            // Without health checks nothing would ever clear the flag.
            host.clear_flag(FAILED_CHECK);
        }
        Arc::new(host)
    };
    let mut hosts = Vec::new();
    for address in &settings.addresses {
        let hostname: Box<str> = address.to_string().into();
        let mut known = before.iter().filter(|host| host.hostname == hostname);
        match ConnectTarget::from_address(address) {
            Some(target) => {
                let known = known.find(|host| host.target == target).map(again);
                hosts.push(known.unwrap_or_else(|| Arc::new(UpstreamHost::new(target, hostname))));
            }
            None => hosts.extend(known.map(again)),
        }
    }
    hosts.into()
}
