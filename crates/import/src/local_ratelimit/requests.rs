//! The requests that a part of Envoy's configuration applies to: virtual hosts, routes and matchers of headers as
//! conditions of a rule.

use super::super::ledger::{Ledger, flow_text};
use super::super::meet::{covers, may_meet, meet};
use super::super::pattern::{is_literal_path, parse_regex};
use super::super::remark::{Effect, Remark, brief, nearest};
use super::super::rule_text::literal_pattern;
use super::super::scope::{MatchField, Scope, ScopeCondition};
use super::super::tree::{as_bool, field_text, fields, get, is_named, is_true, items, scalar_text};
use super::messages;
use weir_yaml::Node;

/// The requests that a part applies to, as far as rules can express it.
#[derive(Clone, Debug, Default)]
pub(super) struct Requests<'n> {
    pub(super) scope: Scope,
    /// What the scope does not express.
    pub(super) remarks: Vec<Remark>,
    /// The values of the configuration that the scope expresses.
    nodes: Vec<&'n Node>,
}

impl<'n> Requests<'n> {
    /// Returns the requests in both; `None` if there are none.
    pub(super) fn and(&self, other: &Self) -> Option<Self> {
        let meeting = meet(&self.scope, &other.scope)?;
        let mut both = Self { scope: meeting.scope, ..self.clone() };
        for field in meeting.inexact {
            both.add(
                Effect::Tighter,
                format!("two conditions on the {} are needed, and one is here", name_of(&field)),
            );
        }
        other.remarks.iter().for_each(|remark| both.add_remark(remark.clone()));
        both.nodes.extend(&other.nodes);
        Some(both)
    }

    /// Excepts requests as far as one exception can; returns whether any are left.
    pub(super) fn except(&mut self, other: &Self) -> bool {
        if !may_meet(&self.scope, &other.scope) {
            return true;
        }
        if other.remarks.iter().any(Remark::is_warning) {
            self.add(
                Effect::Tighter,
                "requests with a limit of their own are not excepted, as rules cannot match them exactly: both apply",
            );
            return true;
        }
        if other.scope.conditions.is_empty() {
            return false;
        }
        let is_expressed = |inner: &Vec<ScopeCondition>| {
            self.scope.exceptions.contains(inner)
                || !may_meet(&self.scope, &Scope { conditions: inner.clone(), exceptions: Vec::new() })
        };
        let is_exact = other.scope.exceptions.iter().all(is_expressed);
        if covers(&other.scope.conditions, &self.scope) {
            if !is_exact {
                self.add(
                    Effect::Tighter,
                    "only requests of an earlier route or a more specific host are left: both apply",
                );
            }
            return !is_exact;
        }
        if !is_exact {
            self.add(
                Effect::Looser,
                "`except` also covers requests of an earlier route or a more specific host",
            );
        }
        self.except_conditions(&other.scope.conditions);
        self.nodes.extend(&other.nodes);
        true
    }

    /// Returns the requests that are not in `other`, in parts without a request in common.
    pub(super) fn without(&self, other: &Self) -> Vec<Self> {
        let conditions = Scope { conditions: other.scope.conditions.clone(), exceptions: Vec::new() };
        let is_excepted = |exception: &Vec<ScopeCondition>| covers(exception, &conditions);
        if !may_meet(&self.scope, &other.scope) || self.scope.exceptions.iter().any(is_excepted) {
            return vec![self.clone()];
        }
        if other.remarks.iter().any(Remark::is_warning) {
            let mut all = self.clone();
            return if all.except(other) { vec![all] } else { Vec::new() };
        }
        let mut parts = Vec::new();
        if !covers(&other.scope.conditions, &self.scope) {
            let mut outside = self.clone();
            outside.except_conditions(&other.scope.conditions);
            outside.nodes.extend(&other.nodes);
            parts.push(outside);
        }
        // What `other` excepts is not in it.
        for (index, exception) in other.scope.exceptions.iter().enumerate() {
            let excepted = Scope { conditions: exception.clone(), exceptions: Vec::new() };
            let inside = self.and(&Self { scope: conditions.clone(), ..Self::default() });
            let part = inside.and_then(|inside| inside.and(&Self { scope: excepted, ..Self::default() }));
            let Some(mut part) = part else { continue };
            let earlier = &other.scope.exceptions[..index];
            if earlier.iter().any(|earlier| covers(earlier, &part.scope)) {
                continue;
            }
            for earlier in earlier {
                let earlier = Scope { conditions: earlier.clone(), exceptions: Vec::new() };
                if may_meet(&part.scope, &earlier) {
                    part.except_conditions(&earlier.conditions);
                }
            }
            part.nodes.extend(&other.nodes);
            parts.push(part);
        }
        parts
    }

