//! Import of Linkerd's `HTTPLocalRateLimitPolicy`.
//!
//! The limits are those of the proxy's source, `linkerd/proxy/server-policy/src/local_rate_limit.rs` in
//! linkerd/linkerd2-proxy: each is GCRA with a burst of one second, in each proxy on its own, and 0 is no limit. `total`
//! counts all requests. `identity` counts each client, and all clients without an identity as one. An override has one
//! counter for all its clients, which `identity` then does not count. Names of identities are those of
//! `policy-controller/k8s/index/src/cluster_info.rs` in linkerd/linkerd2.

use super::ImportError;
use super::importer::{Conversion, ImportSource, Importer};
use super::kubernetes::{Manifest, ManifestFiles};
use super::ledger::{Ledger, Message};
use super::limit_draft::{DraftWriter, LimitContent, LimitDraft};
use super::output::Imported;
use super::remark::{Effect, brief};
use super::rule_text::map;
use super::scope::MatchField;
use super::selection::RequestSet;
use super::tree::{as_u64, field_text, get, items, scalar_text};
use weir_yaml::Node;

/// The header in which Linkerd's proxy tells the application the client's identity.
const IDENTITY_HEADER: &str = "l5d-client-id";
const GROUP: &str = "policy.linkerd.io";
const KIND: &str = "HTTPLocalRateLimitPolicy";

/// The format on the command line.
pub static IMPORTER: Importer = Importer {
    name: "linkerd",
    about: "Linkerd's HTTPLocalRateLimitPolicy, with its Servers",
    files: "Files to import, with Kubernetes objects in YAML or JSON; `-` is standard input",
    examples: &[(
        "kubectl get httplocalratelimitpolicies,servers -o yaml | weir import linkerd -",
        "the policies of a namespace",
    )],
    convert: Conversion::Files(import),
};

static SPEC: Message =
    Message { name: KIND, read: &["targetRef", "total", "identity", "overrides"], lost: &[], other: &[] };
static LIMIT: Message = Message { name: "a limit", read: &["requestsPerSecond"], lost: &[], other: &[] };
static OVERRIDE: Message =
    Message { name: "an override", read: &["requestsPerSecond", "clientRefs"], lost: &[], other: &[] };
static CLIENT: Message = Message {
    name: "a reference to clients",
    read: &["group", "kind", "name", "namespace"],
    lost: &[],
    other: &[],
};
static TARGET: Message =
    Message { name: "targetRef", read: &["group", "kind", "name"], lost: &[], other: &[] };

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
    let mut policies = Policies { ledger: &ledger, all: &manifests, writer: DraftWriter::default() };
    for manifest in &manifests {
        if is_policy(manifest) {
            policies.add(manifest);
        } else {
            manifest.skip(&ledger);
        }
    }
    let tail = files.remarks(&ledger, &[]);
    Ok(Imported::new(&header_comments(&files.names()), policies.writer.items, &tail))
}

fn is_policy(manifest: &Manifest<'_>) -> bool {
    manifest.is(GROUP, KIND)
}

fn header_comments(files: &str) -> Vec<String> {
    let lines = [
        "Clients are known by `l5d-client-id`, which Linkerd's proxy sets: run Weir behind the proxy.",
        "A rejected request is not charged; Linkerd charges `total` before it looks at the client.",
        "Each Weir has the whole limit, as each of Linkerd's proxies has.",
        "Responses have rate-limit headers (`ratelimit_headers`) and `retry-after`.",
        "What admits more or fewer requests than Linkerd begins with `looser`, `tighter` or `differs`.",
    ];
    let first = format!("From {files}, Linkerd. Differences of a rule are above it, of all rules here:");
    std::iter::once(first).chain(lines.map(|line| format!("- {line}"))).collect()
}

struct Policies<'l, 'n> {
    ledger: &'l Ledger,
    all: &'l [Manifest<'n>],
    writer: DraftWriter,
}

