//! Model of the peer. It checks that
//!
//! - the output consists of valid frames, whose header sections can be decoded
//! - no stream sends after its end, or after a reset
//! - DATA exceeds no window, and both ends agree on what windows are left
//! - what has been received and discarded is given back
//! - buffers and queues have bounds

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use super::super::frame::{FRAME_HEADER_SIZE, FrameHeader, FrameKind, PREFACE, flags, read_u32};
use super::super::hpack::{FieldSink, HeaderField, HpackDecoder};
use super::super::settings::{CONNECTION_WINDOW, DEFAULT_WINDOW, MAX_WINDOW};
use super::super::shared::Http2State;
use super::super::stream::{Stream, StreamState};

/// Maximum size of the output, in bytes: DATA, replies, and what one read causes after that.
const MAX_OUTPUT: usize = 256 * 1024;
/// Maximum size of a frame's payload that the script allows, in bytes.
const MAX_FRAME: usize = 0xff_ffff;

/// What the peer has granted, and what it has seen.
pub(super) struct Peer {
    is_server: bool,
    /// Incomplete frames in both directions.
    input: Vec<u8>,
    output: Vec<u8>,
    expects_preface: bool,
    decoder: HpackDecoder,
    /// Stream and bytes of an incomplete header section.
    block: Option<(u32, Vec<u8>)>,
    streams: HashMap<u32, SentStream>,
    /// Streams that the peer has reset, and of which the connection knows it.
    dead: HashSet<u32>,
    reset: Vec<u32>,
    initial_window: i64,
    max_initial_window: i64,
    granted: i64,
    granted_to_streams: HashMap<u32, i64>,
    sent: i64,
    settings: usize,
    pings: usize,
    has_sent_error: bool,
}

/// What was sent on a stream.
#[derive(Debug, Default)]
struct SentStream {
    bytes: i64,
    has_head: bool,
    has_ended: bool,
    was_reset: bool,
}

/// Counts fields.
struct SentFields(usize);

impl FieldSink for SentFields {
    fn accepts(&mut self, _: usize) -> bool {
        true
    }

    fn push(&mut self, field: HeaderField) {
        assert!(
            !matches!(
                field,
                HeaderField::Malformed(_) | HeaderField::OtherScheme | HeaderField::OtherAuthority
            ),
            "a field that was sent: {field:?}"
        );
        self.0 += 1;
    }
}

impl Peer {
    /// Creates the peer of a server or of a client.
    pub(super) fn new(is_server: bool) -> Self {
        Self {
            is_server,
            input: Vec::new(),
            output: Vec::new(),
            expects_preface: !is_server,
            decoder: HpackDecoder::new(),
            block: None,
            streams: HashMap::new(),
            dead: HashSet::new(),
            reset: Vec::new(),
            initial_window: DEFAULT_WINDOW.into(),
            max_initial_window: DEFAULT_WINDOW.into(),
            granted: DEFAULT_WINDOW.into(),
            granted_to_streams: HashMap::new(),
            sent: 0,
            settings: 0,
            pings: 0,
            has_sent_error: false,
        }
    }

    /// Records what the connection receives. Invalid frames need no care: the connection ends with them.
    pub(super) fn connection_receives(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
        let input = std::mem::take(&mut self.input);
        let mut rest = input.as_slice();
        while let Some((header, payload, after)) = split_frame(rest) {
            self.frame_received(header, payload);
            rest = after;
        }
        self.input = rest.to_vec();
    }

    fn frame_received(&mut self, header: FrameHeader, payload: &[u8]) {
        match header.kind {
            FrameKind::Settings if !header.has(flags::ACK) => {
                self.settings += 1;
                for setting in payload.as_chunks::<6>().0 {
                    let value = read_u32(&setting[2..]).unwrap_or_default();
                    if setting[..2] == [0, 4] && value <= MAX_WINDOW {
                        self.initial_window = value.into();
                        self.max_initial_window = self.max_initial_window.max(value.into());
                    }
                }
            }
            FrameKind::Ping => self.pings += 1,
            FrameKind::ResetStream => self.reset.push(header.stream),
            FrameKind::WindowUpdate => {
                let increment = i64::from(read_u32(payload).unwrap_or_default() & MAX_WINDOW);
                match header.stream {
                    0 => self.granted += increment,
                    id => *self.granted_to_streams.entry(id).or_default() += increment,
                }
            }
            _ => {}
        }
    }

