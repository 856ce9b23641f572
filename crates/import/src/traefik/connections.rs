//! The connections that a router serves: those of its entry points, with TLS or without.
//!
//! On an entry point, routers with TLS and those without never see the same request. Which entry points a router without a
//! list has, and which of them add TLS, is in the static configuration, which is not part of the input.

use super::super::tree::{get, items, scalar_text};
use weir_yaml::Node;

/// What a router serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RouterConnections {
    /// Empty for the default ones, which are all unless the static configuration says otherwise.
    entry_points: Vec<String>,
    has_tls: bool,
}

impl RouterConnections {
    /// Reads `entryPoints` and `tls` of a router of the file provider, or of the spec of an `IngressRoute`.
    pub(super) fn read(node: &Node) -> Self {
        let names = items(get(node, "entryPoints")).iter().filter_map(scalar_text);
        Self { entry_points: names.map(str::to_owned).collect(), has_tls: get(node, "tls").is_some() }
    }

    /// Reads the values of the annotations of an Ingress.
    pub(super) fn of_annotations(entry_points: Option<&str>, tls: Option<&str>) -> Self {
        let names = entry_points.unwrap_or_default().split(',').map(str::trim);
        let names = names.filter(|name| !name.is_empty()).map(str::to_owned);
        Self { entry_points: names.collect(), has_tls: tls == Some("true") }
    }

    /// Whether another router certainly serves all connections of this one.
    pub(super) fn are_all_of(&self, other: &Self) -> bool {
        let is_served = |name: &String| other.entry_points.contains(name);
        let are_served = match (self.entry_points.is_empty(), other.entry_points.is_empty()) {
            (_, true) => true,
            (true, false) => false,
            (false, false) => self.entry_points.iter().all(is_served),
        };
        are_served && self.has_tls == other.has_tls
    }
}
