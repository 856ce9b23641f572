//! Translates the actions of Envoy's `rate_limits`, which make descriptors, into parts of keys and conditions
//! of `match`.

use super::routes::{Scope, networks};
use super::tree::{fields, get, is_named, is_true, items, number, text_of};
use super::writing::{exactly, map, scalar};
use crate::yaml::Node;

/// One of the `rate_limits`: the actions that make a descriptor, and the requests they apply to.
#[derive(Clone, Debug)]
pub(super) struct Source<'n> {
    pub(super) actions: Vec<&'n Node>,
    pub(super) scope: Scope,
}

/// A descriptor expressed by the keys of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Meaning {
    pub(super) scope: Scope,
    pub(super) key: Vec<String>,
}

/// An entry that a filter matches. An empty value matches any value, with a separate bucket for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) key: String,
    pub(super) value: String,
}

impl Source<'_> {
    /// Returns the meaning of a descriptor with these entries if these actions make it; `None` if they do
    /// not, or if rules cannot express it.
    pub(super) fn meaning(&self, wanted: &[Wanted]) -> Option<Meaning> {
        if self.actions.len() != wanted.len() {
            return None;
        }
        let mut meaning = Meaning { scope: self.scope.clone(), key: Vec::new() };
        for (action, wanted) in self.actions.iter().zip(wanted) {
            let (name, action) = fields(action).next()?;
            meaning.take(name, action, wanted)?;
        }
        Some(meaning)
    }
}

impl Meaning {
    fn take(&mut self, name: &str, action: &Node, wanted: &Wanted) -> Option<()> {
        let key = |default: &str| text_of(action, "descriptor_key").unwrap_or(default).to_owned();
        let is_one_of = |names: &[&str]| names.iter().any(|known| is_named(name, known));
        if is_one_of(&["remote_address"]) {
            return self.address(wanted, "remote_address", scalar("client_ip"));
        }
        if is_one_of(&["masked_remote_address"]) {
            return self.address(wanted, "masked_remote_address", mask(action));
        }
        if is_one_of(&["request_headers"]) {
            (key("") == wanted.key).then_some(())?;
            return self.header(text_of(action, "header_name")?, &wanted.value);
        }
        if is_one_of(&["query_parameters"]) {
            // Rules can count by query parameters, but not match their values.
            (key("") == wanted.key && wanted.value.is_empty()).then_some(())?;
            let name = text_of(action, "query_parameter_name")?;
            return self.count(map([("query", scalar(name))]));
        }
        let value = text_of(action, "descriptor_value").unwrap_or_default();
        let is_wanted = |default: &str| {
            (key(default) == wanted.key && (wanted.value.is_empty() || wanted.value == value)).then_some(())
        };
        if is_one_of(&["generic_key"]) {
            return is_wanted("generic_key");
        }
        if is_one_of(&["header_value_match"]) {
            is_wanted("header_match")?;
            (text_of(action, "expect_match") != Some("false")).then_some(())?;
            let lost = self.scope.notes.len();
            items(get(action, "headers")).iter().for_each(|matcher| self.scope.header(matcher));
            return (self.scope.notes.len() == lost).then_some(());
        }
        if is_one_of(&["remote_address_match"]) {
            is_wanted("remote_address_match")?;
            let matcher = get(action, "address_matcher")?;
            (!is_true(matcher, "invert_match")).then_some(())?;
            self.scope.networks = networks(items(get(matcher, "ranges")));
            return (!self.scope.networks.is_empty()).then_some(());
        }
        None
    }

    fn address(&mut self, wanted: &Wanted, key: &str, part: String) -> Option<()> {
        (wanted.key == key).then_some(())?;
        if wanted.value.is_empty() {
            return self.count(part);
        }
        self.scope.networks = vec![scalar(&wanted.value)];
        Some(())
    }

    fn header(&mut self, name: &str, value: &str) -> Option<()> {
        let name = name.to_ascii_lowercase();
        if value.is_empty() {
            return match name.as_str() {
                ":path" => self.count(scalar("path")),
                ":method" => self.count(scalar("method")),
                ":authority" | "host" => self.count(scalar("host")),
                name if name.starts_with(':') => None,
                name => self.count(map([("header", scalar(name))])),
            };
        }
        let values = match name.as_str() {
            ":path" if value.starts_with('/') && !value.contains(['*', '{', '}', '?', '#', '%']) => {
                &mut self.scope.paths
            }
            ":method" => &mut self.scope.methods,
            ":authority" | "host" if !value.contains('*') => &mut self.scope.hosts,
            name if name.starts_with(':') => return None,
            _ => {
                self.scope.headers.retain(|(other, _)| *other != name);
                self.scope.headers.push((name, exactly(value)));
                return Some(());
            }
        };
        *values = vec![scalar(value)];
        Some(())
    }

    fn count(&mut self, part: String) -> Option<()> {
        if !self.key.contains(&part) {
            self.key.push(part);
        }
        Some(())
    }
}

/// Returns the client's network as a part of a key.
fn mask(action: &Node) -> String {
    let bits = |name: &str, most: u64| {
        let bits = get(action, name).and_then(number).filter(|bits| (1..most).contains(bits));
        bits.map(|bits| bits.to_string())
    };
    let ipv6 = Some(bits("v6_prefix_mask_len", 128).unwrap_or_else(|| "128".to_owned()));
    let given = [("ipv4_prefix", bits("v4_prefix_mask_len", 32)), ("prefix", ipv6)];
    let given = given.into_iter().filter_map(|(name, bits)| Some((name, bits?)));
    map([("client_ip", map(given))])
}
