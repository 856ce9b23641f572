//! The middlewares of an import by their names, and what a router's list of them means.
//!
//! A middleware of the file provider is `NAME`, and `NAME@file` for other providers; a Kubernetes object is
//! `NAMESPACE-NAME@kubernetescrd` for others.

use super::super::kubernetes::Manifest;
use super::super::ledger::Ledger;
use super::super::limit_draft::LimitDraft;
use super::super::remark::Effect;
use super::super::tree::{entries, field_text, get, items, scalar_text};
use super::limits::{read_in_flight, read_rate_limit};
use super::messages;
use weir_yaml::Node;

/// A middleware.
#[derive(Debug)]
pub(super) struct TraefikMiddleware<'n> {
    /// The name by which other providers refer to it, such as `per-ip@file`.
    id: String,
    pub(super) rule_name: String,
    pub(super) title: String,
    namespace: Option<&'n str>,
    /// What it limits; a middleware with several contents does not work, and the first counts.
    pub(super) draft: Option<LimitDraft>,
    /// Whether it redirects HTTP to HTTPS, so that a request comes again by another connection.
    pub(super) is_https_redirect: bool,
    /// Whether all routers share its counters, which are in Redis.
    pub(super) is_shared: bool,
    /// The middlewares of a chain.
    chain: Vec<&'n Node>,
}

/// All middlewares of an import.
#[derive(Debug, Default)]
pub(super) struct TraefikMiddlewares<'n> {
    pub(super) all: Vec<TraefikMiddleware<'n>>,
}

impl<'n> TraefikMiddlewares<'n> {
    /// Adds those of the file provider.
    pub(super) fn add_file(&mut self, middlewares: &'n Node, ledger: &Ledger) {
        for (name, content) in entries(middlewares) {
            let name = scalar_text(name).unwrap_or("?");
            let title = format!("middleware {name}");
            self.add(format!("{name}@file"), name.to_owned(), title, None, content, ledger);
        }
    }

    pub(super) fn add_manifest(&mut self, manifest: &Manifest<'n>, ledger: &Ledger) {
        manifest.mark(ledger, &["v1alpha1"]);
        let Some(spec) = manifest.spec() else { return };
        let id = kubernetes_id(manifest.namespace, manifest.name);
        self.add(id, manifest.rule_name(), manifest.title(), manifest.namespace, spec, ledger);
    }

    fn add(
        &mut self,
        id: String,
        rule_name: String,
        title: String,
        namespace: Option<&'n str>,
        content: &'n Node,
        ledger: &Ledger,
    ) {
        ledger.message(content, &messages::MIDDLEWARE);
        let mut draft = get(content, "rateLimit").and_then(|limit| read_rate_limit(limit, ledger));
        if let Some(in_flight) = get(content, "inFlightReq") {
            if get(content, "rateLimit").is_none() {
                draft = read_in_flight(in_flight, ledger);
            } else {
                let reason = "Traefik does not accept two kinds in one middleware";
                ledger.lose(in_flight, Effect::Looser, reason);
            }
        }
        if let Some(plugin) = get(content, "plugin") {
            ledger.hide(plugin, Effect::Differs, "may limit requests, which is not known here");
        }
        let is_shared = get(content, "rateLimit").is_some_and(|limit| get(limit, "redis").is_some());
        let chain = get(content, "chain");
        chain.into_iter().for_each(|chain| ledger.message(chain, &messages::CHAIN));
        let chain = items(chain.and_then(|chain| get(chain, "middlewares"))).iter().collect();
        let is_https_redirect = is_https_redirect(content);
        self.all.push(TraefikMiddleware {
            id,
            rule_name,
            title,
            namespace,
            draft,
            is_https_redirect,
            is_shared,
            chain,
        });
    }

