//! One configuration of the filter: its buckets, its descriptors and what of them is enforced.

use super::super::ledger::Ledger;
use super::super::remark::Effect;
use super::super::rule_text::{RuleText, map, scalar};
use super::super::token_bucket::{ImportedBucket, read_bucket};
use super::super::tree::{as_bool, as_f64, as_u64, field_text, get, is_true, items, scalar_text};
use super::actions::ExpectedEntry;
use super::messages;
use weir_yaml::Node;

/// A configuration of the filter.
#[derive(Debug)]
pub(super) struct Filter<'n> {
    /// The fields, inside of a typed struct.
    pub(super) config: &'n Node,
    pub(super) name: String,
    pub(super) bucket: Option<ImportedBucket>,
    pub(super) descriptors: Vec<Descriptor>,
    pub(super) stage: u64,
    pub(super) host_limits: HostLimits,
    /// Whether requests that match descriptors take from the filter's own bucket, too.
    pub(super) always_consumes: bool,
    /// What is enforced.
    share: Share,
    reply: ImportedReply,
}

/// The response to rejected requests.
#[derive(Debug)]
struct ImportedReply {
    status: u16,
    headers: Vec<(String, String)>,
}

/// When the `rate_limits` of a virtual host apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HostLimits {
    /// To routes without their own.
    Override,
    Include,
    Ignore,
}

#[derive(Debug)]
pub(super) struct Descriptor {
    pub(super) entries: Vec<ExpectedEntry>,
    pub(super) bucket: ImportedBucket,
    pub(super) is_shadow: bool,
}

/// The part of requests for which the limits are enforced, in percent.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Share {
    All,
    Part(f64),
    None,
}

impl Descriptor {
    /// Whether this descriptor takes precedence for some requests of `other`: it has values where the other accepts
    /// any.
    pub(super) fn takes_precedence_over(&self, other: &Self) -> bool {
        let each = |(one, other): (&ExpectedEntry, &ExpectedEntry)| {
            one.key == other.key && (one.value == other.value || other.value.is_empty())
        };
        self.entries != other.entries
            && self.entries.len() == other.entries.len()
            && self.entries.iter().zip(&other.entries).all(each)
    }

    pub(super) fn name(&self) -> String {
        let entry = |ExpectedEntry { key, value }: &ExpectedEntry| {
            if value.is_empty() { key.clone() } else { format!("{key}_{value}") }
        };
        self.entries.iter().map(entry).collect::<Vec<_>>().join(".")
    }
}

impl<'n> Filter<'n> {
    /// Reads a configuration. A part that is invalid gets a remark and is left out.
    pub(super) fn read(node: &'n Node, ledger: &Ledger) -> Self {
        let config = unwrap_typed_struct(node, ledger);
        ledger.message(config, &messages::FILTER);
        for name in ["@type", "stat_prefix", "stage", "vh_rate_limits", "always_consume_default_token_bucket"]
        {
            get(config, name).into_iter().for_each(|value| ledger.use_all(value));
        }
        if let Some(value) = get(config, "local_rate_limit_per_downstream_connection") {
            match as_bool(value) {
                Some(false) => ledger.use_all(value),
                _ => ledger.lose(value, Effect::Tighter, "not supported: all connections share a bucket"),
            }
        }
        let descriptors = items(get(config, "descriptors"));
        Self {
            config,
            name: field_text(config, "stat_prefix").unwrap_or("local").trim().to_owned(),
            bucket: get(config, "token_bucket").and_then(|bucket| read_bucket(bucket, ledger)),
            descriptors: descriptors.iter().filter_map(|node| read_descriptor(node, ledger)).collect(),
            stage: read_or(config, "stage", 0, "a number", as_u64, ledger),
            host_limits: read_or(
                config,
                "vh_rate_limits",
                HostLimits::Override,
                "OVERRIDE, INCLUDE or IGNORE",
                HostLimits::read,
                ledger,
            ),
            always_consumes: read_or(
                config,
                "always_consume_default_token_bucket",
                true,
                "true or false",
                as_bool,
                ledger,
            ),
            share: read_share(config, ledger),
            reply: ImportedReply {
                status: read_status(config, ledger),
                headers: read_headers(config, ledger),
            },
        }
    }

