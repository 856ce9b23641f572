//! Route configurations: virtual hosts and routes, each with the requests that reach it, its `rate_limits` and its own
//! configurations of filters.

use std::cmp::Reverse;

use super::super::ledger::Ledger;
use super::super::meet::may_meet;
use super::super::remark::Effect;
use super::super::scope::{MatchField, Scope};
use super::super::tree::{field_text, fields, get, is_named, is_true, items, scalar_text};
use super::messages;
use super::requests::{Requests, host_pattern};
use weir_yaml::Node;

/// Maximum number of routes of a virtual host, because each is compared with those before it.
const MAX_ROUTES: usize = 1000;

/// What a route, a virtual host or a route configuration has in place of a filter's configuration.
#[derive(Clone, Copy, Debug)]
pub(super) enum FilterOverride<'n> {
    /// Another configuration of the filter.
    Config(&'n Node),
    /// The filter is off.
    Disabled(&'n Node),
}

/// Overrides by the name of the filter.
pub(super) type Overrides<'n> = Vec<(&'n str, FilterOverride<'n>)>;

/// A route configuration, or parts of one.
#[derive(Debug, Default)]
pub(super) struct RouteTable<'n> {
    pub(super) name: Option<&'n str>,
    pub(super) overrides: Overrides<'n>,
    pub(super) hosts: Vec<VirtualHost<'n>>,
}

#[derive(Debug, Default)]
pub(super) struct VirtualHost<'n> {
    /// The requests for its domains, except those for more specific domains of others.
    pub(super) requests: Requests<'n>,
    pub(super) limits: &'n [Node],
    pub(super) overrides: Overrides<'n>,
    pub(super) routes: Vec<EnvoyRoute<'n>>,
}

#[derive(Debug, Default)]
pub(super) struct EnvoyRoute<'n> {
    /// The requests that it matches, except those that an earlier route matches.
    pub(super) requests: Requests<'n>,
    pub(super) limits: &'n [Node],
    pub(super) includes_host_limits: bool,
    pub(super) overrides: Overrides<'n>,
}

impl<'n> RouteTable<'n> {
    /// Reads a route configuration.
    pub(super) fn read(node: &'n Node, ledger: &Ledger) -> Self {
        ledger.message(node, &messages::ROUTE_TABLE);
        let hosts = items(get(node, "virtual_hosts"));
        let domains: Vec<Vec<&str>> = hosts
            .iter()
            .map(|host| items(get(host, "domains")).iter().filter_map(scalar_text).collect())
            .collect();
        let read = |(index, host): (usize, &'n Node)| {
            let mut requests = Requests::of_domains(get(host, "domains"));
            if items(get(host, "domains")).is_empty() {
                requests
                    .add(Effect::Differs, "the virtual host has no `domains`: the rules apply to all hosts");
            }
            except_specific_domains(&mut requests, index, &domains, hosts);
            VirtualHost::read(host, requests, ledger)
        };
        Self {
            name: field_text(node, "name"),
            overrides: overrides(node, ledger),
            hosts: hosts.iter().enumerate().map(read).collect(),
        }
    }
}

/// Excepts the domains of other virtual hosts that take precedence over those of the one at `index`.
fn except_specific_domains<'n>(
    requests: &mut Requests<'n>,
    index: usize,
    domains: &[Vec<&str>],
    hosts: &'n [Node],
) {
    let overlap = |one: &str, other: &str| {
        let scope = |domain: &str| {
            let mut scope = Scope::default();
            if domain != "*" {
                scope.require(MatchField::Host, vec![host_pattern(domain)]);
            }
            scope
        };
        may_meet(&scope(one), &scope(other))
    };
    let own = domains.get(index).map(Vec::as_slice).unwrap_or_default();
    let precedes = |one: &str, other: &str| domain_rank(one) < domain_rank(other) && overlap(one, other);
    for (other_index, others) in domains.iter().enumerate().filter(|(other, _)| *other != index) {
        let preceding: Vec<&str> =
            others.iter().copied().filter(|other| own.iter().any(|own| precedes(other, own))).collect();
        let is_sound = preceding.iter().all(|other| !own.iter().any(|own| precedes(own, other)));
        if preceding.is_empty() {
            continue;
        }
        if !is_sound {
            requests.add(Effect::Tighter, "a more specific domain of another virtual host is not excepted");
            continue;
        }
        let mut excepted = Requests::of_domains(hosts.get(other_index).and_then(|host| get(host, "domains")));
        excepted.scope = Scope::default();
        excepted.require(MatchField::Host, preceding.into_iter().map(host_pattern).collect());
        requests.except(&excepted);
    }
}

/// Returns the position of a domain in the order of precedence: exact names, longest suffixes, longest prefixes, `*`.
fn domain_rank(domain: &str) -> (u8, Reverse<usize>) {
    let length = Reverse(domain.len());
    match (domain, domain.starts_with('*'), domain.ends_with('*')) {
        ("*", ..) => (3, length),
        (_, true, _) => (1, length),
        (_, _, true) => (2, length),
        _ => (0, length),
    }
}

