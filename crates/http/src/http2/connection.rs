//! Task of a connection: reads frames, handles them in their order, and writes.

use std::cell::{Cell, RefCell, RefMut};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use http::Request;
use tokio::io::{AsyncRead, AsyncWrite};

use super::error::{Http2Error, Reason};
use super::frame::{FRAME_HEADER_SIZE, FrameHeader, FrameKind, MAX_FRAME_SIZE, PREFACE};
use super::handle_frame::{AcceptedRequest, FrameHandler};
use super::input::InputBuf;
use super::output::OutputBuf;
use super::receive::ReceiveStream;
use super::responder::Responder;
use super::settings::Http2Settings;
use super::shared::Http2State;

/// Number of requests after which other connections have their turn.
const MAX_REQUESTS_PER_TURN: usize = 256;

thread_local! {
    /// Memory for the requests of one turn, shared by all connections of the thread.
    static ACCEPTED: Cell<Vec<AcceptedRequest>> = const { Cell::new(Vec::new()) };
}

/// What starts a request.
pub(super) type StartRequest<'a> = dyn FnMut(Request<ReceiveStream>, Responder, &mut Context<'_>) + 'a;

/// A connection of either side.
#[derive(Debug)]
pub(super) struct Connection<T> {
    stream: T,
    input: InputBuf,
    frames: FrameHandler,
    phase: ConnectionPhase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionPhase {
    /// The preface of the client is expected.
    Preface,
    /// The first SETTINGS frame is expected.
    Settings,
    /// Frames are exchanged.
    Open,
    /// What is left is written. Then the connection is closed.
    Closing,
}

/// Progress with the frames that have arrived.
enum FrameProgress {
    /// More must be read.
    NeedsInput,
    /// Requests must be started, or replies written, before further frames are handled.
    Paused,
}

impl<T: AsyncRead + AsyncWrite + Unpin> Connection<T> {
    pub(super) fn new(stream: T, is_server: bool, settings: Http2Settings) -> Self {
        let state = Rc::new(RefCell::new(Http2State::new(is_server, settings)));
        let phase = if is_server { ConnectionPhase::Preface } else { ConnectionPhase::Settings };
        Self { stream, input: InputBuf::default(), frames: FrameHandler::new(state), phase }
    }

    pub(super) const fn shared(&self) -> &Rc<RefCell<Http2State>> {
        &self.frames.state
    }

    pub(super) fn state(&self) -> RefMut<'_, Http2State> {
        self.frames.state.borrow_mut()
    }

