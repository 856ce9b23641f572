//! Import of Envoy Gateway's `BackendTrafficPolicy`: `rateLimit`, local and global.
//!
//! The semantics are those of `internal/gatewayapi/backendtrafficpolicy.go`, `internal/xds/translator/ratelimit.go` and
//! `local_ratelimit.go` in envoyproxy/gateway. A global rule is a fixed window of the rate limit service, a local one a
//! token bucket in each proxy. Each host and match of a route has counters of its own, unless a global rule is `shared`.
//! All rules that select a request count it, but the local rule without selectors only counts what no other selects. The
//! closest policy of a request replaces the others.

mod limits;
mod messages;
mod selectors;

use self::limits::{RateLimitSection, TrafficRule};
use super::ImportError;
use super::gateway_api::targets::{PolicyTarget, TargetLevel, targets};
use super::gateway_api::{GatewayRoutes, PartId};
use super::importer::{Conversion, ImportSource, Importer};
use super::kubernetes::{Manifest, ManifestFiles};
use super::ledger::Ledger;
use super::limit_draft::DraftWriter;
use super::output::Imported;
use super::remark::{Effect, brief};
use super::selection::RequestSet;
use super::tree::{field_text, get, items};
use weir_yaml::Node;

const GROUP: &str = "gateway.envoyproxy.io";
const KIND: &str = "BackendTrafficPolicy";

