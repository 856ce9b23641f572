//! The clients that a rule selects, as conditions and as parts of a key.
//!
//! Envoy Gateway joins the selectors of a rule: headers and parameters of all of them must match, one of all methods
//! is enough, and of several paths or networks the last one counts.

use super::super::gateway_api::matches::{header_pattern, path_selection};
use super::super::ledger::Ledger;
use super::super::network::parse_network;
use super::super::remark::{Effect, brief};
use super::super::rule_text::{map, scalar};
use super::super::scope::MatchField;
use super::super::selection::RequestSet;
use super::super::tree::{field_text, get, is_true, items};
use super::messages;
use weir_yaml::Node;

/// The requests of a rule, and what they are counted by.
#[derive(Debug)]
pub(super) struct SelectedClients {
    pub(super) selection: RequestSet,
    pub(super) key: Vec<String>,
    /// Whether requests without a part of the key are in the selection.
    pub(super) may_lack_key: bool,
}

impl SelectedClients {
    /// Reads the selectors of a rule.
    pub(super) fn read(selectors: &[Node], ledger: &Ledger) -> Self {
        let mut clients = Self { selection: RequestSet::all(), key: Vec::new(), may_lack_key: false };
        let mut methods: Option<RequestSet> = None;
        let last = |name: &str| selectors.iter().filter_map(|selector| get(selector, name)).next_back();
        for selector in selectors {
            ledger.message(selector, &messages::SELECTOR);
            items(get(selector, "headers")).iter().for_each(|header| clients.add_header(header, ledger));
            for method in items(get(selector, "methods")) {
                let one = method_selection(method, ledger);
                methods = Some(methods.map_or_else(|| one.clone(), |methods| methods.or(&one)));
            }
            for name in ["path", "sourceCIDR"] {
                let given = get(selector, name)
                    .filter(|one| !last(name).is_some_and(|last| std::ptr::eq(last, *one)));
                given
                    .into_iter()
                    .for_each(|one| ledger.lose(one, Effect::None, "a later selector replaces it"));
            }
            items(get(selector, "queryParams")).iter().for_each(|one| clients.add_parameter(one, ledger));
        }
        methods.into_iter().for_each(|methods| clients.narrow(&methods));
        if let Some(path) = last("path") {
            clients.narrow(&inverted(path, path_condition(path, ledger)));
        }
        if let Some(source) = last("sourceCIDR") {
            clients.add_network(source, ledger);
        }
        clients
    }

    fn narrow(&mut self, other: &RequestSet) {
        self.selection = self.selection.and(other);
    }

    fn add_header(&mut self, header: &Node, ledger: &Ledger) {
        ledger.message(header, &messages::NAMED_MATCH);
        mark(header, &["type", "name", "value", "invert"], ledger);
        let name = field_text(header, "name").unwrap_or_default().to_ascii_lowercase();
        let kind = field_text(header, "type").unwrap_or("Exact");
        let value = field_text(header, "value");
        if http::HeaderName::from_bytes(name.as_bytes()).is_err() {
            let text = format!("a condition on `{}` is not supported", brief(&name));
            return self.narrow(&RequestSet::unknown(text));
        }
        let field = MatchField::Header(name.clone());
        match (kind, value) {
            ("Distinct", None) => {
                self.key.push(map([("header", scalar(&name))]));
                self.narrow(&RequestSet::matching(field, vec!["*".to_owned()]));
            }
            (kind, Some(value)) => {
                let condition = match header_pattern(kind, value) {
                    Some(pattern) => RequestSet::matching(field, vec![pattern]),
                    None => RequestSet::unknown(format!(
                        "a condition on the header `{name}` is not supported: {} {}",
                        brief(kind),
                        brief(value)
                    )),
                };
                self.narrow(&inverted(header, condition));
            }
            (kind, None) => {
                let text = format!("a condition on the header `{name}` has no value: {}", brief(kind));
                self.narrow(&RequestSet::unknown(text));
            }
        }
    }

    fn add_parameter(&mut self, parameter: &Node, ledger: &Ledger) {
        ledger.message(parameter, &messages::NAMED_MATCH);
        mark(parameter, &["type", "name", "value", "invert"], ledger);
        let name = field_text(parameter, "name").unwrap_or_default();
        match field_text(parameter, "type").unwrap_or("Exact") {
            "Distinct" => {
                self.key.push(map([("query", scalar(name))]));
                self.may_lack_key = true;
            }
            kind => {
                let value = field_text(parameter, "value").unwrap_or_default();
                let sign = if is_true(parameter, "invert") { "not " } else { "" };
                self.narrow(&RequestSet::unknown(format!(
                    "rules do not match the parameter `{}` of the query: {sign}{} {}",
                    brief(name),
                    brief(kind),
                    brief(value)
                )));
            }
        }
    }

    fn add_network(&mut self, source: &Node, ledger: &Ledger) {
        ledger.message(source, &messages::VALUE_MATCH);
        mark(source, &["type", "value", "invert"], ledger);
        let value = field_text(source, "value").unwrap_or_default();
        let condition = match parse_network(value) {
            Some((address, length)) => {
                RequestSet::matching(MatchField::ClientIp, vec![format!("{address}/{length}")])
            }
            None => RequestSet::unknown(format!("no network: {}", brief(value))),
        };
        self.narrow(&inverted(source, condition));
        match field_text(source, "type").unwrap_or("Exact") {
            "Exact" => {}
            "Distinct" => self.key.push(map([("client_ip", map([("prefix", "128")]))])),
            kind => {
                let text = format!("an unknown `type` of sourceCIDR, read as Exact: {}", brief(kind));
                self.selection.add(Effect::Differs, text);
            }
        }
    }
}

fn mark(node: &Node, names: &[&str], ledger: &Ledger) {
    names.iter().filter_map(|name| get(node, name)).for_each(|value| ledger.use_all(value));
}

fn inverted(node: &Node, selection: RequestSet) -> RequestSet {
    if is_true(node, "invert") { selection.inverse() } else { selection }
}

fn method_selection(method: &Node, ledger: &Ledger) -> RequestSet {
    ledger.message(method, &messages::METHOD);
    mark(method, &["value", "invert"], ledger);
    let name = field_text(method, "value").unwrap_or_default().to_owned();
    inverted(method, RequestSet::matching(MatchField::Method, vec![name]))
}

/// Returns the requests of a path. Envoy compares `:path`, which has the query.
fn path_condition(path: &Node, ledger: &Ledger) -> RequestSet {
    ledger.message(path, &messages::VALUE_MATCH);
    mark(path, &["type", "value", "invert"], ledger);
    let kind = field_text(path, "type").unwrap_or("PathPrefix");
    let mut selection = path_selection(kind, field_text(path, "value").unwrap_or("/"));
    if kind != "PathPrefix" && !selection.is_inexact() {
        selection.add(Effect::Differs, "Envoy compares the path with its query, a rule the path alone");
    }
    selection
}
