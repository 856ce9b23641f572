//! What the parsers of logs collect for rules: headers, and fields of bodies that `--field` names.
//!
//! Headers have known names in logs. Fields of bodies have none, so that a line never has one by accident.

use std::fmt;
use std::sync::Arc;

use http::HeaderName;

use super::record::{LoggedRequest, ParsedBlock};
use weir_bodies::fields::FieldName;
use weir_bodies::path::{Path, Step};
use weir_policy::engine::Policy;

/// Maximum index of an array in a path. The elements before it are written for every request.
const MAX_INDEX: u32 = 1023;

/// Names of headers, and behind them those of fields. Their positions are the numbers of logged values.
#[derive(Clone, Debug, Default)]
pub(super) struct CollectedNames {
    pub(super) headers: Vec<HeaderName>,
    pub(super) fields: Vec<FieldPlace>,
}

/// Where a field is in a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FieldPlace {
    /// In the JSON document of a request.
    Json(Arc<Path>),
    /// In the form of a request.
    Form(Arc<str>),
    /// In the JSON document of a response.
    Response(Arc<Path>),
}

impl CollectedNames {
    /// Returns the names that the rules of `policies` need, of which `headers` are known.
    pub(super) fn new<'p>(headers: Vec<HeaderName>, policies: impl Iterator<Item = &'p Policy>) -> Self {
        let mut fields = Vec::new();
        for place in policies.flat_map(places_of) {
            if !fields.contains(&place) {
                fields.push(place);
            }
        }
        Self { headers, fields }
    }

    /// Returns names of headers alone.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn of_headers<const N: usize>(headers: [&'static str; N]) -> Self {
        Self { headers: headers.map(HeaderName::from_static).into(), fields: Vec::new() }
    }

    /// Returns the number of a field.
    ///
    /// # Errors
    /// Which fields rules read instead.
    pub(super) fn number_of(&self, place: &FieldPlace) -> Result<u32, String> {
        let position = self.fields.iter().position(|known| known == place);
        position.map(|position| (self.headers.len() + position) as u32).ok_or_else(|| {
            let known: Vec<String> = self.fields.iter().map(ToString::to_string).collect();
            match known.split_last() {
                None => format!("no rule reads {place}, or any other field of bodies"),
                Some((last, [])) => format!("no rule reads {place}, but {last}"),
                Some((last, others)) => {
                    format!("no rule reads {place}, but {} and {last}", others.join(", "))
                }
            }
        })
    }

    /// Yields the fields of bodies that the log has of `request`, with their JSON; `None` for a field that the body did not have.
    pub(super) fn fields_of<'b>(
        &'b self,
        request: &LoggedRequest,
        block: &'b ParsedBlock,
    ) -> impl Iterator<Item = (&'b FieldPlace, Option<&'b str>)> {
        block.values_of(request).iter().filter_map(|logged| {
            let position = (logged.name as usize).checked_sub(self.headers.len())?;
            let place = self.fields.get(position)?;
            match logged.value.text(&block.data) {
                None => Some((place, None)),
                Some(json) => place.logged(json).map(|json| (place, Some(json))),
            }
        })
    }
}

/// Returns the places of all fields that the rules of a policy read.
pub(super) fn places_of(policy: &Policy) -> Vec<FieldPlace> {
    let requests = policy.bodies.iter().flat_map(|settings| settings.fields.fields());
    let responses = policy.response_fields.iter().flat_map(|fields| fields.set().fields());
    let of_responses = responses.filter_map(FieldPlace::of_response);
    requests.filter_map(FieldPlace::of_request).chain(of_responses).collect()
}

impl FieldPlace {
    /// Parses a name on the command line, such as `json:model`; `None` if it is another one.
    ///
    /// # Errors
    /// Why it names no place.
    pub(super) fn parse(name: &str) -> Option<Result<Self, String>> {
        let (kind, rest) = name.split_once(':')?;
        Some(match kind {
            "json" => parse_path(rest).map(Self::Json),
            "response_json" => parse_path(rest).map(Self::Response),
            "form" if rest.is_empty() => Err("expected the name of a field behind form:".to_owned()),
            "form" => Ok(Self::Form(rest.into())),
            _ => return None,
        })
    }

    /// Returns the place of a field of requests; `None` if it is computed from others.
    pub(super) fn of_request(field: &FieldName) -> Option<Self> {
        match field {
            FieldName::Json(path) | FieldName::JsonObject(path) | FieldName::JsonCount(path) => {
                Some(Self::Json(Arc::clone(path)))
            }
            FieldName::Form(name) => Some(Self::Form(Arc::clone(name))),
            FieldName::Graphql(_) => None,
        }
    }

    /// Returns the place of a field of responses.
    pub(super) fn of_response(field: &FieldName) -> Option<Self> {
        match field {
            FieldName::Json(path) | FieldName::JsonObject(path) => Some(Self::Response(Arc::clone(path))),
            FieldName::JsonCount(_) | FieldName::Form(_) | FieldName::Graphql(_) => None,
        }
    }

    /// Returns logged JSON as text, if it can be the value of such a field. The parser of lines does not check nested values.
    fn logged<'b>(&self, json: &'b [u8]) -> Option<&'b str> {
        let text = str::from_utf8(json).ok()?;
        serde_json::from_str::<serde::de::IgnoredAny>(text).ok()?;
        let is_nested = text.starts_with(['{', '[']);
        (!is_nested || !matches!(self, Self::Form(_))).then_some(text)
    }
}

fn parse_path(text: &str) -> Result<Arc<Path>, String> {
    let path: Path = text.parse().map_err(|error| format!("not a path: {error}"))?;
    let too_large = path.steps().iter().find_map(|step| match step {
        Step::Index(index) => Some(*index).filter(|index| *index > MAX_INDEX),
        Step::Key(_) => None,
    });
    match too_large {
        Some(index) => Err(format!("the index {index} is above {MAX_INDEX}")),
        None => Ok(Arc::new(path)),
    }
}

/// As on the command line.
impl fmt::Display for FieldPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Json(path) => write!(f, "json:{path}"),
            Self::Form(name) => write!(f, "form:{name}"),
            Self::Response(path) => write!(f, "response_json:{path}"),
        }
    }
}
