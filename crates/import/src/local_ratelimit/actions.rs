//! Translates the actions of `rate_limits`, which make descriptors, into parts of keys and conditions of `match`.

use super::super::ledger::flow_text;
use super::super::network::parse_network;
use super::super::pattern::is_literal_path;
use super::super::remark::{Effect, Remark, brief};
use super::super::rule_text::{literal_pattern, map, scalar};
use super::super::scope::MatchField;
use super::super::tree::{as_bool, as_u64, field_text, fields, get, is_named, is_true, items};
use super::requests::Requests;
use weir_yaml::{Node, NodeValue};

/// An entry that a descriptor of the filter has. An empty value matches any value, with a separate bucket for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ExpectedEntry {
    pub(super) key: String,
    pub(super) value: String,
}

/// A descriptor expressed by the keys of a rule.
#[derive(Clone, Debug, Default)]
pub(super) struct Translation<'n> {
    pub(super) requests: Requests<'n>,
    pub(super) key: Vec<String>,
}

/// Why actions do not give the meaning of a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ActionMismatch {
    /// They make another descriptor.
    Other,
    /// Rules cannot express an action.
    Unsupported(String),
}

/// Returns the meaning of a descriptor with these entries, made by `actions` for requests of `scope`.
///
/// # Errors
/// Returns why it has none.
pub(super) fn translate<'n>(
    actions: &'n [Node],
    expected: &[ExpectedEntry],
    scope: &Requests<'n>,
) -> Result<Translation<'n>, ActionMismatch> {
    let mut translation = Translation { requests: scope.clone(), key: Vec::new() };
    let mut rest = expected.iter().peekable();
    for action in actions {
        let Some((name, body)) = fields(action).next() else { return Err(ActionMismatch::Other) };
        let unsupported = || ActionMismatch::Unsupported(brief(&flow_text(action)));
        // Every action has fields of its own.
        if fields(action).count() > 1 || !matches!(body.value, NodeValue::Map(_)) {
            return Err(unsupported());
        }
        let action = EnvoyAction { name, body };
        match rest.peek() {
            Some(entry) if action.key() == Some(entry.key.as_str()) => {
                translation.add(&action, entry)?;
                rest.next();
            }
            // A part that may be missing: the descriptor is for requests without it.
            _ if is_true(body, "skip_if_absent") && action.is("request_headers") => {
                let name = field_text(body, "header_name").ok_or_else(unsupported)?;
                translation.narrow(MatchField::Header(name.to_ascii_lowercase()), "!present".to_owned())?;
            }
            _ if action.key().is_none() => return Err(unsupported()),
            _ => return Err(ActionMismatch::Other),
        }
    }
    if rest.next().is_some() { Err(ActionMismatch::Other) } else { Ok(translation) }
}

struct EnvoyAction<'n> {
    name: &'n str,
    body: &'n Node,
}

impl<'n> EnvoyAction<'n> {
    fn is(&self, name: &str) -> bool {
        is_named(self.name, name)
    }

    /// Returns the key of the entry that it makes; `None` for an unknown action.
    fn key(&self) -> Option<&'n str> {
        const DEFAULT_KEYS: [(&str, &str); 11] = [
            ("remote_address", "remote_address"),
            ("masked_remote_address", "masked_remote_address"),
            ("source_cluster", "source_cluster"),
            ("destination_cluster", "destination_cluster"),
            ("request_headers", ""),
            ("query_parameters", ""),
            ("metadata", ""),
            ("generic_key", "generic_key"),
            ("header_value_match", "header_match"),
            ("query_parameter_value_match", "query_match"),
            ("remote_address_match", "remote_address_match"),
        ];
        let (_, default) = DEFAULT_KEYS.into_iter().find(|(name, _)| self.is(name))?;
        Some(field_text(self.body, "descriptor_key").filter(|key| !key.is_empty()).unwrap_or(default))
    }
}