    /// Returns the indexes of the middlewares that a list of references means, with limits or redirects. Marks the references.
    pub(super) fn resolve(
        &self,
        references: &[&'n Node],
        namespace: Option<&'n str>,
        ledger: &Ledger,
    ) -> Vec<usize> {
        let mut found = Vec::new();
        let mut chains: Vec<usize> = Vec::new();
        let mut pending: Vec<(&'n Node, Option<&'n str>)> =
            references.iter().map(|one| (*one, namespace)).collect();
        while let Some((reference, namespace)) = pending.pop() {
            let Some(index) = self.find(reference, namespace, ledger) else { continue };
            let middleware = &self.all[index];
            if middleware.draft.is_some() || middleware.is_https_redirect {
                found.push(index);
            }
            if middleware.draft.is_some() {
                continue;
            }
            if middleware.chain.is_empty() {
                ledger.lose(reference, Effect::None, "has no limit");
            } else if chains.contains(&index) {
                let reason = "a chain that is used twice or in a circle: its limits apply once";
                ledger.lose(reference, Effect::Differs, reason);
            } else {
                chains.push(index);
                pending.extend(middleware.chain.iter().map(|inner| (*inner, middleware.namespace)));
            }
        }
        found
    }

    /// Whether one of these middlewares redirects HTTP to HTTPS.
    pub(super) fn has_https_redirect(&self, indexes: &[usize]) -> bool {
        indexes.iter().any(|index| self.all[*index].is_https_redirect)
    }

    /// Returns the index of the middleware that is meant. Marks the reference.
    fn find(&self, reference: &'n Node, namespace: Option<&'n str>, ledger: &Ledger) -> Option<usize> {
        let id = reference_id(reference, namespace, ledger);
        let index = self.all.iter().position(|one| one.id == id);
        if index.is_none() {
            ledger.lose(reference, Effect::Looser, "is not in the input: what it limits is not known");
            return None;
        }
        ledger.use_all(reference);
        if let Some(space) = get(reference, "namespace").filter(|space| scalar_text(space) == namespace) {
            ledger.lose(space, Effect::None, "the namespace of the object");
        }
        index
    }

    /// Returns the references of a comma-separated list, as annotations have it.
    pub(super) fn resolve_names(&self, list: &str) -> (Vec<usize>, Vec<String>) {
        let mut found = Vec::new();
        let mut missing = Vec::new();
        for name in list.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            match self.all.iter().position(|one| one.id == name) {
                Some(index) => found.push(index),
                None => missing.push(name.to_owned()),
            }
        }
        (found, missing)
    }

    /// Replaces chains among these middlewares by their content.
    pub(super) fn flatten(&self, indexes: &[usize], ledger: &Ledger) -> Vec<usize> {
        let mut flat = Vec::new();
        for index in indexes {
            let middleware = &self.all[*index];
            if middleware.draft.is_some() || middleware.is_https_redirect {
                flat.push(*index);
            }
            flat.extend(self.resolve(&middleware.chain, middleware.namespace, ledger));
        }
        flat
    }
}

/// Whether a middleware redirects HTTP to HTTPS: by the scheme, or by a regex of the whole URL.
fn is_https_redirect(content: &Node) -> bool {
    let text = |kind: &str, name: &str| get(content, kind).and_then(|redirect| field_text(redirect, name));
    let is_of_http = text("redirectRegex", "regex").is_some_and(|regex| regex.starts_with("^http:"));
    let leads_to_https =
        text("redirectRegex", "replacement").is_some_and(|replacement| replacement.starts_with("https:"));
    text("redirectScheme", "scheme") == Some("https") || (is_of_http && leads_to_https)
}

/// Returns the name of the middleware that is meant: a text, or `name` and `namespace` of an object.
fn reference_id(reference: &Node, namespace: Option<&str>, ledger: &Ledger) -> String {
    if let Some(name) = scalar_text(reference) {
        return if name.contains('@') { name.to_owned() } else { format!("{name}@file") };
    }
    ledger.message(reference, &messages::REFERENCE);
    let name = field_text(reference, "name").unwrap_or_default();
    if name.contains('@') {
        return name.to_owned();
    }
    kubernetes_id(field_text(reference, "namespace").or(namespace), name)
}

/// Returns the name by which other providers refer to a Kubernetes object.
fn kubernetes_id(namespace: Option<&str>, name: &str) -> String {
    format!("{}-{name}@kubernetescrd", namespace.unwrap_or("default"))
}
