//! Effects of received frames (RFC 9113 sections 5 and 6).

use std::cell::RefCell;
use std::rc::Rc;

use http::Request;

use super::error::Reason;
use super::frame::{FRAME_HEADER_SIZE, FrameHeader, FrameKind, flags, read_u32};
use super::handle_headers::HeaderBlock;
use super::hpack::HpackDecoder;
use super::input::InputBuf;
use super::malformation::Malformation;
use super::receive::ReceiveStream;
use super::responder::Responder;
use super::settings::MAX_WINDOW;
use super::shared::Http2State;

/// A request, and what sends its response.
pub(super) type AcceptedRequest = (Request<ReceiveStream>, Responder);

#[derive(Debug)]
pub(super) struct FrameHandler {
    pub(super) state: Rc<RefCell<Http2State>>,
    pub(super) decoder: HpackDecoder,
    /// A header section of which more frames are expected.
    pub(super) block: Option<Box<HeaderBlock>>,
    /// Number of complete frames and header sections, each of which counts as one.
    pub(super) completed: u64,
}

impl FrameHandler {
    pub(super) fn new(state: Rc<RefCell<Http2State>>) -> Self {
        Self { state, decoder: HpackDecoder::new(), block: None, completed: 0 }
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
            self.completed += 1;
            return Ok(None);
        }
        let payload = input.payload(header.length).unwrap_or_default();
        let accepted = self.handle_other(header, payload);
        input.advance(FRAME_HEADER_SIZE + header.length);
        self.completed += u64::from(self.block.is_none());
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

    fn handle_priority(&self, header: FrameHeader, payload: &[u8]) -> Result<(), Reason> {
        if header.stream == 0 {
            return Err(Reason::PROTOCOL_ERROR);
        }
        let depends_on_itself = read_u32(payload).is_some_and(|on| on & MAX_WINDOW == header.stream);
        if payload.len() == 5 && !depends_on_itself {
            return Ok(());
        }
        let reason = if payload.len() == 5 { Reason::PROTOCOL_ERROR } else { Reason::FRAME_SIZE_ERROR };
        let state = &mut *self.state.borrow_mut();
        if state.is_idle(header.stream) {
            // Such a stream cannot be reset (RFC 9113 section 6.4).
            return Err(reason);
        }
        let stream = state.streams.get(&header.stream).cloned();
        let mut stream = stream.as_ref().map(|stream| stream.state.borrow_mut());
        state.reset_for_error(header.stream, stream.as_deref_mut(), reason, Malformation::Priority)
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
        if !payload.is_empty() {
            return Err(Reason::FRAME_SIZE_ERROR);
        }
        self.state.borrow_mut().settings_acknowledged();
        Ok(())
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
            let (reason, what) = (Reason::FLOW_CONTROL_ERROR, Malformation::FlowControl);
            return state.reset_for_error(header.stream, Some(stream), reason, what);
        }
        stream.wake_sender();
        Ok(())
    }
}