impl<'n> VirtualHost<'n> {
    /// Reads a virtual host with the requests that reach it.
    pub(super) fn read(node: &'n Node, requests: Requests<'n>, ledger: &Ledger) -> Self {
        ledger.message(node, &messages::VIRTUAL_HOST);
        let mut host = Self {
            requests,
            limits: items(get(node, "rate_limits")),
            overrides: overrides(node, ledger),
            routes: Vec::new(),
        };
        let routes = items(get(node, "routes"));
        if let Some(first) = routes.get(MAX_ROUTES) {
            ledger.lose(first, Effect::Differs, format!("more than {MAX_ROUTES} routes: not imported"));
        }
        let mut earlier: Vec<Requests<'n>> = Vec::new();
        for node in routes.iter().take(MAX_ROUTES) {
            let (route, own) = EnvoyRoute::read(node, &host.requests, &earlier, ledger);
            // A route that no request reaches needs no exception.
            if let Some(route) = route {
                host.routes.push(route);
                earlier.extend(own);
            }
        }
        host
    }
}

impl<'n> EnvoyRoute<'n> {
    /// Reads a route; returns it, unless no request reaches it, with the requests that its `match` selects.
    pub(super) fn read(
        node: &'n Node,
        host: &Requests<'n>,
        earlier: &[Requests<'n>],
        ledger: &Ledger,
    ) -> (Option<Self>, Option<Requests<'n>>) {
        ledger.message(node, &messages::ROUTE);
        let matching = get(node, "match").map(Requests::of_route).unwrap_or_default();
        let mut limits: &'n [Node] = &[];
        let mut includes_host_limits = false;
        if let Some(action) = get(node, "route") {
            ledger.message(action, &messages::ROUTE_ACTION);
            limits = items(get(action, "rate_limits"));
            if let Some(include) = get(action, "include_vh_rate_limits") {
                includes_host_limits = is_true(action, "include_vh_rate_limits");
                ledger.use_all(include);
            }
            note_weighted_clusters(action, ledger);
        }
        let overrides = overrides(node, ledger);
        let Some(mut requests) = host.and(&matching) else { return (None, Some(matching)) };
        let is_reached = earlier.iter().all(|earlier| requests.except(earlier));
        let route = is_reached.then_some(Self { requests, limits, includes_host_limits, overrides });
        (route, Some(matching))
    }
}

fn note_weighted_clusters(action: &Node, ledger: &Ledger) {
    let clusters = items(get(action, "weighted_clusters").and_then(|weighted| get(weighted, "clusters")));
    for own in clusters.iter().filter_map(|cluster| get(cluster, "typed_per_filter_config")) {
        ledger.lose(
            own,
            Effect::Differs,
            "a filter's configuration of one of several weighted clusters is not imported",
        );
    }
}

/// Returns the configurations of filters at a route, a virtual host or a route configuration.
pub(super) fn overrides<'n>(node: &'n Node, ledger: &Ledger) -> Overrides<'n> {
    let Some(all) = get(node, "typed_per_filter_config") else { return Vec::new() };
    let mut found = Vec::new();
    for (name, value) in fields(all) {
        let kind = type_of(value);
        if is_filter(value) {
            found.push((name, FilterOverride::Config(value)));
        } else if kind.ends_with("config.route.v3.FilterConfig") {
            let config = get(value, "config").filter(|config| is_filter(config));
            let is_ours = config.is_some() || is_known_name(name);
            if !is_ours {
                continue;
            }
            ledger.message(value, &messages::ROUTE_FILTER);
            get(value, "@type").into_iter().for_each(|kind| ledger.use_all(kind));
            match config {
                _ if is_true(value, "disabled") => found.push((name, FilterOverride::Disabled(value))),
                Some(config) => found.push((name, FilterOverride::Config(config))),
                None => {}
            }
        } else if kind.ends_with("ratelimit.v3.RateLimitPerRoute") {
            ledger.lose(value, Effect::Looser, "the limits of a rate limit service are not in this file");
        } else if is_known_name(name) {
            ledger.lose(value, Effect::Looser, "its type is not that of the filter");
        }
    }
    found
}

fn is_known_name(name: &str) -> bool {
    name.contains("local_ratelimit") || name.contains("local_rate_limit")
}

/// Returns the type of a value with `@type`; for a typed struct, the type that it stands for.
pub(super) fn type_of(node: &Node) -> &str {
    field_text(node, "type_url").or_else(|| field_text(node, "@type")).unwrap_or_default()
}

/// Whether a value is a configuration of the local rate limit filter.
pub(super) fn is_filter(node: &Node) -> bool {
    const FILTER_TYPE: &str = "extensions.filters.http.local_ratelimit.v3.LocalRateLimit";
    fields(node).any(|(name, value)| {
        (name == "@type" || is_named(name, "type_url"))
            && scalar_text(value).is_some_and(|kind| kind.ends_with(FILTER_TYPE))
    })
}