    /// Returns the filter's own `rate_limits`, which replace those of routes.
    pub(super) fn own_limits(&self) -> &'n [Node] {
        items(get(self.config, "rate_limits"))
    }

    /// Sets what part of a rule is enforced.
    pub(super) fn set_enforcement(&self, rule: &mut RuleText, is_shadow: bool) {
        match self.share {
            _ if is_shadow => rule.set("throttle", "shadow"),
            Share::None => {
                rule.add_comment("filter_enabled or filter_enforced is 0 % (the default): shadow mode");
                rule.set("throttle", "shadow");
            }
            Share::Part(percent) => rule.set("enforce", scalar(&format!("{percent}%"))),
            Share::All => {}
        }
    }

    /// Sets the response to rejected requests, for a rule whose rejections have the status `default`.
    pub(super) fn set_response(&self, rule: &mut RuleText, default: u16) {
        let ImportedReply { status, headers } = &self.reply;
        let mut fields = Vec::new();
        if *status != default {
            fields.push(("status", status.to_string()));
        }
        if !headers.is_empty() {
            fields.push(("headers", map(headers.iter().map(|(name, value)| (name, scalar(value))))));
        }
        if !fields.is_empty() {
            rule.set("on_limit", map(fields));
        }
    }

    /// Whether rejections are not limited to a share of requests.
    pub(super) fn is_enforced_for_all(&self) -> bool {
        self.share == Share::All
    }

    /// Whether rejections of this filter reach clients.
    pub(super) fn is_enforced(&self) -> bool {
        self.share != Share::None
    }
}

impl HostLimits {
    fn read(node: &Node) -> Option<Self> {
        match scalar_text(node)? {
            "OVERRIDE" | "0" => Some(Self::Override),
            "INCLUDE" | "1" => Some(Self::Include),
            "IGNORE" | "2" => Some(Self::Ignore),
            _ => None,
        }
    }
}

/// Returns the value of a field, or `default` if there is none; one that is invalid gets a remark.
fn read_or<T>(
    config: &Node,
    name: &str,
    default: T,
    expected: &str,
    read: fn(&Node) -> Option<T>,
    ledger: &Ledger,
) -> T {
    let Some(value) = get(config, name) else { return default };
    read(value).unwrap_or_else(|| {
        ledger.lose(value, Effect::Differs, format!("invalid, expected {expected}"));
        default
    })
}

/// Returns the configuration itself, which a typed struct has in a field.
fn unwrap_typed_struct<'n>(node: &'n Node, ledger: &Ledger) -> &'n Node {
    let (Some(value), Some(kind)) = (get(node, "value"), get(node, "type_url")) else { return node };
    ledger.use_all(kind);
    if let Some(outer) = get(node, "@type") {
        let is_struct = scalar_text(outer).is_some_and(|text| text.ends_with(".TypedStruct"));
        let (effect, reason) = match is_struct {
            true => (Effect::None, "the form of the configuration"),
            false => (Effect::Differs, "not a TypedStruct, but imported as one"),
        };
        ledger.lose(outer, effect, reason);
    }
    value
}

fn read_descriptor(node: &Node, ledger: &Ledger) -> Option<Descriptor> {
    ledger.message(node, &messages::DESCRIPTOR);
    let lose = |reason: &str| {
        ledger.lose(node, Effect::Looser, format!("left out, as it has {reason}"));
        None
    };
    let Some(bucket) = get(node, "token_bucket") else { return lose("no `token_bucket`") };
    let Some(bucket) = read_bucket(bucket, ledger) else { return lose("an invalid `token_bucket`") };
    let mut entries = Vec::new();
    for entry in items(get(node, "entries")) {
        ledger.message(entry, &messages::ENTRY);
        let Some(key) = field_text(entry, "key").filter(|key| !key.is_empty()) else {
            return lose("an entry without `key`");
        };
        let value = field_text(entry, "value").unwrap_or_default().to_owned();
        ["key", "value"].iter().filter_map(|name| get(entry, name)).for_each(|value| ledger.use_all(value));
        entries.push(ExpectedEntry { key: key.to_owned(), value });
    }
    if entries.is_empty() {
        return lose("no `entries`");
    }
    if let Some(shadow) = get(node, "shadow_mode") {
        match as_bool(shadow) {
            Some(_) => ledger.use_all(shadow),
            None => ledger.lose(shadow, Effect::Differs, "invalid, expected true or false"),
        }
    }
    Some(Descriptor { entries, bucket, is_shadow: is_true(node, "shadow_mode") })
}

/// Reads the shares of requests that are counted and rejected. Both are zero by default in Envoy; `enforce` is a share
/// of keys.
fn read_share(config: &Node, ledger: &Ledger) -> Share {
    let share = |name: &str| match get(config, name) {
        None => Some(0.0),
        Some(value) => read_percent(value, ledger),
    };
    let shares = [share("filter_enabled"), share("filter_enforced")];
    let [Some(enabled), Some(enforced)] = shares else { return Share::All };
    let part = (enabled * enforced / 100.0 * 100.0).round() / 100.0;
    match part {
        part if part >= 100.0 => Share::All,
        // Less than a hundredth of a percent.
        part if part <= 0.0 => Share::None,
        part => Share::Part(part),
    }
}

