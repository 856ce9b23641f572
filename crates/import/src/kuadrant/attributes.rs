//! Attributes of a request by their names in CEL, in conditions and counters.

use super::super::expression::Expression;
use super::super::gateway_api::matches::exact_path;
use super::super::network::parse_network;
use super::super::pattern::parse_regex;
use super::super::remark::Effect;
use super::super::rule_text::{literal_pattern, map, scalar};
use super::super::scope::MatchField;
use super::super::selection::RequestSet;

/// An attribute that rules know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RequestAttribute {
    /// The path; the original may have the query with it.
    Path {
        has_query: bool,
    },
    Host,
    Method,
    Header(String),
    /// The client's address; the original may have the port with it.
    ClientIp {
        has_port: bool,
    },
}

/// How an attribute is compared with a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    StartsWith,
    EndsWith,
    Contains,
    /// A regex that may match a part of the text.
    Matches,
}

impl RequestAttribute {
    /// Returns the attribute of an expression.
    pub(super) fn of(expression: &Expression) -> Option<Self> {
        Self::named(&expression.path()?)
    }

    /// Returns the attribute of a selector such as `request.headers.x-api-key`.
    pub(super) fn of_selector(selector: &str) -> Option<Self> {
        Self::named(&selector.split('.').collect::<Vec<_>>())
    }

    fn named(path: &[&str]) -> Option<Self> {
        Some(match path {
            ["request", "path"] => Self::Path { has_query: true },
            ["request", "url_path"] => Self::Path { has_query: false },
            ["request", "host"] => Self::Host,
            ["request", "method"] => Self::Method,
            ["request", "headers", name] => {
                let name = name.to_ascii_lowercase();
                http::HeaderName::from_bytes(name.as_bytes()).ok()?;
                Self::Header(name)
            }
            ["source", "address"] => Self::ClientIp { has_port: true },
            ["source", "remote_address"] => Self::ClientIp { has_port: false },
            _ => return None,
        })
    }

    /// Returns the part of a key, with what it counts differently.
    pub(super) fn key(&self) -> (String, Option<&'static str>) {
        match self {
            Self::Path { has_query } => {
                let text = "counts by path and query in Kuadrant, here by path";
                ("path".to_owned(), has_query.then_some(text))
            }
            Self::Host => ("host".to_owned(), None),
            Self::Method => ("method".to_owned(), None),
            Self::Header(name) => (map([("header", scalar(name))]), None),
            Self::ClientIp { has_port } => {
                let text = "counts by address and port in Kuadrant, here by address";
                (map([("client_ip", map([("prefix", "128")]))]), has_port.then_some(text))
            }
        }
    }

    /// Returns the requests in which the attribute compares so with the text; `None` if rules cannot express it.
    pub(super) fn selection(&self, comparison: Comparison, text: &str) -> Option<RequestSet> {
        let escaped = regex::escape(text);
        let regex = match comparison {
            Comparison::Equal => return self.equal(text),
            Comparison::StartsWith => format!("^{escaped}"),
            Comparison::EndsWith => format!("{escaped}$"),
            Comparison::Contains => escaped,
            Comparison::Matches => text.to_owned(),
        };
        parse_regex(&regex, false)?;
        let (field, has_query) = match self {
            Self::Path { has_query } => (MatchField::Path, *has_query),
            Self::Host => (MatchField::Host, false),
            Self::Header(name) => (MatchField::Header(name.clone()), false),
            Self::Method | Self::ClientIp { .. } => return None,
        };
        let pattern = match (&field, comparison, text.strip_suffix('/')) {
            (MatchField::Path, Comparison::StartsWith, Some("")) => return Some(RequestSet::all()),
            (MatchField::Path, Comparison::StartsWith, Some(folder)) if exact_path(folder) == folder => {
                format!("{text}*")
            }
            _ => format!("~{regex}"),
        };
        let mut selection = RequestSet::matching(field, vec![pattern]);
        if has_query && comparison != Comparison::StartsWith {
            note_query(&mut selection);
        }
        Some(selection)
    }

    fn equal(&self, text: &str) -> Option<RequestSet> {
        Some(match self {
            Self::Path { has_query } => {
                if text.contains('?') {
                    return None;
                }
                let mut selection = RequestSet::matching(MatchField::Path, vec![exact_path(text)]);
                if *has_query {
                    note_query(&mut selection);
                }
                selection
            }
            Self::Host => RequestSet::matching(MatchField::Host, vec![text.to_ascii_lowercase()]),
            Self::Method => RequestSet::matching(MatchField::Method, vec![text.to_owned()]),
            Self::Header(name) => {
                RequestSet::matching(MatchField::Header(name.clone()), vec![literal_pattern(text)])
            }
            Self::ClientIp { has_port: false } => {
                parse_network(text)?;
                RequestSet::matching(MatchField::ClientIp, vec![text.to_owned()])
            }
            Self::ClientIp { has_port: true } => return None,
        })
    }
}

fn note_query(selection: &mut RequestSet) {
    selection.add(Effect::Differs, "`request.path` has the query, and a rule compares the path alone");
}
