//! HEADERS and CONTINUATION frames: requests, responses and trailers (RFC 9113 sections 6.2, 6.10 and 8.1).

use std::rc::Rc;

use http::{HeaderMap, Method, Request, Response, StatusCode};

use super::error::Reason;
use super::frame::{FrameHeader, flags, read_u32};
use super::handle::StreamHandle;
use super::handle_frame::{AcceptedRequest, FrameHandler};
use super::head::{HeadBuilder, HeadError, encode_response};
use super::hpack::Protocol;
use super::malformation::Malformation;
use super::receive::ReceiveStream;
use super::responder::Responder;
use super::settings::MAX_WINDOW;
use super::shared::{Http2State, Shutdown};
use super::stream::{ResponseLength, Stream, StreamState};

/// Maximum frames of one header section.
const MAX_BLOCK_FRAMES: u32 = 64;
/// Maximum bytes by which an encoded header section may exceed the maximum size of a decoded one.
const MAX_BLOCK_EXCESS: usize = 16 * 1024;
/// Maximum interim responses of a stream that were not taken.
const MAX_INTERIM_RESPONSES: usize = 16;

/// The beginning of a header section.
#[derive(Debug)]
pub(super) struct HeaderBlock {
    pub(super) head: HeadersFrame,
    bytes: Vec<u8>,
    frames: u32,
}

/// What a HEADERS frame states beside its fields.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadersFrame {
    pub(super) stream: u32,
    is_end: bool,
    /// Whether the stream depends on itself, which is an error although priorities are ignored.
    depends_on_itself: bool,
}

