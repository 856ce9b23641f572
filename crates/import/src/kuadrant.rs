//! Import of Kuadrant's `RateLimitPolicy`, `v1` and the versions before it.
//!
//! The semantics are those of `internal/controller/ratelimit_workflow_helpers.go` in Kuadrant/kuadrant-operator and of
//! `limitador/src/storage/in_memory.rs` in Kuadrant/limitador: each limit has one counter for each route, and for each
//! value of its `counters`; a window begins with the first request that is counted; a request is counted in all rates of
//! a limit or in none. How policies of gateways and routes are combined is in `policies`.

mod attributes;
mod conditions;
mod limits;
mod messages;
mod policies;

use self::policies::{EffectiveLimits, LimitPolicy, effective_limits};
use super::ImportError;
use super::gateway_api::{GatewayRoutes, PartId};
use super::importer::{Conversion, ImportSource, Importer};
use super::kubernetes::{Manifest, ManifestFiles};
use super::ledger::Ledger;
use super::limit_draft::DraftWriter;
use super::output::Imported;
use super::remark::Effect;
use super::selection::RequestSet;

const GROUP: &str = "kuadrant.io";
const KIND: &str = "RateLimitPolicy";

/// The format on the command line.
pub static IMPORTER: Importer = Importer {
    name: "kuadrant",
    about: "Kuadrant's RateLimitPolicy, with the routes that it is attached to",
    files: "Files to import, with Kubernetes objects in YAML or JSON; `-` is standard input",
    examples: &[(
        "kubectl get ratelimitpolicies,httproutes -A -o yaml | weir import kuadrant -",
        "the policies of all namespaces, for the hosts and paths of their routes",
    )],
    convert: Conversion::Files(import),
};

/// Converts the policies in all documents of files to rules.
///
/// # Errors
/// Returns syntax errors, or that the files have no such policy.
pub fn import(sources: &[ImportSource]) -> Result<Imported, Vec<ImportError>> {
    let files = ManifestFiles::read(sources)?;
    let ledger = Ledger::default();
    let manifests = files.manifests(&ledger);
    if !manifests.iter().any(is_policy) {
        return Err(files.nothing_found(KIND));
    }
    let routes = GatewayRoutes::read(&manifests);
    for manifest in manifests.iter().filter(|one| !is_policy(one)) {
        if manifest.is(GROUP, "TokenRateLimitPolicy") {
            let reason = "limits of tokens are not converted: use `cost: { tokens: openai }`";
            ledger.lose(manifest.node, Effect::Looser, reason);
        } else {
            manifest.skip(&ledger);
        }
    }
    let policies: Vec<LimitPolicy<'_>> = manifests
        .iter()
        .filter(|one| is_policy(one))
        .map(|manifest| LimitPolicy::read(*manifest, &routes, &ledger))
        .collect();
    let mut rules = PolicyRules { policies: &policies, routes: &routes, writer: DraftWriter::default() };
    rules.add_routes(&ledger);
    rules.add_others(&ledger);
    let tail = files.remarks(&ledger, &messages::DEFAULTS);
    Ok(Imported::new(&header_comments(&files.names()), rules.writer.items, &tail))
}

fn is_policy(manifest: &Manifest<'_>) -> bool {
    manifest.is(GROUP, KIND)
}

fn header_comments(files: &str) -> Vec<String> {
    let lines = [
        "A request that one limit rejects is charged to none; Kuadrant may have charged other limits before.",
        "Requests without a header of a counter are not counted.",
        "Different values of one header in a key are rejected with 400.",
        "Responses have rate-limit headers (`ratelimit_headers`) and `retry-after`.",
        "What admits more or fewer requests than Kuadrant begins with `looser`, `tighter` or `differs`.",
    ];
    let first = format!("From {files}, Kuadrant. Differences of a rule are above it, of all rules here:");
    std::iter::once(first).chain(lines.map(|line| format!("- {line}"))).collect()
}

/// A limit of a route, and the parts of the route that have it.
struct LimitedParts {
    /// The index of its policy, and its own there.
    limit: (usize, usize),
    /// The index of the policy whose conditions hold, too.
    when: Option<usize>,
    parts: Vec<PartId>,
}

