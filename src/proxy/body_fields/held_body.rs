//! Bodies of which the beginning is held, in memory that is counted.
//!
//! What arrives is copied into one buffer, because a client may send each byte as a frame of its own.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::mem;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use hyper::body::{Body, Frame, SizeHint};

use crate::proxy::body::{DownstreamBody, DownstreamBodyError};
use crate::proxy::failure::ForwardFailure;
use crate::proxy::timeouts::{RequestTimer, UploadTimer};
use weir_bodies::Unreadable;
use weir_bodies::reader::BodyReader;
use weir_bodies::usage_option::{self, Edit};
use weir_limiter::wait_queue::{WaitQueues, WaitingMemory};
use weir_policy::identify::body::BodySettings;
use weir_telemetry::metrics::WorkerMetrics;

/// What a held body takes in addition to its bytes.
const FIXED_SIZE: usize = 2 * 1024;

/// The part of [`FIXED_SIZE`] that is for values of fields.
const VALUES_SIZE: usize = 1024;

/// What a trailer takes in addition to its value.
const TRAILER_SIZE: usize = 128;

/// Maximum size of a frame of what was held. A slow upstream takes the next one when it has the last, so the memory of all is counted until then.
const MAX_FRAME_SIZE: usize = 16 * 1024;

/// A body whose beginning has been read.
#[derive(Debug)]
pub(in crate::proxy) struct HeldBody {
    /// What is held, in order.
    pieces: VecDeque<Bytes>,
    trailers: Option<HeaderMap>,
    /// Counts what is held, until it has been passed on.
    memory: Option<WaitingMemory>,
    rest: DownstreamBody,
    /// Reads on, because the rest may state a field again. Such a request does not reach the upstream whole.
    reader: Option<RestReader>,
}

/// Reads the rest of a body whose fields are known.
#[derive(Debug)]
pub(super) struct RestReader {
    pub(super) reader: BodyReader,
    pub(super) settings: Arc<BodySettings>,
    pub(super) metrics: Rc<WorkerMetrics>,
}

/// The beginning of a body, while it is read.
pub(super) struct HeldBeginning {
    data: Vec<u8>,
    /// Maximum size of `data`, which only the last piece may exceed.
    max: usize,
    /// What was held for another configuration, and is read again.
    again: Bytes,
    trailers: Option<HeaderMap>,
    memory: WaitingMemory,
    rest: DownstreamBody,
}

impl HeldBeginning {
    /// Takes `body`, to hold at most `max` bytes of it; `None` if there is no memory left for them.
    pub(super) fn new(queues: &Arc<WaitQueues>, max: usize, body: &mut DownstreamBody) -> Option<Self> {
        let length = body.size_hint().exact().and_then(|length| usize::try_from(length).ok());
        let max = length.unwrap_or(usize::MAX).min(max);
        let needed = max.saturating_add(FIXED_SIZE);
        let held = if let DownstreamBody::Held(held) = body { held.memory.as_mut() } else { None };
        let new = match held.map(|memory| memory.try_grow(needed)) {
            Some(true) => None,
            Some(false) => return None,
            None => Some(queues.take_memory(needed)?),
        };
        let beginning =
            |memory, rest| Self { data: Vec::new(), max, again: Bytes::new(), trailers: None, memory, rest };
        match mem::replace(body, DownstreamBody::None) {
            DownstreamBody::Held(held) => {
                let HeldBody { mut pieces, trailers, memory, rest, .. } = *held;
                let one = if pieces.len() > 1 { None } else { pieces.pop_front() };
                let again = one.unwrap_or_else(|| Vec::from(pieces).concat().into());
                Some(Self { again, trailers, ..beginning(new.or(memory)?, rest) })
            }
            rest => Some(beginning(new?, rest)),
        }
    }

    /// Reads the next data; `None` at the end of the body.
    pub(super) async fn next_data(
        &mut self,
        request: &RequestTimer,
        timer: &UploadTimer,
    ) -> Result<Option<Bytes>, ForwardFailure> {
        if !self.again.is_empty() {
            return Ok(Some(mem::take(&mut self.again)));
        }
        if self.trailers.is_some() {
            return Ok(None);
        }
        let frame = poll_fn(|cx| {
            let polled = Pin::new(&mut self.rest).poll_frame(cx);
            if polled.is_pending() {
                timer.data_awaited();
            }
            polled
        });
        let frame = request.limit(pin!(frame)).await.map_err(ForwardFailure::from)?;
        let Some(frame) = frame.transpose().map_err(|_| ForwardFailure::BrokenRequest)? else {
            return Ok(None);
        };
        match frame.into_data() {
            Ok(data) => {
                timer.received(data.len() as u64);
                Ok(Some(data))
            }
            // Trailers end a body as well.
            Err(frame) => {
                self.trailers = frame.into_trailers().ok();
                Ok(None)
            }
        }
    }

