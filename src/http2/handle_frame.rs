//! Effects of received frames (RFC 9113 sections 5 and 6).

use std::cell::RefCell;
use std::rc::Rc;

use http::{HeaderMap, Method, Request, Response, StatusCode};

use super::error::Reason;
use super::frame::{FRAME_HEADER_SIZE, FrameHeader, FrameKind, flags, read_u32};
use super::head::{HeadBuilder, HeadError, content_length, encode_response};
use super::hpack::Decoder;
use super::input::{InputBuf, Payload};
use super::receive::ReceiveStream;
use super::server::Responder;
use super::settings::MAX_WINDOW;
use super::shared::{ConnectionState, Shutdown};
use super::stream::{Stream, StreamHandle, StreamState};

/// Maximum frames of one header section.
const MAX_BLOCK_FRAMES: u32 = 64;
/// Maximum bytes by which an encoded header section may exceed the maximum size of a decoded one.
const MAX_BLOCK_EXCESS: usize = 16 * 1024;
/// Maximum interim responses of a stream that were not taken.
const MAX_INTERIM_RESPONSES: usize = 16;

/// A request, and what sends its response.
pub(super) type AcceptedRequest = (Request<ReceiveStream>, Responder);

/// Handles frames.
#[derive(Debug)]
pub(super) struct FrameHandler {
    pub(super) state: Rc<RefCell<ConnectionState>>,
    decoder: Decoder,
    /// A header section of which more frames are expected.
    block: Option<Box<HeaderBlock>>,
}

/// The beginning of a header section.
#[derive(Debug)]
struct HeaderBlock {
    head: HeadersFrame,
    bytes: Vec<u8>,
    frames: u32,
}

/// What a HEADERS frame states beside its fields.
#[derive(Clone, Copy, Debug)]
struct HeadersFrame {
    stream: u32,
    is_end: bool,
    /// Whether the stream depends on itself, which is an error although priorities are ignored.
    depends_on_itself: bool,
}

impl FrameHandler {
    pub(super) fn new(state: Rc<RefCell<ConnectionState>>) -> Self {
        Self { state, decoder: Decoder::new(), block: None }
    }

    /// Handles the next frame of `input`, which has arrived completely, and removes it. Returns the request that it
    /// completes.
    ///
    /// # Errors
    /// The error code with which the connection ends.
    pub(super) fn handle(
        &mut self,
        header: FrameHeader,
        input: &mut InputBuf,
    ) -> Result<Option<AcceptedRequest>, Reason> {
        if header.kind == FrameKind::Data && self.block.is_none() {
            self.handle_data(header, input)?;
            return Ok(None);
        }
        let payload = input.payload(header.length).unwrap_or_default();
        let accepted = self.handle_other(header, payload);
        input.advance(FRAME_HEADER_SIZE + header.length);
        accepted
    }

    fn handle_other(
        &mut self,
        header: FrameHeader,
        payload: &[u8],
    ) -> Result<Option<AcceptedRequest>, Reason> {
        if let Some(block) = &self.block
            && (header.kind != FrameKind::Continuation || header.stream != block.head.stream)
        {
            return Err(Reason::PROTOCOL_ERROR);
        }
        match header.kind {
            FrameKind::Headers => return self.handle_headers(header, payload),
            FrameKind::Continuation => return self.handle_continuation(header, payload),
            FrameKind::Priority => self.handle_priority(header, payload)?,
            FrameKind::ResetStream => self.handle_reset(header, payload)?,
            FrameKind::Settings => self.handle_settings(header, payload)?,
            FrameKind::Ping => self.handle_ping(header, payload)?,
            FrameKind::GoAway => self.handle_goaway(header, payload)?,
            FrameKind::WindowUpdate => self.handle_window_update(header, payload)?,
            FrameKind::PushPromise => return Err(Reason::PROTOCOL_ERROR),
            FrameKind::Data | FrameKind::Unknown => {}
        }
        Ok(None)
    }

