//! The requests that a part of Envoy's configuration applies to: virtual hosts and routes as conditions of
//! `match`.

use super::rule_text::{exact_pattern, map, one_or_list, regex_pattern, scalar};
use super::tree::{field_text, fields, get, is_named, is_true, items, scalar_text};
use crate::yaml::Node;

/// The requests that a part applies to, as far as rules can express it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MatchFields {
    /// Alternatives, as written in the rule; also in the next three lists.
    pub(super) paths: Vec<String>,
    pub(super) methods: Vec<String>,
    pub(super) hosts: Vec<String>,
    pub(super) networks: Vec<String>,
    /// Patterns of headers, all of which must match.
    pub(super) headers: Vec<(String, String)>,
    /// Comments on conditions that are not imported.
    pub(super) notes: Vec<String>,
    /// Whether it is below `typed_per_filter_config`, and thus for a single virtual host or route.
    pub(super) is_per_route: bool,
}

impl MatchFields {
    /// Returns the value of `match`; `None` for every request.
    pub(super) fn match_text(&self) -> Option<String> {
        let Self { paths, methods, hosts, networks, headers, .. } = self;
        let lists = [("path", paths), ("method", methods), ("host", hosts), ("client_ip", networks)];
        let given = lists.into_iter().filter(|(_, values)| !values.is_empty());
        let mut all: Vec<(&str, String)> = given.map(|(key, values)| (key, one_or_list(values))).collect();
        if !headers.is_empty() {
            all.push(("header", map(headers.iter().map(|(name, pattern)| (name, pattern)))));
        }
        (!all.is_empty()).then(|| map(all))
    }

    /// Combines both scopes; for conditions of the same kind, those of `inner` apply.
    pub(super) fn narrowed_by(&self, inner: &Self) -> Self {
        let inner_or_outer = |outer: &Vec<String>, inner: &Vec<String>| {
            if inner.is_empty() { outer.clone() } else { inner.clone() }
        };
        let mut both = Self {
            paths: inner_or_outer(&self.paths, &inner.paths),
            methods: inner_or_outer(&self.methods, &inner.methods),
            hosts: inner_or_outer(&self.hosts, &inner.hosts),
            networks: inner_or_outer(&self.networks, &inner.networks),
            headers: self.headers.clone(),
            notes: self.notes.clone(),
            is_per_route: self.is_per_route || inner.is_per_route,
        };
        both.headers.retain(|(name, _)| !inner.headers.iter().any(|(other, _)| other == name));
        both.headers.extend(inner.headers.iter().cloned());
        both.notes.extend(inner.notes.iter().filter(|note| !self.notes.contains(note)).cloned());
        both
    }

    /// Returns the scope of a virtual host within this one.
    pub(super) fn for_virtual_host(&self, node: &Node) -> Self {
        let domains: Vec<&str> = items(get(node, "domains")).iter().filter_map(scalar_text).collect();
        let mut inner = Self::default();
        if !domains.contains(&"*") {
            inner.hosts = domains.into_iter().map(host_pattern).collect();
            // Domains may differ only in their ports.
            inner.hosts.sort_unstable();
            inner.hosts.dedup();
        }
        self.narrowed_by(&inner)
    }

    /// Returns the scope of a route within this one; `node` is its `match`.
    pub(super) fn for_route(&self, node: &Node) -> Self {
        let mut inner = Self::default();
        let fold = if field_text(node, "case_sensitive") == Some("false") { "(?i)" } else { "" };
        for (name, value) in fields(node) {
            let given = scalar_text(value).unwrap_or_default();
            if is_named(name, "prefix") {
                if !matches!(given, "" | "/") {
                    inner.paths.push(regex_pattern(&format!("{fold}^{}", regex::escape(given))));
                }
            } else if is_named(name, "path") {
                inner.paths.push(path_pattern(given, fold));
            } else if is_named(name, "path_separated_prefix") {
                inner.paths.extend([path_pattern(given, fold), subpath_pattern(given, fold)]);
            } else if is_named(name, "safe_regex") {
                inner.add_full_match_regex(value, |scope, pattern| scope.paths.push(pattern));
            } else if is_named(name, "headers") {
                items(Some(value)).iter().for_each(|matcher| inner.add_header_matcher(matcher));
            } else if !is_named(name, "case_sensitive") {
                inner.notes.push(format!(
                    "the route's `match.{name}` is not supported: this rule matches more requests"
                ));
            }
        }
        self.narrowed_by(&inner)
    }

