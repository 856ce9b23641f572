//! The annotations of an Ingress: limits, and what else decides which requests have them.
//!
//! The names are those of `internal/ingress/annotations` in kubernetes/ingress-nginx.

use super::super::kubernetes::Manifest;
use super::super::ledger::Ledger;
use super::super::network::parse_network;
use super::super::remark::{Effect, brief, nearest};
use super::super::tree::{entries, scalar_text};
use weir_yaml::Node;

/// Annotations that are read.
const READ: [&str; 16] = [
    "limit-rps",
    "limit-rpm",
    "limit-connections",
    "limit-burst-multiplier",
    "limit-allowlist",
    "limit-whitelist",
    "limit-rate",
    "limit-rate-after",
    "global-rate-limit",
    "global-rate-limit-window",
    "global-rate-limit-key",
    "global-rate-limit-ignored-cidrs",
    "use-regex",
    "rewrite-target",
    "server-alias",
    "canary",
];

/// Annotations that reject requests for another reason.
const REJECTING: [&str; 4] =
    ["allowlist-source-range", "whitelist-source-range", "denylist-source-range", "proxy-body-size"];

/// Annotations with directives of nginx.
const SNIPPETS: [&str; 5] =
    ["configuration-snippet", "server-snippet", "stream-snippet", "auth-snippet", "modsecurity-snippet"];

/// Begins of the names of all other annotations, or whole names.
const OTHERS: [&str; 39] = [
    "affinity",
    "app-root",
    "auth-",
    "backend-protocol",
    "canary-",
    "client-body-buffer-size",
    "connection-proxy-header",
    "cors-",
    "custom-headers",
    "custom-http-errors",
    "default-backend",
    "disable-proxy-intercept-errors",
    "enable-",
    "fastcgi-",
    "force-ssl-redirect",
    "from-to-www-redirect",
    "http2-push-preload",
    "influxdb-",
    "load-balance",
    "mirror-",
    "modsecurity-transaction-id",
    "opentelemetry-",
    "opentracing-",
    "permanent-redirect",
    "preserve-trailing-slash",
    "proxy-",
    "relative-redirects",
    "satisfy",
    "secure-backends",
    "service-upstream",
    "session-cookie-",
    "ssl-",
    "temporal-redirect",
    "upstream-hash-by",
    "upstream-vhost",
    "use-port-in-redirects",
    "websocket-services",
    "x-forwarded-prefix",
    "jaeger-",
];

/// The annotations of an Ingress with the prefix of the controller, by name.
#[derive(Debug)]
pub(super) struct Annotations<'n> {
    found: Vec<(&'n str, &'n Node)>,
}

impl<'n> Annotations<'n> {
    /// Reads the annotations with this prefix. Says of all others that have the name of a limit why they are not read.
    pub(super) fn read(manifest: &Manifest<'n>, prefix: &str, ledger: &Ledger) -> Self {
        let mut found = Vec::new();
        for (name, value) in manifest.metadata("annotations").map(entries).unwrap_or_default() {
            let name = scalar_text(name).unwrap_or_default();
            if let Some(name) = name.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('/')) {
                found.push((name, value));
                note(name, value, ledger);
            } else if let Some((other, name)) = name.rsplit_once('/')
                && READ[..12].contains(&name)
            {
                let reason =
                    format!("not read with the prefix {prefix}: use `--annotations-prefix {}`", brief(other));
                ledger.lose(value, Effect::Looser, reason);
            }
        }
        Self { found }
    }

    pub(super) fn get(&self, name: &str) -> Option<&'n Node> {
        self.found.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    pub(super) fn text(&self, name: &str) -> Option<&'n str> {
        self.get(name).and_then(scalar_text)
    }

    pub(super) fn is_true(&self, name: &str) -> bool {
        self.text(name) == Some("true")
    }

    /// Returns a number, as Go reads it; one that is none gets a remark. A number that is not above 0 is no limit.
    pub(super) fn number(&self, name: &str, ledger: &Ledger) -> Option<i64> {
        let value = self.get(name)?;
        let number = scalar_text(value).and_then(|text| text.parse().ok());
        match number {
            Some(_) => ledger.use_all(value),
            None => ledger.lose(
                value,
                Effect::Looser,
                "left out, no whole number: the controller does not accept the Ingress",
            ),
        }
        number
    }

    /// Returns the networks of a list with commas; one that is none gets a remark.
    pub(super) fn networks(&self, names: &[&str], ledger: &Ledger) -> Vec<String> {
        let Some((name, value)) = names.iter().find_map(|name| Some((*name, self.get(name)?))) else {
            return Vec::new();
        };
        ledger.use_all(value);
        for other in names.iter().filter(|other| **other != name).filter_map(|other| self.get(other)) {
            ledger.lose(other, Effect::None, format!("has no effect beside `{name}`"));
        }
        let texts = scalar_text(value).unwrap_or_default().split(',').map(str::trim);
        let texts: Vec<&str> = texts.filter(|text| !text.is_empty()).collect();
        let (valid, invalid): (Vec<&str>, Vec<&str>) =
            texts.into_iter().partition(|text| parse_network(text).is_some());
        if !invalid.is_empty() {
            let reason =
                format!("the controller does not accept it, no network: {}", brief(&invalid.join(", ")));
            ledger.lose(value, Effect::Differs, reason);
        }
        valid.into_iter().map(str::to_owned).collect()
    }

    /// Says that annotations have no effect.
    pub(super) fn lose_limits(&self, effect: Effect, reason: &str, ledger: &Ledger) {
        let limits = self.found.iter().filter(|(name, _)| READ[..12].contains(name));
        limits.for_each(|(_, value)| ledger.lose(value, effect, reason));
    }

    /// Whether the Ingress has a limit of requests or connections.
    pub(super) fn has_limits(&self) -> bool {
        self.found.iter().any(|(name, _)| READ[..12].contains(name))
    }
}

/// Says what becomes of an annotation.
fn note(name: &str, value: &Node, ledger: &Ledger) {
    let text = scalar_text(value).unwrap_or_default();
    if SNIPPETS.contains(&name) {
        return match text.contains("limit_req") || text.contains("limit_conn") {
            true => ledger.hide(
                value,
                Effect::Looser,
                "directives of nginx are not converted here: `weir import nginx` reads the output of `nginx -T`",
            ),
            false => ledger.skip(value, "directives of nginx without limits"),
        };
    }
    if REJECTING.contains(&name) {
        let reason = "rejects requests: use a rule with `action: deny`, or limits of the listener";
        return ledger.lose(value, Effect::Looser, reason);
    }
    if READ.contains(&name) {
        let reason = match name {
            "use-regex" | "rewrite-target" => "whether all paths of the hosts are regexes",
            "server-alias" => "other names of the host",
            "canary" => "whether the Ingress is a canary",
            _ => "has no effect here",
        };
        return ledger.lose(value, Effect::None, reason);
    }
    let is_other = |known: &str| if known.ends_with('-') { name.starts_with(known) } else { name == known };
    if OTHERS.iter().any(|known| is_other(known)) {
        return ledger.skip(value, "not part of a limit");
    }
    let names = READ.iter().chain(&REJECTING).chain(&SNIPPETS).copied();
    let hint = nearest(name, names).map(|near| format!(", did you mean `{near}`?")).unwrap_or_default();
    ledger.lose(value, Effect::Differs, format!("unknown annotation{hint}"));
}