    fn handle_data(&mut self, header: FrameHeader, input: &mut InputBuf) -> Result<(), Reason> {
        let state = &mut *self.state.borrow_mut();
        let range = header.unpadded(input.payload(header.length).unwrap_or_default())?;
        if header.stream == 0 || state.is_idle(header.stream) {
            return Err(Reason::PROTOCOL_ERROR);
        }
        let length = u32::try_from(header.length).unwrap_or(u32::MAX);
        state.receive_window -= i64::from(length);
        if state.receive_window < 0 {
            return Err(Reason::FLOW_CONTROL_ERROR);
        }
        let Some(stream) = state.streams.get(&header.stream).cloned() else {
            input.advance(FRAME_HEADER_SIZE + header.length);
            return discard_data(state, header.stream, length);
        };
        let stream = &mut *stream.state.borrow_mut();
        input.with_data(header.length, range, |data| receive_data(state, stream, header, range.1, data))
    }

    fn handle_headers(
        &mut self,
        header: FrameHeader,
        payload: &[u8],
    ) -> Result<Option<AcceptedRequest>, Reason> {
        let (offset, length) = header.unpadded(payload)?;
        let mut block = &payload[offset..offset + length];
        let mut depends_on_itself = false;
        if header.has(flags::PRIORITY) {
            let (priority, rest) = block.split_at_checked(5).ok_or(Reason::FRAME_SIZE_ERROR)?;
            depends_on_itself = read_u32(priority).is_some_and(|on| on & MAX_WINDOW == header.stream);
            block = rest;
        }
        if header.stream == 0 {
            return Err(Reason::PROTOCOL_ERROR);
        }
        let is_end = header.has(flags::END_STREAM);
        let head = HeadersFrame { stream: header.stream, is_end, depends_on_itself };
        if header.has(flags::END_HEADERS) {
            return self.handle_block(head, block);
        }
        self.block = Some(Box::new(HeaderBlock { head, bytes: block.to_vec(), frames: 1 }));
        Ok(None)
    }

    fn handle_continuation(
        &mut self,
        header: FrameHeader,
        payload: &[u8],
    ) -> Result<Option<AcceptedRequest>, Reason> {
        let mut block = self.block.take().ok_or(Reason::PROTOCOL_ERROR)?;
        block.frames += 1;
        let max_bytes = self.state.borrow().settings.max_header_list as usize + MAX_BLOCK_EXCESS;
        if block.frames > MAX_BLOCK_FRAMES || block.bytes.len() + payload.len() > max_bytes {
            return Err(Reason::ENHANCE_YOUR_CALM);
        }
        block.bytes.extend_from_slice(payload);
        if header.has(flags::END_HEADERS) {
            return self.handle_block(block.head, &block.bytes);
        }
        self.block = Some(block);
        Ok(None)
    }

    /// Handles a complete header section. It is decoded in any case, because the table depends on it.
    fn handle_block(&mut self, head: HeadersFrame, block: &[u8]) -> Result<Option<AcceptedRequest>, Reason> {
        let state = &mut *self.state.borrow_mut();
        let mut fields = HeadBuilder::new(state.settings.max_header_list);
        self.decoder.decode(block, &mut fields).map_err(|_| Reason::COMPRESSION_ERROR)?;
        if let Some(stream) = state.streams.get(&head.stream).cloned() {
            let stream = &mut *stream.state.borrow_mut();
            handle_further_block(state, stream, head, fields)?;
            return Ok(None);
        }
        if !state.is_server || head.stream % 2 == 0 {
            return if state.is_idle(head.stream) { Err(Reason::PROTOCOL_ERROR) } else { Ok(None) };
        }
        if head.stream <= state.last_peer_stream {
            return if state.was_reset_here(head.stream) { Ok(None) } else { Err(Reason::PROTOCOL_ERROR) };
        }
        if state.shutdown == Shutdown::Final {
            return Ok(None);
        }
        state.last_peer_stream = head.stream;
        let accepted = accept_request(state, head, fields)?;
        Ok(accepted.map(|(request, stream)| {
            let receiver = ReceiveStream { handle: StreamHandle::new(&self.state, &stream) };
            let responder = Responder { handle: StreamHandle::new(&self.state, &stream) };
            (request.map(|()| receiver), responder)
        }))
    }