    fn except_conditions(&mut self, conditions: &[ScopeCondition]) {
        // What the rule requires anyway need not be in the exception.
        let new = |condition: &&ScopeCondition| !self.scope.conditions.contains(condition);
        let mut needed: Vec<ScopeCondition> = conditions.iter().filter(new).cloned().collect();
        if needed.is_empty() {
            needed = conditions.to_vec();
        }
        if !self.scope.exceptions.contains(&needed) {
            self.scope.exceptions.push(needed);
        }
    }

    pub(super) fn add(&mut self, effect: Effect, text: impl Into<String>) {
        self.add_remark(Remark::new(effect, text));
    }

    fn add_remark(&mut self, remark: Remark) {
        if !self.remarks.contains(&remark) {
            self.remarks.push(remark);
        }
    }

    pub(super) fn require(&mut self, field: MatchField, patterns: Vec<String>) {
        self.scope.require(field, patterns);
    }

    /// Marks the values that the scope expresses as used.
    pub(super) fn mark_used(&self, ledger: &Ledger) {
        self.nodes.iter().for_each(|node| ledger.use_all(node));
    }

    /// Returns the requests for the domains of a virtual host.
    pub(super) fn of_domains(domains: Option<&'n Node>) -> Self {
        let mut requests = Self { nodes: domains.into_iter().collect(), ..Self::default() };
        let texts: Vec<&str> = items(domains).iter().filter_map(scalar_text).collect();
        if texts.iter().any(|text| without_port(text) == "*") {
            return requests;
        }
        let mut hosts: Vec<String> = texts.into_iter().map(host_pattern).collect();
        // Domains may differ only in their ports.
        hosts.sort_unstable();
        requests.require(MatchField::Host, hosts);
        requests
    }

    /// Returns the requests that a route's `match` selects.
    pub(super) fn of_route(matching: &'n Node) -> Self {
        let mut requests = Self { nodes: vec![matching], ..Self::default() };
        let fold = if is_false(matching, "case_sensitive") { "(?i)" } else { "" };
        for (name, value) in fields(matching) {
            let given = scalar_text(value).unwrap_or_default();
            if is_named(name, "prefix") {
                if !matches!(given, "" | "/") {
                    requests.require(MatchField::Path, vec![format!("~{fold}^{}", regex::escape(given))]);
                }
            } else if is_named(name, "path") {
                requests.require(MatchField::Path, vec![path_pattern(given, fold)]);
            } else if is_named(name, "path_separated_prefix") {
                let below = format!("{given}/");
                let below = match is_literal_path(&below) && fold.is_empty() {
                    true => format!("{below}*"),
                    false => format!("~{fold}^{}", regex::escape(&below)),
                };
                requests.require(MatchField::Path, vec![path_pattern(given, fold), below]);
            } else if is_named(name, "safe_regex") && full_match(value).is_some() {
                requests.require(MatchField::Path, full_match(value).into_iter().collect());
            } else if is_named(name, "headers") {
                requests.add_header_matchers(items(Some(value)));
            } else if !is_named(name, "case_sensitive") {
                let given = brief(&flow_text(value));
                let why = why_not_matched(name);
                requests.add(Effect::Tighter, format!("`match.{name}` of the route is {why}: {given}"));
            }
        }
        requests
    }