    /// Reads what the connection sends.
    pub(super) fn connection_sends(&mut self, bytes: &[u8]) {
        self.output.extend_from_slice(bytes);
        let mut output = std::mem::take(&mut self.output);
        if self.expects_preface && output.len() >= PREFACE.len() {
            assert!(output.starts_with(PREFACE), "no preface");
            output.drain(..PREFACE.len());
            self.expects_preface = false;
        }
        let mut rest = output.as_slice();
        while !self.expects_preface
            && let Some((header, payload, after)) = split_frame(rest)
        {
            self.frame_sent(header, payload);
            rest = after;
        }
        self.output = rest.to_vec();
    }

    fn frame_sent(&mut self, header: FrameHeader, payload: &[u8]) {
        assert!(!self.has_sent_error, "{header:?} after GOAWAY with an error");
        assert!(payload.len() <= MAX_FRAME, "{header:?} is too long");
        let is_continuation = header.kind == FrameKind::Continuation;
        assert_eq!(self.block.is_some(), is_continuation, "{header:?} within a header section");
        let is_of_connection =
            matches!(header.kind, FrameKind::Settings | FrameKind::Ping | FrameKind::GoAway);
        let is_of_either = header.kind == FrameKind::WindowUpdate;
        assert!(is_of_either || is_of_connection == (header.stream == 0), "{header:?} has a wrong stream");
        match header.kind {
            FrameKind::Data => self.data_sent(header, payload.len()),
            FrameKind::Headers => self.headers_sent(header, payload),
            FrameKind::Continuation => {
                let (id, mut block) = self.block.take().expect("checked above");
                assert_eq!(id, header.stream, "a header section of two streams");
                block.extend_from_slice(payload);
                self.block_sent(header, block);
            }
            FrameKind::ResetStream => {
                assert_eq!(payload.len(), 4);
                self.streams.entry(header.stream).or_default().was_reset = true;
            }
            FrameKind::Settings if header.has(flags::ACK) => {
                self.settings = self.settings.checked_sub(1).expect("settings are acknowledged once");
            }
            FrameKind::Settings => assert_eq!(payload.len() % 6, 0),
            FrameKind::Ping if header.has(flags::ACK) => {
                self.pings = self.pings.checked_sub(1).expect("a PING is acknowledged once");
            }
            FrameKind::Ping => assert_eq!(payload.len(), 8),
            FrameKind::GoAway => self.has_sent_error = payload[4..8] != [0; 4],
            FrameKind::WindowUpdate => {
                let increment = read_u32(payload).expect("an increment");
                assert!((1..=MAX_WINDOW).contains(&increment), "increment {increment}");
                if header.stream > 0 {
                    self.check_alive(header);
                }
            }
            FrameKind::Priority | FrameKind::PushPromise | FrameKind::Unknown => {
                panic!("{header:?} is never sent")
            }
        }
    }

    /// Checks that frames of a stream, apart from resets, are still allowed.
    fn check_alive(&mut self, header: FrameHeader) -> &mut SentStream {
        assert!(!self.dead.contains(&header.stream), "{header:?} after a reset of the peer");
        let stream = self.streams.entry(header.stream).or_default();
        assert!(!stream.was_reset, "{header:?} after a reset");
        stream
    }

    fn data_sent(&mut self, header: FrameHeader, length: usize) {
        let length = i64::try_from(length).unwrap_or(i64::MAX);
        let window = self.max_initial_window + self.granted_to_streams.get(&header.stream).unwrap_or(&0);
        let stream = self.check_alive(header);
        assert!(stream.has_head && !stream.has_ended, "{header:?} {stream:?}");
        stream.bytes += length;
        stream.has_ended = header.has(flags::END_STREAM);
        assert!(length == 0 || stream.bytes <= window, "{header:?} exceeds the window {window}");
        self.sent += length;
        assert!(length == 0 || self.sent <= self.granted, "{header:?} exceeds the connection's window");
    }