    fn handle_priority(&self, header: FrameHeader, payload: &[u8]) -> Result<(), Reason> {
        if header.stream == 0 {
            return Err(Reason::PROTOCOL_ERROR);
        }
        let depends_on_itself = read_u32(payload).is_some_and(|on| on & MAX_WINDOW == header.stream);
        if payload.len() == 5 && !depends_on_itself {
            return Ok(());
        }
        let reason = if payload.len() == 5 { Reason::PROTOCOL_ERROR } else { Reason::FRAME_SIZE_ERROR };
        if self.state.borrow().is_idle(header.stream) {
            // RST_STREAM must not be sent for an idle stream (RFC 9113 section 6.4).
            return Err(reason);
        }
        self.reset_for_error(header.stream, reason)
    }

    fn handle_reset(&self, header: FrameHeader, payload: &[u8]) -> Result<(), Reason> {
        let state = &mut *self.state.borrow_mut();
        let reason = read_u32(payload).filter(|_| payload.len() == 4).ok_or(Reason::FRAME_SIZE_ERROR)?;
        if header.stream == 0 || state.is_idle(header.stream) {
            return Err(Reason::PROTOCOL_ERROR);
        }
        if let Some(stream) = state.streams.get(&header.stream).cloned() {
            let stream = &mut *stream.state.borrow_mut();
            state.reset_by_peer(header.stream, stream, Reason(reason));
        }
        let is_premature = state.is_server && header.stream > state.last_stream_of_turn;
        if is_premature { state.floods.premature_reset(state.settings.max_premature_resets) } else { Ok(()) }
    }

    fn handle_settings(&self, header: FrameHeader, payload: &[u8]) -> Result<(), Reason> {
        if header.stream != 0 {
            return Err(Reason::PROTOCOL_ERROR);
        }
        if !header.has(flags::ACK) {
            return self.state.borrow_mut().apply_settings(payload);
        }
        if payload.is_empty() { Ok(()) } else { Err(Reason::FRAME_SIZE_ERROR) }
    }

    fn handle_ping(&self, header: FrameHeader, payload: &[u8]) -> Result<(), Reason> {
        if header.stream != 0 {
            return Err(Reason::PROTOCOL_ERROR);
        }
        if payload.len() != 8 {
            return Err(Reason::FRAME_SIZE_ERROR);
        }
        let mut state = self.state.borrow_mut();
        if header.has(flags::ACK) {
            state.ping_acknowledged(payload);
        } else {
            state.put_reply(FrameKind::Ping, flags::ACK, 0, payload);
        }
        Ok(())
    }

    fn handle_goaway(&self, header: FrameHeader, payload: &[u8]) -> Result<(), Reason> {
        if header.stream != 0 {
            return Err(Reason::PROTOCOL_ERROR);
        }
        let (last, rest) = payload.split_at_checked(4).ok_or(Reason::FRAME_SIZE_ERROR)?;
        let (Some(last), Some(reason)) = (read_u32(last), read_u32(rest)) else {
            return Err(Reason::FRAME_SIZE_ERROR);
        };
        self.state.borrow_mut().peer_goes_away(last & MAX_WINDOW, Reason(reason));
        Ok(())
    }

