//! What an upstream keeps of the one whose place it takes when a reload changes its settings.
//!
//! Its endpoints are others, for requests under way go on with those of before, each upstream with its own bounds. They
//! begin as those are at the moment: left out for as long as those would have been, and not healthy until a check says
//! so. A name keeps its addresses until it has been looked up again.

use std::sync::Arc;

use super::host::{FAILED_CHECK, Host, Hosts, Target};
use super::settings::Settings;

/// The hosts that an upstream with these settings begins with, after one that had those of `before`; `were_checked` says
/// whether it checked them.
pub(super) fn hosts(settings: &Settings, before: &[Arc<Host>], were_checked: bool) -> Hosts {
    let again = |host: &Arc<Host>| {
        let host = host.again(were_checked);
        if settings.health_check.is_none() {
            // Nobody would ever say that it is well again.
            host.lower(FAILED_CHECK);
        }
        Arc::new(host)
    };
    let mut hosts = Vec::new();
    for address in &settings.addresses {
        let hostname: Box<str> = address.to_string().into();
        let mut known = before.iter().filter(|host| host.hostname == hostname);
        match Target::of(address) {
            Some(target) => {
                let known = known.find(|host| host.target == target).map(again);
                hosts.push(known.unwrap_or_else(|| Arc::new(Host::new(target, hostname))));
            }
            None => hosts.extend(known.map(again)),
        }
    }
    hosts.into()
}
