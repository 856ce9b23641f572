//! Istio's `EnvoyFilter`: patches that add the filter, and patches of the routes that it is used with.
//!
//! A patch says where in Envoy's configuration it applies: pods, direction, port, virtual host and route. Rules know
//! hosts only. Everything else of a patch's place becomes a warning.

use super::super::ledger::{Ledger, Message};
use super::super::remark::{Effect, brief};
use super::super::scope::MatchField;
use super::super::tree::{entries, field_text, get, items, scalar_text};
use super::discover::{Chain, HttpFilter, contains_filter, http_filter, patch_overrides};
use super::requests::{Requests, host_pattern};
use super::routes::{EnvoyRoute, RouteTable, VirtualHost, is_filter};
use weir_yaml::Node;

static PATCH: Message =
    Message { name: "a patch of EnvoyFilter", read: &["applyTo", "match", "patch"], lost: &[], other: &[] };
static OPERATION: Message = Message {
    name: "the operation of a patch",
    read: &["value"],
    lost: &[
        ("operation", Effect::None, "where the value is put; it is imported as if it were there"),
        ("filterClass", Effect::None, "the place of the filter among others"),
    ],
    other: &[],
};
static SPEC: Message = Message {
    name: "EnvoyFilter",
    read: &["configPatches"],
    lost: &[
        ("workloadSelector", Effect::Tighter, "only these pods have the limit: run the rules beside them"),
        ("targetRefs", Effect::Tighter, "only these have the limit: run the rules beside them"),
        ("priority", Effect::None, "the order of patches"),
    ],
    other: &[],
};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct PatchPlace {
    owner: String,
    context: Option<String>,
    port: Option<String>,
    /// The labels of the pods, as written.
    labels: Vec<(String, String)>,
}

impl PatchPlace {
    /// Whether an Envoy may have both patches in one chain.
    fn may_share_chain(&self, other: &Self) -> bool {
        let agree = |one: &Option<String>, other: &Option<String>| match (one, other) {
            (Some(one), Some(other)) => one == other || one == "ANY" || other == "ANY",
            _ => true,
        };
        let label_differs = |(name, value): &(String, String)| {
            other.labels.iter().any(|(other_name, other_value)| name == other_name && value != other_value)
        };
        agree(&self.context, &other.context)
            && agree(&self.port, &other.port)
            && !self.labels.iter().any(label_differs)
    }
}

/// A patch of routes, kept until the filters are known.
#[derive(Debug)]
struct RoutePatch<'n> {
    place: PatchPlace,
    table: RouteTable<'n>,
}

/// The patches of a file.
#[derive(Debug, Default)]
pub(super) struct Patches<'n> {
    filters: Vec<(PatchPlace, HttpFilter<'n>)>,
    routes: Vec<RoutePatch<'n>>,
}

impl<'n> Patches<'n> {
    pub(super) fn read(&mut self, document: &'n Node, ledger: &Ledger) {
        let Some(spec) = get(document, "spec") else { return };
        ledger.message(spec, &SPEC);
        let name = get(document, "metadata").and_then(|metadata| field_text(metadata, "name"));
        let selector = get(spec, "workloadSelector").and_then(|selector| get(selector, "labels"));
        let label = |(key, value): &(Node, Node)| {
            Some((scalar_text(key)?.to_owned(), scalar_text(value)?.to_owned()))
        };
        let base = PatchPlace {
            owner: name.unwrap_or("EnvoyFilter").to_owned(),
            labels: selector.map(entries).unwrap_or_default().iter().filter_map(label).collect(),
            ..PatchPlace::default()
        };
        for patch in items(get(spec, "configPatches")) {
            self.read_patch(patch, &base, ledger);
        }
    }

    fn read_patch(&mut self, patch: &'n Node, base: &PatchPlace, ledger: &Ledger) {
        let Some(operation) = get(patch, "patch") else { return };
        let matching = get(patch, "match");
        let listener = matching.and_then(|matching| get(matching, "listener"));
        let routes = matching.and_then(|matching| get(matching, "routeConfiguration"));
        let host = routes.and_then(|routes| get(routes, "vhost"));
        let port =
            |node: Option<&Node>| node.and_then(|node| field_text(node, "portNumber")).map(ToOwned::to_owned);
        let host_name = host.and_then(|host| field_text(host, "name")).unwrap_or_default();
        let place = PatchPlace {
            context: matching.and_then(|matching| field_text(matching, "context")).map(ToOwned::to_owned),
            port: port(listener).or_else(|| port(routes)).or_else(|| inbound_port(host_name)),
            ..base.clone()
        };
        let Some(value) = get(operation, "value") else { return };
        let is_known = match field_text(patch, "applyTo") {
            Some("HTTP_ROUTE" | "VIRTUAL_HOST" | "ROUTE_CONFIGURATION") => {
                let table = route_patch(patch, value, host, ledger);
                self.routes.push(RoutePatch { place, table });
                true
            }
            kind => patched_filter(kind, value, ledger).is_some_and(|filter| {
                self.filters.push((place, filter));
                true
            }),
        };
        if !is_known {
            return lose_patch(patch, value, ledger);
        }
        ledger.message(patch, &PATCH);
        ledger.message(operation, &OPERATION);
        get(patch, "applyTo")
            .into_iter()
            .for_each(|kind| ledger.lose(kind, Effect::None, "what the patch changes"));
        matching.into_iter().for_each(|matching| note_place(matching, host_name, ledger));
    }

