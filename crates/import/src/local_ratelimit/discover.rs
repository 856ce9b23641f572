//! Finds the filters and the route configurations of a file: a bootstrap, listeners, routes, a dump of a running Envoy,
//! patches of Istio, or a filter alone.

use super::super::ledger::Ledger;
use super::super::remark::Effect;
use super::super::tree::{entries, field_text, fields, get, is_named, is_true, items, scalar_text};
use super::envoy_filter;
use super::messages;
use super::requests::Requests;
use super::routes::{
    EnvoyRoute, FilterOverride, Overrides, RouteTable, VirtualHost, is_filter, overrides, type_of,
};
use weir_yaml::{Node, NodeValue};

/// A chain of HTTP filters: that of one connection manager.
#[derive(Debug, Default)]
pub(super) struct Chain<'n> {
    /// The listener or the patch that it belongs to.
    pub(super) label: String,
    pub(super) filters: Vec<HttpFilter<'n>>,
    /// The name of the route configuration that another server sends.
    pub(super) route_name: Option<&'n str>,
    pub(super) tables: Vec<RouteTable<'n>>,
    /// Whether the file has the chain. Otherwise, it is assumed for routes that no chain uses.
    pub(super) is_known: bool,
}

/// A local rate limit filter of a chain.
#[derive(Clone, Copy, Debug)]
pub(super) struct HttpFilter<'n> {
    pub(super) name: &'n str,
    pub(super) config: &'n Node,
    /// Whether only routes with their own configuration use it.
    pub(super) is_disabled: bool,
}

/// The parts of a file that matter here.
#[derive(Debug, Default)]
pub(super) struct Discovery<'n> {
    pub(super) chains: Vec<Chain<'n>>,
    tables: Vec<RouteTable<'n>>,
}

impl<'n> Discovery<'n> {
    /// Searches the documents of a file.
    pub(super) fn new(documents: &'n [Node], ledger: &Ledger) -> Self {
        let mut found = Self::default();
        let mut patches = envoy_filter::Patches::default();
        for (index, document) in documents.iter().enumerate() {
            let label = format!("document {}", index + 1);
            // `kubectl get -o yaml` writes one list.
            let is_list = field_text(document, "kind").is_some_and(|kind| kind.ends_with("List"));
            let objects =
                if is_list { items(get(document, "items")) } else { std::slice::from_ref(document) };
            for object in objects {
                found.read_object(object, &label, &mut patches, ledger);
            }
        }
        found.attach_tables();
        found.chains.extend(patches.into_chains());
        found
    }

    fn read_object(
        &mut self,
        object: &'n Node,
        label: &str,
        patches: &mut envoy_filter::Patches<'n>,
        ledger: &Ledger,
    ) {
        let is_alone = get(object, "token_bucket").or_else(|| get(object, "stat_prefix")).is_some();
        if field_text(object, "kind") == Some("EnvoyFilter") {
            patches.read(object, ledger);
        } else if is_alone && !is_filter(object) && get(object, "http_filters").is_none() {
            self.add_lone_filter(object, label);
        } else {
            self.walk(object, label, ledger);
        }
    }

    /// Whether there is anything to import.
    pub(super) fn has_filters(&self) -> bool {
        let has_config =
            |all: &Overrides<'n>| all.iter().any(|(_, one)| matches!(one, FilterOverride::Config(_)));
        let table_has = |table: &RouteTable<'n>| {
            has_config(&table.overrides)
                || table.hosts.iter().any(|host| {
                    has_config(&host.overrides)
                        || host.routes.iter().any(|route| has_config(&route.overrides))
                })
        };
        self.chains.iter().any(|chain| !chain.filters.is_empty() || chain.tables.iter().any(table_has))
    }

    /// Searches everything below `node`. The depth of nodes is bounded.
    fn walk(&mut self, node: &'n Node, label: &str, ledger: &Ledger) {
        match &node.value {
            NodeValue::Scalar(_) => {}
            NodeValue::Tagged(tagged) => self.walk(&tagged.1, label, ledger),
            NodeValue::List(nodes) => nodes.iter().for_each(|node| self.walk(node, label, ledger)),
            NodeValue::Map(_) if is_filter(node) => self.add_lone_filter(node, label),
            NodeValue::Map(_) if get(node, "http_filters").is_some() => self.add_manager(node, label, ledger),
            NodeValue::Map(_) if get(node, "virtual_hosts").is_some() => {
                self.tables.push(RouteTable::read(node, ledger));
            }
            NodeValue::Map(_) if is_virtual_host(node) => self.add_lone_host(node, ledger),
            NodeValue::Map(_) if is_route(node) => self.add_lone_route(node, ledger),
            NodeValue::Map(_) => {
                let name = field_text(node, "name").filter(|_| get(node, "filter_chains").is_some());
                let label = name.unwrap_or(label);
                if let Some((effect, reason)) = other_filter(node) {
                    return ledger.lose(node, effect, reason);
                }
                fields(node).for_each(|(_, value)| self.walk(value, label, ledger));
            }
        }
    }

    fn add_lone_filter(&mut self, config: &'n Node, label: &str) {
        let filters = vec![HttpFilter { name: "", config, is_disabled: false }];
        self.chains.push(Chain { label: label.to_owned(), filters, ..Chain::default() });
    }

    fn add_manager(&mut self, node: &'n Node, label: &str, ledger: &Ledger) {
        let mut chain = Chain { label: label.to_owned(), is_known: true, ..Chain::default() };
        for filter in items(get(node, "http_filters")) {
            if let Some(found) = http_filter(filter, ledger) {
                chain.filters.push(found);
            } else {
                self.walk(filter, label, ledger);
            }
        }
        for (name, value) in fields(node) {
            if is_named(name, "route_config") {
                chain.tables.push(RouteTable::read(value, ledger));
            } else if is_named(name, "rds") {
                chain.route_name = field_text(value, "route_config_name");
                if let Some(name) = get(value, "route_config_name") {
                    ledger.lose(
                        name,
                        Effect::None,
                        "the routes are those of this name, if the file has them",
                    );
                }
            } else if messages::CLIENT_ADDRESS_FIELDS.iter().any(|known| is_named(name, known)) {
                ledger.lose(value, Effect::Differs, messages::CLIENT_ADDRESS_REASON);
            } else if !is_named(name, "http_filters") {
                self.walk(value, label, ledger);
            }
        }
        // A manager without the filter matters if its routes have it.
        self.chains.push(chain);
    }

    fn add_lone_host(&mut self, node: &'n Node, ledger: &Ledger) {
        let requests = Requests::of_domains(get(node, "domains"));
        let hosts = vec![VirtualHost::read(node, requests, ledger)];
        self.tables.push(RouteTable { hosts, ..RouteTable::default() });
    }

    fn add_lone_route(&mut self, node: &'n Node, ledger: &Ledger) {
        let (route, _) = EnvoyRoute::read(node, &Requests::default(), &[], ledger);
        let hosts = vec![VirtualHost { routes: route.into_iter().collect(), ..VirtualHost::default() }];
        self.tables.push(RouteTable { hosts, ..RouteTable::default() });
    }

    /// Gives each route configuration to the chain that names it, or that has no other.
    fn attach_tables(&mut self) {
        for table in std::mem::take(&mut self.tables) {
            let mut chains = self.chains.iter_mut();
            let is_named =
                |chain: &&mut Chain<'n>| chain.route_name.is_some() && chain.route_name == table.name;
            if let Some(chain) = chains.find(is_named) {
                chain.tables.push(table);
                continue;
            }
            // A filter alone, or a manager without routes: they belong together if there is only one.
            let mut free: Vec<&mut Chain<'n>> = self
                .chains
                .iter_mut()
                .filter(|chain| chain.route_name.is_none() && (chain.tables.is_empty() || !chain.is_known))
                .collect();
            match free.as_mut_slice() {
                [only] => only.tables.push(table),
                _ => self.chains.push(Chain { tables: vec![table], ..Chain::default() }),
            }
        }
    }
}

