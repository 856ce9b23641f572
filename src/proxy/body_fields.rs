//! Fields of a request's body, for rules that read them: the beginning of the body is held until they are known.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue};
use hyper::body::{Body, Frame, SizeHint};

use super::body::{DownstreamBody, DownstreamBodyError};
use super::failure::ForwardFailure;
use super::request_context::RequestContext;
use super::timeouts::UploadTimer;
use weir_bodies::Unreadable;
use weir_bodies::coding::Coding;
use weir_bodies::fields::{FieldMask, Record, Records};
use weir_bodies::reader::BodyReader;
use weir_bodies::usage_option::{self, Edit};
use weir_limiter::wait_queue::WaitingMemory;
use weir_policy::engine::Policy;
use weir_policy::identify::Attributes;
use weir_policy::identify::body::{BodySettings, OnUnreadable, RequestFields};

/// What a held body takes in addition to its bytes.
const FIXED_SIZE: usize = 2 * 1024;

/// What rules know of a body: the values of its fields, of each element of a batch, or why they are unknown.
#[derive(Debug)]
pub(super) struct BodyFields {
    read: Result<Records, Unreadable>,
    /// Size of the content, if all of it has been read.
    size: Option<u64>,
    on_unreadable: OnUnreadable,
}

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
    reader: Option<(BodyReader, Arc<BodySettings>)>,
}

impl BodyFields {
    /// Returns the size of the content, if all of it has been read.
    pub(super) const fn size(&self) -> Option<u64> {
        self.size
    }

    /// Returns what rules know of the body, once for each element of a batch.
    pub(super) fn of_elements(&self) -> impl Iterator<Item = RequestFields<'_>> {
        let records = self.read.as_deref().unwrap_or_default();
        let whole = match (&self.read, self.on_unreadable) {
            (Err(reason), OnUnreadable::Deny) => Some(RequestFields::Unreadable(*reason)),
            // An empty batch has no fields either.
            _ => records.is_empty().then_some(RequestFields::Absent),
        };
        records.iter().map(RequestFields::Fields).chain(whole)
    }
}

/// Returns the fields without which it is unclear which rules apply to the request; `None` if there are none.
pub(super) fn needed(policy: &Policy, attributes: &Attributes<'_>) -> Option<FieldMask> {
    policy.bodies.as_ref()?;
    attributes.body.set(RequestFields::Unread);
    let needed = policy.rules.body_fields_needed(attributes);
    attributes.body.set(RequestFields::Absent);
    (!needed.is_empty()).then_some(needed)
}

/// Reads the beginning of `body` until the fields `wanted` are known or cannot be known. Returns them; what was read is then a part of
/// `body` again.
///
/// # Errors
/// Why they are not read.
pub(super) async fn read(
    context: &mut RequestContext,
    settings: &Arc<BodySettings>,
    wanted: FieldMask,
    headers: &HeaderMap,
    body: &mut DownstreamBody,
) -> Result<BodyFields, NotRead> {
    let read = match reader(settings, wanted, headers) {
        Ok((reader, coding)) => read_with(reader, coding, context, settings, body).await?,
        Err(reason) => Err(reason),
    };
    let size = read.as_ref().ok().and_then(|(_, size)| *size);
    Ok(BodyFields { read: read.map(|(records, _)| records), size, on_unreadable: settings.on_unreadable })
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

async fn read_with(
    reader: BodyReader,
    coding: Option<Coding>,
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
    let mut beginning = Beginning { reader, coding, settings, size: 0 };
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
                held.reader = Some((beginning.reader, Arc::clone(settings)));
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
    settings: &'s BodySettings,
    size: usize,
}

impl Beginning<'_> {
    /// Reads the next piece. Returns the fields once all of them are known; then, the whole piece has been read.
    fn read(&mut self, piece: &[u8]) -> Result<Option<Records>, Unreadable> {
        let Self { reader, coding, settings, size } = self;
        let (within, beyond) = piece.split_at(piece.len().min(settings.max - *size));
        *size += within.len();
        // A compressed body is read whole, because its content may be much longer than what has arrived.
        if coding.is_none() {
            reader.read(&settings.fields, within)?;
            if let Some(record) = reader.known() {
                let records = Records::from_iter([Record::clone(record)]);
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
        self.reader.finish(fields).map(|records| (records, Some(self.size as u64)))
    }
}

impl HeldBody {
    /// Makes a request for a stream of OpenAI's format ask for its usage, whose head has these `headers`. A compressed body stays as it is.
    pub(super) fn include_usage(&mut self, headers: &mut HeaderMap) {
        if headers.contains_key(CONTENT_ENCODING) {
            return;
        }
        let data: Vec<&[u8]> = self.frames.iter().filter_map(|frame| Some(&**frame.data_ref()?)).collect();
        let mut data = data.concat();
        let Some(Edit { range, text }) = usage_option::include_usage(&data) else { return };
        data.splice(range, text.into_bytes());
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
        if let (Some(Ok(frame)), Some((reader, settings))) = (&polled, &mut self.reader)
            && let Some(data) = frame.data_ref()
            && let Err(reason) = reader.read(&settings.fields, data)
        {
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