impl<'n> Translation<'n> {
    fn add(&mut self, action: &EnvoyAction<'n>, expected: &ExpectedEntry) -> Result<(), ActionMismatch> {
        let body = action.body;
        let unsupported =
            || ActionMismatch::Unsupported(format!("{}: {}", action.name, brief(&flow_text(body))));
        if let Some((name, value)) = unknown_field(action) {
            return Err(ActionMismatch::Unsupported(format!(
                "{}.{name}: {}",
                action.name,
                brief(&flow_text(value))
            )));
        }
        if action.is("remote_address") {
            return self.add_address(expected, scalar("client_ip"));
        }
        if action.is("masked_remote_address") {
            return self.add_address(expected, masked_client_ip(body).ok_or_else(unsupported)?);
        }
        if is_true(body, "skip_if_absent") {
            let text = format!(
                "{}.skip_if_absent: requests without it make a descriptor without this entry",
                action.name
            );
            self.requests.add(Effect::None, text);
        }
        if action.is("request_headers") {
            let name = field_text(body, "header_name").ok_or_else(unsupported)?.to_ascii_lowercase();
            return self.add_header(&name, &expected.value).ok_or_else(unsupported)?;
        }
        if action.is("query_parameters") {
            // Rules can count by query parameters, but not match their values.
            let name = field_text(body, "query_parameter_name").filter(|_| expected.value.is_empty());
            self.add_key_part(map([("query", scalar(name.ok_or_else(unsupported)?))]));
            return Ok(());
        }
        self.add_fixed_value(action, expected).ok_or_else(unsupported)?
    }

    /// Adds an action whose entry has a value of the configuration; `None` if rules cannot express it.
    fn add_fixed_value(
        &mut self,
        action: &EnvoyAction<'n>,
        expected: &ExpectedEntry,
    ) -> Option<Result<(), ActionMismatch>> {
        let value = field_text(action.body, "descriptor_value").unwrap_or_default();
        if !expected.value.is_empty() && expected.value != value {
            return Some(Err(ActionMismatch::Other));
        }
        if expected.value.is_empty() {
            self.requests
                .add(Effect::None, format!("the value of `{}` is always `{}`", expected.key, brief(value)));
        }
        if action.is("generic_key") {
            return Some(Ok(()));
        }
        if action.is("header_value_match") {
            return self.add_header_match(action.body);
        }
        if action.is("remote_address_match") {
            return self.add_networks(action.body);
        }
        None
    }

    /// Limits the requests by one more condition.
    fn narrow(&mut self, field: MatchField, pattern: String) -> Result<(), ActionMismatch> {
        let mut requests = Requests::default();
        requests.require(field, vec![pattern]);
        self.narrow_by(&requests)
    }

    fn narrow_by(&mut self, requests: &Requests<'n>) -> Result<(), ActionMismatch> {
        self.requests = self.requests.and(requests).ok_or(ActionMismatch::Other)?;
        Ok(())
    }

    fn add_address(&mut self, expected: &ExpectedEntry, part: String) -> Result<(), ActionMismatch> {
        if expected.value.is_empty() {
            self.add_key_part(part);
            return Ok(());
        }
        match parse_network(&expected.value) {
            Some(_) => self.narrow(MatchField::ClientIp, expected.value.clone()),
            None => Err(ActionMismatch::Unsupported(format!("the address `{}`", expected.value))),
        }
    }

    fn add_header(&mut self, name: &str, value: &str) -> Option<Result<(), ActionMismatch>> {
        if value.is_empty() {
            let part = match name {
                ":path" => {
                    self.requests
                        .add(Effect::Differs, "`:path` in Envoy has the query, the key `path` has not");
                    scalar("path")
                }
                ":method" => scalar("method"),
                ":authority" | "host" => scalar("host"),
                name if name.starts_with(':') => return None,
                name => map([("header", scalar(name))]),
            };
            self.add_key_part(part);
            return Some(Ok(()));
        }
        let field = match name {
            ":path" if is_literal_path(value) => MatchField::Path,
            ":method" => MatchField::Method,
            ":authority" | "host" if !value.contains('*') => {
                return Some(self.narrow(MatchField::Host, super::requests::host_pattern(value)));
            }
            name if name.starts_with(':') => return None,
            name => return Some(self.narrow(MatchField::Header(name.to_owned()), literal_pattern(value))),
        };
        Some(self.narrow(field, value.to_owned()))
    }

