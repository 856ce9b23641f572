//! Translates the actions of Envoy's `rate_limits`, which make descriptors, into parts of keys and conditions
//! of `match`.

use super::match_fields::{MatchFields, format_networks};
use super::rule_text::{exact_pattern, map, scalar};
use super::tree::{as_u64, field_text, fields, get, is_named, is_true, items};
use crate::yaml::Node;

/// One of the `rate_limits`: the actions that make a descriptor, and the requests they apply to.
#[derive(Clone, Debug)]
pub(super) struct DescriptorSource<'n> {
    pub(super) actions: Vec<&'n Node>,
    pub(super) match_fields: MatchFields,
}

/// A descriptor expressed by the keys of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MatchAndKey {
    pub(super) match_fields: MatchFields,
    pub(super) key: Vec<String>,
}

/// An entry that a filter matches. An empty value matches any value, with a separate bucket for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ExpectedEntry {
    pub(super) key: String,
    pub(super) value: String,
}

impl DescriptorSource<'_> {
    /// Returns the meaning of a descriptor with these entries if these actions make it; `None` if they do
    /// not, or if rules cannot express it.
    pub(super) fn match_and_key(&self, expected: &[ExpectedEntry]) -> Option<MatchAndKey> {
        if self.actions.len() != expected.len() {
            return None;
        }
        let mut translated = MatchAndKey { match_fields: self.match_fields.clone(), key: Vec::new() };
        for (action, expected) in self.actions.iter().zip(expected) {
            let (name, action) = fields(action).next()?;
            translated.add_action(name, action, expected)?;
        }
        Some(translated)
    }
}

impl MatchAndKey {
    fn add_action(&mut self, name: &str, action: &Node, expected: &ExpectedEntry) -> Option<()> {
        let key = |default: &str| field_text(action, "descriptor_key").unwrap_or(default).to_owned();
        let is_one_of = |names: &[&str]| names.iter().any(|known| is_named(name, known));
        if is_one_of(&["remote_address"]) {
            return self.add_address(expected, "remote_address", scalar("client_ip"));
        }
        if is_one_of(&["masked_remote_address"]) {
            return self.add_address(expected, "masked_remote_address", masked_client_ip(action));
        }
        if is_one_of(&["request_headers"]) {
            (key("") == expected.key).then_some(())?;
            return self.add_header(field_text(action, "header_name")?, &expected.value);
        }
        if is_one_of(&["query_parameters"]) {
            // Rules can count by query parameters, but not match their values.
            (key("") == expected.key && expected.value.is_empty()).then_some(())?;
            let name = field_text(action, "query_parameter_name")?;
            return self.add_key_part(map([("query", scalar(name))]));
        }
        let value = field_text(action, "descriptor_value").unwrap_or_default();
        let is_expected = |default: &str| {
            (key(default) == expected.key && (expected.value.is_empty() || expected.value == value))
                .then_some(())
        };
        if is_one_of(&["generic_key"]) {
            return is_expected("generic_key");
        }
        if is_one_of(&["header_value_match"]) {
            is_expected("header_match")?;
            (field_text(action, "expect_match") != Some("false")).then_some(())?;
            let notes_before = self.match_fields.notes.len();
            items(get(action, "headers"))
                .iter()
                .for_each(|matcher| self.match_fields.add_header_matcher(matcher));
            return (self.match_fields.notes.len() == notes_before).then_some(());
        }
        if is_one_of(&["remote_address_match"]) {
            is_expected("remote_address_match")?;
            let matcher = get(action, "address_matcher")?;
            (!is_true(matcher, "invert_match")).then_some(())?;
            self.match_fields.networks = format_networks(items(get(matcher, "ranges")));
            return (!self.match_fields.networks.is_empty()).then_some(());
        }
        None
    }

    fn add_address(&mut self, expected: &ExpectedEntry, key: &str, part: String) -> Option<()> {
        (expected.key == key).then_some(())?;
        if expected.value.is_empty() {
            return self.add_key_part(part);
        }
        self.match_fields.networks = vec![scalar(&expected.value)];
        Some(())
    }

    fn add_header(&mut self, name: &str, value: &str) -> Option<()> {
        let name = name.to_ascii_lowercase();
        if value.is_empty() {
            return match name.as_str() {
                ":path" => self.add_key_part(scalar("path")),
                ":method" => self.add_key_part(scalar("method")),
                ":authority" | "host" => self.add_key_part(scalar("host")),
                name if name.starts_with(':') => None,
                name => self.add_key_part(map([("header", scalar(name))])),
            };
        }
        let values = match name.as_str() {
            ":path" if value.starts_with('/') && !value.contains(['*', '{', '}', '?', '#', '%']) => {
                &mut self.match_fields.paths
            }
            ":method" => &mut self.match_fields.methods,
            ":authority" | "host" if !value.contains('*') => &mut self.match_fields.hosts,
            name if name.starts_with(':') => return None,
            _ => {
                self.match_fields.headers.retain(|(other, _)| *other != name);
                self.match_fields.headers.push((name, exact_pattern(value)));
                return Some(());
            }
        };
        *values = vec![scalar(value)];
        Some(())
    }

    fn add_key_part(&mut self, part: String) -> Option<()> {
        if !self.key.contains(&part) {
            self.key.push(part);
        }
        Some(())
    }
}

/// Returns the client's network as a part of a key.
fn masked_client_ip(action: &Node) -> String {
    let bits = |name: &str, address_bits: u64| {
        let bits = get(action, name).and_then(as_u64).filter(|bits| (1..address_bits).contains(bits));
        bits.map(|bits| bits.to_string())
    };
    let ipv6 = Some(bits("v6_prefix_mask_len", 128).unwrap_or_else(|| "128".to_owned()));
    let given = [("ipv4_prefix", bits("v4_prefix_mask_len", 32)), ("prefix", ipv6)];
    let given = given.into_iter().filter_map(|(name, bits)| Some((name, bits?)));
    map([("client_ip", map(given))])
}
