//! Import of ingress-nginx: the annotations of `Ingress` objects that limit requests and connections.
//!
//! The semantics are those of `internal/ingress/annotations/ratelimit/main.go`,
//! `internal/ingress/controller/template/template.go` and `location.go` beside it in kubernetes/ingress-nginx. An Ingress
//! has a zone for each of its limits, which all its hosts and paths share. Requests over the rate pass at once up to
//! `limit-burst-multiplier` times the limit (`nodelay`), beside the one that conforms. Each replica of the controller
//! counts on its own. `global-rate-limit` was removed in version 1.12; before, it was a sliding window in memcached.

mod annotations;
mod config_map;
mod locations;

use self::annotations::Annotations;
use self::config_map::{IngressSettings, LimitKey, is_controller_config, lose_bytes};
use self::locations::IngressLocations;
use super::ImportError;
use super::duration::parse_duration;
use super::importer::{Conversion, ImportOption, ImportSource, Importer};
use super::kubernetes::{Manifest, ManifestFiles};
use super::ledger::{Ledger, Message};
use super::limit_draft::{DraftWriter, LimitContent, LimitDraft};
use super::output::Imported;
use super::remark::Effect;
use super::scope::MatchField;
use super::selection::RequestSet;
use super::token_bucket::format_period;
use super::tree::scalar_text;

/// The value of `limit-burst-multiplier` if it is not given.
const DEFAULT_MULTIPLIER: i64 = 5;

static PREFIX: ImportOption = ImportOption {
    name: "annotations-prefix",
    value_name: "PREFIX",
    help: "Prefix of the annotations, as the controller's option of this name",
    default: "nginx.ingress.kubernetes.io",
};

/// The format on the command line.
pub static IMPORTER: Importer = Importer {
    name: "ingress-nginx",
    about: "The annotations of ingress-nginx that limit requests and connections, with the controller's ConfigMap",
    files: "Files to import, with Kubernetes objects in YAML or JSON; `-` is standard input",
    examples: &[(
        "kubectl get ingress,configmap -A -o yaml | weir import ingress-nginx -",
        "the Ingresses of all namespaces, with the statuses of the ConfigMap",
    )],
    convert: Conversion::FilesWith(&PREFIX, import),
};

static SPEC: Message = Message {
    name: "Ingress",
    read: &["rules", "defaultBackend"],
    lost: &[],
    other: &["ingressClassName", "tls"],
};

/// An Ingress.
#[derive(Debug)]
struct Ingress<'n> {
    manifest: Manifest<'n>,
    annotations: Annotations<'n>,
}

impl Ingress<'_> {
    fn is_canary(&self) -> bool {
        self.annotations.is_true("canary")
    }
}

/// Converts the Ingresses in all documents of files to rules. `prefix` is that of the annotations, without the slash.
///
/// # Errors
/// Returns syntax errors, or that the files have no Ingress.
pub fn import(sources: &[ImportSource], prefix: &str) -> Result<Imported, Vec<ImportError>> {
    let files = ManifestFiles::read(sources)?;
    let ledger = Ledger::default();
    let manifests = files.manifests(&ledger);
    let is_ingress = |manifest: &Manifest<'_>| {
        manifest.kind == "Ingress" && matches!(manifest.group, "networking.k8s.io" | "extensions")
    };
    if !manifests.iter().any(is_ingress) {
        return Err(files.nothing_found("Ingress"));
    }
    let mut settings = IngressSettings::default();
    let mut ingresses = Vec::new();
    for manifest in &manifests {
        if is_ingress(manifest) {
            manifest.mark(&ledger, &["v1", "v1beta1"]);
            manifest.spec().into_iter().for_each(|spec| ledger.message(spec, &SPEC));
            let annotations = Annotations::read(manifest, prefix.trim_end_matches('/'), &ledger);
            ingresses.push(Ingress { manifest: *manifest, annotations });
        } else if is_controller_config(manifest) {
            settings.read(manifest, &ledger);
        } else {
            manifest.skip(&ledger);
        }
    }
    let mut rules = IngressRules { ledger: &ledger, settings, writer: DraftWriter::default() };
    rules.add_all(&ingresses);
    let tail = files.remarks(&ledger, &DEFAULTS);
    Ok(Imported::new(&header_comments(&files.names()), rules.writer.items, &tail))
}

