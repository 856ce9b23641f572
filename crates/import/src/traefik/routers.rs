//! The routers of an import: those of the file provider, of `IngressRoute` and of `Ingress`.
//!
//! A request belongs to the router with the highest priority, by default the one with the longest rule, among those of its
//! entry point. A router that redirects HTTP to HTTPS takes no request for good: the client sends it again.

use super::super::gateway_api::matches::exact_path;
use super::super::kubernetes::Manifest;
use super::super::ledger::Ledger;
use super::super::remark::{Effect, Remark, brief};
use super::super::scope::MatchField;
use super::super::selection::RequestSet;
use super::super::tree::{as_i64, entries, field_text, get, items, scalar_text};
use super::connections::RouterConnections;
use super::messages;
use super::middlewares::TraefikMiddlewares;
use super::rules::{prefix_pattern, rule_selection};
use weir_yaml::Node;

/// The begin of the annotations of an Ingress that are fields of its routers.
const PREFIX: &str = "traefik.ingress.kubernetes.io/router.";

/// A router.
#[derive(Debug)]
pub(super) struct TraefikRouter {
    pub(super) title: String,
    /// With the requests of routers of a higher priority.
    selection: RequestSet,
    priority: i64,
    connections: RouterConnections,
    /// Whether it redirects HTTP to HTTPS.
    is_https_redirect: bool,
    /// The middlewares with limits or redirects, by index.
    pub(super) middlewares: Vec<usize>,
}

/// All routers of an import.
#[derive(Debug, Default)]
pub(super) struct TraefikRouters {
    pub(super) all: Vec<TraefikRouter>,
    /// What to say of routers.
    pub(super) remarks: Vec<Remark>,
}

impl TraefikRouters {
    /// Adds those of the file provider.
    pub(super) fn add_file<'n>(
        &mut self,
        routers: &'n Node,
        middlewares: &TraefikMiddlewares<'n>,
        ledger: &Ledger,
    ) {
        for (name, router) in entries(routers) {
            let title = format!("router {}", scalar_text(name).unwrap_or("?"));
            ledger.message(router, &messages::ROUTER);
            let connections = RouterConnections::read(router);
            self.add(&title, router, get(router, "rule"), None, connections, middlewares, ledger);
        }
    }

    pub(super) fn add_ingress_route<'n>(
        &mut self,
        manifest: &Manifest<'n>,
        middlewares: &TraefikMiddlewares<'n>,
        ledger: &Ledger,
    ) {
        manifest.mark(ledger, &["v1alpha1"]);
        let Some(spec) = manifest.spec() else { return };
        ledger.message(spec, &messages::INGRESS_ROUTE);
        for route in items(get(spec, "routes")) {
            ledger.message(route, &messages::ROUTE);
            let (rule, connections) = (get(route, "match"), RouterConnections::read(spec));
            self.add(&manifest.title(), route, rule, manifest.namespace, connections, middlewares, ledger);
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of two kinds of routers")]
    fn add<'n>(
        &mut self,
        title: &str,
        node: &'n Node,
        rule: Option<&'n Node>,
        namespace: Option<&'n str>,
        connections: RouterConnections,
        middlewares: &TraefikMiddlewares<'n>,
        ledger: &Ledger,
    ) {
        let text = rule.and_then(scalar_text).unwrap_or_default();
        rule.into_iter().for_each(|rule| ledger.use_all(rule));
        let given = get(node, "priority");
        if let Some(priority) = given {
            ledger.lose(priority, Effect::None, "which of several routers gets a request");
        }
        let given = given.and_then(as_i64).filter(|priority| *priority != 0);
        let references: Vec<&Node> = items(get(node, "middlewares")).iter().collect();
        let found = middlewares.resolve(&references, namespace, ledger);
        self.all.push(TraefikRouter {
            title: format!("{title}, {}", brief(text)),
            selection: rule_selection(text),
            priority: given.unwrap_or_else(|| i64::try_from(text.len()).unwrap_or(i64::MAX)),
            connections,
            is_https_redirect: middlewares.has_https_redirect(&found),
            middlewares: found,
        });
    }

    /// Adds the paths of an Ingress. One without middlewares takes requests from other routers, and is marked nowhere: its
    /// remark has a checksum.
    pub(super) fn add_ingress<'n>(
        &mut self,
        manifest: &Manifest<'n>,
        middlewares: &TraefikMiddlewares<'n>,
        ledger: &Ledger,
    ) {
        let Some(list) = annotation(manifest, "middlewares") else {
            let class = manifest.spec().and_then(|spec| field_text(spec, "ingressClassName"));
            if class.is_none_or(|class| class.contains("traefik")) {
                self.add_paths(manifest, &[], false, &Ledger::default());
            }
            return;
        };
        let (found, missing) = middlewares.resolve_names(scalar_text(list).unwrap_or_default());
        let limits = middlewares.flatten(&found, ledger);
        manifest.mark(ledger, &["v1"]);
        ledger.lose(list, Effect::None, "the middlewares of the Ingress");
        let title = manifest.title();
        for name in missing {
            let text = format!("{title}: {} is not in the input: what it limits is not known", brief(&name));
            self.remarks.push(Remark::new(Effect::Looser, text));
        }
        self.add_paths(manifest, &limits, middlewares.has_https_redirect(&limits), ledger);
    }

    fn add_paths(
        &mut self,
        manifest: &Manifest<'_>,
        middlewares: &[usize],
        is_https_redirect: bool,
        ledger: &Ledger,
    ) {
        let Some(spec) = manifest.spec() else { return };
        ledger.message(spec, &messages::INGRESS);
        let text = |name: &str| annotation(manifest, name).and_then(scalar_text);
        let connections = RouterConnections::of_annotations(text("entrypoints"), text("tls"));
        let given = annotation(manifest, "priority");
        given.into_iter().for_each(|priority| {
            ledger.lose(priority, Effect::None, "which of several routers gets a request");
        });
        let given = given.and_then(as_i64).filter(|priority| *priority != 0);
        let mut add = |selection: RequestSet, priority: i64| {
            self.all.push(TraefikRouter {
                title: manifest.title(),
                selection,
                priority,
                connections: connections.clone(),
                is_https_redirect,
                middlewares: middlewares.to_vec(),
            });
        };
        let rules = items(get(spec, "rules"));
        for rule in rules {
            let host = field_text(rule, "host").unwrap_or_default();
            get(rule, "host").into_iter().for_each(|host| ledger.use_all(host));
            for path in items(get(rule, "http").and_then(|http| get(http, "paths"))) {
                let (selection, length) = ingress_path(path, host, ledger);
                add(selection, given.unwrap_or(length));
            }
        }
        let Some(default) = get(spec, "defaultBackend") else { return };
        if rules.is_empty() {
            ledger.lose(default, Effect::None, "has the requests of no other router");
            add(RequestSet::all(), i64::from(i32::MIN));
        } else {
            ledger.lose(default, Effect::None, "Traefik reads it only without `rules`");
        }
    }

    /// Returns the requests of a router, without those that other routers take from it.
    pub(super) fn requests(&self, index: usize) -> RequestSet {
        let own = &self.all[index];
        let mut requests = own.selection.clone();
        for (at, other) in self.all.iter().enumerate() {
            let is_tie = other.priority == own.priority;
            let comes_first = other.priority > own.priority || (is_tie && at < index);
            if !comes_first || !requests.overlaps(&other.selection) {
                continue;
            }
            let title = &other.title;
            if other.is_https_redirect {
                let text = format!(
                    "{title}, redirects to HTTPS: requests that arrive here without TLS have the limit"
                );
                requests.add(Effect::Tighter, text);
            } else if own.connections.are_all_of(&other.connections) {
                requests = requests.after(&other.selection, title);
                if is_tie {
                    let text = format!(
                        "{title}, has the same priority: which one has the requests of both is not defined"
                    );
                    requests.add(Effect::Looser, text);
                }
            } else {
                let text = format!(
                    "{title}, has other entry points or TLS: its requests that arrive here have the limit, too"
                );
                requests.add(Effect::Tighter, text);
            }
        }
        requests
    }
}