    fn add_header_matchers(&mut self, matchers: &'n [Node]) {
        for matcher in matchers {
            let both = Self::of_header_matcher(matcher).and_then(|selected| self.and(&selected));
            match both {
                Some(both) => *self = both,
                None => self.add(
                    Effect::Tighter,
                    format!("a matcher of headers is not supported: {}", brief(&flow_text(matcher))),
                ),
            }
        }
    }

    /// Returns the requests that a matcher of a header selects; `None` if rules cannot express it.
    pub(super) fn of_header_matcher(matcher: &'n Node) -> Option<Self> {
        let mut requests = Self { nodes: vec![matcher], ..Self::default() };
        if is_true(matcher, "treat_missing_header_as_empty") {
            return None;
        }
        let name = field_text(matcher, "name")?.to_ascii_lowercase();
        // A matcher of absence is the inverse of one of presence.
        let is_inverted = is_true(matcher, "invert_match") != is_false(matcher, "present_match");
        let field = match name.as_str() {
            ":path" => MatchField::Path,
            ":method" => MatchField::Method,
            ":authority" | "host" => MatchField::Host,
            name if name.starts_with(':') => return None,
            name => MatchField::Header(name.to_owned()),
        };
        let test = HeaderTest::parse(matcher)?;
        if test == HeaderTest::Present {
            let MatchField::Header(_) = field else { return (!is_inverted).then_some(requests) };
            requests.require(field, vec![if is_inverted { "!present" } else { "*" }.to_owned()]);
            return Some(requests);
        }
        let pattern = test.pattern(&field)?;
        if field == MatchField::Path && !matches!(test, HeaderTest::Prefix(..)) {
            requests.add(Effect::Differs, "Envoy compares `:path` with its query, a rule the path alone");
        }
        if is_inverted {
            if let MatchField::Header(_) = field {
                requests.require(field.clone(), vec!["*".to_owned()]);
            }
            requests.scope.except(field, vec![pattern]);
        } else {
            requests.require(field, vec![pattern]);
        }
        Some(requests)
    }
}

/// How a header is compared.
#[derive(Clone, Debug, PartialEq, Eq)]
enum HeaderTest {
    Present,
    /// The text, and whether case is ignored; also of the next three.
    Exact(String, bool),
    Prefix(String, bool),
    Suffix(String, bool),
    Contains(String, bool),
    /// A regex of the whole value, as a pattern.
    Regex(String),
}

impl HeaderTest {
    fn parse(matcher: &Node) -> Option<Self> {
        let is_plain = |name: &str| {
            ["name", "invert_match", "treat_missing_header_as_empty"]
                .iter()
                .any(|known| is_named(name, known))
        };
        let mut tests = fields(matcher).filter(|(name, _)| !is_plain(name));
        // A name alone matches if the header is present.
        let Some((name, value)) = tests.next() else { return Some(Self::Present) };
        if tests.next().is_some() {
            return None;
        }
        if is_named(name, "present_match") {
            return as_bool(value).map(|_| Self::Present);
        }
        if is_named(name, "string_match") {
            let is_folded = is_true(value, "ignore_case");
            let mut tests = fields(value).filter(|(name, _)| !is_named(name, "ignore_case"));
            let (name, value) = tests.next()?;
            return tests.next().is_none().then(|| Self::of_text(name, value, is_folded))?;
        }
        let name = ["exact_match", "prefix_match", "suffix_match", "contains_match", "safe_regex_match"]
            .into_iter()
            .find(|known| is_named(name, known))?;
        Self::of_text(name.strip_suffix("_match")?, value, false)
    }

