//! The fields of a described body, read as those of a real one.

use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue};

use super::{ExplainContext, RequestDescription};
use weir_bodies::Unreadable;
use weir_bodies::coding::Coding;
use weir_bodies::computed;
use weir_bodies::fields::{FieldMask, Records};
use weir_bodies::graphql::UrlParameters;
use weir_bodies::reader::BodyReader;
use weir_policy::identify::body::{BodyFields, BodySettings, OnUnreadable};
use weir_policy::identify::identify;

/// Returns the fields that rules need of the body of `request`. Those of a malformed one are absent.
pub(super) fn read(request: &RequestDescription, context: &ExplainContext<'_>) -> BodyFields {
    let RequestDescription { method, uri, headers, peer, body, listener, .. } = request;
    let attributes = identify(method, uri, headers, *peer, &context.policy.identify, context.wall_clock);
    let (Some(settings), Ok(mut attributes)) = (&context.policy.bodies, attributes) else {
        return BodyFields::absent();
    };
    attributes.connection.listener = listener.as_deref();
    let body = body.as_deref().filter(|body| !body.is_empty());
    match context.policy.body_fields_needed(&attributes, body.is_some()) {
        Some(wanted) => {
            let read = read_needed(settings, wanted, uri.query(), headers, body.map(str::as_bytes));
            let size = body.filter(|_| read.is_ok()).map(|body| body.len() as u64);
            BodyFields { read, size, on_unreadable: settings.on_unreadable }
        }
        None => BodyFields::absent(),
    }
}

/// Returns a sentence about a body whose fields are unknown.
pub(super) fn problem(fields: &BodyFields) -> Option<String> {
    let reason = fields.read.as_ref().err()?;
    let consequence = match fields.on_unreadable {
        OnUnreadable::Deny => "rules that need its fields reject the request",
        OnUnreadable::Missing => "its fields count as absent",
    };
    Some(format!("unreadable: {reason}; {consequence}"))
}

fn read_needed(
    settings: &BodySettings,
    wanted: FieldMask,
    query: Option<&str>,
    headers: &HeaderMap,
    body: Option<&[u8]>,
) -> Result<Records, Unreadable> {
    let fields = &settings.fields;
    let query = query.filter(|_| fields.has_graphql(wanted));
    let url = query.map_or(Ok(None), UrlParameters::read)?;
    let Some(body) = body else { return computed::without_body(fields, wanted, url.as_ref()) };
    let values = |name| headers.get_all(name).iter().map(HeaderValue::as_bytes);
    let coding = Coding::from_values(values(CONTENT_ENCODING))?;
    let reader = BodyReader::new(fields, wanted, values(CONTENT_TYPE))?;
    read_body(reader, settings, coding, url.as_ref(), body)
}

fn read_body(
    mut reader: BodyReader,
    settings: &BodySettings,
    coding: Option<Coding>,
    url: Option<&UrlParameters>,
    body: &[u8],
) -> Result<Records, Unreadable> {
    let fields = &settings.fields;
    let (within, beyond) = body.split_at(body.len().min(settings.max));
    let known = match coding {
        Some(_) if !beyond.is_empty() => None,
        Some(coding) => {
            coding.decode(within, settings.max, |piece| reader.read(fields, piece))?;
            None
        }
        None => {
            reader.read(fields, within)?;
            reader.known(fields, url)?
        }
    };
    if known.is_none() && !beyond.is_empty() {
        return Err(Unreadable::TooLong);
    }
    reader.read(fields, beyond)?;
    let read = reader.finish(fields, url)?;
    Ok(known.unwrap_or(read))
}
