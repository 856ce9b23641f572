//! One upstream of one configuration, as all workers share it.

use std::sync::Arc;

use super::settings::{Address, Settings};
use crate::telemetry::metrics::{ClusterView, HostView};

/// An upstream: its settings and where it is.
#[derive(Debug)]
pub struct Cluster {
    settings: Settings,
    hosts: Box<[Arc<Host>]>,
}

/// One place of an upstream.
#[derive(Debug)]
pub struct Host {
    /// Its address in logs and numbers.
    pub name: Box<str>,
    pub(super) address: Address,
}

impl Cluster {
    /// The upstream that `settings` describe.
    pub fn new(settings: Settings) -> Self {
        let host =
            |address: &Address| Arc::new(Host { name: address.to_string().into(), address: address.clone() });
        Self { hosts: settings.addresses.iter().map(host).collect(), settings }
    }

    /// What it was made from.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Where it is.
    pub fn hosts(&self) -> &[Arc<Host>] {
        &self.hosts
    }

    /// What operators are shown.
    pub fn view(&self) -> ClusterView {
        let host = |host: &Arc<Host>| HostView {
            address: host.name.clone(),
            hostname: host.address.to_string().into(),
        };
        ClusterView { name: self.settings.name.clone(), hosts: self.hosts.iter().map(host).collect() }
    }
}
