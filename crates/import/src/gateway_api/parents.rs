//! What a route is attached to: gateways and their listeners. Routes on different listeners never see the same request.

use super::super::kubernetes::Manifest;
use super::super::tree::{field_text, get, items};

/// A gateway, or one of its listeners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parent<'n> {
    name: &'n str,
    namespace: Option<&'n str>,
    /// Without it, all listeners.
    section: Option<&'n str>,
    /// Without it, all ports.
    port: Option<&'n str>,
}

/// The parents of a route; empty if the route names none.
#[derive(Clone, Debug, Default)]
pub(super) struct Parents<'n>(Vec<Parent<'n>>);

/// How many of the requests of a route may arrive at another one, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharing {
    None,
    Some,
    All,
}

impl<'n> Parents<'n> {
    pub(super) fn of(route: &Manifest<'n>) -> Self {
        let refs = items(route.spec().and_then(|spec| get(spec, "parentRefs"))).iter();
        let parent = |node: &'n weir_yaml::Node| {
            Some(Parent {
                name: field_text(node, "name")?,
                namespace: field_text(node, "namespace").or(route.namespace),
                section: field_text(node, "sectionName"),
                port: field_text(node, "port"),
            })
        };
        Self(refs.filter_map(parent).collect())
    }

    /// Returns how many requests of a route with these parents another one may get.
    pub(super) fn sharing(&self, other: &Self) -> Sharing {
        if self.0.is_empty() || other.0.is_empty() {
            return Sharing::All;
        }
        let is_shared = |ours: &Parent<'_>| other.0.iter().any(|theirs| theirs.includes(ours));
        if self.0.iter().all(is_shared) {
            return Sharing::All;
        }
        let is_on_gateway = |ours: &Parent<'_>| other.0.iter().any(|theirs| theirs.has_gateway_of(ours));
        if self.0.iter().any(is_on_gateway) { Sharing::Some } else { Sharing::None }
    }
}

impl Parent<'_> {
    fn has_gateway_of(&self, other: &Self) -> bool {
        let may_share = self.namespace.is_none() || other.namespace.is_none();
        self.name == other.name && (may_share || self.namespace == other.namespace)
    }

    /// Whether it has all listeners of another one.
    fn includes(&self, other: &Self) -> bool {
        self.has_gateway_of(other)
            && (self.section.is_none() || self.section == other.section)
            && (self.port.is_none() || self.port == other.port)
    }
}