    /// Returns the chains of the patched filters, each with the patched routes that it may be used with.
    pub(super) fn into_chains(self) -> Vec<Chain<'n>> {
        let mut chains: Vec<(PatchPlace, Chain<'n>)> = Vec::new();
        for (place, filter) in self.filters {
            match chains.iter_mut().find(|(known, _)| *known == place) {
                Some((_, chain)) => chain.filters.push(filter),
                None => {
                    let chain = Chain {
                        label: place.owner.clone(),
                        filters: vec![filter],
                        is_known: true,
                        ..Chain::default()
                    };
                    chains.push((place, chain));
                }
            }
        }
        for RoutePatch { place, table } in self.routes {
            let candidates: Vec<usize> = chains
                .iter()
                .enumerate()
                .filter(|(_, (known, chain))| chain.is_known && known.may_share_chain(&place))
                .map(|(index, _)| index)
                .collect();
            let own = candidates.iter().find(|index| chains[**index].0.owner == place.owner);
            match own.or_else(|| candidates.first()).copied() {
                Some(index) => chains[index].1.tables.push(table),
                None => {
                    let chain = Chain { label: place.owner.clone(), tables: vec![table], ..Chain::default() };
                    chains.push((place, chain));
                }
            }
        }
        chains.into_iter().map(|(_, chain)| chain).collect()
    }
}

/// Returns the filter that a patch of this kind adds, if it is a local rate limit.
fn patched_filter<'n>(kind: Option<&str>, value: &'n Node, ledger: &Ledger) -> Option<HttpFilter<'n>> {
    match kind? {
        "HTTP_FILTER" => http_filter(value, ledger),
        "EXTENSION_CONFIG" => {
            let config = get(value, "typed_config").filter(|config| is_filter(config))?;
            let name = field_text(value, "name").unwrap_or_default();
            Some(HttpFilter { name, config, is_disabled: false })
        }
        _ => None,
    }
}

/// Says of a patch why no rule has it.
fn lose_patch(patch: &Node, value: &Node, ledger: &Ledger) {
    let kind = field_text(patch, "applyTo").unwrap_or("?");
    match contains_filter(value) {
        true => ledger.lose(
            patch,
            Effect::Looser,
            format!("has a local limit, but patches of {} are not imported", brief(kind)),
        ),
        false => ledger.lose(patch, Effect::None, "a patch without a local limit"),
    }
}

/// Returns the route configuration that a patch of one, of a virtual host or of a route stands for.
fn route_patch<'n>(
    patch: &'n Node,
    value: &'n Node,
    host: Option<&'n Node>,
    ledger: &Ledger,
) -> RouteTable<'n> {
    let host_name = host.and_then(|host| field_text(host, "name")).unwrap_or_default();
    let domain = host.and_then(|host| field_text(host, "domainName"));
    let mut requests = Requests::default();
    if let Some(domain) = domain.or_else(|| outbound_host(host_name)).filter(|domain| *domain != "*") {
        requests.require(MatchField::Host, vec![host_pattern(domain)]);
    }
    match field_text(patch, "applyTo") {
        Some("HTTP_ROUTE") => table_of_route(value, host, requests, ledger),
        Some("VIRTUAL_HOST") => {
            let own = Requests::of_domains(get(value, "domains"));
            let requests = requests.and(&own).unwrap_or(own);
            RouteTable { hosts: vec![VirtualHost::read(value, requests, ledger)], ..RouteTable::default() }
        }
        _ => {
            let mut table = RouteTable::read(value, ledger);
            if table.hosts.is_empty() {
                table.hosts.push(VirtualHost {
                    overrides: patch_overrides(value, ledger),
                    ..VirtualHost::default()
                });
            }
            table
        }
    }
}

