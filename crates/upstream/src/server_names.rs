//! Connections of an upstream by server name, if each request's host is the name in TLS.
//!
//! A connection that was verified for one name must not carry a request for another one. So each name has connections of
//! its own, and the rest of the upstream in common with the others.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use rustls::pki_types::ServerName;

use super::Upstream;

/// Maximum number of names of a worker. Clients choose hosts, so more must not keep connections open.
const MAX_NAMES: usize = 64;

/// A worker's connections by server name.
#[derive(Debug, Default)]
pub(super) struct UpstreamsByName {
    entries: RefCell<HashMap<Box<str>, NamedUpstream>>,
    /// Incremented with each request.
    uses: Cell<u64>,
}

#[derive(Debug)]
struct NamedUpstream {
    upstream: Rc<Upstream>,
    /// The last use.
    used_at: u64,
}

impl UpstreamsByName {
    /// Returns the connections for `name`, which `create` creates if there are none. Beyond the maximum, a name without
    /// connections makes room, or the one that was used least recently. Its requests in flight keep their connections.
    pub(super) fn get(&self, name: &str, create: impl FnOnce() -> Upstream) -> Rc<Upstream> {
        let mut entries = self.entries.borrow_mut();
        let used_at = self.uses.get().saturating_add(1);
        self.uses.set(used_at);
        if let Some(known) = entries.get_mut(name) {
            known.used_at = used_at;
            return Rc::clone(&known.upstream);
        }
        if entries.len() >= MAX_NAMES {
            let rank = |entry: &NamedUpstream| (!entry.upstream.is_unconnected(), entry.used_at);
            let oldest = entries.iter().min_by_key(|(_, entry)| rank(entry)).map(|(name, _)| name.clone());
            oldest.map(|oldest| entries.remove(&oldest));
        }
        let upstream = Rc::new(create());
        entries.insert(name.into(), NamedUpstream { upstream: Rc::clone(&upstream), used_at });
        upstream
    }

    /// Returns the connections of all names.
    pub(super) fn all(&self) -> Vec<Rc<Upstream>> {
        self.entries.borrow().values().map(|entry| Rc::clone(&entry.upstream)).collect()
    }

    /// Whether no name has a connection that could be closed.
    pub(super) fn are_unconnected(&self) -> bool {
        self.entries.borrow().values().all(|entry| entry.upstream.is_unconnected())
    }
}

/// Returns the server name for a host with an optional port, in lower case; `None` if no certificate can be valid for it.
pub(super) fn name_of_host(host: &str) -> Option<Box<str>> {
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let name = match host.strip_prefix('[') {
        Some(bracketed) => bracketed.split_once(']')?.0,
        None => host.rsplit_once(':').filter(|(_, port)| is_port(port)).map_or(host, |(name, _)| name),
    };
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    ServerName::try_from(&*name).ok()?;
    Some(name.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_name_is_the_host_without_its_port() {
        for (host, expected) in [
            ("A.Test:8443", Some("a.test")),
            ("a.test.", Some("a.test")),
            ("192.0.2.1:443", Some("192.0.2.1")),
            ("[2001:db8::1]:443", Some("2001:db8::1")),
            ("", None),
            ("a b", None),
            ("a/b", None),
        ] {
            assert_eq!(name_of_host(host).as_deref(), expected, "{host}");
        }
    }
}
