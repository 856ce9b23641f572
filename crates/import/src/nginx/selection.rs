//! Variables of `map` and `geo` blocks: a value for each class of requests.

use std::collections::HashMap;
use std::net::IpAddr;

use regex::Regex;

use super::super::network::{network_of, parse_network};
use super::super::pattern::parse_regex;
use super::super::scope::{MatchField, Scope};
use super::composed;
use super::host::is_host_name;
use super::key_piece::{KeyPiece, split_variables};
use super::precedence::{Competing, exceptions};
use super::syntax::{Directive, Place};

/// Maximum number of `map` and `geo` blocks behind one variable.
const MAX_CHAIN: usize = 8;
/// Maximum number of entries of a block, because each is compared with each.
const MAX_ENTRIES: usize = 2000;

/// The `map` and `geo` blocks of a configuration, by their variables.
#[derive(Debug, Default)]
pub(super) struct Selections<'d>(HashMap<&'d str, &'d Directive>);

/// The requests for which a variable has a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ValueScope {
    pub(super) value: String,
    pub(super) scope: Scope,
}

/// A pattern of an entry, as far as precedence is concerned.
#[derive(Clone, Debug)]
pub(super) enum SelectionPattern {
    /// All requests that no entry matches.
    Default,
    /// A value without regard to case.
    Text(String),
    Regex {
        regex: Regex,
        order: usize,
    },
    Network {
        address: IpAddr,
        length: u8,
    },
}

impl Competing for SelectionPattern {
    fn precedes(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Default, _) => false,
            (_, Self::Default) => true,
            (Self::Text(text), Self::Regex { regex, .. }) => regex.is_match(text),
            (Self::Regex { order: one, .. }, Self::Regex { order: other, .. }) => one < other,
            (
                Self::Network { address: inner, length: long },
                Self::Network { address: outer, length: short },
            ) => long > short && network_of(*inner, *short) == network_of(*outer, *short),
            _ => false,
        }
    }
}

/// An entry of a block.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) pattern: SelectionPattern,
    pub(super) value: String,
}

/// The entries of a variable, all of which compare one attribute.
#[derive(Clone, Debug)]
struct Partition {
    field: MatchField,
    entries: Vec<Entry>,
}

impl<'d> Selections<'d> {
    pub(super) fn add(&mut self, block: &'d Directive) {
        if let Some(variable) = block.arguments.last().and_then(|word| word.strip_prefix('$')) {
            self.0.insert(variable, block);
        }
    }

    pub(super) fn contains(&self, variable: &str) -> bool {
        self.0.contains_key(variable)
    }

    /// Returns the values of a variable that are not empty, each with its requests.
    ///
    /// # Errors
    /// Returns what cannot be expressed by `match` and `except`.
    pub(super) fn resolve(&self, variable: &str) -> Result<Vec<ValueScope>, String> {
        self.values(variable, 0, false)
    }

    /// Returns all values of a variable, each with its requests.
    ///
    /// # Errors
    /// Returns what cannot be expressed by `match` and `except`.
    pub(super) fn all_values(&self, variable: &str, depth: usize) -> Result<Vec<ValueScope>, String> {
        self.values(variable, depth, true)
    }

    fn values(&self, variable: &str, depth: usize, with_empty: bool) -> Result<Vec<ValueScope>, String> {
        if let Some(block) = self.0.get(variable).filter(|block| is_composed(block)) {
            if depth > 0 {
                return Err(format!("{}: a composed text of a composed text is not supported", block.place));
            }
            return composed::resolve(self, block, variable, depth);
        }
        let partition = self.partition(variable, depth)?;
        let mut values: Vec<&str> = Vec::new();
        for entry in &partition.entries {
            if (with_empty || !entry.value.is_empty()) && !values.contains(&&*entry.value) {
                values.push(&entry.value);
            }
        }
        values.into_iter().map(|value| partition.scope_of(value, variable)).collect()
    }

    /// Returns the places of the blocks on which a variable depends.
    pub(super) fn places(&self, variable: &str) -> Vec<Place> {
        let mut places = Vec::new();
        let mut names = vec![variable.to_owned()];
        while let Some(name) = names.pop() {
            let Some(block) = self.0.get(name.as_str()) else { continue };
            if places.contains(&block.place) {
                continue;
            }
            places.push(block.place.clone());
            let values = block.children().iter().filter_map(|line| line.arguments.first());
            let sources = block.arguments.iter().take(block.arguments.len().saturating_sub(1)).chain(values);
            names.extend(sources.flat_map(|text| split_variables(text)).filter_map(|piece| match piece {
                KeyPiece::Variable(name) => Some(name),
                KeyPiece::Literal(_) => None,
            }));
        }
        places
    }