/// Returns a route configuration with the route that a patch of one adds or changes.
fn table_of_route<'n>(
    value: &'n Node,
    host: Option<&'n Node>,
    mut requests: Requests<'n>,
    ledger: &Ledger,
) -> RouteTable<'n> {
    let host_name = host.and_then(|host| field_text(host, "name")).unwrap_or_default();
    let route_name = host.and_then(|host| get(host, "route")).and_then(|route| field_text(route, "name"));
    // Istio has one route for the requests of a port, of this name.
    if let Some(name) = route_name.filter(|name| inbound_port(host_name).is_none() || *name != "default") {
        requests.add(
            Effect::Tighter,
            format!("only the route `{name}` has it: add the path that it has to `match`"),
        );
    }
    let (route, _) = EnvoyRoute::read(value, &requests, &[], ledger);
    let mut host = VirtualHost { requests, ..VirtualHost::default() };
    host.routes.extend(route);
    RouteTable { hosts: vec![host], ..RouteTable::default() }
}

/// Returns the port of a virtual host for incoming requests: `inbound|http|8080`.
fn inbound_port(name: &str) -> Option<String> {
    let port = name.strip_prefix("inbound|")?.rsplit('|').next()?;
    port.bytes().all(|byte| byte.is_ascii_digit()).then(|| port.to_owned())
}

/// Returns the host of a virtual host for other requests: `HOST:PORT`.
fn outbound_host(name: &str) -> Option<&str> {
    let (host, port) = name.rsplit_once(':')?;
    let is_port = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    (is_port && !host.is_empty() && !host.contains('|')).then_some(host)
}

/// Says what of a patch's place rules do not express.
fn note_place(matching: &Node, host_name: &str, ledger: &Ledger) {
    const EVERYWHERE: &str = "the rules do not know it and apply everywhere";
    if let Some(context) = get(matching, "context") {
        let effect = if scalar_text(context) == Some("ANY") { Effect::None } else { Effect::Tighter };
        ledger.lose(context, effect, "the limit is in such proxies only: run the rules in their place");
    }
    if let Some(listener) = get(matching, "listener") {
        for (key, value) in entries(listener) {
            match scalar_text(key) {
                Some("portNumber" | "portName" | "name") => {
                    ledger.lose(
                        value,
                        Effect::Tighter,
                        "the limit is on this listener only: use `match: { listener: NAME }`",
                    );
                }
                Some("filterChain") => note_filter_chain(value, ledger),
                _ => ledger.lose(value, Effect::Tighter, EVERYWHERE),
            }
        }
    }
    if let Some(routes) = get(matching, "routeConfiguration") {
        for (key, value) in entries(routes) {
            if scalar_text(key) == Some("vhost") {
                note_host(value, host_name, ledger);
            } else {
                ledger.lose(
                    value,
                    Effect::Tighter,
                    "only these routes have it, and the rules do not know them",
                );
            }
        }
    }
    let is_noted = |name: &str| matches!(name, "context" | "listener" | "routeConfiguration");
    let others = entries(matching).iter().filter(|(key, _)| !scalar_text(key).is_some_and(is_noted));
    others.for_each(|(_, value)| ledger.lose(value, Effect::Tighter, EVERYWHERE));
}

fn note_filter_chain(chain: &Node, ledger: &Ledger) {
    for (key, value) in entries(chain) {
        match scalar_text(key) {
            Some("filter") => ledger.lose(value, Effect::None, "the place of the filter"),
            _ => ledger.lose(
                value,
                Effect::Tighter,
                "only these connections have the limit, and the rules do not know them",
            ),
        }
    }
}

fn note_host(host: &Node, host_name: &str, ledger: &Ledger) {
    for (key, value) in entries(host) {
        match scalar_text(key) {
            Some("domainName") => ledger.use_all(value),
            Some("name") if outbound_host(host_name).is_some() => {
                ledger.lose(value, Effect::None, "the host of the rules; they ignore the port");
            }
            Some("name") => {
                ledger.lose(
                    value,
                    Effect::Tighter,
                    "only this virtual host has it: the rules apply to all hosts and ports",
                );
            }
            Some("route") => note_route(value, ledger),
            _ => ledger.lose(
                value,
                Effect::Tighter,
                "only these hosts have it, and the rules do not know them",
            ),
        }
    }
}

fn note_route(route: &Node, ledger: &Ledger) {
    for (key, value) in entries(route) {
        let is_any = scalar_text(value) == Some("ANY");
        match scalar_text(key) {
            Some("action") if is_any => ledger.lose(value, Effect::None, "all routes"),
            Some("name") => ledger.lose(value, Effect::None, "the route that the comments of the rules name"),
            _ => ledger.lose(
                value,
                Effect::Tighter,
                "only such routes have it, and the rules do not know them",
            ),
        }
    }
}
