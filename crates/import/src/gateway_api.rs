//! The routes of the Gateway API that policies are attached to: `HTTPRoute` and `GRPCRoute`, as conditions of rules.
//!
//! A request belongs to the most specific match of all routes: by host, path, method, headers and parameters of the
//! query. [`GatewayRoutes::selection`] excepts the requests of more specific matches.

pub(super) mod matches;
mod parents;
pub(super) mod targets;

use super::kubernetes::Manifest;
use super::ledger::{Ledger, Message};
use super::remark::Effect;
use super::scope::MatchField;
use super::selection::RequestSet;
use super::tree::{field_text, get, items, scalar_text};
use weir_yaml::Node;

use self::matches::RouteMatch;
use self::parents::{Parents, Sharing};

/// The group of the Gateway API.
pub(super) const GROUP: &str = "gateway.networking.k8s.io";

static SPEC: Message = Message {
    name: "a route",
    read: &["hostnames", "rules", "parentRefs"],
    lost: &[],
    other: &["useDefaultGateways"],
};
static RULE: Message = Message {
    name: "a rule of a route",
    read: &["name", "matches"],
    lost: &[],
    other: &["filters", "backendRefs", "timeouts", "retry", "sessionPersistence"],
};

/// The routes of an import.
#[derive(Debug, Default)]
pub(super) struct GatewayRoutes<'n> {
    pub(super) routes: Vec<GatewayRoute<'n>>,
}

/// A route.
#[derive(Debug)]
pub(super) struct GatewayRoute<'n> {
    pub(super) manifest: Manifest<'n>,
    /// A part for each host and match.
    pub(super) parts: Vec<RoutePart<'n>>,
}

/// The requests of a route that one host and one match select.
#[derive(Debug)]
pub(super) struct RoutePart<'n> {
    /// The name of the rule of the route.
    pub(super) section: Option<&'n str>,
    /// With the requests of more specific parts.
    selection: RequestSet,
    specificity: PartSpecificity,
    host: Option<&'n Node>,
    matching: RouteMatch<'n>,
    rule: Option<&'n Node>,
    /// Whether it redirects HTTP to HTTPS, so that a request comes again by another connection.
    is_https_redirect: bool,
}

/// The order in which parts take requests; the greater takes precedence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct PartSpecificity {
    is_exact_host: bool,
    host_length: usize,
    path: matches::PathRank,
    has_method: bool,
    headers: usize,
    parameters: usize,
}

/// A part: the index of its route, and its index in the route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PartId {
    pub(super) route: usize,
    pub(super) part: usize,
}

impl<'n> GatewayRoutes<'n> {
    pub(super) fn read(manifests: &[Manifest<'n>]) -> Self {
        let is_route = |manifest: &&Manifest<'n>| {
            manifest.group == GROUP && matches!(manifest.kind, "HTTPRoute" | "GRPCRoute")
        };
        Self { routes: manifests.iter().filter(is_route).map(|one| GatewayRoute::read(*one)).collect() }
    }

    /// Returns the index of a route.
    pub(super) fn find(&self, kind: &str, name: &str, namespace: Option<&str>) -> Option<usize> {
        self.routes.iter().position(|route| {
            let manifest = &route.manifest;
            manifest.kind == kind && manifest.name == name && manifest.may_share_namespace(namespace)
        })
    }