impl<'n> Policies<'_, 'n> {
    fn add(&mut self, policy: &Manifest<'n>) {
        policy.mark(self.ledger, &["v1alpha1"]);
        let Some(spec) = policy.spec() else {
            return self.writer.comment(Effect::None, format!("{}: no `spec`", policy.title()));
        };
        self.ledger.message(spec, &SPEC);
        self.note_target(policy, spec);
        let overrides: Vec<(Option<u64>, Vec<String>)> =
            items(get(spec, "overrides")).iter().map(|one| self.read_override(policy, one)).collect();
        let mut is_limited = false;
        if let Some(rate) = get(spec, "total").and_then(|total| self.read_limit(total, &LIMIT)) {
            self.writer.add(&draft(policy, "total", rate), &RequestSet::all());
            is_limited = true;
        }
        if let Some(rate) = get(spec, "identity").and_then(|one| self.read_limit(one, &LIMIT)) {
            let mut limit = draft(policy, "identity", rate);
            limit.key.push(map([("header", IDENTITY_HEADER)]));
            limit.on_missing = Some("shared");
            let limited = overrides.iter().filter(|(rate, _)| rate.is_some());
            let patterns = limited.flat_map(|(_, patterns)| patterns.clone()).collect();
            self.writer.add(&limit, &RequestSet::not_matching(identity_field(), patterns));
            is_limited = true;
        }
        is_limited |= self.add_overrides(policy, &overrides);
        if !is_limited {
            self.writer.comment(Effect::None, format!("{}: no limit", policy.title()));
        }
    }

    fn add_overrides(&mut self, policy: &Manifest<'_>, overrides: &[(Option<u64>, Vec<String>)]) -> bool {
        let mut is_limited = false;
        for (index, (rate, patterns)) in overrides.iter().enumerate() {
            let Some(rate) = rate else { continue };
            let name = format!("overrides-{index}");
            // Of several overrides for a client, the proxy uses the last.
            let later = overrides[index + 1..].iter().filter(|(rate, _)| rate.is_some());
            let later: Vec<&String> = later.flat_map(|(_, patterns)| patterns).collect();
            let own: Vec<String> = patterns.iter().filter(|one| !later.contains(one)).cloned().collect();
            if own.is_empty() {
                self.writer.comment(
                    Effect::None,
                    format!("{}: overrides[{index}] has no client of its own", policy.title()),
                );
                continue;
            }
            self.writer.add(&draft(policy, &name, *rate), &RequestSet::matching(identity_field(), own));
            is_limited = true;
        }
        is_limited
    }

    /// Returns the limit and the patterns of the identities of an override.
    fn read_override(&self, policy: &Manifest<'_>, node: &'n Node) -> (Option<u64>, Vec<String>) {
        let rate = self.read_limit(node, &OVERRIDE);
        let references = items(get(node, "clientRefs"));
        let patterns: Vec<String> =
            references.iter().filter_map(|reference| self.read_client(policy, reference)).collect();
        if patterns.is_empty() {
            self.ledger.lose(node, Effect::Looser, "an override without clients is not converted");
            return (None, patterns);
        }
        if let (None, Some(references)) = (rate, get(node, "clientRefs")) {
            self.ledger.lose(references, Effect::None, "no limit of their own");
        }
        (rate, patterns)
    }

    fn read_limit(&self, node: &'n Node, message: &'static Message) -> Option<u64> {
        self.ledger.message(node, message);
        let Some(value) = get(node, "requestsPerSecond") else {
            self.ledger.lose(node, Effect::Looser, "no `requestsPerSecond`: no limit");
            return None;
        };
        match as_u64(value).filter(|rate| *rate <= u64::from(u32::MAX)) {
            Some(0) => self.ledger.lose(value, Effect::None, "0 means no limit"),
            Some(rate) => {
                self.ledger.use_all(value);
                return Some(rate);
            }
            None => {
                let reason = format!("left out, expected a number from 0 to {}", u32::MAX);
                self.ledger.lose(value, Effect::Looser, reason);
            }
        }
        None
    }

    /// Returns the pattern of the identity of a service account.
    fn read_client(&self, policy: &Manifest<'_>, node: &'n Node) -> Option<String> {
        self.ledger.message(node, &CLIENT);
        let kind = field_text(node, "kind").unwrap_or_default();
        let group = field_text(node, "group").unwrap_or_default();
        let Some(name) = field_text(node, "name").filter(|_| kind == "ServiceAccount") else {
            let reason = "left out: clients are named by `kind: ServiceAccount` and `name`";
            self.ledger.lose(node, Effect::Differs, reason);
            return None;
        };
        if !matches!(group, "" | "core") {
            self.ledger.lose(node, Effect::Differs, "left out: a service account has no group");
            return None;
        }
        let fields = ["kind", "name", "namespace"].into_iter().filter_map(|name| get(node, name));
        fields.for_each(|value| self.ledger.use_all(value));
        if let Some(namespace) = get(node, "namespace").filter(|one| scalar_text(one) == policy.namespace) {
            self.ledger.lose(namespace, Effect::None, "the namespace of the policy");
        }
        if let Some(group) = get(node, "group") {
            self.ledger.lose(group, Effect::None, "the group of service accounts");
        }
        let namespace = match field_text(node, "namespace").or(policy.namespace) {
            Some(namespace) => regex::escape(namespace),
            None => {
                let name = get(node, "name").unwrap_or(node);
                self.ledger.lose(name, Effect::Differs, "without a namespace: the rules take any");
                "[^.]+".to_owned()
            }
        };
        Some(format!("~^{}\\.{namespace}\\.serviceaccount\\.identity\\.", regex::escape(name)))
    }

    /// Says what the policy is attached to.
    fn note_target(&mut self, policy: &Manifest<'n>, spec: &'n Node) {
        let Some(target) = get(spec, "targetRef") else {
            let text = format!("{}: no `targetRef`: Linkerd does not accept the policy", policy.title());
            return self.writer.comment(Effect::Tighter, text);
        };
        self.ledger.message(target, &TARGET);
        let name = field_text(target, "name").unwrap_or_default();
        let is_server = |one: &&Manifest<'_>| {
            one.is(GROUP, "Server") && one.name == name && one.may_share_namespace(policy.namespace)
        };
        let server = self.all.iter().find(is_server).and_then(Manifest::spec);
        let port = server.and_then(|server| get(server, "port")).and_then(scalar_text);
        let port = port.map_or_else(|| "its port".to_owned(), |port| format!("port {}", brief(port)));
        let reason =
            format!("only requests to {port} of its pods have the limit: run the rules beside these");
        for field in ["group", "kind", "name"].into_iter().filter_map(|name| get(target, name)) {
            let is_name = get(target, "name").is_some_and(|name| std::ptr::eq(name, field));
            let effect = if is_name { Effect::Tighter } else { Effect::None };
            self.ledger.lose(field, effect, reason.clone());
        }
        let position =
            |one: &Manifest<'_>| self.all.iter().position(|other| std::ptr::eq(one.node, other.node));
        let age = |one: &Manifest<'n>| (one.created(), position(one));
        let is_earlier = |other: &&Manifest<'n>| is_policy(other) && age(other) < age(policy);
        let has_target = |other: &Manifest<'_>| {
            let target = other.spec().and_then(|spec| get(spec, "targetRef"));
            target.and_then(|target| field_text(target, "name")) == Some(name)
                && other.may_share_namespace(policy.namespace)
        };
        if let Some(other) = self.all.iter().filter(is_earlier).find(|other| has_target(other)) {
            let (own, other) = (policy.title(), other.title());
            let text = format!("{own}: {other} has the same Server: Linkerd accepts the oldest policy only");
            self.writer.comment(Effect::Tighter, text);
        }
    }
}

fn identity_field() -> MatchField {
    MatchField::Header(IDENTITY_HEADER.to_owned())
}

fn draft(policy: &Manifest<'_>, part: &str, rate: u64) -> LimitDraft {
    let counting = LimitContent::Fields(vec![("limit", format!("{rate}/s"))]);
    LimitDraft::new(format!("{}.{part}", policy.rule_name()), format!("{}: {part}", policy.title()), counting)
}

#[cfg(test)]
mod tests;