    fn headers_sent(&mut self, header: FrameHeader, payload: &[u8]) {
        assert_eq!(header.stream % 2, 1, "{header:?} on a stream that cannot be");
        let is_end = header.has(flags::END_STREAM);
        let stream = self.check_alive(header);
        assert!(!stream.has_ended, "{header:?} {stream:?}");
        assert!(!stream.has_head || is_end, "trailers do not end {stream:?}");
        stream.has_head = true;
        stream.has_ended = is_end;
        self.block_sent(header, payload.to_vec());
    }

    fn block_sent(&mut self, header: FrameHeader, block: Vec<u8>) {
        if !header.has(flags::END_HEADERS) {
            self.block = Some((header.stream, block));
            return;
        }
        let mut fields = SentFields(0);
        self.decoder.decode(&block, &mut fields).expect("a valid header section");
        let is_trailers = self.streams[&header.stream].bytes > 0;
        assert!(is_trailers || fields.0 >= if self.is_server { 1 } else { 2 } || self.is_server);
    }

    /// Checks that everything that a peer can make grow has a bound.
    pub(super) fn check_bounds(&self, state: &Http2State) {
        assert!(state.output.len() <= MAX_OUTPUT, "{} bytes of output", state.output.len());
        assert!(state.waiting.len() <= state.streams.len(), "ended streams wait for capacity");
        assert!(state.recently_reset.len() <= 256);
        if self.is_server {
            assert!(state.streams.len() <= state.settings.max_streams as usize, "too many streams");
        }
        for stream in state.streams.values().filter_map(|stream| stream.state.try_borrow().ok()) {
            assert!(stream.interims.len() <= 16, "{} interim responses", stream.interims.len());
            let max = state.settings.max_stream_window.max(DEFAULT_WINDOW);
            assert!(stream.unreleased <= max, "a window was exceeded");
            assert!(!stream.is_closed(), "a closed stream is left");
        }
    }

    /// Checks that the windows that are granted add up. `held` are streams with handles.
    pub(super) fn check_receive_windows(&self, state: &Http2State, held: &[Rc<Stream>]) {
        let ended = held.iter().filter(|stream| !state.streams.contains_key(&stream.id));
        let streams: Vec<_> = ended.chain(state.streams.values()).collect();
        let sum = |count: fn(&StreamState) -> u32| -> i64 {
            streams.iter().map(|stream| i64::from(count(&stream.state.borrow()))).sum()
        };
        let (receive, settings) = (&state.receive, &state.settings);
        let (mut unread, mut window) = (0, CONNECTION_WINDOW);
        if !receive.is_acknowledged {
            (unread, window) = (receive.unread.into(), settings.first_connection_window(state.is_server));
            assert_eq!(unread, sum(|stream| stream.unreleased), "unread bytes");
        }
        let accounted = receive.left + i64::from(receive.released) + unread;
        assert_eq!(accounted, i64::from(window), "bytes of the receive window are lost or doubled");
        let budget = i64::from(receive.budget) + sum(|stream| stream.extra_window);
        assert_eq!(budget, i64::from(settings.shared_window), "the budget");
        for stream in state.streams.values() {
            let stream = stream.state.borrow();
            let granted = stream.receive_window + i64::from(stream.released) + i64::from(stream.unreleased);
            let window = i64::from(state.first_stream_window()) + i64::from(stream.extra_window);
            assert!(stream.is_unread || granted == window, "{granted} bytes of a window of {window}");
        }
    }

    /// Checks what is left to send. Everything must have been handled and written.
    pub(super) fn check_send_windows(&mut self, state: &Http2State) {
        assert_eq!(state.send_window, self.granted - self.sent, "send window of the connection");
        for (id, stream) in &state.streams {
            let granted = self.granted_to_streams.get(id).unwrap_or(&0);
            let sent = self.streams.get(id).map_or(0, |stream| stream.bytes);
            let window = self.initial_window + granted - sent;
            assert_eq!(stream.state.borrow().send_window, window, "send window of stream {id}");
        }
        assert!(self.output.is_empty() && self.block.is_none(), "an incomplete frame");
        self.dead.extend(self.reset.drain(..));
    }
}

/// Returns the first frame and what follows it.
fn split_frame(bytes: &[u8]) -> Option<(FrameHeader, &[u8], &[u8])> {
    let header = FrameHeader::parse(bytes.first_chunk()?);
    let (payload, rest) = bytes[FRAME_HEADER_SIZE..].split_at_checked(header.length)?;
    Some((header, payload, rest))
}
