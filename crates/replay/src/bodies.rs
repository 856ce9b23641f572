//! Bodies of logged requests and responses, as far as the log has their fields.
//!
//! The fields become a body, which the readers of real ones read. So a number has the spelling that it has in live keys, and
//! a GraphQL request is measured.

mod document;

use std::sync::Arc;

use self::document::{DocumentWriter, FormWriter};
use super::arrival::LoggedArrival;
use super::collected::{CollectedNames, FieldPlace, places_of};
use super::record::{LoggedRequest, ParsedBlock};
use weir_bodies::fields::{FieldMask, FieldSet, Records};
use weir_bodies::graphql::UrlParameters;
use weir_bodies::reader::BodyReader;
use weir_bodies::response::{LatestValues, ResponseReader};
use weir_bodies::{Unreadable, computed};
use weir_policy::engine::Policy;
use weir_policy::identify::Attributes;
use weir_policy::identify::body::BodyFields;

const JSON: &[u8] = b"application/json";
const FORM: &[u8] = b"application/x-www-form-urlencoded";

/// Reads the fields that the rules of one policy need.
#[derive(Debug, Default)]
pub(super) struct LoggedBodies {
    collected: Arc<CollectedNames>,
    /// Fields that these rules read. The log may be replayed with other rules, too.
    own: Box<[FieldPlace]>,
}

/// What a log has of the body of a request.
#[derive(Debug, Default)]
struct LoggedBody<'b> {
    document: DocumentWriter<'b>,
    form: FormWriter<'b>,
}

impl LoggedBodies {
    /// Creates a reader for the rules of `policy`.
    pub(super) fn new(policy: &Policy, collected: &Arc<CollectedNames>) -> Self {
        Self { collected: Arc::clone(collected), own: places_of(policy).into() }
    }

    /// Returns the fields of a request's body that its rules need.
    pub(super) fn of_request(
        &self,
        arrival: &LoggedArrival<'_>,
        attributes: &Attributes<'_>,
        policy: &Policy,
    ) -> BodyFields {
        let Some(settings) = &policy.bodies else { return BodyFields::absent() };
        let body = self.logged_body(arrival);
        match policy.body_fields_needed(attributes, !body.is_empty()) {
            Some(wanted) => BodyFields {
                read: body.read(&settings.fields, wanted, attributes.query),
                size: arrival.request.received,
                on_unreadable: settings.on_unreadable,
            },
            None => BodyFields::absent(),
        }
    }

    /// Returns the numbers that state the cost of a response; `None` if the log has none of them.
    pub(super) fn of_response(
        &self,
        block: &ParsedBlock,
        request: &LoggedRequest,
        policy: &Policy,
    ) -> Option<Box<LatestValues>> {
        let fields = policy.response_fields.as_ref()?;
        let (mut document, mut is_logged) = (DocumentWriter::default(), false);
        for (place, json) in self.own_fields(block, request) {
            let FieldPlace::Response(path) = place else { continue };
            is_logged = true;
            json.into_iter().for_each(|json| document.add(path, json));
        }
        if !is_logged {
            return None;
        }
        let mut reader = ResponseReader::new(fields, Some(JSON), None).ok()?;
        reader.read(&document.write());
        reader.end().ok().cloned().map(Box::new)
    }

    fn logged_body<'b>(
        &'b self,
        &LoggedArrival { block, request, .. }: &LoggedArrival<'b>,
    ) -> LoggedBody<'b> {
        let mut body = LoggedBody::default();
        for (place, json) in self.own_fields(block, request) {
            match (place, json) {
                (FieldPlace::Json(path), Some(json)) => body.document.add(path, json),
                (FieldPlace::Form(name), Some(json)) => body.form.add(name, json),
                (FieldPlace::Response(_), _) | (_, None) => {}
            }
        }
        body
    }

    /// Yields the fields of bodies that the log has of `request` and its rules read, with their JSON; `None` for a field
    /// that the body did not have.
    pub(super) fn own_fields<'b>(
        &'b self,
        block: &'b ParsedBlock,
        request: &LoggedRequest,
    ) -> impl Iterator<Item = (&'b FieldPlace, Option<&'b str>)> {
        self.collected.fields_of(request, block).filter(|(place, _)| self.own.contains(place))
    }
}

impl LoggedBody<'_> {
    const fn is_empty(&self) -> bool {
        self.document.is_empty() && self.form.is_empty()
    }

    /// Reads fields. If a line has fields of both kinds of bodies, those of both count.
    fn read(&self, fields: &FieldSet, wanted: FieldMask, query: Option<&str>) -> Result<Records, Unreadable> {
        let query = query.filter(|_| fields.has_graphql(wanted));
        let url = query.map_or(Ok(None), UrlParameters::read)?;
        // A body of one kind alone is read in any case: for rules that want the other one, it is unreadable.
        let has_json = !self.document.is_empty() && (self.form.is_empty() || fields.has_json(wanted));
        let has_form = !self.form.is_empty() && (self.document.is_empty() || fields.has_forms(wanted));
        let read = |content_type, content: &[u8]| {
            let mut reader = BodyReader::new(fields, wanted, Some(content_type))?;
            reader.read(fields, content)?;
            reader.finish(fields, url.as_ref())
        };
        let form = has_form.then(|| read(FORM, self.form.write().as_bytes())).transpose()?;
        let json = has_json.then(|| read(JSON, &self.document.write())).transpose()?;
        match (json, form) {
            (Some(mut json), Some(form)) => {
                for (value, of_form) in json.iter_mut().flatten().zip(form.into_iter().flatten()) {
                    *value = value.take().or(of_form);
                }
                Ok(json)
            }
            (Some(records), None) | (None, Some(records)) => Ok(records),
            (None, None) => computed::without_body(fields, wanted, url.as_ref()),
        }
    }
}
