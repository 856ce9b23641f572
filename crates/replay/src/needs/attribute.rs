//! What a log may lack, how the report names it, and which option says where a log has it.

use std::fmt;

use http::HeaderName;
use http::header::COOKIE;

use super::recorded_header;
use crate::bodies::LoggedBodies;
use crate::collected::FieldPlace;
use crate::record::{LoggedRequest, ParsedBlock};
use weir_bodies::fields::{FieldIndex, FieldName};
use weir_policy::identify::body::{BodyField, RequestFields};
use weir_policy::identify::recorded::RecordedAddress;
use weir_policy::rules::attribute::{Attribute, AttributeSource};

/// An attribute that a log may lack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NeededAttribute {
    /// The address of the client.
    Client,
    Method,
    Host,
    /// The name of the listener.
    Listener,
    /// This request header.
    Header(HeaderName),
    /// The client's certificate.
    Certificate,
    /// Any of these fields of the request's body.
    Body(Box<[FieldPlace]>),
    /// A field that is computed from a GraphQL request.
    Graphql(FieldIndex),
    /// The size of the request's body.
    BodySize,
    /// Any of these fields of the response's body, or what all of them cost.
    ResponseBody(Box<[FieldPlace]>),
    ResponseHeader(HeaderName),
    /// The status of gRPC calls.
    CallStatus,
}

/// A line of a log, as far as attributes may be in it.
#[derive(Clone, Copy)]
pub(crate) struct LoggedLine<'a> {
    pub(crate) request: &'a LoggedRequest,
    pub(crate) block: &'a ParsedBlock,
    /// Headers that the parsers of the log collect.
    pub(crate) headers: &'a [HeaderName],
    pub(crate) bodies: &'a LoggedBodies,
    /// What rules know of the request's body.
    pub(crate) body: RequestFields<'a>,
}

impl NeededAttribute {
    /// Returns what a log must record for an attribute; `None` if every log records it.
    pub(super) fn of(attribute: &Attribute, token: Option<&HeaderName>) -> Option<Self> {
        if let Attribute::Body(field) = attribute {
            return Some(Self::of_fields(std::slice::from_ref(field)));
        }
        Some(match attribute.source() {
            AttributeSource::Client { .. }
            | AttributeSource::Location
            | AttributeSource::AutonomousSystem => Self::Client,
            AttributeSource::Plans(plans) => Self::of(&plans.attribute, token)?,
            AttributeSource::Header(name) => Self::Header(name.clone()),
            AttributeSource::Token => Self::Header(token.cloned().unwrap_or(COOKIE)),
            AttributeSource::Certificate(_) => Self::Certificate,
            AttributeSource::Listener => Self::Listener,
            // Proxied requests have no descriptor.
            AttributeSource::Body(_) | AttributeSource::Descriptor(_) => return None,
            AttributeSource::Head => match attribute.word() {
                "cookie" => Self::Header(COOKIE),
                "method" => Self::Method,
                "host" => Self::Host,
                _ => return None,
            },
        })
    }

    /// Returns what a log must record of any of these fields of requests.
    pub(super) fn of_fields(fields: &[BodyField]) -> Self {
        let computed = fields.iter().find(|field| matches!(field.field, FieldName::Graphql(_)));
        match computed {
            Some(field) => Self::Graphql(field.index),
            None => {
                Self::Body(fields.iter().filter_map(|field| FieldPlace::of_request(&field.field)).collect())
            }
        }
    }

    /// Returns what a log must record of any of these fields of responses.
    pub(super) fn of_response(fields: &[BodyField]) -> Self {
        Self::ResponseBody(fields.iter().filter_map(|field| FieldPlace::of_response(&field.field)).collect())
    }

