//! Flow control of what is sent (RFC 9113 section 5.2), and the settings of the peer.

use std::rc::Rc;

use bytes::Bytes;

use super::error::Reason;
use super::frame::{FRAME_HEADER_SIZE, FrameHeader, FrameKind, flags};
use super::settings::MAX_WINDOW;
use super::shared::Http2State;
use super::stream::{Stream, StreamState};

impl Http2State {
    /// Appends data, which the windows must permit; `is_end` if it ends the stream.
    pub(super) fn put_data(&mut self, id: u32, stream: &mut StreamState, data: Bytes, is_end: bool) {
        let length = data.len();
        stream.send_window -= i64::try_from(length).unwrap_or(i64::MAX);
        self.send_window -= i64::try_from(length).unwrap_or(i64::MAX);
        let mut rest = data;
        loop {
            let part = rest.split_to(rest.len().min(self.peer.max_frame_size));
            let flags = if is_end && rest.is_empty() { flags::END_STREAM } else { 0 };
            let header = FrameHeader { length: part.len(), kind: FrameKind::Data, flags, stream: id };
            self.output.buffer_mut().extend_from_slice(&header.encode());
            self.output.push(part);
            if rest.is_empty() {
                break;
            }
        }
        if is_end {
            self.end_sending(id, stream);
        }
        self.wake();
    }

    /// Returns how many bytes may be sent on all streams.
    pub(super) fn capacity(&self) -> usize {
        self.output.room().min(usize::try_from(self.send_window).unwrap_or(0))
    }

    /// Queues a stream that would send `wanted` bytes, until there is capacity for all streams.
    pub(super) fn enqueue(&mut self, stream: &Rc<Stream>, wanted: usize) {
        stream.wanted.set(wanted);
        if !stream.is_queued.replace(true) {
            self.waiting.push_back(Rc::clone(stream));
        }
    }

    /// Removes a stream from the queue: it has capacity, or cannot use it.
    pub(super) fn dequeue(&mut self, stream: &Stream) {
        if !stream.is_queued.replace(false) {
            return;
        }
        match self.waiting.front() {
            Some(first) if first.id == stream.id => drop(self.waiting.pop_front()),
            _ => self.waiting.retain(|waiting| waiting.id != stream.id),
        }
    }

    /// Wakes the first streams in the queue, as many as have capacity. A stream stays in the queue until it has used
    /// some, and then wakes the next ones: so each has its turn, and a small window does not wake them all.
    pub(super) fn wake_waiting(&mut self) {
        let capacity = self.capacity();
        let (mut woken, mut promised) = (0, 0_usize);
        while promised < capacity
            && let Some(next) = self.waiting.get(woken)
        {
            // The stream that causes this is borrowed, and needs no wake-up.
            let Ok(mut state) = next.state.try_borrow_mut() else { return };
            if !state.can_send() {
                next.is_queued.set(false);
                drop(state);
                self.waiting.remove(woken);
            } else if state.wake_sender() {
                woken += 1;
                promised = promised.saturating_add(FRAME_HEADER_SIZE).saturating_add(next.wanted.get());
            } else {
                // Woken before, with those after it.
                return;
            }
        }
    }

    /// Adds to the connection's send window.
    pub(super) fn grow_send_window(&mut self, increment: u32) -> Result<(), Reason> {
        self.send_window += i64::from(increment);
        if self.send_window > i64::from(MAX_WINDOW) {
            return Err(Reason::FLOW_CONTROL_ERROR);
        }
        self.wake_waiting();
        Ok(())
    }

    /// Applies a SETTINGS frame of the peer.
    pub(super) fn apply_settings(&mut self, payload: &[u8]) -> Result<(), Reason> {
        let is_first = !std::mem::replace(&mut self.has_peer_settings, true);
        if is_first {
            self.peer.max_streams = u32::MAX;
        }
        let before = self.peer;
        self.peer.apply(payload, self.is_server)?;
        if self.peer.header_table != before.header_table
            || self.peer.smallest_header_table != self.peer.header_table
        {
            // The smallest of several sizes must be confirmed, too (RFC 7541 section 4.2).
            self.encoder.set_max_size(self.peer.smallest_header_table);
            self.encoder.set_max_size(self.peer.header_table);
        }
        self.change_windows(i64::from(self.peer.stream_window) - i64::from(before.stream_window))?;
        self.put_reply(FrameKind::Settings, flags::ACK, 0, &[]);
        if is_first || self.peer.max_streams != before.max_streams {
            self.queue.wake_all();
        }
        Ok(())
    }

    /// Changes the send windows of all streams.
    fn change_windows(&mut self, delta: i64) -> Result<(), Reason> {
        if delta == 0 || self.streams.is_empty() {
            return Ok(());
        }
        self.floods.window_change()?;
        for stream in self.streams.values() {
            let mut state = stream.state.borrow_mut();
            state.send_window += delta;
            if state.send_window > i64::from(MAX_WINDOW) {
                return Err(Reason::FLOW_CONTROL_ERROR);
            }
            if state.can_send() {
                state.wake_sender();
            }
        }
        Ok(())
    }
}