    fn handle_window_update(&self, header: FrameHeader, payload: &[u8]) -> Result<(), Reason> {
        let increment = read_u32(payload).filter(|_| payload.len() == 4).ok_or(Reason::FRAME_SIZE_ERROR)?;
        let increment = increment & MAX_WINDOW;
        let state = &mut *self.state.borrow_mut();
        if increment == 0 {
            // An error of the stream may be treated as one of the connection (RFC 9113 section 5.4.1).
            return Err(Reason::PROTOCOL_ERROR);
        }
        if header.stream == 0 {
            return state.grow_send_window(increment);
        }
        if state.is_idle(header.stream) {
            return Err(Reason::PROTOCOL_ERROR);
        }
        let Some(stream) = state.streams.get(&header.stream).cloned() else { return Ok(()) };
        let stream = &mut *stream.state.borrow_mut();
        stream.send_window += i64::from(increment);
        if stream.send_window > i64::from(MAX_WINDOW) {
            return state.reset_for_error(header.stream, Some(stream), Reason::FLOW_CONTROL_ERROR);
        }
        stream.wake_sender();
        Ok(())
    }

    /// Resets a stream, whatever its state.
    fn reset_for_error(&self, id: u32, reason: Reason) -> Result<(), Reason> {
        let state = &mut *self.state.borrow_mut();
        match state.streams.get(&id).cloned() {
            Some(stream) => state.reset_for_error(id, Some(&mut *stream.state.borrow_mut()), reason),
            None => state.reset_for_error(id, None, reason),
        }
    }
}

/// Handles DATA of a stream that has ended. It counts against the connection's window.
fn discard_data(state: &mut ConnectionState, id: u32, length: u32) -> Result<(), Reason> {
    state.release_connection_window(length);
    if state.was_reset_here(id) { Ok(()) } else { state.reset_for_error(id, None, Reason::STREAM_CLOSED) }
}

/// Handles DATA of an open stream.
fn receive_data(
    state: &mut ConnectionState,
    stream: &mut StreamState,
    header: FrameHeader,
    size: usize,
    data: Payload<'_>,
) -> Result<(), Reason> {
    let (id, is_end) = (header.stream, header.has(flags::END_STREAM));
    let length = u32::try_from(header.length).unwrap_or(u32::MAX);
    stream.receive_window -= i64::from(length);
    stream.unreleased = stream.unreleased.saturating_add(length);
    if let Some(reason) = data_error(state, stream, size as u64, is_end) {
        state.reset_for_error(id, Some(stream), reason)?;
        state.discard_received(stream);
        return Ok(());
    }
    match size {
        0 if !is_end => state.floods.empty_frame()?,
        0 => {}
        _ => state.floods.data(),
    }
    if stream.is_unread {
        state.discard_received(stream);
    } else {
        match data {
            Payload::Small(data) => stream.received.push_small(data),
            Payload::Large(data) => stream.received.push(data),
        }
        // Padding is not read.
        let padding = length.saturating_sub(u32::try_from(size).unwrap_or(u32::MAX));
        if padding > 0 {
            state.release_window(id, stream, padding);
        }
        stream.wake_receiver();
    }
    if is_end {
        state.end_receiving(id, stream);
    }
    Ok(())
}

/// Returns what is wrong with DATA of an open stream, and counts its bytes.
fn data_error(state: &ConnectionState, stream: &mut StreamState, size: u64, is_end: bool) -> Option<Reason> {
    if stream.receive_ended {
        return Some(Reason::STREAM_CLOSED);
    }
    if stream.receive_window < 0 {
        return Some(Reason::FLOW_CONTROL_ERROR);
    }
    if !state.is_server && !stream.has_response {
        return Some(Reason::PROTOCOL_ERROR);
    }
    if let Some(remaining) = &mut stream.remaining {
        let Some(left) = remaining.checked_sub(size).filter(|left| *left == 0 || !is_end) else {
            return Some(Reason::PROTOCOL_ERROR);
        };
        *remaining = left;
    }
    None
}

