//! State of a connection that its task shares with the handles on its streams.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::task::{Context, Waker};

use foldhash::fast::RandomState;

use super::error::{Http2Error, Reason};
use super::floods::FloodCounters;
use super::frame::{FRAME_HEADER_SIZE, FrameHeader, FrameKind, flags, put_frame};
use super::hpack::HpackEncoder;
use super::malformation::{Malformation, MalformedStreams};
use super::output::OutputBuf;
use super::receive_windows::ReceiveWindows;
use super::settings::{DEFAULT_WINDOW, Http2Settings, PeerSettings};
use super::stream::{Stream, StreamState};
use super::stream_queue::StreamQueue;
use crate::unsent::UnsentBytes;

/// Number of streams that were reset here and whose late frames are ignored; more if more may be open.
const MIN_REMEMBERED_RESETS: usize = 256;

/// Bytes of the output of a server at which no further head is accepted: the client does not read. The heads of some
/// hundred responses fit.
const MAX_UNREAD_HEADS: usize = 1024 * 1024;

/// State of a connection.
#[derive(Debug)]
pub(super) struct Http2State {
    pub(super) is_server: bool,
    pub(super) settings: Http2Settings,
    pub(super) peer: PeerSettings,
    /// Whether the peer's first SETTINGS frame has arrived.
    pub(super) has_peer_settings: bool,
    pub(super) encoder: HpackEncoder,
    pub(super) output: OutputBuf,
    /// What the output of a server counts in the budget of the process.
    unsent: UnsentBytes,
    pub(super) streams: HashMap<u32, Rc<Stream>, RandomState>,
    /// Bytes that may still be sent on all streams.
    pub(super) send_window: i64,
    /// Windows granted to the peer.
    pub(super) receive: ReceiveWindows,
    /// Last stream that the peer has opened, whether it was accepted or not.
    pub(super) last_peer_stream: u32,
    /// Last stream of the peer that was accepted.
    pub(super) last_accepted: u32,
    /// Next stream that this end opens.
    pub(super) next_stream: u32,
    pub(super) recently_reset: VecDeque<u32>,
    /// Streams that wait for the connection's window or room in the output.
    pub(super) waiting: VecDeque<Rc<Stream>>,
    /// Requests that wait for a stream.
    pub(super) queue: StreamQueue,
    pub(super) floods: FloodCounters,
    pub(super) malformed: MalformedStreams,
    /// Requests beyond the maximum of streams, since they were last taken.
    pub(super) refused: u32,
    /// Last stream that the peer had opened before this turn of the connection's task.
    pub(super) last_stream_of_turn: u32,
    /// Whether the task is running, so that it needs no wake-up.
    pub(super) is_polling: bool,
    waker: Option<Waker>,
    pub(super) shutdown: Shutdown,
    /// Whether the peer opens and accepts no more streams.
    pub(super) peer_goes_away: bool,
    /// Why the connection has ended.
    pub(super) end: Option<Http2Error>,
}

/// Graceful shutdown (RFC 9113 section 6.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shutdown {
    /// Not begun.
    None,
    /// GOAWAY was sent, which allows streams that the peer has opened meanwhile.
    Announced,
    /// GOAWAY was sent with the last stream.
    Final,
}

impl Http2State {
    pub(super) fn new(is_server: bool, settings: Http2Settings) -> Self {
        let mut output = OutputBuf::default();
        if !is_server {
            output.buffer_mut().extend_from_slice(super::frame::PREFACE);
        }
        settings.put(is_server, output.buffer_mut());
        Self {
            is_server,
            settings,
            peer: PeerSettings::new(),
            has_peer_settings: false,
            encoder: HpackEncoder::new(),
            output,
            unsent: UnsentBytes::default(),
            streams: HashMap::default(),
            send_window: DEFAULT_WINDOW.into(),
            receive: ReceiveWindows::new(is_server, &settings),
            last_peer_stream: 0,
            last_accepted: 0,
            next_stream: 1,
            recently_reset: VecDeque::new(),
            waiting: VecDeque::new(),
            queue: StreamQueue::default(),
            floods: FloodCounters::default(),
            malformed: MalformedStreams::default(),
            refused: 0,
            last_stream_of_turn: 0,
            is_polling: false,
            waker: None,
            shutdown: Shutdown::None,
            peer_goes_away: false,
            end: None,
        }
    }