/// Returns the value of an annotation of an Ingress for its routers.
fn annotation<'n>(manifest: &Manifest<'n>, name: &str) -> Option<&'n Node> {
    let annotations = manifest.metadata("annotations").map(entries).unwrap_or_default();
    let is_it = |key: &Node| scalar_text(key).and_then(|key| key.strip_prefix(PREFIX)) == Some(name);
    annotations.iter().find(|(key, _)| is_it(key)).map(|(_, value)| value)
}

/// Returns the requests of a path of an Ingress, and the length of the rule that Traefik makes of it.
fn ingress_path(path: &Node, host: &str, ledger: &Ledger) -> (RequestSet, i64) {
    let text = field_text(path, "path").unwrap_or("/");
    let kind = field_text(path, "pathType").unwrap_or_default();
    ["path", "pathType"]
        .into_iter()
        .filter_map(|name| get(path, name))
        .for_each(|value| ledger.use_all(value));
    if text == "/" || !matches!(kind, "Exact" | "Prefix") {
        let kind = get(path, "pathType");
        kind.into_iter().for_each(|kind| ledger.lose(kind, Effect::None, "how the path is compared"));
    }
    let (patterns, overhead) = match kind {
        _ if text == "/" && kind != "Exact" => (Vec::new(), "PathPrefix(``)".len()),
        "Exact" => (vec![exact_path(text)], "Path(``)".len()),
        "Prefix" => {
            let folder = text.trim_end_matches('/');
            let below = prefix_pattern(&format!("{folder}/"));
            (vec![exact_path(folder), below], "(Path(``) || PathPrefix(`/`))".len() + folder.len())
        }
        _ => (vec![prefix_pattern(text)], "PathPrefix(``)".len()),
    };
    let mut selection = RequestSet::matching(MatchField::Path, patterns);
    let mut length = overhead + text.len();
    if !host.is_empty() {
        let hosts = RequestSet::matching(MatchField::Host, vec![host.to_ascii_lowercase()]);
        selection = hosts.and(&selection);
        length += "Host(``) && ".len() + host.len();
    }
    (selection, i64::try_from(length).unwrap_or(i64::MAX))
}