/// Values that annotations have if they are not given.
const DEFAULTS: [(&str, &str); 2] = [("limit-burst-multiplier", "5"), ("path", "/")];

fn header_comments(files: &str) -> Vec<String> {
    let lines = [
        "Each Weir counts on its own, as each replica of the controller does: a limit holds for each of them.",
        "Rates are exact; nginx rounds them down to a thousandth of a request per second: 10 a minute are 9.96 there.",
        "`limiter.max_keys` bounds all counters together, and none in use is evicted; nginx evicts from a full zone.",
        "Paths that no Ingress has, which get 404, are in no rule.",
        "Responses have rate-limit headers (`ratelimit_headers`) and `retry-after`.",
        "What admits more or fewer requests than nginx begins with `looser`, `tighter` or `differs`.",
    ];
    let first =
        format!("From {files}, ingress-nginx. Differences of a rule are above it, of all rules here:");
    std::iter::once(first).chain(lines.map(|line| format!("- {line}"))).collect()
}

/// Writes the rules of all Ingresses.
struct IngressRules<'l> {
    ledger: &'l Ledger,
    settings: IngressSettings,
    writer: DraftWriter,
}

impl IngressRules<'_> {
    fn add_all(&mut self, ingresses: &[Ingress<'_>]) {
        let locations = IngressLocations::read(ingresses, self.ledger);
        let ages = IngressAges::new(ingresses);
        for (index, ingress) in ingresses.iter().enumerate() {
            let title = ingress.manifest.title();
            if ingress.is_canary() {
                let reason = "a canary has the limits of the main Ingress";
                ingress.annotations.lose_limits(Effect::None, reason, self.ledger);
                self.writer.comment(Effect::None, format!("{title}: a canary"));
            } else if ingress.annotations.has_limits() {
                self.add(ingress, &locations.requests(index, &ages));
            } else {
                self.writer.comment(Effect::None, format!("{title}: no limit"));
            }
        }
    }

    fn add(&mut self, ingress: &Ingress<'_>, requests: &RequestSet) {
        let Ingress { manifest, annotations } = ingress;
        let multiplier = self.multiplier(annotations);
        let allowed = annotations.networks(&["limit-allowlist", "limit-whitelist"], self.ledger);
        let limited = requests.and(&RequestSet::not_matching(MatchField::ClientIp, allowed));
        for name in ["limit-rate", "limit-rate-after"] {
            match annotations.get(name) {
                Some(value) if annotations.text(name) == Some("0") => {
                    self.ledger.lose(value, Effect::None, "no limit of bytes a second");
                }
                Some(value) => lose_bytes(value, self.ledger),
                None => {}
            }
        }
        let before = self.writer.items.len();
        for (name, unit) in [("limit-rps", "s"), ("limit-rpm", "m")] {
            let Some(rate) = self.positive(annotations, name) else { continue };
            let burst = rate.saturating_mul(multiplier).saturating_add(1).min(i64::from(u32::MAX));
            let fields = vec![("limit", format!("{rate}/{unit}")), ("burst", burst.to_string())];
            let draft = self.draft(manifest, name, LimitContent::Fields(fields));
            self.writer.add(&draft, &limited);
        }
        if let Some(count) = self.positive(annotations, "limit-connections") {
            let counting = LimitContent::Fields(vec![("in_flight", count.to_string())]);
            let mut draft = self.draft(manifest, "limit-connections", counting);
            draft.status = self.status(self.settings.connection_status);
            self.writer.add(&draft, &limited);
        }
        self.add_global(ingress, requests);
        if self.writer.items.len() == before {
            self.writer.comment(Effect::None, format!("{}: no limit of requests", manifest.title()));
        }
    }

    /// Returns the factor of the burst; nginx does not accept a burst of 0.
    fn multiplier(&self, annotations: &Annotations<'_>) -> i64 {
        let Some(value) = annotations.get("limit-burst-multiplier") else { return DEFAULT_MULTIPLIER };
        match scalar_text(value).and_then(|text| text.parse().ok()) {
            Some(number) if number > 0 => {
                let reason = format!("the burst is {number} times the limit, and one request more");
                self.ledger.lose(value, Effect::None, reason);
                number
            }
            Some(_) => {
                self.ledger.lose(value, Effect::Differs, "nginx does not accept a burst of 0: 1 here");
                0
            }
            None => {
                let reason = format!("no whole number: {DEFAULT_MULTIPLIER}, as in the controller");
                self.ledger.lose(value, Effect::None, reason);
                DEFAULT_MULTIPLIER
            }
        }
    }

    /// Returns a number above 0.
    fn positive(&self, annotations: &Annotations<'_>, name: &str) -> Option<i64> {
        let number = annotations.number(name, self.ledger)?;
        if number <= 0 {
            let value = annotations.get(name);
            value
                .into_iter()
                .for_each(|value| self.ledger.lose(value, Effect::None, "not above 0: no limit"));
            return None;
        }
        Some(number)
    }

    fn draft(&self, manifest: &Manifest<'_>, name: &str, counting: LimitContent) -> LimitDraft {
        let short = name.trim_start_matches("limit-");
        let origin = format!("{}: {name}", manifest.title());
        let mut draft = LimitDraft::new(format!("{}.{short}", manifest.rule_name()), origin, counting);
        draft.status = self.status(self.settings.request_status);
        set_key(&mut draft, self.settings.key.clone());
        draft
    }

    fn status(&self, status: u16) -> Option<u16> {
        (status != 429).then_some(status)
    }

    /// Adds the limit that all replicas of the controller share.
    fn add_global(&mut self, ingress: &Ingress<'_>, requests: &RequestSet) {
        let Ingress { manifest, annotations } = ingress;
        let Some(count) = self.positive(annotations, "global-rate-limit") else { return };
        let window = annotations.get("global-rate-limit-window");
        let period = window.and_then(scalar_text).and_then(parse_duration);
        let Some(period) = period.filter(|period| *period >= 1_000_000) else {
            let value = window.or_else(|| annotations.get("global-rate-limit"));
            let reason = "left out, expected `global-rate-limit-window` with a duration such as `1m`";
            return value.into_iter().for_each(|value| self.ledger.lose(value, Effect::Looser, reason));
        };
        window.into_iter().for_each(|window| self.ledger.use_all(window));
        let ignored = annotations.networks(&["global-rate-limit-ignored-cidrs"], self.ledger);
        let fields = vec![
            ("limit", format!("{count}/{}", format_period(period))),
            ("algorithm", "sliding_window".to_owned()),
        ];
        let mut draft = self.draft(manifest, "global-rate-limit", LimitContent::Fields(fields));
        draft.key.clear();
        draft.on_missing = None;
        draft.remarks.clear();
        let key = annotations.get("global-rate-limit-key");
        key.into_iter().for_each(|key| self.ledger.lose(key, Effect::None, "what the limit counts by"));
        set_key(&mut draft, LimitKey::of_variable(key.and_then(scalar_text).unwrap_or("$remote_addr")));
        draft.status = self.status(self.settings.global_status);
        draft.add(
            Effect::Looser,
            "each instance has the whole limit, all replicas of the controller share it: use `store` and `scope: shared`",
        );
        let limited = requests.and(&RequestSet::not_matching(MatchField::ClientIp, ignored));
        self.writer.add(&draft, &limited);
    }
}

fn set_key(draft: &mut LimitDraft, key: LimitKey) {
    draft.key = key.parts;
    draft.on_missing = key.may_be_missing.then_some("skip");
    draft.remarks.extend(key.remark);
}

/// The order of Ingresses by age.
#[derive(Debug)]
struct IngressAges {
    /// The position of each one.
    order: Vec<usize>,
    created: Vec<String>,
}

impl IngressAges {
    fn new(ingresses: &[Ingress<'_>]) -> Self {
        let created: Vec<String> =
            ingresses.iter().map(|ingress| ingress.manifest.created().to_owned()).collect();
        let mut sorted: Vec<usize> = (0..ingresses.len()).collect();
        sorted.sort_by_key(|index| (&created[*index], *index));
        let mut order = vec![0; ingresses.len()];
        sorted.into_iter().enumerate().for_each(|(age, index)| order[index] = age);
        Self { order, created }
    }

    /// Whether the input says which of two is older.
    fn are_known(&self, one: usize, other: usize) -> bool {
        let (one, other) = (&self.created[one], &self.created[other]);
        one != other && !one.is_empty() && !other.is_empty()
    }
}

#[cfg(test)]
mod tests;