/// Reads a percentage; one that is invalid gets a remark.
fn read_percent(node: &Node, ledger: &Ledger) -> Option<f64> {
    ledger.message(node, &messages::FRACTION);
    let value = get(node, "default_value").unwrap_or(node);
    if !std::ptr::eq(value, node) {
        ledger.message(value, &messages::PERCENT);
    }
    let numerator = get(value, "numerator").map_or(Some(0.0), as_f64).filter(|number| *number >= 0.0);
    let all = match field_text(value, "denominator") {
        None | Some("HUNDRED" | "0") => Some(100.0),
        Some("TEN_THOUSAND" | "1") => Some(10_000.0),
        Some("MILLION" | "2") => Some(1_000_000.0),
        Some(_) => None,
    };
    let (Some(numerator), Some(all)) = (numerator, all) else {
        ledger.lose(node, Effect::Differs, "an invalid share: the limit is enforced for all requests");
        return None;
    };
    let given = ["numerator", "denominator"].into_iter().filter_map(|name| get(value, name));
    let percent = numerator / all * 100.0;
    let reason = match percent > 100.0 {
        true => format!("{percent} % is more than all"),
        false => format!("{percent} % is a share of requests in Envoy, and `enforce` is a share of keys"),
    };
    given.for_each(|value| match percent == 100.0 {
        true => ledger.use_all(value),
        false => ledger.lose(value, Effect::None, reason.clone()),
    });
    Some(percent.min(100.0))
}

/// Returns the status of rejected requests.
fn read_status(config: &Node, ledger: &Ledger) -> u16 {
    const DEFAULT: u16 = 429;
    let Some(status) = get(config, "status") else { return DEFAULT };
    let code = get(status, "code").and_then(|code| status_code(scalar_text(code)?));
    match code {
        // Envoy replaces codes below 400 by 429.
        Some(code) if code < 400 || code == DEFAULT => {
            ledger.lose(status, Effect::None, "rejected requests get 429");
            DEFAULT
        }
        Some(code) => {
            ledger.use_all(status);
            code
        }
        None => {
            ledger.lose(status, Effect::None, "not a status: rejected requests get 429");
            DEFAULT
        }
    }
}

/// Returns the headers of responses to rejected requests.
fn read_headers(config: &Node, ledger: &Ledger) -> Vec<(String, String)> {
    let mut headers: Vec<(String, String)> = Vec::new();
    for option in items(get(config, "response_headers_to_add")) {
        match read_header(option) {
            Some((name, value)) if !headers.iter().any(|(known, _)| *known == name) => {
                ["append_action", "append"].iter().filter_map(|name| get(option, name)).for_each(|value| {
                    ledger.lose(value, Effect::None, "a rejection has no other header of this name");
                });
                get(option, "header").into_iter().for_each(|header| ledger.use_all(header));
                headers.push((name, value));
            }
            _ => ledger.lose(option, Effect::None, "rejections do not get this header"),
        }
    }
    headers
}

/// Returns the name and value of a header that `on_limit.headers` can have.
fn read_header(option: &Node) -> Option<(String, String)> {
    const OWN_HEADERS: [&str; 9] = [
        "connection",
        "content-length",
        "keep-alive",
        "retry-after",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "x-envoy-ratelimited",
    ];
    let has_other = |node: &Node, known: &[&str]| {
        super::super::tree::entries(node).iter().any(|(key, _)| {
            scalar_text(key)
                .is_none_or(|name| !known.iter().any(|known| super::super::tree::is_named(name, known)))
        })
    };
    let header = get(option, "header")?;
    if has_other(option, &["header", "append_action", "append"]) || has_other(header, &["key", "value"]) {
        return None;
    }
    let name = field_text(header, "key")?.to_ascii_lowercase();
    let value = field_text(header, "value")?;
    let is_plain = value.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic());
    // Both are placeholders, in Envoy and here.
    let is_literal = is_plain && !value.contains(['%', '{', '}']) && value.trim() == value;
    let is_name = http::HeaderName::from_bytes(name.as_bytes()).is_ok();
    (is_literal && is_name && !OWN_HEADERS.contains(&name.as_str())).then(|| (name, value.to_owned()))
}

/// Returns a status given by its number or by Envoy's name for it.
fn status_code(text: &str) -> Option<u16> {
    let is_named = |status: &u16| {
        let reason = http::StatusCode::from_u16(*status).ok().and_then(|status| status.canonical_reason());
        reason.is_some_and(|reason| reason.replace([' ', '-'], "") == text)
    };
    let code = text.parse().ok().or_else(|| (100..600).find(is_named))?;
    (100..600).contains(&code).then_some(code)
}
