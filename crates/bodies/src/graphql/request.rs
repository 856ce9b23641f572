//! The parts of a GraphQL request (GraphQL over HTTP): in a JSON body, or in the query of the URL.

use std::sync::LazyLock;

use crate::Unreadable;
use crate::fields::{FieldMask, FieldName, FieldSet, Record, Value};
use crate::form::FormReader;

/// A request with a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GraphqlRequest<'t> {
    pub(crate) query: &'t str,
    pub(crate) operation_name: Option<&'t str>,
    /// A JSON object.
    pub(crate) variables: Option<&'t str>,
}

/// Parameters of a URL that are parts of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UrlParameters(Record);

/// The three parameters, in this order.
static PARAMETERS: LazyLock<FieldSet> = LazyLock::new(|| {
    FieldSet::new(["query", "operationName", "variables"].map(|name| FieldName::Form(name.into())))
});

impl UrlParameters {
    /// Reads the query of a URL; `None` if it has none of the parameters.
    ///
    /// # Errors
    /// [`Unreadable::Duplicate`] if a parameter is stated twice.
    pub fn read(query: &str) -> Result<Option<Self>, Unreadable> {
        let mut reader = FormReader::new(FieldMask::ALL);
        reader.read(&PARAMETERS, query.as_bytes())?;
        let record = reader.finish(&PARAMETERS)?;
        Ok(record.iter().any(Option::is_some).then_some(Self(record)))
    }
}

impl<'t> GraphqlRequest<'t> {
    /// Returns the request that consists of these parts of a body and of the URL; `None` without a document, as for a persisted one. Empty
    /// texts are as good as absent.
    ///
    /// # Errors
    /// [`Unreadable::Duplicate`] if services may use one or the other of two.
    pub(crate) fn from_parts(
        body: [Option<&'t Value>; 3],
        url: Option<&'t UrlParameters>,
    ) -> Result<Option<Self>, Unreadable> {
        let text = |value: &'t Value| Some(&*value.text).filter(|text| !text.is_empty());
        let body = body.map(|part| part.and_then(text));
        let of_url = |part: usize| url.and_then(|url| text(url.0.get(part)?.as_ref()?));
        let one = |part: usize| match (body[part], of_url(part)) {
            (Some(one), Some(other)) if one != other => Err(Unreadable::Duplicate),
            (one, other) => Ok(one.or(other)),
        };
        let Some(query) = one(0)? else { return Ok(None) };
        // A service that reads only one of the places uses the defaults of the document if the variables are in the other.
        let lacks = |query: Option<&str>, own: Option<&str>, other: Option<&str>| {
            query.is_some() && own.is_none() && other.is_some()
        };
        if lacks(body[0], body[2], of_url(2)) || lacks(of_url(0), of_url(2), body[2]) {
            return Err(Unreadable::Duplicate);
        }
        Ok(Some(Self { query, operation_name: one(1)?, variables: one(2)? }))
    }
}
