//! Fields of a request's body, for rules that read them: the beginning of the body is held until they are known.

mod beginning;
mod held_body;

use std::rc::Rc;
use std::sync::Arc;

use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, request};

use self::beginning::Beginning;
pub(super) use self::held_body::HeldBody;
use self::held_body::{HeldBeginning, RestReader};
use super::body::DownstreamBody;
use super::failure::ForwardFailure;
use super::local_reply::PendingBody;
use super::request_context::RequestContext;
use super::timeouts::UploadTimer;
use weir_bodies::Unreadable;
use weir_bodies::coding::Coding;
use weir_bodies::computed;
use weir_bodies::fields::{FieldMask, Records, size_of_records};
use weir_bodies::graphql::UrlParameters;
use weir_bodies::reader::BodyReader;
use weir_policy::engine::Policy;
use weir_policy::identify::Attributes;
use weir_policy::identify::body::{BodyFields, BodySettings};

/// Why the fields of a body are not read.
pub(super) enum NotRead {
    /// There is no memory for what would be held.
    Shed,
    /// The client stops sending the request.
    Failed(ForwardFailure),
}

impl From<ForwardFailure> for NotRead {
    fn from(failure: ForwardFailure) -> Self {
        Self::Failed(failure)
    }
}

/// Returns the fields without which it is unclear which rules apply to the request; `None` if there are none. What a tunnel carries is no
/// body. A GraphQL request may be in the URL.
pub(super) fn needed(
    context: &RequestContext,
    policy: &Policy,
    unread: &PendingBody,
    attributes: &Attributes<'_>,
) -> Option<FieldMask> {
    policy.body_fields_needed(attributes, has_body(context, unread))
}

/// Whether what follows the head is the content of the request.
fn has_body(context: &RequestContext, unread: &PendingBody) -> bool {
    !unread.is_empty() && !context.upgrade.is_by_connect()
}

/// Reads the beginning of the body until the fields `wanted` are known or cannot be known. Returns them; what was read is then a part of
/// the body again.
///
/// # Errors
/// Why they are not read.
pub(super) async fn read(
    context: &mut RequestContext,
    settings: &Arc<BodySettings>,
    wanted: FieldMask,
    head: &request::Parts,
    unread: &mut PendingBody,
) -> Result<BodyFields, NotRead> {
    let has_body = has_body(context, unread);
    let read = match (url_parameters(settings, wanted, head), reader(settings, wanted, &head.headers)) {
        (Err(reason), _) => Err(reason),
        (Ok(url), _) if !has_body => {
            computed::without_body(&settings.fields, wanted, url.as_ref()).map(|records| (records, Some(0)))
        }
        (_, Err(reason)) => Err(reason),
        (Ok(url), Ok((reader, coding))) => {
            let mut beginning = Beginning::new(reader, coding, url, settings);
            match beginning.known() {
                Ok(Some(records)) => {
                    HeldBody::watch(rest_reader(beginning, context, settings), &mut unread.body);
                    Ok((records, None))
                }
                _ => read_with(beginning, context, settings, &mut unread.body).await?,
            }
        }
    };
    if let Err(reason) = &read {
        context.connection.worker.metrics.record_unreadable_body(*reason);
    }
    let size = read.as_ref().ok().and_then(|(_, size)| *size);
    Ok(BodyFields { read: read.map(|(records, _)| records), size, on_unreadable: settings.on_unreadable })
}

/// Returns the parameters of the URL on which the fields `wanted` depend.
fn url_parameters(
    settings: &BodySettings,
    wanted: FieldMask,
    head: &request::Parts,
) -> Result<Option<UrlParameters>, Unreadable> {
    let query = head.uri.query().filter(|_| settings.fields.has_graphql(wanted));
    query.map_or(Ok(None), UrlParameters::read)
}

/// Returns a reader of the fields `wanted`, and how the body is compressed.
fn reader(
    settings: &BodySettings,
    wanted: FieldMask,
    headers: &HeaderMap,
) -> Result<(BodyReader, Option<Coding>), Unreadable> {
    let values = |name| headers.get_all(name).iter().map(HeaderValue::as_bytes);
    let coding = Coding::from_values(values(CONTENT_ENCODING))?;
    Ok((BodyReader::new(&settings.fields, wanted, values(CONTENT_TYPE))?, coding))
}

/// Returns what reads on behind the beginning.
fn rest_reader(
    beginning: Beginning<'_>,
    context: &RequestContext,
    settings: &Arc<BodySettings>,
) -> RestReader {
    let metrics = Rc::clone(&context.connection.worker.metrics);
    RestReader { reader: beginning.into_reader(), settings: Arc::clone(settings), metrics }
}

/// Reads the body with the reader of its beginning, and holds what it has read.
async fn read_with(
    mut beginning: Beginning<'_>,
    context: &mut RequestContext,
    settings: &Arc<BodySettings>,
    body: &mut DownstreamBody,
) -> Result<Result<(Records, Option<u64>), Unreadable>, NotRead> {
    let queues = context.connection.worker.shared.limiter.queues();
    let mut held = HeldBeginning::new(queues, settings.max, body).ok_or(NotRead::Shed)?;
    let timer = UploadTimer::start(&context.timer);
    let mut rest = None;
    let read = loop {
        let Some(data) = held.next_data(&context.timer, &timer).await? else {
            break beginning.end(held.data());
        };
        let read = beginning.read(held.keep(&data));
        if !held.covers(beginning.kept_size()) {
            *body = held.into_body(None);
            return Err(NotRead::Shed);
        }
        match read {
            Ok(None) => {}
            Ok(Some(records)) if held.is_whole() => break beginning.end_known(records),
            Ok(Some(records)) => {
                rest = Some(rest_reader(beginning, context, settings));
                break Ok((records, None));
            }
            Err(reason) => break Err(reason),
        }
    };
    let has_room = read.as_ref().map_or(true, |(records, _)| held.covers(size_of_records(records)));
    *body = held.into_body(rest);
    if has_room { Ok(read) } else { Err(NotRead::Shed) }
}

/// Stops reading what follows a beginning that was read for rules which no longer apply.
pub(super) fn stop_watching(body: &mut DownstreamBody) {
    if let DownstreamBody::Held(held) = body {
        held.stop_watching();
    }
}
