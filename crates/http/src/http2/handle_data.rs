//! DATA frames (RFC 9113 section 6.1).

use super::error::Reason;
use super::frame::{FRAME_HEADER_SIZE, FrameHeader, flags};
use super::handle_frame::FrameHandler;
use super::input::{InputBuf, Payload};
use super::malformation::Malformation;
use super::shared::Http2State;
use super::stream::StreamState;

impl FrameHandler {
    /// Handles the next frame of `input`, and removes it.
    pub(super) fn handle_data(&mut self, header: FrameHeader, input: &mut InputBuf) -> Result<(), Reason> {
        let state = &mut *self.state.borrow_mut();
        let range = header.unpadded(input.payload(header.length).unwrap_or_default())?;
        if header.stream == 0 || state.is_idle(header.stream) {
            return Err(Reason::PROTOCOL_ERROR);
        }
        let length = u32::try_from(header.length).unwrap_or(u32::MAX);
        state.count_received(length)?;
        let Some(stream) = state.streams.get(&header.stream).cloned() else {
            input.advance(FRAME_HEADER_SIZE + header.length);
            return discard_data(state, header.stream, length);
        };
        let stream = &mut *stream.state.borrow_mut();
        input.with_data(header.length, range, |data| receive_data(state, stream, header, data))
    }
}

/// Handles DATA of a stream that has ended. It counts against the connection's window.
fn discard_data(state: &mut Http2State, id: u32, length: u32) -> Result<(), Reason> {
    state.give_back(length);
    // A client may have cancelled many streams at once, and the data of all of them may be on its way.
    match !state.is_server || state.was_reset_here(id) {
        true => Ok(()),
        false => state.reset_for_error(id, None, Reason::STREAM_CLOSED, Malformation::StreamClosed),
    }
}

/// Handles DATA of an open stream.
fn receive_data(
    state: &mut Http2State,
    stream: &mut StreamState,
    header: FrameHeader,
    data: Payload<'_>,
) -> Result<(), Reason> {
    let (id, size, is_end) = (header.stream, data.len(), header.has(flags::END_STREAM));
    let length = u32::try_from(header.length).unwrap_or(u32::MAX);
    if stream.receive_ended {
        // What was received before is complete.
        state.give_back(length);
        let (reason, what) = (Reason::STREAM_CLOSED, Malformation::StreamClosed);
        return state.reset_for_error(id, Some(stream), reason, what);
    }
    stream.receive_window -= i64::from(length);
    stream.unreleased = stream.unreleased.saturating_add(length);
    let is_too_much = length > 0 && stream.receive_window < 0;
    if let Some(what) = data_error(state, stream, is_too_much, size as u64, is_end) {
        let is_flow_control = what == Malformation::FlowControl;
        let reason = if is_flow_control { Reason::FLOW_CONTROL_ERROR } else { Reason::PROTOCOL_ERROR };
        state.reset_for_error(id, Some(stream), reason, what)?;
        state.discard_received(stream);
        return Ok(());
    }
    match size {
        0 if !is_end => state.floods.empty_frame()?,
        0 => {}
        _ => state.floods.data(),
    }
    store_data(state, stream, header, data);
    if is_end {
        state.end_receiving(id, stream);
    }
    Ok(())
}

/// Keeps data until it is read.
fn store_data(state: &mut Http2State, stream: &mut StreamState, header: FrameHeader, data: Payload<'_>) {
    if stream.is_unread {
        return state.discard_received(stream);
    }
    // Padding is not read.
    let padding = u32::try_from(header.length.saturating_sub(data.len())).unwrap_or(u32::MAX);
    match data {
        Payload::Small(data) => stream.received.push_small(data),
        Payload::Large(data) => stream.received.push(data),
    }
    if padding > 0 {
        state.release_window(header.stream, stream, padding);
    }
    stream.wake_receiver();
}

/// Returns what is wrong with DATA of an open stream, and counts its bytes. `is_too_much`: the window does not permit it.
fn data_error(
    state: &Http2State,
    stream: &mut StreamState,
    is_too_much: bool,
    size: u64,
    is_end: bool,
) -> Option<Malformation> {
    if is_too_much {
        return Some(Malformation::FlowControl);
    }
    if !state.is_server && !stream.has_response {
        return Some(Malformation::Data);
    }
    if let Some(remaining) = &mut stream.remaining {
        let Some(left) = remaining.checked_sub(size).filter(|left| *left == 0 || !is_end) else {
            return Some(Malformation::ContentLength);
        };
        *remaining = left;
    }
    None
}