    fn partition(&self, variable: &str, depth: usize) -> Result<Partition, String> {
        let block = self.0.get(variable).ok_or_else(|| format!("`${variable}` is not known here"))?;
        if depth >= MAX_CHAIN {
            return Err(format!("`${variable}` depends on more than {MAX_CHAIN} blocks"));
        }
        if block.children().len() > MAX_ENTRIES {
            return Err(format!("{}: more than {MAX_ENTRIES} entries", block.place));
        }
        if block.name == "geo" {
            return read_geo(block);
        }
        let source = block.argument(0).trim_start_matches('$').trim_matches(['{', '}']);
        let entries = read_map(block)?;
        if !self.contains(source) {
            let field = attribute_field(source).ok_or_else(|| {
                format!("{}: a `map` of `{}` is not supported", block.place, block.argument(0))
            })?;
            return with_field(field, entries, block);
        }
        let mut partition = self.partition(source, depth + 1)?;
        for entry in &mut partition.entries {
            entry.value = look_up(&entries, &entry.value);
        }
        Ok(partition)
    }
}

impl Partition {
    /// Returns the requests for which the variable has `value`.
    fn scope_of(&self, value: &str, variable: &str) -> Result<ValueScope, String> {
        let patterns = |is_wanted: &dyn Fn(&Entry) -> bool| -> Vec<&SelectionPattern> {
            self.entries.iter().filter(|entry| is_wanted(entry)).map(|entry| &entry.pattern).collect()
        };
        let ours = patterns(&|entry| entry.value == value);
        let others = patterns(&|entry| entry.value != value);
        let excepted = exceptions(&ours, &others)
            .ok_or_else(|| format!("entries of `${variable}` overlap in a way that rules cannot express"))?;
        let texts = |patterns: &[&SelectionPattern]| -> Result<Vec<String>, String> {
            patterns.iter().map(|pattern| rule_pattern(&self.field, pattern, variable)).collect()
        };
        let mut scope = Scope::default();
        if !ours.iter().any(|pattern| matches!(pattern, SelectionPattern::Default)) {
            scope.require(self.field.clone(), texts(&ours)?);
        }
        scope.except(self.field.clone(), texts(&excepted)?);
        Ok(ValueScope { value: value.to_owned(), scope })
    }
}

/// Returns a pattern as a rule has it.
pub(super) fn rule_pattern(
    field: &MatchField,
    pattern: &SelectionPattern,
    variable: &str,
) -> Result<String, String> {
    let unsupported = |what: &str| Err(format!("`${variable}` has {what}, which rules do not support"));
    match (field, pattern) {
        (_, SelectionPattern::Network { address, length }) => Ok(format!("{address}/{length}")),
        (MatchField::ClientIp, SelectionPattern::Text(text)) if text.parse::<IpAddr>().is_ok() => {
            Ok(text.clone())
        }
        (MatchField::Header(_), SelectionPattern::Text(text)) if text.is_empty() => Ok("!present".to_owned()),
        (MatchField::Method, SelectionPattern::Text(text)) if is_word(text) => Ok(text.to_ascii_uppercase()),
        (MatchField::Host, SelectionPattern::Text(text)) if is_host_name(text) => Ok(text.clone()),
        (MatchField::Header(_) | MatchField::Path, SelectionPattern::Text(text)) => {
            Ok(format!("~(?i)^{}$", regex::escape(text)))
        }
        (MatchField::Header(_), SelectionPattern::Regex { regex, .. }) if regex.is_match("") => {
            unsupported("a regex that matches a missing header")
        }
        (
            MatchField::Header(_) | MatchField::Path | MatchField::Host,
            SelectionPattern::Regex { regex, .. },
        ) => Ok(format!("~{}", regex.as_str())),
        (_, SelectionPattern::Regex { .. }) => unsupported("a regex"),
        (_, SelectionPattern::Text(_) | SelectionPattern::Default) => unsupported("a value of another kind"),
    }
}

/// Whether a block maps a text of several variables.
fn is_composed(block: &Directive) -> bool {
    let pieces = split_variables(block.argument(0));
    block.name == "map"
        && pieces.len() > 1
        && pieces.iter().any(|piece| matches!(piece, KeyPiece::Variable(_)))
}

