//! The routers of an import: those of the file provider, of `IngressRoute` and of `Ingress`.
//!
//! A request belongs to the router with the highest priority, by default the one with the longest rule.

use super::super::gateway_api::matches::exact_path;
use super::super::kubernetes::Manifest;
use super::super::ledger::Ledger;
use super::super::remark::{Effect, Remark, brief};
use super::super::scope::MatchField;
use super::super::selection::RequestSet;
use super::super::tree::{as_i64, entries, field_text, get, items, scalar_text};
use super::messages;
use super::middlewares::TraefikMiddlewares;
use super::rules::{prefix_pattern, rule_selection};
use weir_yaml::Node;

/// The annotation of an Ingress that names its middlewares.
const ANNOTATION: &str = "traefik.ingress.kubernetes.io/router.middlewares";

/// A router.
#[derive(Debug)]
pub(super) struct TraefikRouter {
    pub(super) title: String,
    /// With the requests of routers of a higher priority.
    selection: RequestSet,
    priority: i64,
    /// The middlewares with limits, by index.
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
            self.add(&title, router, get(router, "rule"), None, middlewares, ledger);
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
            let rule = get(route, "match");
            self.add(&manifest.title(), route, rule, manifest.namespace, middlewares, ledger);
        }
    }

    fn add<'n>(
        &mut self,
        title: &str,
        node: &'n Node,
        rule: Option<&'n Node>,
        namespace: Option<&'n str>,
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
        self.all.push(TraefikRouter {
            title: format!("{title}, {}", brief(text)),
            selection: rule_selection(text),
            priority: given.unwrap_or_else(|| i64::try_from(text.len()).unwrap_or(i64::MAX)),
            middlewares: middlewares.resolve(&references, namespace, ledger),
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
        let annotations = manifest.metadata("annotations").map(entries).unwrap_or_default();
        let named = annotations.iter().find(|(name, _)| scalar_text(name) == Some(ANNOTATION));
        let Some((_, list)) = named else {
            let class = manifest.spec().and_then(|spec| field_text(spec, "ingressClassName"));
            if class.is_none_or(|class| class.contains("traefik")) {
                self.add_paths(manifest, &[], &Ledger::default());
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
        self.add_paths(manifest, &limits, ledger);
    }

    fn add_paths(&mut self, manifest: &Manifest<'_>, limits: &[usize], ledger: &Ledger) {
        let Some(spec) = manifest.spec() else { return };
        ledger.message(spec, &messages::INGRESS);
        for rule in items(get(spec, "rules")) {
            let host = field_text(rule, "host").unwrap_or_default();
            get(rule, "host").into_iter().for_each(|host| ledger.use_all(host));
            for path in items(get(rule, "http").and_then(|http| get(http, "paths"))) {
                let (selection, length) = ingress_path(path, host, ledger);
                self.all.push(TraefikRouter {
                    title: manifest.title(),
                    selection,
                    priority: length,
                    middlewares: limits.to_vec(),
                });
            }
        }
    }

    /// Returns the requests of a router, without those of routers with a higher priority.
    pub(super) fn requests(&self, index: usize) -> RequestSet {
        let own = &self.all[index];
        let comes_first = |(other, router): &(usize, &TraefikRouter)| {
            router.priority > own.priority || (router.priority == own.priority && *other < index)
        };
        let others = self.all.iter().enumerate().filter(comes_first);
        others.fold(own.selection.clone(), |rest, (_, router)| rest.without(&router.selection))
    }
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