/// The format on the command line.
pub static IMPORTER: Importer = Importer {
    name: "envoy-gateway",
    about: "Envoy Gateway's BackendTrafficPolicy, with the routes that it is attached to",
    files: "Files to import, with Kubernetes objects in YAML or JSON; `-` is standard input",
    examples: &[(
        "kubectl get backendtrafficpolicies,httproutes -o yaml | weir import envoy-gateway -",
        "the policies of a namespace, for the hosts and paths of its routes",
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
    manifests.iter().filter(|one| !is_policy(one)).for_each(|manifest| manifest.skip(&ledger));
    let policies: Vec<TrafficPolicy<'_>> = manifests
        .iter()
        .filter(|one| is_policy(one))
        .map(|manifest| TrafficPolicy::read(*manifest, &routes, &ledger))
        .collect();
    let mut writer = DraftWriter::default();
    for policy in &policies {
        policy.write(&policies, &routes, &ledger, &mut writer);
    }
    let tail = files.remarks(&ledger, &messages::DEFAULTS);
    Ok(Imported::new(&header_comments(&files.names()), writer.items, &tail))
}

fn is_policy(manifest: &Manifest<'_>) -> bool {
    manifest.is(GROUP, KIND)
}

fn header_comments(files: &str) -> Vec<String> {
    let lines = [
        "A rejected request is not charged; the rate limit service charges all its limits, even exceeded ones.",
        "Each client has a counter, at most `limiter.max_keys` in total; Envoy keeps 10000 local buckets.",
        "Different values of one header or parameter in a key are rejected with 400.",
        "Responses have rate-limit headers (`ratelimit_headers`) and `retry-after`.",
        "What admits more or fewer requests than Envoy Gateway begins with `looser`, `tighter` or `differs`.",
    ];
    let first =
        format!("From {files}, Envoy Gateway. Differences of a rule are above it, of all rules here:");
    std::iter::once(first).chain(lines.map(|line| format!("- {line}"))).collect()
}

/// A policy, read.
struct TrafficPolicy<'n> {
    manifest: Manifest<'n>,
    targets: Vec<PolicyTarget>,
    rules: Vec<TrafficRule>,
}

impl<'n> TrafficPolicy<'n> {
    fn read(manifest: Manifest<'n>, routes: &GatewayRoutes<'n>, ledger: &Ledger) -> Self {
        manifest.mark(ledger, &["v1alpha1"]);
        let Some(spec) = manifest.spec() else {
            return Self { manifest, targets: Vec::new(), rules: Vec::new() };
        };
        ledger.message(spec, &messages::SPEC);
        let rules = get(spec, "rateLimit").map(|limit| read_rules(limit, ledger)).unwrap_or_default();
        Self { manifest, targets: targets(&manifest, spec, routes, ledger), rules }
    }

    fn write(&self, all: &[Self], routes: &GatewayRoutes<'n>, ledger: &Ledger, writer: &mut DraftWriter) {
        let title = self.manifest.title();
        if self.rules.is_empty() {
            return writer.comment(Effect::None, format!("{title}: no rate limit"));
        }
        if self.targets.is_empty() {
            writer.comment(Effect::Tighter, format!("{title}: no target: the rules are for all requests"));
        }
        self.note_units(writer);
        let requests = self.requests(all, routes, ledger);
        if requests.is_empty() {
            writer.comment(Effect::None, format!("{title}: closer policies replace it"));
        }
        for rule in &self.rules {
            if rule.is_shared {
                let together = requests.iter().map(|(_, selection)| selection.clone());
                if let Some(selection) = together.reduce(|all, one| all.or(&one)) {
                    self.write_rule(rule, "all targets", &selection, writer);
                }
                continue;
            }
            requests.iter().for_each(|(place, selection)| self.write_rule(rule, place, selection, writer));
        }
    }

    fn write_rule(&self, rule: &TrafficRule, place: &str, target: &RequestSet, writer: &mut DraftWriter) {
        let Some(draft) = &rule.draft else { return };
        let mut draft = draft.clone();
        let (section, index) = (rule.section.field(), rule.index);
        draft.name = format!("{}.{section}-{index}", self.manifest.rule_name());
        draft.origin = format!("{}: {section}.rules[{index}], {place}", self.manifest.title());
        let mut requests = rule.requests(target);
        if rule.section == RateLimitSection::Local && !rule.has_selectors {
            let others =
                self.rules.iter().filter(|one| one.section == RateLimitSection::Local && one.has_selectors);
            requests = others.fold(requests, |rest, one| rest.without(&one.taken()));
        }
        writer.add(&draft, &requests);
    }

    /// Returns the requests of each target that the policy applies to, with the name of the target.
    fn requests(
        &self,
        all: &[Self],
        routes: &GatewayRoutes<'n>,
        ledger: &Ledger,
    ) -> Vec<(String, RequestSet)> {
        let mut requests: Vec<(String, RequestSet)> = Vec::new();
        let mut seen: Vec<PartId> = Vec::new();
        for target in &self.targets {
            if target.parts.is_empty() {
                let mut everything = RequestSet::all();
                everything.remarks.push(target.unresolved.clone());
                requests.push(("a target that is not in the input".to_owned(), everything));
            }
            for part in &target.parts {
                if seen.contains(part) || self.is_replaced(*part, target.level, all) {
                    continue;
                }
                seen.push(*part);
                let selection = routes.selection(*part, &[], ledger);
                requests.push((routes.routes[part.route].manifest.title(), selection));
            }
        }
        if self.targets.is_empty() {
            requests.push(("no target".to_owned(), RequestSet::all()));
        }
        requests
    }

    /// Whether another policy is attached more closely to a part.
    fn is_replaced(&self, part: PartId, level: TargetLevel, all: &[Self]) -> bool {
        let closest = |policy: &Self| {
            let levels = policy.targets.iter().filter(|target| target.parts.contains(&part));
            levels.map(|target| target.level).max()
        };
        let others = all.iter().filter(|other| !std::ptr::eq(other.manifest.node, self.manifest.node));
        let is_older = |other: &Self| {
            let position = |one: &Self| all.iter().position(|policy| std::ptr::eq(policy, one));
            (other.manifest.created(), position(other)) < (self.manifest.created(), position(self))
        };
        others.into_iter().any(|other| {
            closest(other).is_some_and(|theirs| theirs > level || (theirs == level && is_older(other)))
        })
    }

    /// Envoy needs units of local limits that the default unit divides.
    fn note_units(&self, writer: &mut DraftWriter) {
        let local = || self.rules.iter().filter(|rule| rule.section == RateLimitSection::Local);
        let default = local().find(|rule| !rule.has_selectors).map_or(1, |rule| rule.unit);
        if default > 0 && local().any(|rule| rule.unit % default != 0) {
            let title = self.manifest.title();
            let text = format!(
                "{title}: Envoy Gateway does not accept it, as a local rule has a shorter unit than the one without \
                 selectors"
            );
            writer.comment(Effect::Tighter, text);
        }
    }
}

fn read_rules(limit: &Node, ledger: &Ledger) -> Vec<TrafficRule> {
    ledger.message(limit, &messages::RATE_LIMIT);
    let only = field_text(limit, "type");
    if let Some(kind) = get(limit, "type") {
        ledger.lose(kind, Effect::None, "which of `global` and `local` counts");
    }
    let mut rules = Vec::new();
    for section in [RateLimitSection::Global, RateLimitSection::Local] {
        let Some(node) = get(limit, section.field()) else { continue };
        if only.is_some_and(|only| !only.eq_ignore_ascii_case(section.field())) {
            let reason = format!("has no effect beside `type: {}`", brief(only.unwrap_or_default()));
            ledger.lose(node, Effect::None, reason);
            continue;
        }
        ledger.message(node, &messages::SECTION);
        let list = items(get(node, "rules")).iter().enumerate();
        rules.extend(list.map(|(index, rule)| TrafficRule::read(rule, section, index, ledger)));
    }
    rules
}

#[cfg(test)]
mod tests;
