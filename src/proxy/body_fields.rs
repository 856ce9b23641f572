//! Fields of a request's body, for rules that read them: the beginning of the body is held until they are known.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, request};
use hyper::body::{Body, Frame, SizeHint};

use super::body::{DownstreamBody, DownstreamBodyError};
use super::failure::ForwardFailure;
use super::local_reply::PendingBody;
use super::request_context::RequestContext;
use super::timeouts::UploadTimer;
use weir_bodies::Unreadable;
use weir_bodies::coding::Coding;
use weir_bodies::computed;
use weir_bodies::fields::{FieldMask, Records};
use weir_bodies::graphql::UrlParameters;
use weir_bodies::reader::BodyReader;
use weir_bodies::usage_option::{self, Edit};
use weir_limiter::wait_queue::WaitingMemory;
use weir_policy::engine::Policy;
use weir_policy::identify::Attributes;
use weir_policy::identify::body::{BodyFields, BodySettings};
use weir_telemetry::metrics::WorkerMetrics;

/// What a held body takes in addition to its bytes.
const FIXED_SIZE: usize = 2 * 1024;

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

/// A body whose beginning has been read.
#[derive(Debug)]
pub(super) struct HeldBody {
    frames: VecDeque<Frame<Bytes>>,
    /// Counts what is held, until it has been passed on.
    memory: Option<WaitingMemory>,
    rest: DownstreamBody,
    /// Reads on, because the rest may state a field again. Such a request does not reach the upstream whole.
    reader: Option<RestReader>,
}

/// Reads the rest of a body whose fields are known.
#[derive(Debug)]
struct RestReader {
    reader: BodyReader,
    settings: Arc<BodySettings>,
    metrics: Rc<WorkerMetrics>,
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
            let beginning = Beginning { reader, coding, url, settings, size: 0 };
            match beginning.known() {
                Ok(Some(records)) => {
                    watch(beginning.into_rest(context), &mut unread.body);
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
    let content_type = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let coding = Coding::from_values(headers.get_all(CONTENT_ENCODING).iter().map(HeaderValue::as_bytes))?;
    Ok((BodyReader::new(&settings.fields, wanted, content_type)?, coding))
}

/// Makes `body` one whose fields are known before its first byte.
fn watch(reader: RestReader, body: &mut DownstreamBody) {
    let rest = std::mem::replace(body, DownstreamBody::None);
    let held = HeldBody { frames: VecDeque::new(), memory: None, rest, reader: Some(reader) };
    *body = DownstreamBody::Held(Box::new(held));
}

async fn read_with(
    mut beginning: Beginning<'_>,
    context: &mut RequestContext,
    settings: &Arc<BodySettings>,
    body: &mut DownstreamBody,
) -> Result<Result<(Records, Option<u64>), Unreadable>, NotRead> {
    let length = body.size_hint().exact().and_then(|length| usize::try_from(length).ok());
    let memory = length.unwrap_or(usize::MAX).min(settings.max).saturating_add(FIXED_SIZE);
    let memory =
        context.connection.worker.shared.limiter.queues().take_memory(memory).ok_or(NotRead::Shed)?;
    let timer = UploadTimer::start(&context.timer);
    let rest = std::mem::replace(body, DownstreamBody::None);
    let mut held = HeldBody { frames: VecDeque::new(), memory: Some(memory), rest, reader: None };
    let records = loop {
        let frame = poll_fn(|cx| {
            let polled = Pin::new(&mut held.rest).poll_frame(cx);
            if polled.is_pending() {
                timer.data_awaited();
            }
            polled
        });
        let frame = context.timer.limit(pin!(frame)).await.map_err(ForwardFailure::from)?;
        let frame = frame.transpose().map_err(|_| ForwardFailure::BrokenRequest)?;
        // Trailers end a body as well.
        let Some(data) = frame.as_ref().and_then(Frame::data_ref) else {
            held.frames.extend(frame);
            break beginning.end(&held.frames);
        };
        timer.received(data.len() as u64);
        let read = beginning.read(data);
        held.frames.extend(frame);
        match read {
            Ok(None) => {}
            Ok(Some(records)) => {
                held.reader = Some(beginning.into_rest(context));
                break Ok((records, None));
            }
            Err(reason) => break Err(reason),
        }
    };
    *body = DownstreamBody::Held(Box::new(held));
    Ok(records)
}

/// The beginning of a body, of which at most [`BodySettings::max`] bytes are read.
struct Beginning<'s> {
    reader: BodyReader,
    coding: Option<Coding>,
    url: Option<UrlParameters>,
    settings: &'s Arc<BodySettings>,
    size: usize,
}

impl Beginning<'_> {
    /// Returns the fields if they are known by what has been read.
    fn known(&self) -> Result<Option<Records>, Unreadable> {
        self.reader.known(&self.settings.fields, self.url.as_ref())
    }