/// Returns the attribute of a rule with the value of a variable, for comparison.
pub(super) fn attribute_field(variable: &str) -> Option<MatchField> {
    match variable {
        "remote_addr" => Some(MatchField::ClientIp),
        "request_method" => Some(MatchField::Method),
        "host" => Some(MatchField::Host),
        "uri" => Some(MatchField::Path),
        variable => variable
            .strip_prefix("http_")
            .filter(|name| is_word(name))
            .map(|name| MatchField::Header(name.to_ascii_lowercase().replace('_', "-"))),
    }
}

/// Whether it is a word of letters, digits and underscores.
fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn with_field(field: MatchField, entries: Vec<Entry>, block: &Directive) -> Result<Partition, String> {
    let has_empty_path = entries.iter().any(|entry| {
        !matches!(field, MatchField::Header(_))
            && matches!(&entry.pattern, SelectionPattern::Text(text) if text.is_empty())
    });
    if has_empty_path {
        return Err(format!("{}: `{}` is never empty here", block.place, block.argument(0)));
    }
    Ok(Partition { field, entries })
}

/// Returns the value of a `map` for a text.
pub(super) fn look_up(entries: &[Entry], text: &str) -> String {
    let matches = |entry: &&Entry| match &entry.pattern {
        SelectionPattern::Text(expected) => expected.eq_ignore_ascii_case(text),
        SelectionPattern::Regex { .. } | SelectionPattern::Network { .. } | SelectionPattern::Default => {
            false
        }
    };
    let matches_regex = |entry: &&Entry| matches!(&entry.pattern, SelectionPattern::Regex { regex, .. } if regex.is_match(text));
    let is_default = |entry: &&Entry| matches!(entry.pattern, SelectionPattern::Default);
    let mut all = entries.iter();
    let found = all.find(matches).or_else(|| entries.iter().find(matches_regex));
    found.or_else(|| entries.iter().find(is_default)).map(|entry| entry.value.clone()).unwrap_or_default()
}

pub(super) fn read_map(block: &Directive) -> Result<Vec<Entry>, String> {
    let mut default = String::new();
    let mut entries: Vec<Entry> = Vec::new();
    for (order, line) in block.children().iter().enumerate() {
        let value = line.argument(0).to_owned();
        let pattern = match (line.name.as_str(), line.arguments.as_slice()) {
            ("default", _) => {
                default = value;
                continue;
            }
            ("volatile", []) => continue,
            ("hostnames", []) => return Err(format!("{}: `hostnames` is not supported", line.place)),
            (text, _) if text.starts_with('~') => {
                let (text, ignores_case) = match text.strip_prefix("~*") {
                    Some(text) => (text, true),
                    None => (&text[1..], false),
                };
                let regex = parse_regex(text, ignores_case)
                    .ok_or_else(|| format!("{}: rules do not support this regex", line.place))?;
                SelectionPattern::Regex { regex, order }
            }
            // A backslash quotes a word with a special meaning.
            (text, _) => SelectionPattern::Text(text.strip_prefix('\\').unwrap_or(text).to_ascii_lowercase()),
        };
        entries.push(Entry { pattern, value });
    }
    entries.push(Entry { pattern: SelectionPattern::Default, value: default });
    Ok(entries)
}

fn read_geo(block: &Directive) -> Result<Partition, String> {
    let is_client = block.arguments.len() < 2 || block.argument(0) == "$remote_addr";
    if !is_client {
        return Err(format!("{}: a `geo` of `{}` is not supported", block.place, block.argument(0)));
    }
    let mut default = String::new();
    let mut entries: Vec<Entry> = Vec::new();
    for line in block.children() {
        let value = line.argument(0).to_owned();
        match line.name.as_str() {
            "default" => default = value,
            "ranges" | "delete" | "proxy" | "proxy_recursive" => {
                return Err(format!("{}: `{}` of `geo` is not supported", line.place, line.name));
            }
            text => {
                let (address, length) = parse_network(text)
                    .ok_or_else(|| format!("{}: `{text}` is not a network", line.place))?;
                entries.push(Entry { pattern: SelectionPattern::Network { address, length }, value });
            }
        }
    }
    entries.push(Entry { pattern: SelectionPattern::Default, value: default });
    Ok(Partition { field: MatchField::ClientIp, entries })
}

#[cfg(test)]
mod tests {
    use super::super::super::rule_text::RuleText;
    use super::super::syntax;
    use super::*;