/// Returns the effect of leaving out a filter that limits something else, and the reason.
fn other_filter(node: &Node) -> Option<(Effect, &'static str)> {
    let kind = type_of(node);
    let known = messages::OTHER_FILTERS.iter().find(|(end, ..)| kind.ends_with(end));
    known.map(|(_, effect, reason)| (*effect, *reason))
}

/// Whether a value or one below it is a configuration of the local rate limit filter.
pub(super) fn contains_filter(node: &Node) -> bool {
    is_filter(node)
        || match &node.value {
            NodeValue::Scalar(_) => false,
            NodeValue::List(nodes) => nodes.iter().any(contains_filter),
            NodeValue::Map(map) => map.entries().iter().any(|(_, value)| contains_filter(value)),
            NodeValue::Tagged(tagged) => contains_filter(&tagged.1),
        }
}

/// Returns the filter of an item of `http_filters`, if it is a local rate limit.
pub(super) fn http_filter<'n>(node: &'n Node, ledger: &Ledger) -> Option<HttpFilter<'n>> {
    let config = get(node, "typed_config").filter(|config| is_filter(config))?;
    ledger.message(node, &messages::HTTP_FILTER);
    ["name", "disabled"].iter().filter_map(|name| get(node, name)).for_each(|value| ledger.use_all(value));
    if let Some(name) = get(node, "name") {
        ledger.lose(name, Effect::None, "routes replace the configuration of the filter of this name");
    }
    let name = field_text(node, "name").unwrap_or_default();
    Some(HttpFilter { name, config, is_disabled: is_true(node, "disabled") })
}

fn is_virtual_host(node: &Node) -> bool {
    get(node, "domains").is_some() && (get(node, "routes").is_some() || get(node, "rate_limits").is_some())
}

fn is_route(node: &Node) -> bool {
    let has_limits =
        |node: &Node| get(node, "typed_per_filter_config").is_some_and(|all| !overrides_of(all).is_empty());
    get(node, "match").is_some()
        && (has_limits(node) || get(node, "route").is_some_and(|action| get(action, "rate_limits").is_some()))
}

fn overrides_of(all: &Node) -> Vec<&Node> {
    entries(all).iter().map(|(_, value)| value).filter(|value| is_filter(value)).collect()
}

/// Returns where in a document a text contains the configuration of a filter.
pub(super) fn embedded_text(node: &Node, path: &str) -> Option<String> {
    match &node.value {
        NodeValue::Scalar(_) => {
            let is_config = scalar_text(node)?.contains("local_ratelimit.v3.LocalRateLimit")
                && scalar_text(node)?.contains('\n');
            is_config.then(|| path.to_owned())
        }
        NodeValue::List(items) => items.iter().find_map(|item| embedded_text(item, path)),
        NodeValue::Map(map) => map.entries().iter().find_map(|(key, value)| {
            embedded_text(value, &format!("{path}.{}", scalar_text(key).unwrap_or_default()))
        }),
        NodeValue::Tagged(tagged) => embedded_text(&tagged.1, path),
    }
}

/// Returns the overrides of a value that replaces parts of a route, for patches.
pub(super) fn patch_overrides<'n>(node: &'n Node, ledger: &Ledger) -> Overrides<'n> {
    overrides(node, ledger)
}