    /// Holds a piece, and returns it.
    pub(super) fn keep(&mut self, piece: &[u8]) -> &[u8] {
        let (begin, needed) = (self.data.len(), self.data.len() + piece.len());
        if needed > self.data.capacity() {
            let doubled = self.data.capacity().saturating_mul(2).min(self.max);
            self.data.reserve_exact(needed.max(doubled) - begin);
        }
        self.data.extend_from_slice(piece);
        &self.data[begin..]
    }

    /// Returns what is held.
    pub(super) fn data(&self) -> &[u8] {
        &self.data
    }

    /// Whether the whole body is held.
    pub(super) fn is_whole(&self) -> bool {
        self.trailers.is_some() || has_ended(&self.rest)
    }

    /// Counts what is held, with `values` bytes of values. Returns whether there is memory for it.
    pub(super) fn covers(&mut self, values: usize) -> bool {
        let trailers =
            self.trailers.iter().flatten().map(|(_, value)| value.len() + TRAILER_SIZE).sum::<usize>();
        let values = values.saturating_add(trailers).saturating_sub(VALUES_SIZE);
        let held = self.data.capacity().max(self.max).saturating_add(values);
        self.memory.try_grow(held.saturating_add(FIXED_SIZE))
    }

    /// Returns the body with its beginning. `reader` reads the rest of it.
    pub(super) fn into_body(self, reader: Option<RestReader>) -> DownstreamBody {
        let Self { data, again, trailers, memory, rest, .. } = self;
        let pieces = [Bytes::from(data), again].into_iter().filter(|piece| !piece.is_empty()).collect();
        let memory = Some(memory);
        DownstreamBody::Held(Box::new(HeldBody { pieces, trailers, memory, rest, reader }))
    }
}

impl HeldBody {
    /// Makes `body` one whose fields are known before its first byte.
    pub(super) fn watch(reader: RestReader, body: &mut DownstreamBody) {
        if let DownstreamBody::Held(held) = body {
            held.reader = Some(reader);
            return;
        }
        let (pieces, rest) = (VecDeque::new(), mem::replace(body, DownstreamBody::None));
        let held = Self { pieces, trailers: None, memory: None, rest, reader: Some(reader) };
        *body = DownstreamBody::Held(Box::new(held));
    }

    pub(super) fn stop_watching(&mut self) {
        self.reader = None;
    }

    /// Makes a request for a stream of OpenAI's format ask for its usage, whose head has these `headers`. Its body is not compressed.
    pub(in crate::proxy) fn include_usage(&mut self, headers: &mut HeaderMap) {
        let Some(data) = self.pieces.front() else { return };
        let Some(Edit { range, text }) = usage_option::include_usage(data) else { return };
        let edited = [data.slice(..range.start), text.into(), data.slice(range.end..)];
        self.pieces.pop_front();
        edited
            .into_iter()
            .rev()
            .filter(|piece| !piece.is_empty())
            .for_each(|piece| self.pieces.push_front(piece));
        if headers.contains_key(CONTENT_LENGTH)
            && let Some(length) = self.size_hint().exact()
        {
            headers.insert(CONTENT_LENGTH, length.into());
        }
    }