impl FrameHandler {
    pub(super) fn handle_headers(
        &mut self,
        header: FrameHeader,
        payload: &[u8],
    ) -> Result<Option<AcceptedRequest>, Reason> {
        let mut block = &payload[header.unpadded(payload)?];
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

    pub(super) fn handle_continuation(
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
        if !state.is_server || head.stream.is_multiple_of(2) {
            return if state.is_idle(head.stream) { Err(Reason::PROTOCOL_ERROR) } else { Ok(None) };
        }
        if head.stream <= state.last_peer_stream {
            return if state.was_reset_here(head.stream) { Ok(None) } else { Err(Reason::PROTOCOL_ERROR) };
        }
        state.last_peer_stream = head.stream;
        if state.shutdown == Shutdown::Final {
            // The client has opened it before it has seen GOAWAY, and sends it elsewhere.
            state.ignore_stream(head.stream);
            return Ok(None);
        }
        state.last_accepted = head.stream;
        let accepted = accept_request(state, head, fields)?;
        Ok(accepted.map(|OpenedStream { request, stream }| {
            let receiver = ReceiveStream { handle: StreamHandle::new(&self.state, &stream) };
            let responder = Responder { handle: StreamHandle::new(&self.state, &stream) };
            (request.map(|()| receiver), responder)
        }))
    }
}

/// A request and its stream.
struct OpenedStream {
    request: Request<()>,
    stream: Rc<Stream>,
}

/// Opens the stream of a request. `None` if it is not accepted.
fn accept_request(
    state: &mut Http2State,
    head: HeadersFrame,
    fields: HeadBuilder,
) -> Result<Option<OpenedStream>, Reason> {
    let id = head.stream;
    let length = fields.content_length();
    let request = match fields.into_request(state.settings.origins) {
        Err(HeadError::TooLarge) => {
            reject_head(state, head);
            return Ok(None);
        }
        Ok(_) if head.depends_on_itself => return reset_request(state, id, Malformation::Priority),
        Ok(request) => request,
        Err(HeadError::Malformed(what)) => return reset_request(state, id, what),
    };
    if state.streams.len() >= state.settings.max_streams as usize {
        state.refused = state.refused.saturating_add(1);
        state.put_reset(id, Reason::REFUSED_STREAM);
        state.floods.refused_stream(state.settings.max_streams)?;
        return Ok(None);
    }
    if !state.settings.connect_protocol && request.extensions().get::<Protocol>().is_some() {
        return reset_request(state, id, Malformation::Protocol);
    }
    let remaining = length.ok().filter(|length| !head.is_end || length.is_none_or(|length| length == 0));
    let Some(remaining) = remaining else {
        return reset_request(state, id, Malformation::ContentLength);
    };
    let mut stream = StreamState::new(state.first_stream_window(), state.peer.stream_window);
    // The bytes of a tunnel have no length.
    stream.remaining = remaining.filter(|_| request.method() != Method::CONNECT);
    stream.receive_ended = head.is_end;
    Ok(Some(OpenedStream { request, stream: state.add_stream(id, stream) }))
}

/// Resets the stream of a malformed request.
///
/// # Errors
/// If the connection must be closed, because there were too many.
fn reset_request(
    state: &mut Http2State,
    id: u32,
    what: Malformation,
) -> Result<Option<OpenedStream>, Reason> {
    state.reset_for_error(id, None, Reason::PROTOCOL_ERROR, what).map(|()| None)
}

/// Responds to a request whose header section is too large.
fn reject_head(state: &mut Http2State, head: HeadersFrame) {
    state.malformed.record(Malformation::HeaderSize);
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
    state.put_head(head.stream, true, |encoder, out| encode_response(&response, encoder, out));
    if !head.is_end {
        state.put_reset(head.stream, Reason::NO_ERROR);
    }
}

/// Handles a header section of a stream that is open: a response, or trailers.
fn handle_further_block(
    state: &mut Http2State,
    stream: &mut StreamState,
    head: HeadersFrame,
    fields: HeadBuilder,
) -> Result<(), Reason> {
    if stream.receive_ended {
        let (reason, what) = (Reason::STREAM_CLOSED, Malformation::StreamClosed);
        return state.reset_for_error(head.stream, Some(stream), reason, what);
    }
    let is_trailers = state.is_server || stream.has_response;
    let handled = match is_trailers {
        true => fields.into_trailers().and_then(|trailers| receive_trailers(stream, head, trailers)),
        false => {
            let length = fields.content_length();
            fields.into_response().and_then(|response| receive_response(stream, head, response, length))
        }
    };
    let malformation = match handled {
        Ok(()) => head.depends_on_itself.then_some(Malformation::Priority),
        Err(error) => Some(error.malformation()),
    };
    if let Some(what) = malformation {
        state.reset_for_error(head.stream, Some(stream), Reason::PROTOCOL_ERROR, what)?;
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
    if !head.is_end {
        return Err(HeadError::Malformed(Malformation::Trailers));
    }
    if stream.remaining.is_some_and(|remaining| remaining > 0) {
        return Err(HeadError::Malformed(Malformation::ContentLength));
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
    length: Result<Option<u64>, HeadError>,
) -> Result<(), HeadError> {
    let status = response.status();
    if status.is_informational() {
        // 101 does not exist in HTTP/2 (RFC 9113 section 8.6), and an interim response does not end a stream.
        let is_valid = !head.is_end && status != StatusCode::SWITCHING_PROTOCOLS;
        if !is_valid || stream.interims.len() >= MAX_INTERIM_RESPONSES {
            return Err(HeadError::Malformed(Malformation::Status));
        }
        stream.interims.push_back(response);
        return Ok(());
    }
    stream.remaining = response_length(stream.response_length, status, length)?;
    if head.is_end && stream.remaining.is_some_and(|remaining| remaining > 0) {
        return Err(HeadError::Malformed(Malformation::ContentLength));
    }
    stream.has_response = true;
    stream.response = Some(Box::new(response));
    Ok(())
}

/// Returns the length of the content of a response, whose head states `length`; `None` if it is not known.
fn response_length(
    meaning: ResponseLength,
    status: StatusCode,
    length: Result<Option<u64>, HeadError>,
) -> Result<Option<u64>, HeadError> {
    match meaning {
        ResponseLength::Ignored => Ok(None),
        ResponseLength::OfGet => Ok(Some(0)),
        // They have no content (RFC 9110 section 6.4.1).
        ResponseLength::OfContent if matches!(status.as_u16(), 204 | 304) => Ok(Some(0)),
        ResponseLength::OfContent => length,
    }
}