    /// Returns what reads on behind it.
    fn into_rest(self, context: &RequestContext) -> RestReader {
        let metrics = Rc::clone(&context.connection.worker.metrics);
        RestReader { reader: self.reader, settings: Arc::clone(self.settings), metrics }
    }

    /// Reads the next piece. Returns the fields once all of them are known; then, the whole piece has been read.
    fn read(&mut self, piece: &[u8]) -> Result<Option<Records>, Unreadable> {
        let Self { reader, coding, settings, size, .. } = self;
        let (within, beyond) = piece.split_at(piece.len().min(settings.max - *size));
        *size += within.len();
        // A compressed body is read whole, because its content may be much longer than what has arrived.
        if coding.is_none() {
            reader.read(&settings.fields, within)?;
            if let Some(records) = reader.known(&settings.fields, self.url.as_ref())? {
                return reader.read(&settings.fields, beyond).map(|()| Some(records));
            }
        }
        if beyond.is_empty() { Ok(None) } else { Err(Unreadable::TooLong) }
    }

    /// Returns the fields of a body that consists of these frames.
    fn end(mut self, frames: &VecDeque<Frame<Bytes>>) -> Result<(Records, Option<u64>), Unreadable> {
        let fields = &self.settings.fields;
        if let Some(coding) = self.coding {
            let data: Vec<&[u8]> = frames.iter().filter_map(|frame| Some(&**frame.data_ref()?)).collect();
            let content = coding.decode(&data.concat(), self.settings.max)?;
            self.reader.read(fields, &content)?;
            self.size = content.len();
        }
        let size = self.size as u64;
        self.reader.finish(fields, self.url.as_ref()).map(|records| (records, Some(size)))
    }
}

impl HeldBody {
    /// Makes a request for a stream of OpenAI's format ask for its usage, whose head has these `headers`. A compressed body stays as it is.
    pub(super) fn include_usage(&mut self, headers: &mut HeaderMap) {
        if headers.contains_key(CONTENT_ENCODING) {
            return;
        }
        let data: Vec<&[u8]> = self.frames.iter().filter_map(|frame| Some(&**frame.data_ref()?)).collect();
        let data = data.concat();
        let Some(Edit { range, text }) = usage_option::include_usage(&data) else { return };
        let data = [&data[..range.start], text.as_bytes(), &data[range.end..]].concat();
        self.frames.retain(|frame| !frame.is_data());
        self.frames.push_front(Frame::data(data.into()));
        if headers.contains_key(CONTENT_LENGTH)
            && let Some(length) = self.size_hint().exact()
        {
            headers.insert(CONTENT_LENGTH, length.into());
        }
    }

    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, DownstreamBodyError>>> {
        if let Some(frame) = self.frames.pop_front() {
            if self.frames.is_empty() {
                self.memory = None;
            }
            return Poll::Ready(Some(Ok(frame)));
        }
        let polled = ready!(Pin::new(&mut self.rest).poll_frame(cx));
        if let (Some(Ok(frame)), Some(RestReader { reader, settings, metrics })) = (&polled, &mut self.reader)
            && let Some(data) = frame.data_ref()
            && let Err(reason) = reader.read(&settings.fields, data)
        {
            metrics.record_unreadable_body(reason);
            self.reader = None;
            let error = io::Error::new(io::ErrorKind::InvalidData, reason);
            return Poll::Ready(Some(Err(error.into())));
        }
        Poll::Ready(polled)
    }

    pub(super) fn is_end_stream(&self) -> bool {
        self.frames.is_empty() && self.rest.is_end_stream()
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        let held = self.frames.iter().filter_map(Frame::data_ref).map(|data| data.len() as u64).sum::<u64>();
        let rest = self.rest.size_hint().exact();
        rest.map_or_else(SizeHint::default, |rest| SizeHint::with_exact(rest.saturating_add(held)))
    }
}