    /// Adds a header matcher.
    pub(super) fn add_header_matcher(&mut self, matcher: &Node) {
        let name = field_text(matcher, "name").unwrap_or_default().to_ascii_lowercase();
        let inverted = is_true(matcher, "invert_match");
        let not_imported = |name: &str| {
            format!("the matcher of header `{name}` is not supported: this rule matches more requests")
        };
        let Some(pattern) = header_pattern(matcher, inverted) else {
            return self.notes.push(not_imported(&name));
        };
        let is_exact =
            !pattern.starts_with("\"~") && !pattern.starts_with("\"*") && !pattern.starts_with("\"!");
        match (name.as_str(), is_exact) {
            (":method", true) => self.methods.push(pattern),
            (":authority" | "host", _) if is_exact || pattern.starts_with("\"~") => self.hosts.push(pattern),
            (":path", true) => self.paths.push(pattern),
            (name, _) if name.starts_with(':') || name.is_empty() => self.notes.push(not_imported(name)),
            (name, _) if self.headers.iter().any(|(other, _)| other == name) => {
                self.notes.push(not_imported(name))
            }
            (name, _) => self.headers.push((name.to_owned(), pattern)),
        }
    }

    fn add_full_match_regex(&mut self, matcher: &Node, add: impl FnOnce(&mut Self, String)) {
        match field_text(matcher, "regex").filter(|text| regex::Regex::new(text).is_ok()) {
            Some(text) => add(self, regex_pattern(&format!("^(?:{text})$"))),
            None => self.notes.push("unsupported regex ignored: this rule matches more requests".to_owned()),
        }
    }
}

/// Returns the pattern of a header matcher, if a pattern can express it.
fn header_pattern(matcher: &Node, inverted: bool) -> Option<String> {
    if let Some(present) = field_text(matcher, "present_match") {
        return Some(scalar(if (present == "true") == inverted { "!present" } else { "*" }));
    }
    let string = get(matcher, "string_match");
    let fold = if string.is_some_and(|string| is_true(string, "ignore_case")) { "(?i)" } else { "" };
    let old = ["exact_match", "prefix_match", "suffix_match", "contains_match"];
    let new = ["exact", "prefix", "suffix", "contains"];
    let matcher_text = |at: usize| {
        string.and_then(|string| field_text(string, new[at])).or_else(|| field_text(matcher, old[at]))
    };
    let safe =
        string.and_then(|string| get(string, "safe_regex")).or_else(|| get(matcher, "safe_regex_match"));
    let escaped = |text: &str| regex::escape(text);
    let pattern = match (matcher_text(0), matcher_text(1), matcher_text(2), matcher_text(3), safe) {
        (Some(text), ..) if fold.is_empty() => exact_pattern(text),
        (Some(text), ..) => regex_pattern(&format!("{fold}^{}$", escaped(text))),
        (_, Some(text), ..) => regex_pattern(&format!("{fold}^{}", escaped(text))),
        (_, _, Some(text), ..) => regex_pattern(&format!("{fold}{}$", escaped(text))),
        (_, _, _, Some(text), _) => regex_pattern(&format!("{fold}{}", escaped(text))),
        (.., Some(safe)) => {
            let text = field_text(safe, "regex").filter(|text| regex::Regex::new(text).is_ok())?;
            regex_pattern(&format!("^(?:{text})$"))
        }
        // A name alone matches if the header is present.
        _ if fields(matcher).all(|(name, _)| is_named(name, "name") || is_named(name, "invert_match")) => {
            return Some(scalar(if inverted { "!present" } else { "*" }));
        }
        _ => return None,
    };
    (!inverted).then_some(pattern)
}

fn path_pattern(text: &str, fold: &str) -> String {
    if is_literal_path(text) && fold.is_empty() {
        return scalar(text);
    }
    regex_pattern(&format!("{fold}^{}$", regex::escape(text)))
}

fn subpath_pattern(text: &str, fold: &str) -> String {
    if is_literal_path(text) && fold.is_empty() {
        return scalar(&format!("{text}/*"));
    }
    regex_pattern(&format!("{fold}^{}/", regex::escape(text)))
}

/// Whether a path contains no characters that would make it a pattern in a rule.
fn is_literal_path(text: &str) -> bool {
    text.starts_with('/') && !text.contains(['*', '{', '}', '?', '#', '%'])
}

/// Formats a domain of a virtual host without its port, which rules ignore.
fn host_pattern(domain: &str) -> String {
    let name = match domain.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit() || byte == b'*') => name,
        _ => domain,
    };
    match name.find('*') {
        None => scalar(name),
        Some(0) if name.starts_with("*.") && !name[1..].contains('*') => scalar(name),
        Some(_) => {
            let parts: Vec<String> = name.split('*').map(regex::escape).collect();
            regex_pattern(&format!("^{}$", parts.join(".+")))
        }
    }
}

/// Formats networks as a list.
pub(super) fn format_networks(ranges: &[Node]) -> Vec<String> {
    let range = |range: &Node| {
        let address = field_text(range, "address_prefix")?;
        Some(scalar(&match field_text(range, "prefix_len") {
            Some(length) => format!("{address}/{length}"),
            None => address.to_owned(),
        }))
    };
    ranges.iter().filter_map(range).collect()
}