    /// Returns the values of a variable with `match` and `except`.
    fn resolved(text: &str, variable: &str) -> Result<Vec<String>, String> {
        let file = syntax::parse("f", text, &|_| Vec::new()).unwrap();
        let mut selections = Selections::default();
        file.directives.iter().for_each(|block| selections.add(block));
        let written = |one: ValueScope| {
            let mut rule = RuleText::default();
            one.scope.write(&mut rule);
            let fields: Vec<_> = rule.fields.iter().map(|(key, value)| format!(" {key}: {value}")).collect();
            one.value + &fields.concat()
        };
        Ok(selections.resolve(variable)?.into_iter().map(written).collect())
    }

    const GEO: &str = "geo $limited { default 1; 10.0.0.0/8 0; 192.168.0.0/24 0; }\n\
                       map $limited $key { 0 \"\"; 1 $binary_remote_addr; }";

    #[test]
    fn networks_of_a_geo_block_become_an_exception() {
        let expected = "$binary_remote_addr except: { client_ip: [\"10.0.0.0/8\", \"192.168.0.0/24\"] }";
        assert_eq!(resolved(GEO, "key").unwrap(), [expected]);
        let inverted =
            GEO.replace("default 1", "default 0").replace("/8 0", "/8 1").replace("/24 0", "/24 1");
        let expected = "$binary_remote_addr match: { client_ip: [\"10.0.0.0/8\", \"192.168.0.0/24\"] }";
        assert_eq!(resolved(&inverted, "key").unwrap(), [expected]);
    }

    #[test]
    fn nested_networks_are_converted_only_if_exact() {
        let nested = "geo $k { default \"\"; 10.0.0.0/8 a; 10.1.0.0/16 \"\"; }";
        assert_eq!(
            resolved(nested, "k").unwrap(),
            ["a match: { client_ip: \"10.0.0.0/8\" } except: { client_ip: \"10.1.0.0/16\" }"]
        );
        let twice = "geo $k { default a; 10.0.0.0/8 \"\"; 10.1.0.0/16 a; }";
        assert!(resolved(twice, "k").unwrap_err().contains("overlap"));
    }

    #[test]
    fn maps_of_headers_and_methods_become_conditions() {
        let agents = "map $http_user_agent $k { default \"\"; ~*(bot|spider) $binary_remote_addr; }";
        let expected = "$binary_remote_addr match: { header: { user-agent: \"~(?i)(bot|spider)\" } }";
        assert_eq!(resolved(agents, "k").unwrap(), [expected]);
        let methods = "map $request_method $k { default \"\"; POST $remote_addr; put $remote_addr; }";
        assert_eq!(resolved(methods, "k").unwrap(), ["$remote_addr match: { method: [POST, PUT] }"]);
        let keys = "map $http_x_key $k { \"\" $remote_addr; default $http_x_key; secret \"\"; }";
        assert_eq!(
            resolved(keys, "k").unwrap(),
            [
                "$remote_addr match: { header: { x-key: \"!present\" } }",
                "$http_x_key except: { header: { x-key: [\"!present\", \"~(?i)^secret$\"] } }"
            ]
        );
    }

    #[test]
    fn earlier_entries_of_a_map_take_precedence() {
        let map = "map $uri $k { default \"\"; ~^/a/x \"\"; ~^/a a; /a/exact \"\"; }";
        let expected = "a match: { path: \"~^/a\" } except: { path: [\"~^/a/x\", \"~(?i)^/a/exact$\"] }";
        assert_eq!(resolved(map, "k").unwrap(), [expected]);
    }

    #[test]
    fn blocks_that_rules_cannot_express_are_rejected() {
        for (text, expected) in [
            ("map $cookie_a $k { default a; }", "f:1: a `map` of `$cookie_a` is not supported"),
            ("map $host $k { hostnames; }", "f:1: `hostnames` is not supported"),
            ("geo $k { ranges; }", "f:1: `ranges` of `geo` is not supported"),
            ("geo $arg_ip $k { default a; }", "f:1: a `geo` of `$arg_ip` is not supported"),
            ("geo $k {\n 1.2.3 a; }", "f:2: `1.2.3` is not a network"),
            (
                "map $http_a $k { ~.* a; }",
                "`$k` has a regex that matches a missing header, which rules do not support",
            ),
            ("map $k $k { a b; }", "`$k` depends on more than 8 blocks"),
            ("", "`$k` is not known here"),
        ] {
            assert_eq!(resolved(text, "k").unwrap_err(), expected, "{text}");
        }
    }
}