    /// Waits for the client's preface (RFC 9113 section 3.4), while the settings are sent.
    pub(super) fn poll_preface(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Http2Error>> {
        while self.phase == ConnectionPhase::Preface {
            let arrived = self.input.bytes();
            if !arrived.starts_with(&PREFACE[..arrived.len().min(PREFACE.len())]) {
                return Poll::Ready(Err(Http2Error::Violation(Reason::PROTOCOL_ERROR)));
            }
            if arrived.len() >= PREFACE.len() {
                self.input.advance(PREFACE.len());
                self.phase = ConnectionPhase::Settings;
                break;
            }
            let _ = self.poll_flush(cx)?;
            let read = ready!(self.input.poll_read(&mut self.stream, cx)).map_err(Http2Error::from)?;
            if read == 0 {
                return Poll::Ready(Err(Http2Error::Io(io::ErrorKind::UnexpectedEof)));
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Returns a number of what the peer has begun to send and not completed: its preface and first SETTINGS, a header
    /// section, or another frame than DATA of an open stream. It stays the same until that is complete. `None` if there is
    /// nothing, or if nothing is read because the peer does not read.
    pub(super) fn incomplete(&self) -> Option<u64> {
        let begun = match self.phase {
            ConnectionPhase::Preface | ConnectionPhase::Settings => true,
            ConnectionPhase::Open => {
                (self.frames.block.is_some() || self.has_incomplete_frame())
                    && !self.state().output.is_overdue()
            }
            ConnectionPhase::Closing => false,
        };
        begun.then_some(self.frames.completed)
    }

    fn has_incomplete_frame(&self) -> bool {
        match self.input.peek_header() {
            None => !self.input.bytes().is_empty(),
            // Its stream has timeouts of its own.
            Some(FrameHeader { kind: FrameKind::Data, stream, .. })
                if self.state().streams.contains_key(&stream) =>
            {
                false
            }
            Some(header) => self.input.bytes().len() < FRAME_HEADER_SIZE + header.length,
        }
    }

    /// Closes the connection, because the peer has not completed something in time. GOAWAY is written if the peer reads.
    pub(super) fn close_incomplete(&mut self, cx: &mut Context<'_>) {
        let is_begin = matches!(self.phase, ConnectionPhase::Preface | ConnectionPhase::Settings);
        let reason = if is_begin { Reason::SETTINGS_TIMEOUT } else { Reason::ENHANCE_YOUR_CALM };
        self.state().close_for_error(reason);
        self.phase = ConnectionPhase::Closing;
        let _ = self.poll_flush(cx);
    }

    /// Handles what has arrived and writes what there is to be sent. Ready when the connection has ended.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        start: &mut StartRequest<'_>,
    ) -> Poll<Result<(), Http2Error>> {
        self.state().begin_turn(cx);
        let polled = self.poll_turn(cx, start);
        let mut state = self.state();
        state.is_polling = false;
        if let Poll::Ready(result) = &polled {
            state.end_all(result.clone().err().unwrap_or(Http2Error::Io(io::ErrorKind::ConnectionAborted)));
        }
        drop(state);
        polled
    }

    fn poll_turn(
        &mut self,
        cx: &mut Context<'_>,
        start: &mut StartRequest<'_>,
    ) -> Poll<Result<(), Http2Error>> {
        let mut started = 0;
        while self.phase != ConnectionPhase::Closing {
            if self.state().output.is_overdue() {
                ready!(self.poll_flush(cx))?;
            }
            let mut accepted = ACCEPTED.take();
            let handled = self.handle_frames(&mut accepted);
            started += accepted.len();
            start_all(&mut accepted, cx, start);
            ACCEPTED.set(accepted);
            match handled {
                Ok(FrameProgress::NeedsInput) => {}
                Ok(FrameProgress::Paused) if started >= MAX_REQUESTS_PER_TURN => {
                    cx.waker().wake_by_ref();
                    break;
                }
                Ok(FrameProgress::Paused) => continue,
                Err(reason) => {
                    self.state().close_for_error(reason);
                    self.phase = ConnectionPhase::Closing;
                    break;
                }
            }
            match self.input.poll_read(&mut self.stream, cx) {
                Poll::Ready(Ok(0)) => {
                    self.state().end_all(Http2Error::Io(io::ErrorKind::UnexpectedEof));
                    self.phase = ConnectionPhase::Closing;
                }
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error.into())),
                Poll::Pending => break,
            }
        }
        self.poll_output(cx)
    }

    /// Writes what there is to be sent, and closes the connection after its last frame.
    fn poll_output(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Http2Error>> {
        if self.phase != ConnectionPhase::Closing && self.state().is_finished() {
            self.state().announce_end();
            self.phase = ConnectionPhase::Closing;
        }
        ready!(self.poll_flush(cx))?;
        if self.phase != ConnectionPhase::Closing {
            return Poll::Pending;
        }
        let closed = ready!(Pin::new(&mut self.stream).poll_shutdown(cx));
        let end = self.state().end.clone();
        Poll::Ready(match end {
            Some(error @ Http2Error::Violation(_)) => Err(error),
            _ => closed.map_err(Http2Error::from),
        })
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Http2Error>> {
        let mut state = self.frames.state.borrow_mut();
        if state.output.is_flushed() {
            return Poll::Ready(Ok(()));
        }
        let polled = state.output.poll_write(&mut self.stream, cx);
        // There is room again if everything was written, also while it is not flushed.
        state.wake_waiting();
        state.record_unsent();
        polled.map_err(Http2Error::from)
    }

    /// Handles the complete frames that have arrived, and appends the requests among them to `accepted`.
    fn handle_frames(&mut self, accepted: &mut Vec<AcceptedRequest>) -> Result<FrameProgress, Reason> {
        while let Some(header) = self.input.peek_header() {
            if header.length > MAX_FRAME_SIZE {
                return Err(Reason::FRAME_SIZE_ERROR);
            }
            self.check_order(header)?;
            if self.input.bytes().len() < FRAME_HEADER_SIZE + header.length {
                return Ok(FrameProgress::NeedsInput);
            }
            accepted.extend(self.frames.handle(header, &mut self.input)?);
            if accepted.len() >= MAX_REQUESTS_PER_TURN || self.state().output.is_overdue() {
                return Ok(FrameProgress::Paused);
            }
        }
        Ok(FrameProgress::NeedsInput)
    }

    /// The first frame of a peer must be SETTINGS (RFC 9113 section 3.4).
    fn check_order(&mut self, header: FrameHeader) -> Result<(), Reason> {
        if self.phase == ConnectionPhase::Settings {
            if header.kind != FrameKind::Settings || header.has(super::frame::flags::ACK) {
                return Err(Reason::PROTOCOL_ERROR);
            }
            self.phase = ConnectionPhase::Open;
        }
        Ok(())
    }
}

impl<T> Drop for Connection<T> {
    fn drop(&mut self) {
        let mut state = self.frames.state.borrow_mut();
        state.end_all(Http2Error::Io(io::ErrorKind::ConnectionAborted));
        // Handles of streams keep the state for as long as their tasks run.
        state.output = OutputBuf::default();
        state.record_unsent();
    }
}

/// Starts requests after all frames of a read: their data may have arrived with them, and the client may have reset them.
fn start_all(accepted: &mut Vec<AcceptedRequest>, cx: &mut Context<'_>, start: &mut StartRequest<'_>) {
    for (request, responder) in accepted.drain(..) {
        if !responder.has_ended() {
            start(request, responder, cx);
        }
    }
}