    /// Returns the indexes of the routes that are attached to a gateway, or to one of its listeners.
    pub(super) fn attached_to(
        &self,
        gateway: &str,
        namespace: Option<&str>,
        listener: Option<&str>,
    ) -> Vec<usize> {
        let is_attached = |route: &GatewayRoute<'_>| {
            let spec = route.manifest.spec();
            items(spec.and_then(|spec| get(spec, "parentRefs"))).iter().any(|parent| {
                let section = field_text(parent, "sectionName");
                let space = field_text(parent, "namespace").or(route.manifest.namespace);
                field_text(parent, "name") == Some(gateway)
                    && matches!(field_text(parent, "kind"), None | Some("Gateway"))
                    && (space.is_none() || namespace.is_none() || space == namespace)
                    && (listener.is_none() || section.is_none() || section == listener)
            })
        };
        (0..self.routes.len()).filter(|index| is_attached(&self.routes[*index])).collect()
    }

    /// Returns the parts of a route, or of one of its rules.
    pub(super) fn parts(&self, route: usize, section: Option<&str>) -> Vec<PartId> {
        let parts = self.routes[route].parts.iter().enumerate();
        let is_wanted = |part: &RoutePart<'_>| section.is_none() || part.section == section;
        parts.filter(|(_, part)| is_wanted(part)).map(|(part, _)| PartId { route, part }).collect()
    }

    fn part(&self, id: PartId) -> &RoutePart<'n> {
        &self.routes[id.route].parts[id.part]
    }

    /// Whether the first part takes requests that both select.
    fn takes_precedence(&self, one: PartId, other: PartId) -> bool {
        let (ours, theirs) = (self.part(one).specificity, self.part(other).specificity);
        let age = |id: PartId| (self.routes[id.route].manifest.created(), id);
        ours > theirs || (ours == theirs && age(one) < age(other))
    }

    /// Returns the requests of a part, without those of more specific parts; those of `own` are not excepted. Marks the
    /// values that make the selection.
    pub(super) fn selection(&self, id: PartId, own: &[PartId], ledger: &Ledger) -> RequestSet {
        let part = self.part(id);
        self.mark(id, ledger);
        let mut selection = part.selection.clone();
        for (route, others) in self.routes.iter().enumerate() {
            for index in 0..others.parts.len() {
                let other = PartId { route, part: index };
                let is_apart = own.contains(&other) || !self.takes_precedence(other, id);
                if other == id || is_apart || !selection.overlaps(&self.part(other).selection) {
                    continue;
                }
                self.except(&mut selection, id, other, ledger);
            }
        }
        selection
    }

    /// Excepts the requests of a part that takes precedence, if it takes them on all listeners and keeps them.
    fn except(&self, selection: &mut RequestSet, id: PartId, other: PartId, ledger: &Ledger) {
        let title = self.routes[other.route].manifest.title();
        let [own, theirs] = [id, other].map(|part| Parents::of(&self.routes[part.route].manifest));
        let sharing = if other.route == id.route { Sharing::All } else { own.sharing(&theirs) };
        let text = match sharing {
            Sharing::None => return,
            _ if self.part(other).is_https_redirect => {
                format!("{title} redirects to HTTPS: requests that arrive here without TLS have the limit")
            }
            Sharing::Some => {
                format!(
                    "{title} is attached to other listeners: its requests that arrive here have the limit, too"
                )
            }
            Sharing::All => {
                let rest = selection.after(&self.part(other).selection, &title);
                if rest.scopes != selection.scopes || rest.remarks != selection.remarks {
                    self.mark(other, ledger);
                    *selection = rest;
                    self.note_unknown_age(selection, id, other);
                }
                return;
            }
        };
        self.mark(other, ledger);
        selection.add(Effect::Tighter, text);
    }

    /// Says so if only the age decides between two parts, and is not known.
    fn note_unknown_age(&self, selection: &mut RequestSet, id: PartId, other: PartId) {
        let [own, theirs] = [id, other].map(|part| &self.routes[part.route].manifest);
        let is_tie = self.part(id).specificity == self.part(other).specificity;
        let (age, other_age) = (own.created(), theirs.created());
        let is_known = age != other_age && !age.is_empty() && !other_age.is_empty();
        if other.route != id.route && is_tie && !is_known {
            let text = format!(
                "{} has the same match: the older route has its requests, and their `creationTimestamp` does not tell",
                theirs.title()
            );
            selection.add(Effect::Looser, text);
        }
    }

    /// Marks what a part consists of.
    fn mark(&self, id: PartId, ledger: &Ledger) {
        let manifest = &self.routes[id.route].manifest;
        manifest.mark(ledger, &["v1", "v1beta1", "v1alpha2"]);
        let Some(spec) = manifest.spec() else { return };
        ledger.message(spec, &SPEC);
        let part = self.part(id);
        part.host.into_iter().for_each(|host| ledger.use_all(host));
        part.rule.into_iter().for_each(|rule| ledger.message(rule, &RULE));
        part.matching.mark(ledger);
    }

    /// Marks the name of a part's rule, which a policy names.
    pub(super) fn mark_section(&self, id: PartId, ledger: &Ledger) {
        let name = self.part(id).rule.and_then(|rule| get(rule, "name"));
        name.into_iter().for_each(|name| ledger.use_all(name));
    }

    /// Marks the gateways that a route names.
    pub(super) fn mark_parents(&self, route: usize, ledger: &Ledger) {
        let spec = self.routes[route].manifest.spec();
        let parents = spec.and_then(|spec| get(spec, "parentRefs"));
        parents
            .into_iter()
            .for_each(|parents| ledger.lose(parents, Effect::None, "the gateways of the route"));
    }
}

impl<'n> GatewayRoute<'n> {
    fn read(manifest: Manifest<'n>) -> Self {
        let spec = manifest.spec();
        let hosts = items(spec.and_then(|spec| get(spec, "hostnames")));
        let hosts: Vec<Option<&Node>> =
            if hosts.is_empty() { vec![None] } else { hosts.iter().map(Some).collect() };
        let rules = items(spec.and_then(|spec| get(spec, "rules")));
        let rules: Vec<Option<&Node>> =
            if rules.is_empty() { vec![None] } else { rules.iter().map(Some).collect() };
        let mut parts = Vec::new();
        for host in hosts {
            for rule in &rules {
                let matches = items(rule.and_then(|rule| get(rule, "matches")));
                let matches: Vec<Option<&Node>> =
                    if matches.is_empty() { vec![None] } else { matches.iter().map(Some).collect() };
                parts.extend(matches.into_iter().map(|one| RoutePart::read(&manifest, host, *rule, one)));
            }
        }
        Self { manifest, parts }
    }
}

impl<'n> RoutePart<'n> {
    fn read(
        manifest: &Manifest<'n>,
        host: Option<&'n Node>,
        rule: Option<&'n Node>,
        matching: Option<&'n Node>,
    ) -> Self {
        let matching = RouteMatch::read(manifest.kind == "GRPCRoute", matching);
        let mut selection = matching.selection.clone();
        let name = host.and_then(scalar_text).unwrap_or_default();
        if !name.is_empty() {
            selection = RequestSet::matching(MatchField::Host, vec![name.to_owned()]).and(&selection);
        }
        let specificity = PartSpecificity {
            is_exact_host: !name.is_empty() && !name.starts_with('*'),
            host_length: name.len(),
            path: matching.path,
            has_method: matching.has_method,
            headers: matching.headers,
            parameters: matching.parameters,
        };
        let section = rule.and_then(|rule| field_text(rule, "name"));
        let is_https_redirect = rule.is_some_and(is_https_redirect);
        Self { section, selection, specificity, host, matching, rule, is_https_redirect }
    }
}

/// Whether a rule of a route has a filter that redirects HTTP to HTTPS.
fn is_https_redirect(rule: &Node) -> bool {
    let scheme = |filter: &Node| {
        get(filter, "requestRedirect").and_then(|redirect| field_text(redirect, "scheme")) == Some("https")
    };
    items(get(rule, "filters")).iter().any(scheme)
}
