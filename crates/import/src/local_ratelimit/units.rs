//! Which configuration of the filter applies to which requests, and which `rate_limits` make its descriptors.
//!
//! The most specific configuration replaces the others: that of a route, of its virtual host, of the route
//! configuration, then of the listener. Descriptors are made by the `rate_limits` of the same route only, so the limit
//! of one route never gets the descriptors of another.

use super::super::ledger::Ledger;
use super::super::remark::Effect;
use super::discover::{Chain, HttpFilter};
use super::filter::{Filter, HostLimits};
use super::requests::Requests;
use super::routes::{EnvoyRoute, FilterOverride, Overrides, RouteTable, VirtualHost};
use weir_yaml::Node;

/// A configuration with the requests that it applies to.
#[derive(Debug)]
pub(super) struct Unit<'n> {
    pub(super) filter: Filter<'n>,
    pub(super) requests: Requests<'n>,
    pub(super) sources: Vec<Source<'n>>,
}

/// Rate limits that make descriptors, and the requests that they do it for.
#[derive(Debug)]
pub(super) struct Source<'n> {
    pub(super) limits: &'n [Node],
    pub(super) requests: Requests<'n>,
    /// Whether they are the filter's own: only these may have a number of hits.
    pub(super) is_own: bool,
}

/// Which configuration applies.
#[derive(Clone, Copy, Debug)]
enum Effective<'n> {
    Listener,
    Own(&'n Node),
    Off,
}

/// Returns the units of each filter of a chain.
pub(super) fn units<'n>(chain: &Chain<'n>, ledger: &Ledger) -> Vec<Unit<'n>> {
    let mut units = Vec::new();
    let mut names: Vec<&str> = Vec::new();
    for filter in &chain.filters {
        // A filter whose name is not known has the overrides of any.
        let name = if filter.name.is_empty() { None } else { Some(filter.name) };
        let lookup = Lookup { name };
        units.extend(listener_unit(chain, filter, &lookup, ledger));
        units.extend(override_units(chain, &lookup, ledger));
        names.push(filter.name);
    }
    if chain.filters.is_empty() {
        units.extend(override_units(chain, &Lookup { name: None }, ledger));
    } else if names.iter().all(|name| !name.is_empty()) {
        lose_unused_overrides(chain, &names, ledger);
    }
    units
}

/// Finds the overrides of one filter.
struct Lookup<'n> {
    /// `None` for the overrides of any filter.
    name: Option<&'n str>,
}

impl<'n> Lookup<'n> {
    fn find(&self, overrides: &Overrides<'n>) -> Option<Effective<'n>> {
        let is_ours = |(name, _): &&(&str, FilterOverride<'n>)| self.name.is_none_or(|ours| ours == *name);
        overrides.iter().find(is_ours).map(|(_, found)| match found {
            FilterOverride::Config(config) => Effective::Own(config),
            FilterOverride::Disabled(_) => Effective::Off,
        })
    }

    fn of_host(&self, table: &RouteTable<'n>, host: &VirtualHost<'n>) -> Effective<'n> {
        self.find(&host.overrides).or_else(|| self.find(&table.overrides)).unwrap_or(Effective::Listener)
    }

    fn of_route(
        &self,
        table: &RouteTable<'n>,
        host: &VirtualHost<'n>,
        route: &EnvoyRoute<'n>,
    ) -> Effective<'n> {
        self.find(&route.overrides).unwrap_or_else(|| self.of_host(table, host))
    }
}

/// Returns what the filter itself applies to: everything without a configuration of its own.
fn listener_unit<'n>(
    chain: &Chain<'n>,
    http_filter: &HttpFilter<'n>,
    lookup: &Lookup<'n>,
    ledger: &Ledger,
) -> Option<Unit<'n>> {
    let lose = |reason: &str| ledger.lose(http_filter.config, Effect::None, reason);
    if http_filter.is_disabled {
        lose("the filter is disabled, except for routes with their own configuration");
        return None;
    }
    let mut requests = Requests::default();
    let mut is_used = true;
    for table in &chain.tables {
        for host in &table.hosts {
            if !matches!(lookup.of_host(table, host), Effective::Listener) {
                is_used &= requests.except(&host.requests);
                mark_disabled(lookup, &host.overrides, ledger);
                mark_disabled(lookup, &table.overrides, ledger);
                continue;
            }
            for route in &host.routes {
                if !matches!(lookup.of_route(table, host, route), Effective::Listener) {
                    is_used &= requests.except(&route.requests);
                    mark_disabled(lookup, &route.overrides, ledger);
                }
            }
        }
    }
    if !is_used {
        lose("not used: all requests have another configuration");
        return None;
    }
    let filter = Filter::read(http_filter.config, ledger);
    let is_ours = |effective: Effective<'n>| matches!(effective, Effective::Listener);
    let sources = sources(chain, lookup, &filter, &requests, &is_ours);
    Some(Unit { filter, requests, sources })
}

fn mark_disabled<'n>(lookup: &Lookup<'n>, overrides: &Overrides<'n>, ledger: &Ledger) {
    for (name, found) in overrides {
        if let FilterOverride::Disabled(node) = found
            && lookup.name.is_none_or(|ours| ours == *name)
        {
            ledger.use_all(node);
        }
    }
}

