//! Import of Traefik's middlewares `rateLimit` and `inFlightReq`: `Middleware` objects and the file provider's YAML.
//!
//! The semantics are those of `pkg/middlewares/ratelimiter` and `pkg/middlewares/inflightreq` in traefik/traefik. A
//! `rateLimit` is a token bucket in which a request may wait for half of the time between two requests, at most half a
//! second. Each router has counters of its own for a middleware, unless these are in Redis. Without a source criterion,
//! `rateLimit` counts by the address of the peer and `inFlightReq` by host.

mod connections;
mod limits;
mod messages;
mod middlewares;
mod routers;
mod rules;

use self::middlewares::TraefikMiddlewares;
use self::routers::TraefikRouters;
use super::ImportError;
use super::importer::{Conversion, ImportSource, Importer};
use super::kubernetes::{Manifest, ManifestFiles};
use super::ledger::Ledger;
use super::limit_draft::DraftWriter;
use super::output::Imported;
use super::remark::Effect;
use super::rule_text::RuleListItem;
use super::selection::RequestSet;
use super::tree::get;
use weir_yaml::Node;

/// The groups of Traefik's objects, now and before v3.
const GROUPS: [&str; 2] = ["traefik.io", "traefik.containo.us"];

/// The format on the command line.
pub static IMPORTER: Importer = Importer {
    name: "traefik",
    about: "Traefik's middlewares rateLimit and inFlightReq, with the routers that use them",
    files: "Files to import, in YAML: Kubernetes objects, or the file provider's; `-` is standard input",
    examples: &[
        ("weir import traefik dynamic.yaml", "a file of the file provider"),
        (
            "kubectl get middlewares,ingressroutes -o yaml | weir import traefik -",
            "the objects of a namespace",
        ),
    ],
    convert: Conversion::Files(import),
};

/// Converts the middlewares in all documents of files to rules.
///
/// # Errors
/// Returns syntax errors, files in TOML, or that the files have no middleware.
pub fn import(sources: &[ImportSource]) -> Result<Imported, Vec<ImportError>> {
    let is_toml = |source: &&ImportSource| source.path.extension().is_some_and(|end| end == "toml");
    let toml: Vec<ImportError> = sources.iter().filter(is_toml).map(toml_error).collect();
    if !toml.is_empty() {
        return Err(toml);
    }
    let files = ManifestFiles::read(sources)?;
    let ledger = Ledger::default();
    let manifests = files.manifests(&ledger);
    let configurations: Vec<&Node> = files.documents().filter_map(|one| get(one, "http")).collect();
    let is_known = |manifest: &Manifest<'_>| is(manifest, "Middleware") || is(manifest, "IngressRoute");
    if configurations.is_empty() && !manifests.iter().any(is_known) {
        return Err(files.nothing_found("Middleware, and no `http.middlewares` of the file provider"));
    }
    let mut middlewares = TraefikMiddlewares::default();
    files
        .documents()
        .filter(|one| get(one, "http").is_some())
        .for_each(|one| ledger.message(one, &messages::FILE));
    for http in &configurations {
        ledger.message(http, &messages::HTTP);
        get(http, "middlewares").into_iter().for_each(|all| middlewares.add_file(all, &ledger));
    }
    manifests.iter().for_each(|manifest| skip_or_read(manifest, &mut middlewares, &ledger));
    let routers = read_routers(&configurations, &manifests, &middlewares, &ledger);
    let items = write(&middlewares, &routers);
    let tail = files.remarks(&ledger, &messages::DEFAULTS);
    Ok(Imported::new(&header_comments(&files.names()), items, &tail))
}

fn toml_error(source: &ImportSource) -> ImportError {
    let message = "TOML is not supported, expected the file provider's configuration in YAML".to_owned();
    ImportError { file: source.name.clone(), position: None, message }
}

fn is(manifest: &Manifest<'_>, kind: &str) -> bool {
    GROUPS.contains(&manifest.group) && manifest.kind == kind
}

fn skip_or_read<'n>(manifest: &Manifest<'n>, middlewares: &mut TraefikMiddlewares<'n>, ledger: &Ledger) {
    if is(manifest, "Middleware") {
        middlewares.add_manifest(manifest, ledger);
    } else if is(manifest, "MiddlewareTCP") {
        let reason = "limits of connections are not converted, as rules limit requests";
        ledger.lose(manifest.node, Effect::Looser, reason);
    } else {
        manifest.skip(ledger);
    }
}

fn read_routers<'n>(
    configurations: &[&'n Node],
    manifests: &[Manifest<'n>],
    middlewares: &TraefikMiddlewares<'n>,
    ledger: &Ledger,
) -> TraefikRouters {
    let mut routers = TraefikRouters::default();
    for http in configurations {
        get(http, "routers").into_iter().for_each(|all| routers.add_file(all, middlewares, ledger));
    }
    for manifest in manifests {
        if is(manifest, "IngressRoute") {
            routers.add_ingress_route(manifest, middlewares, ledger);
        } else if manifest.is("networking.k8s.io", "Ingress") {
            routers.add_ingress(manifest, middlewares, ledger);
        }
    }
    routers
}

/// Returns the rules: one limit for each router that uses a middleware.
fn write(middlewares: &TraefikMiddlewares<'_>, routers: &TraefikRouters) -> Vec<RuleListItem> {
    let mut writer = DraftWriter::default();
    for (index, middleware) in middlewares.all.iter().enumerate() {
        let Some(draft) = &middleware.draft else {
            writer.comment(Effect::None, format!("{}: no limit", middleware.title));
            continue;
        };
        let users = (0..routers.all.len()).filter(|router| routers.all[*router].middlewares.contains(&index));
        let mut uses: Vec<(String, RequestSet)> =
            users.map(|router| (routers.all[router].title.clone(), routers.requests(router))).collect();
        if uses.is_empty() {
            let unused = RequestSet::unknown("no router in the input uses it: the rule is for all requests");
            uses.push(("no router".to_owned(), unused));
        }
        if middleware.is_shared {
            let together = uses.drain(..).map(|(_, requests)| requests).reduce(|all, one| all.or(&one));
            uses.extend(together.map(|requests| ("all routers".to_owned(), requests)));
        }
        for (place, requests) in uses {
            let mut draft = draft.clone();
            draft.name.clone_from(&middleware.rule_name);
            draft.origin = format!("{}, {place}", middleware.title);
            writer.add(&draft, &requests);
        }
    }
    writer.items.extend(routers.remarks.iter().cloned().map(RuleListItem::Comment));
    writer.items
}

fn header_comments(files: &str) -> Vec<String> {
    let lines = [
        "`client_ip` is the client behind `client_ip.trusted_proxies`; Traefik takes the peer unless `ipStrategy` says otherwise.",
        "A counter stays until it is unused; Traefik forgets slow buckets before they are full again, and more than 65536.",
        "Different values of one header in a key are rejected with 400; Traefik takes the first.",
        "Responses have rate-limit headers (`ratelimit_headers`) and `retry-after`.",
        "What admits more or fewer requests than Traefik begins with `looser`, `tighter` or `differs`.",
    ];
    let first = format!("From {files}, Traefik. Differences of a rule are above it, of all rules here:");
    std::iter::once(first).chain(lines.map(|line| format!("- {line}"))).collect()
}

#[cfg(test)]
mod tests;