    fn add_header_match(&mut self, body: &'n Node) -> Option<Result<(), ActionMismatch>> {
        let is_expected = get(body, "expect_match").and_then(as_bool) != Some(false);
        let mut selected = Requests::default();
        for matcher in items(get(body, "headers")) {
            match selected.and(&Requests::of_header_matcher(matcher)?) {
                Some(both) => selected = both,
                None => return Some(Err(ActionMismatch::Other)),
            }
        }
        if is_expected {
            return Some(self.narrow_by(&selected));
        }
        // Only requests that meet all conditions are outside, which one exception expresses.
        if !selected.scope.exceptions.is_empty() || selected.remarks.iter().any(Remark::is_warning) {
            return None;
        }
        Some(if self.requests.except(&selected) { Ok(()) } else { Err(ActionMismatch::Other) })
    }

    fn add_networks(&mut self, body: &'n Node) -> Option<Result<(), ActionMismatch>> {
        let matcher = get(body, "address_matcher")?;
        let range = |range: &Node| {
            let address = field_text(range, "address_prefix")?;
            let length = get(range, "prefix_len").map(as_u64).unwrap_or(Some(0))?;
            let text = format!("{address}/{length}");
            parse_network(&text).map(|_| text)
        };
        let networks = items(get(matcher, "ranges")).iter().map(range).collect::<Option<Vec<_>>>()?;
        if networks.is_empty() {
            return None;
        }
        let mut selected = Requests::default();
        if is_true(matcher, "invert_match") {
            selected.scope.except(MatchField::ClientIp, networks);
        } else {
            selected.require(MatchField::ClientIp, networks);
        }
        Some(self.narrow_by(&selected))
    }

    fn add_key_part(&mut self, part: String) {
        if !self.key.contains(&part) {
            self.key.push(part);
        }
    }
}

/// Returns a field that the action does not have, or that is not translated.
fn unknown_field<'n>(action: &EnvoyAction<'n>) -> Option<(&'n str, &'n Node)> {
    const FIELDS: [(&str, &[&str]); 6] = [
        ("masked_remote_address", &["v4_prefix_mask_len", "v6_prefix_mask_len"]),
        ("request_headers", &["header_name", "descriptor_key", "skip_if_absent"]),
        ("query_parameters", &["query_parameter_name", "descriptor_key", "skip_if_absent"]),
        ("generic_key", &["descriptor_value", "descriptor_key"]),
        ("header_value_match", &["descriptor_value", "descriptor_key", "expect_match", "headers"]),
        ("remote_address_match", &["descriptor_value", "descriptor_key", "address_matcher"]),
    ];
    let known = FIELDS.iter().find(|(name, _)| action.is(name)).map_or(&[][..], |(_, known)| *known);
    fields(action.body).find(|(name, _)| !known.iter().any(|field| is_named(name, field)))
}

/// Returns the client's network as a part of a key; `None` for masks that a key cannot have.
fn masked_client_ip(action: &Node) -> Option<String> {
    let bits = |name: &str, address_bits: u64| match get(action, name) {
        None => Some(address_bits),
        Some(bits) => as_u64(bits).filter(|bits| (1..=address_bits).contains(bits)),
    };
    let (ipv4, ipv6) = (bits("v4_prefix_mask_len", 32)?, bits("v6_prefix_mask_len", 128)?);
    let ipv4 = (ipv4 < 32).then(|| ("ipv4_prefix", ipv4.to_string()));
    let both = ipv4.into_iter().chain(Some(("prefix", ipv6.to_string())));
    Some(map([("client_ip", map(both))]))
}
