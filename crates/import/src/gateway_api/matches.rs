//! A match of a rule of a route: its path, method, headers and parameters.

use super::super::ledger::{Ledger, Message};
use super::super::pattern::{is_literal_path, parse_regex};
use super::super::remark::{Effect, brief};
use super::super::rule_text::literal_pattern;
use super::super::scope::MatchField;
use super::super::selection::RequestSet;
use super::super::tree::{entries, field_text, get, items};
use weir_yaml::Node;

static MATCH: Message = Message {
    name: "a match of a route",
    read: &["path", "method", "headers"],
    lost: &[(
        "queryParams",
        Effect::Tighter,
        "rules do not match parameters of the query: they apply to any",
    )],
    other: &[],
};
static PATH: Message = Message { name: "a path", read: &["type", "value"], lost: &[], other: &[] };
static HEADER: Message =
    Message { name: "a header", read: &["type", "name", "value"], lost: &[], other: &[] };
static GRPC_METHOD: Message =
    Message { name: "a gRPC method", read: &["type", "service", "method"], lost: &[], other: &[] };

/// The specificity of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) enum PathRank {
    #[default]
    Any,
    /// A prefix of this length.
    Prefix(usize),
    /// A regex of this length.
    Regex(usize),
    Exact(usize),
}

/// A match, read.
#[derive(Debug, Default)]
pub(in super::super) struct RouteMatch<'n> {
    pub(in super::super) selection: RequestSet,
    pub(in super::super) path: PathRank,
    pub(in super::super) has_method: bool,
    pub(in super::super) headers: usize,
    pub(in super::super) parameters: usize,
    node: Option<&'n Node>,
    is_grpc: bool,
}

impl<'n> RouteMatch<'n> {
    /// Reads a match; one that is not given matches all requests.
    pub(in super::super) fn read(is_grpc: bool, node: Option<&'n Node>) -> Self {
        let mut matching = Self { selection: RequestSet::all(), node, is_grpc, ..Self::default() };
        let Some(node) = node else { return matching };
        if is_grpc {
            matching.read_grpc_method(node);
        } else {
            matching.read_path(node);
            matching.read_method(node);
        }
        let headers = items(get(node, "headers"));
        matching.headers = headers.len();
        headers.iter().for_each(|header| matching.narrow(&header_selection(header)));
        matching.parameters = items(get(node, "queryParams")).len();
        if matching.parameters > 0 {
            let text = "a match of the route has parameters of the query, which rules do not match";
            matching.selection.add(Effect::Tighter, text);
        }
        matching
    }

    fn narrow(&mut self, other: &RequestSet) {
        self.selection = self.selection.and(other);
    }

    fn read_path(&mut self, node: &Node) {
        let Some(path) = get(node, "path") else { return };
        let value = field_text(path, "value").unwrap_or("/");
        let kind = field_text(path, "type").unwrap_or("PathPrefix");
        self.path = match kind {
            "PathPrefix" if value == "/" => PathRank::Any,
            "PathPrefix" => PathRank::Prefix(value.trim_end_matches('/').len()),
            "Exact" => PathRank::Exact(value.len()),
            _ => PathRank::Regex(value.len()),
        };
        self.narrow(&path_selection(kind, value));
    }

    fn read_method(&mut self, node: &Node) {
        if let Some(method) = field_text(node, "method") {
            self.has_method = true;
            self.narrow(&RequestSet::matching(MatchField::Method, vec![method.to_owned()]));
        }
    }

    /// A call has the path `/SERVICE/METHOD`.
    fn read_grpc_method(&mut self, node: &Node) {
        let Some(call) = get(node, "method") else { return };
        let (service, method) = (field_text(call, "service"), field_text(call, "method"));
        let kind = field_text(call, "type").unwrap_or("Exact");
        let length = service.map_or(0, str::len) + method.map_or(0, str::len);
        self.path = if kind == "Exact" { PathRank::Exact(length) } else { PathRank::Regex(length) };
        let selection = match (kind, service, method) {
            ("Exact", Some(service), Some(method)) => {
                path_selection("Exact", &format!("/{service}/{method}"))
            }
            ("Exact", Some(service), None) => path_selection("PathPrefix", &format!("/{service}")),
            ("Exact", None, Some(method)) => regex_path(&format!("/[^/]+/{}", regex::escape(method))),
            (_, None, None) => RequestSet::all(),
            ("RegularExpression", service, method) => {
                regex_path(&format!("/(?:{})/(?:{})", service.unwrap_or("[^/]+"), method.unwrap_or("[^/]+")))
            }
            _ => RequestSet::unknown(format!("an unknown `type` of a gRPC method: {}", brief(kind))),
        };
        self.narrow(&selection);
    }