    pub(in crate::proxy) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, DownstreamBodyError>>> {
        if let Some(piece) = self.pieces.front_mut() {
            let data = piece.split_to(piece.len().min(MAX_FRAME_SIZE));
            if piece.is_empty() {
                self.pieces.pop_front();
            }
            self.memory.take_if(|_| self.pieces.is_empty());
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        if let Some(trailers) = self.trailers.take() {
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        }
        let polled = ready!(Pin::new(&mut self.rest).poll_frame(cx));
        let read = match self.reader.take() {
            Some(reader) => reader.read(polled.as_ref(), has_ended(&self.rest)),
            None => Ok(None),
        };
        match read {
            Ok(reader) => {
                self.reader = reader;
                Poll::Ready(polled)
            }
            Err(reason) => {
                let error = io::Error::new(io::ErrorKind::InvalidData, reason);
                Poll::Ready(Some(Err(error.into())))
            }
        }
    }

    pub(in crate::proxy) fn is_end_stream(&self) -> bool {
        self.pieces.is_empty() && self.trailers.is_none() && self.rest.is_end_stream()
    }

    pub(in crate::proxy) fn size_hint(&self) -> SizeHint {
        let held = self.pieces.iter().map(|piece| piece.len() as u64).sum::<u64>();
        let rest = self.rest.size_hint().exact();
        rest.map_or_else(SizeHint::default, |rest| SizeHint::with_exact(rest.saturating_add(held)))
    }
}

impl RestReader {
    /// Reads what was received of the rest, before it is passed on. Returns itself unless nothing follows.
    fn read(
        mut self,
        received: Option<&Result<Frame<Bytes>, DownstreamBodyError>>,
        is_last: bool,
    ) -> Result<Option<Self>, Unreadable> {
        let data = match received {
            Some(Err(_)) => return Ok(None),
            Some(Ok(frame)) => frame.data_ref(),
            None => None,
        };
        let metrics = Rc::clone(&self.metrics);
        let read = match data {
            Some(data) => self.reader.read(&self.settings.fields, data),
            None => Ok(()),
        };
        let read = read.and_then(|()| {
            if data.is_some() && !is_last {
                return Ok(Some(self));
            }
            self.reader.finish(&self.settings.fields, None).map(|_| None)
        });
        read.inspect_err(|reason| metrics.record_unreadable_body(*reason))
    }
}

/// Whether no more data follows. Of a body with a length, the last data ends it for the upstream as well.
fn has_ended(body: &DownstreamBody) -> bool {
    body.is_end_stream() || body.size_hint().exact() == Some(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beginning(length: usize, max: usize) -> (Arc<WaitQueues>, HeldBeginning) {
        let queues = Arc::new(WaitQueues::default());
        let mut body = DownstreamBody::Stored(Some(vec![b'x'; length].into()));
        let held = HeldBeginning::new(&queues, max, &mut body).expect("memory");
        (queues, held)
    }

    #[test]
    fn pieces_of_one_byte_take_the_memory_of_their_bytes() {
        let (queues, mut held) = beginning(100_000, 50_000);
        for _ in 0..50_000 {
            assert_eq!(held.keep(b"y"), b"y");
            assert!(held.covers(0));
        }
        assert_eq!((held.data().len(), held.data.capacity()), (50_000, 50_000));
        assert_eq!(queues.memory().used(), 50_000 + FIXED_SIZE);
    }

    #[test]
    fn memory_covers_the_last_piece_and_values() {
        let (queues, mut held) = beginning(100_000, 1000);
        queues.memory().set_max(50_000);
        held.keep(&[b'y'; 30_000]);
        assert!(held.covers(VALUES_SIZE));
        assert_eq!(queues.memory().used(), 30_000 + FIXED_SIZE);
        assert!(held.covers(10_000 + VALUES_SIZE));
        assert_eq!(queues.memory().used(), 40_000 + FIXED_SIZE);
        assert!(!held.covers(20_000 + VALUES_SIZE));
        drop(held.into_body(None));
        assert_eq!(queues.memory().used(), 0);
    }

    #[test]
    fn what_was_held_is_held_again_once() {
        let (queues, mut held) = beginning(100_000, 50_000);
        held.keep(&[b'y'; 20_000]);
        let mut body = held.into_body(None);
        for _ in 0..3 {
            let mut again = HeldBeginning::new(&queues, 50_000, &mut body).expect("memory");
            assert_eq!((again.again.len(), queues.memory().used()), (20_000, 50_000 + FIXED_SIZE));
            let piece = mem::take(&mut again.again);
            again.keep(&piece);
            body = again.into_body(None);
        }
        let DownstreamBody::Held(held) = &body else { panic!("{body:?}") };
        assert!(matches!(held.rest, DownstreamBody::Stored(_)), "it is not nested");
        assert_eq!(body.size_hint().exact(), Some(120_000));
    }

    #[test]
    fn memory_is_counted_until_the_last_frame() {
        let (queues, mut held) = beginning(0, 50_000);
        held.keep(&[b'y'; 40_000]);
        held.covers(0);
        let mut body = held.into_body(None);
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let mut sizes = Vec::new();
        while queues.memory().used() > 0 {
            let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut body).poll_frame(&mut cx) else {
                panic!("no frame")
            };
            sizes.extend(frame.data_ref().map(Bytes::len));
        }
        assert_eq!(sizes, [MAX_FRAME_SIZE, MAX_FRAME_SIZE, 40_000 - 2 * MAX_FRAME_SIZE]);
    }
}