    fn of_text(name: &str, value: &Node, is_folded: bool) -> Option<Self> {
        if is_named(name, "safe_regex") {
            return full_match(value).map(Self::Regex);
        }
        let text = scalar_text(value)?.to_owned();
        match name {
            "exact" => Some(Self::Exact(text, is_folded)),
            "prefix" => Some(Self::Prefix(text, is_folded)),
            "suffix" => Some(Self::Suffix(text, is_folded)),
            "contains" => Some(Self::Contains(text, is_folded)),
            _ => None,
        }
    }

    fn pattern(&self, field: &MatchField) -> Option<String> {
        let is_path = *field == MatchField::Path;
        let folded = |fold: &bool| if *fold { "(?i)" } else { "" };
        Some(match self {
            Self::Present => return None,
            // A rule's path has no query.
            Self::Exact(text, _) | Self::Prefix(text, _) if is_path && text.contains('?') => return None,
            Self::Exact(text, fold) if is_path => path_pattern(text, folded(fold)),
            Self::Exact(text, _) if *field == MatchField::Host => host_pattern(text),
            Self::Exact(text, false) if *field == MatchField::Method => text.clone(),
            Self::Exact(text, false) => literal_pattern(text),
            _ if *field == MatchField::Method => return None,
            Self::Exact(text, _) => format!("~(?i)^{}$", regex::escape(text)),
            Self::Prefix(text, fold) => format!("~{}^{}", folded(fold), regex::escape(text)),
            Self::Suffix(text, fold) => format!("~{}{}$", folded(fold), regex::escape(text)),
            Self::Contains(text, fold) => format!("~{}{}", folded(fold), regex::escape(text)),
            Self::Regex(pattern) => pattern.clone(),
        })
    }
}

/// Says of a field of a route's `match` why rules do not have it.
fn why_not_matched(name: &str) -> String {
    let known = || messages::UNSUPPORTED_ROUTE_MATCH.into_iter().chain(messages::ROUTE_MATCH);
    if known().any(|known| is_named(name, known)) {
        return "not supported".to_owned();
    }
    let hint = nearest(name, known()).map(|near| format!(", did you mean `{near}`?"));
    format!("unknown{}", hint.unwrap_or_default())
}

fn is_false(node: &Node, name: &str) -> bool {
    get(node, name).and_then(as_bool) == Some(false)
}

fn name_of(field: &MatchField) -> String {
    match field {
        MatchField::Host => "host".to_owned(),
        MatchField::Path => "path".to_owned(),
        MatchField::Method => "method".to_owned(),
        MatchField::ClientIp => "client's address".to_owned(),
        MatchField::Header(name) => format!("header `{name}`"),
    }
}

/// Returns the pattern of a regex that must match the whole value.
fn full_match(matcher: &Node) -> Option<String> {
    let text = field_text(matcher, "regex")?;
    parse_regex(&format!("^(?:{text})$"), false)?;
    Some(format!("~^(?:{text})$"))
}

fn path_pattern(text: &str, fold: &str) -> String {
    if is_literal_path(text) && fold.is_empty() {
        text.to_owned()
    } else {
        format!("~{fold}^{}$", regex::escape(text))
    }
}

fn without_port(domain: &str) -> &str {
    match domain.rsplit_once(':') {
        Some((name, port))
            if !name.ends_with(':') && port.bytes().all(|byte| byte.is_ascii_digit() || byte == b'*') =>
        {
            name
        }
        _ => domain,
    }
}

/// Returns the pattern for a domain, without its port, which rules ignore.
pub(super) fn host_pattern(domain: &str) -> String {
    let name = without_port(domain);
    match name.find('*') {
        None => name.to_owned(),
        Some(0) if name.starts_with("*.") && !name[1..].contains('*') => name.to_owned(),
        Some(_) => {
            let parts: Vec<String> = name.split('*').map(regex::escape).collect();
            format!("~^{}$", parts.join(".+"))
        }
    }
}
