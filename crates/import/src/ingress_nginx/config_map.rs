//! The controller's ConfigMap: statuses, the key of all limits, and where a client's address comes from.
//!
//! The names and defaults are those of `internal/ingress/controller/config/config.go` in kubernetes/ingress-nginx.

use super::super::kubernetes::Manifest;
use super::super::ledger::{Ledger, Message};
use super::super::remark::{Effect, Remark, brief};
use super::super::rule_text::{map, scalar};
use super::super::tree::{field_text, get};
use weir_yaml::Node;

static CONFIG_MAP: Message = Message {
    name: "a ConfigMap",
    read: &["apiVersion", "kind", "metadata", "data"],
    lost: &[],
    other: &["binaryData", "immutable"],
};

/// Keys by which the controller's ConfigMap is known; the first four are read.
const KEYS: [&str; 15] = [
    "limit-req-status-code",
    "limit-conn-status-code",
    "limit-conn-zone-variable",
    "global-rate-limit-status-code",
    "limit-rate",
    "limit-rate-after",
    "use-forwarded-headers",
    "forwarded-for-header",
    "compute-full-forwarded-for",
    "proxy-real-ip-cidr",
    "use-proxy-protocol",
    "enable-real-ip",
    "whitelist-source-range",
    "denylist-source-range",
    "global-rate-limit-memcached-host",
];

/// Settings of the controller.
#[derive(Debug)]
pub(super) struct IngressSettings {
    pub(super) request_status: u16,
    pub(super) connection_status: u16,
    pub(super) global_status: u16,
    /// What all limits but global ones count by.
    pub(super) key: LimitKey,
}

/// A variable of nginx as a key.
#[derive(Clone, Debug, Default)]
pub(super) struct LimitKey {
    pub(super) parts: Vec<String>,
    /// Whether requests may lack it; nginx does not count these.
    pub(super) may_be_missing: bool,
    pub(super) remark: Option<Remark>,
}

impl Default for IngressSettings {
    fn default() -> Self {
        Self {
            request_status: 503,
            connection_status: 503,
            global_status: 429,
            key: LimitKey::of_variable("$binary_remote_addr"),
        }
    }
}

/// Whether an object is the controller's ConfigMap.
pub(super) fn is_controller_config(manifest: &Manifest<'_>) -> bool {
    let data = get(manifest.node, "data");
    manifest.is("", "ConfigMap") && data.is_some_and(|data| KEYS.iter().any(|key| get(data, key).is_some()))
}

impl IngressSettings {
    /// Reads the controller's ConfigMap.
    pub(super) fn read(&mut self, manifest: &Manifest<'_>, ledger: &Ledger) {
        let Some(data) = get(manifest.node, "data") else { return };
        manifest.mark(ledger, &["v1"]);
        ledger.message(manifest.node, &CONFIG_MAP);
        let names = ["name", "namespace"].into_iter().filter_map(|name| manifest.metadata(name));
        names.for_each(|name| ledger.lose(name, Effect::None, "the controller's ConfigMap"));
        for (name, status) in [
            (KEYS[0], &mut self.request_status),
            (KEYS[1], &mut self.connection_status),
            (KEYS[3], &mut self.global_status),
        ] {
            read_status(data, name, status, ledger);
        }
        if let Some(variable) = get(data, KEYS[2]) {
            ledger.lose(variable, Effect::None, "what limits count by");
            self.key = LimitKey::of_variable(field_text(data, KEYS[2]).unwrap_or_default());
        }
        for name in ["limit-rate", "limit-rate-after"] {
            let bytes = get(data, name).filter(|_| field_text(data, name) != Some("0"));
            bytes.into_iter().for_each(|value| lose_bytes(value, ledger));
        }
        for name in ["whitelist-source-range", "denylist-source-range"] {
            let reason = "rejects clients of all Ingresses: use a rule with `action: deny`";
            get(data, name).into_iter().for_each(|value| ledger.lose(value, Effect::Looser, reason));
        }
        for name in &KEYS[6..12] {
            let reason =
                "decides which address a client has: set `client_ip` for the proxies in front of Weir";
            get(data, name).into_iter().for_each(|value| ledger.lose(value, Effect::Differs, reason));
        }
    }
}

/// Says that a limit of bytes is not converted.
pub(super) fn lose_bytes(value: &Node, ledger: &Ledger) {
    ledger.lose(value, Effect::Looser, "limits bytes a second: use a rule with `bandwidth`");
}

fn read_status(data: &Node, name: &str, status: &mut u16, ledger: &Ledger) {
    let Some(value) = get(data, name) else { return };
    match field_text(data, name).and_then(|text| text.parse().ok()).filter(|code| (400..600).contains(code)) {
        Some(code) => {
            *status = code;
            ledger.lose(value, Effect::None, "the status of rejections");
        }
        None => ledger.lose(value, Effect::Differs, format!("not a status from 400 to 599: {status} here")),
    }
}

impl LimitKey {
    /// Returns the key of a variable such as `$binary_remote_addr`.
    pub(super) fn of_variable(text: &str) -> Self {
        let client = || map([("client_ip", map([("prefix", "128")]))]);
        let named = |kind: &'static str, name: &str| Self {
            parts: vec![map([(kind, scalar(&name.replace('_', "-")))])],
            may_be_missing: true,
            remark: None,
        };
        let of = |part: String| Self { parts: vec![part], ..Self::default() };
        let name = text.trim().trim_start_matches('$').trim_start_matches('{').trim_end_matches('}');
        match name {
            "binary_remote_addr" | "remote_addr" => of(client()),
            "host" | "server_name" | "http_host" => of("host".to_owned()),
            "uri" | "request_uri" => of("path".to_owned()),
            "request_method" => of("method".to_owned()),
            _ => {
                let header = name.strip_prefix("http_").filter(|name| is_word(name));
                let cookie = name.strip_prefix("cookie_").filter(|name| is_word(name));
                let parameter = name.strip_prefix("arg_").filter(|name| is_word(name));
                match (header, cookie, parameter) {
                    (Some(name), ..) => named("header", name),
                    (_, Some(name), _) => Self {
                        parts: vec![map([("cookie", scalar(name))])],
                        may_be_missing: true,
                        remark: None,
                    },
                    (.., Some(name)) => Self {
                        parts: vec![map([("query", scalar(name))])],
                        may_be_missing: true,
                        remark: None,
                    },
                    _ => {
                        let reason =
                            format!("counts by `{}` in nginx, here by the client's address", brief(text));
                        Self { remark: Some(Remark::new(Effect::Differs, reason)), ..of(client()) }
                    }
                }
            }
        }
    }
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}