/// Writes the rules of all policies.
struct PolicyRules<'p, 'n> {
    policies: &'p [LimitPolicy<'n>],
    routes: &'p GatewayRoutes<'n>,
    writer: DraftWriter,
}

impl PolicyRules<'_, '_> {
    /// Adds the limits of each route: one rule for all parts of the route that have the limit.
    fn add_routes(&mut self, ledger: &Ledger) {
        for route in 0..self.routes.routes.len() {
            for LimitedParts { limit, when, parts } in self.limited_parts(route) {
                let of_part = parts.iter().map(|part| self.routes.selection(*part, &parts, ledger));
                let mut requests = of_part.fold(RequestSet::default(), |all, one| all.or(&one));
                if let Some(when) = when.and_then(|index| self.policies[index].when.as_ref()) {
                    requests = requests.and(when);
                }
                let title = self.routes.routes[route].manifest.title();
                self.add(limit, &requests, &title);
            }
        }
    }

    fn limited_parts(&self, route: usize) -> Vec<LimitedParts> {
        let mut limits: Vec<LimitedParts> = Vec::new();
        for part in self.routes.parts(route, None) {
            let EffectiveLimits { limits: own, when } = effective_limits(self.policies, part);
            for limit in own {
                match limits.iter_mut().find(|known| known.limit == limit && known.when == when) {
                    Some(known) => known.parts.push(part),
                    None => limits.push(LimitedParts { limit, when, parts: vec![part] }),
                }
            }
        }
        limits
    }

    /// Adds the limits of policies whose targets are not in the input, and says which policies have no effect.
    fn add_others(&mut self, ledger: &Ledger) {
        for (index, policy) in self.policies.iter().enumerate() {
            let title = policy.manifest.title();
            let unresolved = policy.targets.iter().find(|target| target.parts.is_empty());
            if policy.limits.is_empty() {
                self.writer.comment(Effect::None, format!("{title}: no limit"));
            } else if policy.targets.is_empty() || unresolved.is_some() {
                let mut everything = policy.when.clone().unwrap_or_else(RequestSet::all);
                match unresolved {
                    Some(target) => everything.remarks.insert(0, target.unresolved.clone()),
                    None => everything.add(Effect::Tighter, "no `targetRef`: the rule is for all requests"),
                }
                for limit in 0..policy.limits.len() {
                    self.add((index, limit), &everything, "a target that is not in the input");
                }
            } else {
                self.lose_replaced(index, ledger);
            }
        }
    }

    /// Says which limits of a policy have no effect.
    fn lose_replaced(&mut self, index: usize, ledger: &Ledger) {
        let policy = &self.policies[index];
        let parts = policy.targets.iter().flat_map(|target| &target.parts);
        let used: Vec<(usize, usize)> =
            parts.flat_map(|part| effective_limits(self.policies, *part).limits).collect();
        for (number, limit) in policy.limits.iter().enumerate() {
            if !used.contains(&(index, number)) {
                ledger.lose(limit.node, Effect::None, "other policies replace it");
                let title = policy.manifest.title();
                self.writer.comment(
                    Effect::None,
                    format!("{title}: limits.{}: other policies replace it", limit.name),
                );
            }
        }
    }

    /// Adds a limit by the indexes of its policy and of itself there.
    fn add(&mut self, id: (usize, usize), requests: &RequestSet, place: &str) {
        let policy = &self.policies[id.0];
        let limit = &policy.limits[id.1];
        let title = policy.manifest.title();
        let Some(draft) = &limit.draft else {
            return self.writer.comment(Effect::None, format!("{title}: limits.{}: no rate", limit.name));
        };
        let mut draft = draft.clone();
        draft.name = format!("{}.{}", policy.manifest.rule_name(), limit.name);
        draft.origin = format!("{title}: limits.{}, {place}", limit.name);
        self.writer.add(&draft, &requests.and(&limit.requests));
    }
}

#[cfg(test)]
mod tests;