/// Returns what the configurations of route configurations, virtual hosts and routes apply to.
fn override_units<'n>(chain: &Chain<'n>, lookup: &Lookup<'n>, ledger: &Ledger) -> Vec<Unit<'n>> {
    let mut units: Vec<Unit<'n>> = Vec::new();
    let mut add = |config: &'n Node, requests: Option<Requests<'n>>| {
        let Some(requests) = requests else {
            return ledger.lose(
                config,
                Effect::None,
                "not used: all its requests have another configuration",
            );
        };
        let filter = Filter::read(config, ledger);
        let is_ours =
            |effective: Effective<'n>| matches!(effective, Effective::Own(own) if std::ptr::eq(own, config));
        let sources = sources(chain, lookup, &filter, &requests, &is_ours);
        units.push(Unit { filter, requests, sources });
    };
    for table in &chain.tables {
        if let Some(Effective::Own(config)) = lookup.find(&table.overrides) {
            add(config, table_requests(lookup, table));
        }
        for host in &table.hosts {
            if let Some(Effective::Own(config)) = lookup.find(&host.overrides) {
                add(config, host_requests(lookup, host));
            }
            for route in &host.routes {
                if let Some(Effective::Own(config)) = lookup.find(&route.overrides) {
                    add(config, Some(route.requests.clone()));
                }
            }
        }
    }
    units
}

/// Returns the requests of a virtual host without those of routes with their own configuration.
fn host_requests<'n>(lookup: &Lookup<'n>, host: &VirtualHost<'n>) -> Option<Requests<'n>> {
    let mut requests = host.requests.clone();
    let own = host.routes.iter().filter(|route| lookup.find(&route.overrides).is_some());
    // Each route is taken out, whether or not another one could not be.
    let left_in = own.filter(|route| !requests.except(&route.requests)).count();
    (left_in == 0).then_some(requests)
}

/// Returns the requests of a route configuration without those of virtual hosts and routes with their own.
fn table_requests<'n>(lookup: &Lookup<'n>, table: &RouteTable<'n>) -> Option<Requests<'n>> {
    let mut requests = Requests::default();
    let mut is_used = true;
    for host in &table.hosts {
        if lookup.find(&host.overrides).is_some() {
            is_used &= requests.except(&host.requests);
            continue;
        }
        for route in host.routes.iter().filter(|route| lookup.find(&route.overrides).is_some()) {
            is_used &= requests.except(&route.requests);
        }
    }
    is_used.then_some(requests)
}

/// Returns the rate limits that make descriptors for a configuration.
fn sources<'n>(
    chain: &Chain<'n>,
    lookup: &Lookup<'n>,
    filter: &Filter<'n>,
    requests: &Requests<'n>,
    is_ours: &dyn Fn(Effective<'n>) -> bool,
) -> Vec<Source<'n>> {
    if !filter.own_limits().is_empty() {
        return vec![Source { limits: filter.own_limits(), requests: requests.clone(), is_own: true }];
    }
    let mut sources = Vec::new();
    for table in &chain.tables {
        for host in &table.hosts {
            let is_ours_route = |route: &EnvoyRoute<'n>| is_ours(lookup.of_route(table, host, route));
            let is_ours_host = is_ours(lookup.of_host(table, host));
            let of_routes =
                host.routes.iter().filter(|route| !route.limits.is_empty() && is_ours_route(route));
            sources.extend(of_routes.map(|route| Source {
                limits: route.limits,
                requests: route.requests.clone(),
                is_own: false,
            }));
            let is_included = |route: &EnvoyRoute<'n>| {
                let is_included = route.limits.is_empty()
                    || route.includes_host_limits
                    || filter.host_limits == HostLimits::Include;
                is_included && is_ours_route(route)
            };
            if filter.host_limits != HostLimits::Ignore && (is_ours_host || !host.routes.is_empty()) {
                sources.extend(host_source(host, requests, is_included));
            }
        }
    }
    sources
}

/// Returns the rate limits of a virtual host, for the routes that are included. They apply at most to `requests`, those
/// of the configuration.
fn host_source<'n>(
    host: &VirtualHost<'n>,
    requests: &Requests<'n>,
    is_included: impl Fn(&EnvoyRoute<'n>) -> bool,
) -> Option<Source<'n>> {
    let mut of_host = host.requests.clone();
    let mut has_requests = !host.limits.is_empty();
    let mut is_applied = host.routes.is_empty();
    for route in &host.routes {
        match is_included(route) {
            true => is_applied = true,
            false => has_requests &= of_host.except(&route.requests),
        }
    }
    let own = requests.and(&of_host).filter(|_| has_requests && is_applied)?;
    Some(Source { limits: host.limits, requests: own, is_own: false })
}

/// Says of configurations for filters that the chain does not have that they are not used.
fn lose_unused_overrides(chain: &Chain<'_>, names: &[&str], ledger: &Ledger) {
    let lose = |overrides: &Overrides<'_>| {
        for (name, found) in overrides.iter().filter(|(name, _)| !names.contains(name)) {
            let (FilterOverride::Config(node) | FilterOverride::Disabled(node)) = found;
            ledger.lose(
                node,
                Effect::Differs,
                format!("not used: there is no filter of the name `{name}` in the chain"),
            );
        }
    };
    for table in &chain.tables {
        lose(&table.overrides);
        for host in &table.hosts {
            lose(&host.overrides);
            host.routes.iter().for_each(|route| lose(&route.overrides));
        }
    }
}