    /// Returns the values of `--field` that say where a JSON log has it.
    pub(super) fn options(&self) -> Vec<String> {
        match self {
            Self::Client => vec!["client_ip=KEY".to_owned()],
            Self::Method => vec!["method=KEY".to_owned()],
            Self::Host => vec!["host=KEY".to_owned()],
            Self::Header(name) => vec![format!("header:{name}=KEY")],
            Self::Body(places) => places.iter().map(|place| format!("{place}=KEY")).collect(),
            Self::Graphql(_) => vec!["json:query=KEY".to_owned()],
            Self::BodySize => vec!["bytes_received=KEY".to_owned()],
            Self::ResponseBody(places) => {
                let stated = places.iter().map(|place| format!("{place}=KEY"));
                stated.chain(["cost=KEY".to_owned()]).collect()
            }
            Self::Listener | Self::Certificate | Self::ResponseHeader(_) | Self::CallStatus => Vec::new(),
        }
    }

    /// Whether the log records the attribute, be it absent.
    #[inline]
    pub(super) fn is_recorded(&self, line: LoggedLine<'_>) -> bool {
        let LoggedLine { request, block, headers, .. } = line;
        match self {
            Self::Client => request.address != RecordedAddress::Unknown,
            Self::Method => request.method.is_recorded(),
            Self::Host => request.host.is_recorded(),
            Self::Header(name) => recorded_header(name, request, block, headers).is_some(),
            Self::Body(places) => line.has_no_body() || line.has_any(places),
            Self::Graphql(index) => line.has_graphql(*index),
            Self::BodySize => request.received.is_some(),
            Self::ResponseBody(places) => match line.has_response() {
                true => line.has_any(places),
                false => request.cost.is_some(),
            },
            Self::Certificate | Self::Listener | Self::ResponseHeader(_) | Self::CallStatus => false,
        }
    }
}

impl LoggedLine<'_> {
    /// Whether the request had no body. That of a rejected request may not have been read.
    fn has_no_body(&self) -> bool {
        self.request.received == Some(0) && (200..400).contains(&self.request.status)
    }

    fn has_any(&self, places: &[FieldPlace]) -> bool {
        self.bodies.own_fields(self.block, self.request).any(|(place, _)| places.contains(place))
    }

    /// Whether the log has fields of the response's body, in which case it is settled by them.
    fn has_response(&self) -> bool {
        let mut fields = self.bodies.own_fields(self.block, self.request);
        fields.any(|(place, _)| matches!(place, FieldPlace::Response(_)))
    }

    /// Whether the GraphQL request is in the log, or its absence. It may be in the URL.
    fn has_graphql(&self, computed: FieldIndex) -> bool {
        let is_query =
            |place: &FieldPlace| matches!(place, FieldPlace::Json(path) if path.to_string() == "query");
        let is_measured = !matches!(self.body.field(computed), Ok(None));
        is_measured
            || self.has_no_body()
            || self.bodies.own_fields(self.block, self.request).any(|(place, _)| is_query(place))
    }
}

impl fmt::Display for NeededAttribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client => f.write_str("the client's address"),
            Self::Method => f.write_str("the method"),
            Self::Host => f.write_str("the host"),
            Self::Listener => f.write_str("the listener"),
            Self::Header(name) => write!(f, "header {name}"),
            Self::Certificate => f.write_str("the client's certificate"),
            Self::Body(places) => write!(f, "{} of the body", joined(places)),
            Self::Graphql(_) => f.write_str("the GraphQL request"),
            Self::BodySize => f.write_str("the size of the body"),
            Self::ResponseBody(places) => write!(f, "{} of the body of the response", joined(places)),
            Self::ResponseHeader(name) => write!(f, "response header {name}"),
            Self::CallStatus => f.write_str("the status of gRPC calls"),
        }
    }
}

/// Returns the fields of which one is needed, without the kind of their body.
fn joined(places: &[FieldPlace]) -> String {
    let names = places.iter().map(|place| match place {
        FieldPlace::Json(path) | FieldPlace::Response(path) => path.to_string(),
        FieldPlace::Form(name) => format!("form field {name}"),
    });
    names.collect::<Vec<_>>().join(" or ")
}