    /// Begins a turn of the connection's task.
    pub(super) fn begin_turn(&mut self, cx: &Context<'_>) {
        self.floods.begin_turn();
        self.last_stream_of_turn = self.last_peer_stream;
        self.is_polling = true;
        match &mut self.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            waker => *waker = Some(cx.waker().clone()),
        }
    }

    /// Wakes the connection's task, because there is something to write or to end.
    pub(super) fn wake(&self) {
        if !self.is_polling
            && let Some(waker) = &self.waker
        {
            waker.wake_by_ref();
        }
    }

    /// Whether `id` was never used (RFC 9113 section 5.1, "idle").
    pub(super) const fn is_idle(&self, id: u32) -> bool {
        let is_ours = id % 2 == !self.is_server as u32;
        if is_ours { id >= self.next_stream } else { id > self.last_peer_stream }
    }

    /// Whether late frames of a stream are ignored.
    pub(super) fn was_reset_here(&self, id: u32) -> bool {
        self.recently_reset.contains(&id)
    }

    pub(super) fn add_stream(&mut self, id: u32, state: StreamState) -> Rc<Stream> {
        let stream = Rc::new(Stream::new(id, state));
        self.streams.insert(id, Rc::clone(&stream));
        stream
    }

    /// Appends a header section. `encode` appends its fields.
    pub(super) fn put_head(
        &mut self,
        id: u32,
        is_end: bool,
        encode: impl FnOnce(&mut HpackEncoder, &mut Vec<u8>),
    ) {
        let out = self.output.buffer_mut();
        let start = out.len();
        out.extend_from_slice(&[0; FRAME_HEADER_SIZE]);
        self.encoder.begin(out);
        encode(&mut self.encoder, out);
        let length = out.len() - start - FRAME_HEADER_SIZE;
        let end_stream = if is_end { flags::END_STREAM } else { 0 };
        if length <= self.peer.max_frame_size {
            let flags = end_stream | flags::END_HEADERS;
            let header = FrameHeader { length, kind: FrameKind::Headers, flags, stream: id };
            out[start..start + FRAME_HEADER_SIZE].copy_from_slice(&header.encode());
        } else {
            let block = out.split_off(start + FRAME_HEADER_SIZE);
            out.truncate(start);
            put_divided_block(out, id, end_stream, &block, self.peer.max_frame_size);
        }
        if self.is_server {
            self.output.count_reply(FRAME_HEADER_SIZE + length);
            self.record_unsent();
        }
        self.wake();
    }

    /// Whether a server may send another head. If not, the client does not read, and its heads would take any amount of
    /// memory.
    pub(super) fn accepts_head(&self) -> bool {
        let unsent = self.output.len();
        unsent < MAX_UNREAD_HEADS && UnsentBytes::has_room(unsent)
    }

    /// Resets a stream of a server whose client does not read.
    ///
    /// # Errors
    /// [`Http2Error::Unread`].
    pub(super) fn check_unread(&mut self, id: u32, stream: &mut StreamState) -> Result<(), Http2Error> {
        if !self.is_server || self.accepts_head() {
            return Ok(());
        }
        self.cancel(id, stream, Reason::ENHANCE_YOUR_CALM);
        Err(Http2Error::Unread)
    }

    /// Records how many bytes wait to be written.
    pub(super) fn record_unsent(&mut self) {
        if self.is_server {
            self.unsent.record(self.output.len());
        }
    }

    /// Appends a frame with which a frame of the peer is replied to.
    pub(super) fn put_reply(&mut self, kind: FrameKind, flags: u8, id: u32, payload: &[u8]) {
        put_frame(self.output.buffer_mut(), kind, flags, id, payload);
        self.output.count_reply(FRAME_HEADER_SIZE + payload.len());
    }

    /// Records that this end has ended its direction.
    pub(super) fn end_sending(&mut self, id: u32, stream: &mut StreamState) {
        stream.send_ended = true;
        self.close_if_ended(id, stream);
    }

    /// Records that the peer has ended its direction.
    pub(super) fn end_receiving(&mut self, id: u32, stream: &mut StreamState) {
        stream.receive_ended = true;
        stream.wake_receiver();
        self.close_if_ended(id, stream);
    }

    fn close_if_ended(&mut self, id: u32, stream: &StreamState) {
        if stream.receive_ended && stream.send_ended {
            self.floods.useful_stream();
            self.remove(id);
        }
    }

    /// Removes a stream that has ended. Its handles remain usable.
    fn remove(&mut self, id: u32) {
        if let Some(stream) = self.streams.remove(&id) {
            // Otherwise a client that never reads could collect any number of streams in the queue.
            self.dequeue(&stream);
        }
        self.queue.wake_next();
        if self.streams.is_empty() {
            // This may have been the last one before the end of the connection.
            self.wake();
        }
    }

    /// Handles RST_STREAM of the peer.
    pub(super) fn reset_by_peer(&mut self, id: u32, stream: &mut StreamState, reason: Reason) {
        stream.fail(Http2Error::ResetByPeer(reason));
        self.remove(id);
    }

    /// Resets a stream because of an error of the peer.
    ///
    /// # Errors
    /// If the connection must be closed, because there were too many.
    pub(super) fn reset_for_error(
        &mut self,
        id: u32,
        stream: Option<&mut StreamState>,
        reason: Reason,
        what: Malformation,
    ) -> Result<(), Reason> {
        self.malformed.record(what);
        self.put_reset(id, reason);
        if let Some(stream) = stream {
            stream.fail(Http2Error::Malformed(reason));
            self.remove(id);
        }
        self.floods.error_reset(self.settings.max_error_resets)
    }

    /// Resets a stream that is not needed any more, unless it has ended.
    pub(super) fn cancel(&mut self, id: u32, stream: &mut StreamState, reason: Reason) {
        if stream.is_closed() || self.end.is_some() {
            return;
        }
        stream.fail(Http2Error::Cancelled(reason));
        self.put_reset(id, reason);
        self.remove(id);
        self.wake();
    }

    /// Appends RST_STREAM, and remembers that late frames are to be ignored.
    pub(super) fn put_reset(&mut self, id: u32, reason: Reason) {
        self.put_reply(FrameKind::ResetStream, 0, id, &reason.0.to_be_bytes());
        self.ignore_stream(id);
    }

    /// Remembers that late frames of a stream are to be ignored.
    pub(super) fn ignore_stream(&mut self, id: u32) {
        if self.recently_reset.len() >= MIN_REMEMBERED_RESETS.max(self.settings.max_streams as usize) {
            self.recently_reset.pop_front();
        }
        self.recently_reset.push_back(id);
    }

    /// Called when the last handle on a stream is dropped.
    pub(super) fn release_stream(&mut self, id: u32, stream: &mut StreamState) {
        let is_complete_response = self.is_server && stream.send_ended;
        // The client need not send the rest of its request (RFC 9113 section 8.1).
        self.cancel(id, stream, if is_complete_response { Reason::NO_ERROR } else { Reason::CANCEL });
        self.discard_received(stream);
        // The stream may have been woken to use capacity, and leaves it to the next one.
        self.wake_waiting();
    }
}

/// Appends a header section that needs several frames.
fn put_divided_block(out: &mut Vec<u8>, id: u32, end_stream: u8, block: &[u8], max: usize) {
    let mut parts = block.chunks(max).peekable();
    let (mut kind, mut flags) = (FrameKind::Headers, end_stream);
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            flags |= flags::END_HEADERS;
        }
        put_frame(out, kind, flags, id, part);
        (kind, flags) = (FrameKind::Continuation, 0);
    }
}