    /// Marks what the selection expresses.
    pub(in super::super) fn mark(&self, ledger: &Ledger) {
        let Some(node) = self.node else { return };
        ledger.message(node, &MATCH);
        if let Some(method) = get(node, "method") {
            if self.is_grpc {
                ledger.message(method, &GRPC_METHOD);
            }
            mark_parts(method, &["type", "service", "method"], ledger);
        }
        if let Some(path) = get(node, "path") {
            ledger.message(path, &PATH);
            mark_parts(path, &["type", "value"], ledger);
        }
        for header in items(get(node, "headers")) {
            ledger.message(header, &HEADER);
            mark_parts(header, &["type", "name", "value"], ledger);
        }
    }
}

/// Marks a scalar, or these fields of a map.
fn mark_parts(node: &Node, names: &[&str], ledger: &Ledger) {
    if entries(node).is_empty() {
        return ledger.use_all(node);
    }
    names.iter().filter_map(|name| get(node, name)).for_each(|value| ledger.use_all(value));
}

/// Returns the requests that a path of the Gateway API selects. A prefix ends with a segment.
pub(in super::super) fn path_selection(kind: &str, value: &str) -> RequestSet {
    match kind {
        "PathPrefix" => {
            let prefix = value.trim_end_matches('/');
            if prefix.is_empty() {
                return RequestSet::all();
            }
            let below = format!("{prefix}/");
            let below = match is_literal_path(prefix) {
                true => format!("{below}*"),
                false => format!("~^{}", regex::escape(&below)),
            };
            RequestSet::matching(MatchField::Path, vec![exact_path(prefix), below])
        }
        "Exact" => RequestSet::matching(MatchField::Path, vec![exact_path(value)]),
        "RegularExpression" => regex_path(value),
        _ => RequestSet::unknown(format!("an unknown `type` of a path, {}: {}", brief(kind), brief(value))),
    }
}

/// Returns the pattern of exactly this path.
pub(in super::super) fn exact_path(path: &str) -> String {
    if is_literal_path(path) { path.to_owned() } else { format!("~^{}$", regex::escape(path)) }
}

/// Returns the requests whose whole path a regex matches.
fn regex_path(regex: &str) -> RequestSet {
    let whole = format!("^(?:{regex})$");
    match parse_regex(&whole, false) {
        Some(_) => RequestSet::matching(MatchField::Path, vec![format!("~{whole}")]),
        None => RequestSet::unknown(format!("the regex of a path is not supported: {}", brief(regex))),
    }
}

/// Returns the requests that a matcher of a header selects: `type`, `name` and `value`.
fn header_selection(header: &Node) -> RequestSet {
    let name = field_text(header, "name").unwrap_or_default().to_ascii_lowercase();
    let value = field_text(header, "value").unwrap_or_default();
    if http::HeaderName::from_bytes(name.as_bytes()).is_err() {
        return RequestSet::unknown(format!("no name of a header: {}", brief(&name)));
    }
    let kind = field_text(header, "type").unwrap_or("Exact");
    match header_pattern(kind, value) {
        Some(pattern) => RequestSet::matching(MatchField::Header(name), vec![pattern]),
        None => RequestSet::unknown(format!(
            "a condition on the header `{name}` is not supported: {} {}",
            brief(kind),
            brief(value)
        )),
    }
}

/// Returns the pattern of a value that is compared as a text or as a regex of the whole.
pub(in super::super) fn header_pattern(kind: &str, value: &str) -> Option<String> {
    match kind {
        "Exact" => Some(literal_pattern(value)),
        "RegularExpression" => {
            let whole = format!("^(?:{value})$");
            parse_regex(&whole, false).map(|_| format!("~{whole}"))
        }
        _ => None,
    }
}