/// Opens the stream of a request. `None` if it is not accepted.
fn accept_request(
    state: &mut ConnectionState,
    head: HeadersFrame,
    fields: HeadBuilder,
) -> Result<Option<(Request<()>, Rc<Stream>)>, Reason> {
    let id = head.stream;
    let request = match fields.into_request() {
        Err(HeadError::TooLarge) => {
            reject_head(state, head);
            return Ok(None);
        }
        Ok(request) if !head.depends_on_itself => request,
        Ok(_) | Err(HeadError::Malformed) => {
            state.reset_for_error(id, None, Reason::PROTOCOL_ERROR)?;
            return Ok(None);
        }
    };
    if state.streams.len() >= state.settings.max_streams as usize {
        state.put_reset(id, Reason::REFUSED_STREAM);
        return Ok(None);
    }
    let remaining = content_length(request.headers());
    let Some(remaining) =
        remaining.ok().filter(|length| !head.is_end || length.is_none_or(|length| length == 0))
    else {
        state.reset_for_error(id, None, Reason::PROTOCOL_ERROR)?;
        return Ok(None);
    };
    let mut stream = StreamState::new(state.settings.stream_window, state.peer.stream_window);
    // The bytes of a tunnel have no length.
    stream.remaining = remaining.filter(|_| request.method() != Method::CONNECT);
    stream.receive_ended = head.is_end;
    Ok(Some((request, state.add_stream(id, stream))))
}

/// Responds to a request whose header section is too large.
fn reject_head(state: &mut ConnectionState, head: HeadersFrame) {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
    state.put_head(head.stream, true, |encoder, out| encode_response(&response, encoder, out));
    if !head.is_end {
        state.put_reset(head.stream, Reason::NO_ERROR);
    }
}

/// Handles a header section of a stream that is open: a response, or trailers.
fn handle_further_block(
    state: &mut ConnectionState,
    stream: &mut StreamState,
    head: HeadersFrame,
    fields: HeadBuilder,
) -> Result<(), Reason> {
    if stream.receive_ended {
        return state.reset_for_error(head.stream, Some(stream), Reason::STREAM_CLOSED);
    }
    let is_trailers = state.is_server || stream.has_response;
    let handled = match is_trailers {
        true => fields.into_trailers().and_then(|trailers| receive_trailers(stream, head, trailers)),
        false => fields.into_response().and_then(|response| receive_response(stream, head, response)),
    };
    if handled.is_err() || head.depends_on_itself {
        state.reset_for_error(head.stream, Some(stream), Reason::PROTOCOL_ERROR)?;
        state.discard_received(stream);
        return Ok(());
    }
    stream.wake_receiver();
    if head.is_end {
        state.end_receiving(head.stream, stream);
    }
    Ok(())
}

fn receive_trailers(
    stream: &mut StreamState,
    head: HeadersFrame,
    trailers: HeaderMap,
) -> Result<(), HeadError> {
    if !head.is_end || stream.remaining.is_some_and(|remaining| remaining > 0) {
        return Err(HeadError::Malformed);
    }
    if !trailers.is_empty() && !stream.is_unread {
        stream.trailers = Some(Box::new(trailers));
    }
    Ok(())
}

fn receive_response(
    stream: &mut StreamState,
    head: HeadersFrame,
    response: Response<()>,
) -> Result<(), HeadError> {
    let status = response.status();
    if status.is_informational() {
        // 101 does not exist in HTTP/2 (RFC 9113 section 8.6), and an interim response does not end a stream.
        if head.is_end
            || status == StatusCode::SWITCHING_PROTOCOLS
            || stream.responses.len() >= MAX_INTERIM_RESPONSES
        {
            return Err(HeadError::Malformed);
        }
    } else {
        stream.has_response = true;
        // Such a response has no content, whatever its `content-length` (RFC 9110 section 6.4.1).
        let has_no_content = stream.is_head_request || matches!(status.as_u16(), 204 | 304);
        stream.remaining = if has_no_content { Some(0) } else { content_length(response.headers())? };
        if head.is_end && stream.remaining.is_some_and(|remaining| remaining > 0) {
            return Err(HeadError::Malformed);
        }
    }
    stream.responses.push_back(Box::new(response));
    Ok(())
}
