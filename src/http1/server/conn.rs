//! A client's connection.
//!
//! Shared by the connection's task and the reader of a request's body, which may be another task of this thread. Exactly one
//! of them reads at a time: the body's reader until the body has ended, then the connection's task. Only that task writes
//! responses; the body's reader writes `100 Continue`.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf as _, Bytes, BytesMut};
use hyper::body::{Frame, SizeHint};
use tokio::io::AsyncWrite;

use super::request_head::Reader;
use crate::http1::decoder::{Decoder, Piece};
use crate::http1::malformed::Malformed;
use crate::http1::read_buf::{ReadBuf, Source};

/// What lets a client send its body that waits for it (RFC 9110 section 15.2.1).
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// A connection, and what of the request under way is still to be read.
#[derive(Debug)]
pub struct Conn<S> {
    /// `None` once it has ended.
    stream: Option<S>,
    read_buf: ReadBuf,
    length: Decoder,
    /// The client waits for [`CONTINUE`], and nobody has asked for its body.
    expects: bool,
    /// What of interim responses is still to be written, and whether what was is on its way.
    interim: BytesMut,
    interim_needs_flush: bool,
    /// Nobody asks for the rest of the body.
    body_discarded: bool,
    /// The body broke off: nothing that follows is a request.
    broken: bool,
    /// No further request is waited for.
    closing: bool,
    /// Who waits for the body's end.
    waiting: Option<Waker>,
    /// Who waits for more of the body.
    reading: Option<Waker>,
}

/// What ends a connection before its time.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// By the client's fault.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// It failed, or the client has gone while a request was under way.
    #[error(transparent)]
    Connection(#[from] io::Error),
}

impl<S: Source + AsyncWrite> Conn<S> {
    /// A connection on which nothing has been read.
    pub fn new(stream: S) -> Self {
        Self {
            stream: Some(stream),
            read_buf: ReadBuf::default(),
            length: Decoder::Length(0),
            expects: false,
            interim: BytesMut::new(),
            interim_needs_flush: false,
            body_discarded: false,
            broken: false,
            closing: false,
            waiting: None,
            reading: None,
        }
    }

    /// The connection, with what has been read of what comes next; for everybody else it has ended.
    pub fn cut(&mut self) -> Option<(S, Bytes)> {
        let stream = self.stream.take()?;
        if let Some(reading) = self.reading.take() {
            reading.wake();
        }
        Some((stream, self.read_buf.bytes.split().freeze()))
    }

    /// What has been read and not yet decoded.
    pub fn unread(&self) -> &[u8] {
        &self.read_buf.bytes
    }

    /// No request is waited for from now on; one that is here already is the last.
    pub fn close(&mut self) {
        self.closing = true;
    }

    /// Whether no request follows.
    pub fn is_closing(&self) -> bool {
        self.closing || self.broken
    }

    /// Reads the next request's head with `reader`; whether there is one.
    pub fn poll_head(&mut self, reader: &mut Reader, cx: &mut Context<'_>) -> Poll<Result<bool, Broken>> {
        loop {
            skip_empty_lines(&mut self.read_buf.bytes);
            let nothing = matches!(&*self.read_buf.bytes, b"" | b"\r");
            let Some(stream) = &mut self.stream else { return Poll::Ready(Ok(false)) };
            if !nothing {
                stream.message_started();
                if reader.decode(&mut self.read_buf.bytes)? {
                    return Poll::Ready(Ok(true));
                }
            }
            match self.read_buf.poll_read(stream, cx) {
                Poll::Ready(Ok(1..)) => {}
                Poll::Ready(Ok(0)) if nothing => return Poll::Ready(Ok(false)),
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::Error::from(Malformed::CutOff).into())),
                Poll::Ready(Err(_)) if nothing => return Poll::Ready(Ok(false)),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error.into())),
                Poll::Pending if nothing && self.closing => return Poll::Ready(Ok(false)),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// A request's body is to be read next; its client may wait to be told so.
    pub fn expect(&mut self, length: Decoder, expects: bool) {
        if let Some(octets) = length.left() {
            self.read_buf.expect(octets.saturating_sub(self.read_buf.bytes.len() as u64));
        }
        self.length = length;
        self.expects = expects;
        (self.body_discarded, self.broken) = (false, false);
    }

    /// An answer begins: nobody is told to continue any more.
    pub fn begin_answer(&mut self) {
        self.expects = false;
    }

    /// Where interim responses are added, to be written before anything else.
    pub fn interim(&mut self) -> &mut BytesMut {
        &mut self.interim
    }

    /// Writes what is left of interim responses, before the final one is. That sees it off: the socket is woken for one
    /// writer only.
    pub fn poll_before_answer(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.interim_needs_flush = false;
        if self.interim.is_empty() {
            return Poll::Ready(Ok(()));
        }
        self.poll_write_interim(cx)
    }

    /// Writes interim responses while the final one is waited for; what does not go out now does so later.
    pub fn send_interim(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.poll_interim(cx) {
            Poll::Ready(written) => written,
            Poll::Pending => Ok(()),
        }
    }

    /// Ready when the client has gone. What it sends before its turn is kept, but no more is read then.
    pub fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<Broken> {
        if !self.length.is_over() {
            // Also where the body broke off: who has stopped sending may still read.
            self.wait(cx);
            return Poll::Pending;
        }
        if !self.read_buf.is_empty() {
            return Poll::Pending;
        }
        let Some(stream) = &mut self.stream else {
            return Poll::Ready(io::Error::from(Malformed::CutOff).into());
        };
        match ready!(self.read_buf.poll_read(stream, cx)) {
            Ok(1..) => Poll::Pending,
            Ok(0) => Poll::Ready(io::Error::from(Malformed::CutOff).into()),
            Err(error) => Poll::Ready(error.into()),
        }
    }

    /// After an answer, what is left of its request: ready when that is read, and whether it is.
    pub fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        if self.broken {
            return Poll::Ready(false);
        }
        if !self.length.is_over() {
            if !self.body_discarded {
                self.wait(cx);
                return Poll::Pending;
            }
            if !self.skip(cx) {
                return Poll::Ready(false);
            }
        }
        self.read_buf.settle();
        Poll::Ready(true)
    }

    /// Has whoever serves the connection told of the body's end.
    fn wait(&mut self, cx: &Context<'_>) {
        if !self.waiting.as_ref().is_some_and(|waiting| waiting.will_wake(cx.waker())) {
            self.waiting = Some(cx.waker().clone());
        }
    }

    /// Whether all that is left of a body is here.
    fn skip(&mut self, cx: &mut Context<'_>) -> bool {
        for is_first in [true, false] {
            loop {
                match self.length.decode(&mut self.read_buf.bytes) {
                    Ok(Piece::Data(_)) => {}
                    Ok(Piece::More) => break,
                    Ok(Piece::End | Piece::Trailers(_)) => return true,
                    Err(_) => return false,
                }
            }
            let Some(stream) = self.stream.as_mut().filter(|_| is_first) else { return false };
            if !matches!(self.read_buf.poll_read(stream, cx), Poll::Ready(Ok(1..))) {
                return false;
            }
        }
        false
    }

    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Frame<Bytes>>>> {
        loop {
            match self.length.decode(&mut self.read_buf.bytes)? {
                Piece::Data(data) => return Poll::Ready(Ok(Some(Frame::data(data)))),
                Piece::Trailers(fields) => return Poll::Ready(Ok(Some(Frame::trailers(fields)))),
                Piece::End => return Poll::Ready(Ok(None)),
                Piece::More => {}
            }
            if std::mem::take(&mut self.expects) {
                self.interim.extend_from_slice(CONTINUE);
            }
            // What does not go out now does so when the body is asked for again, or before the answer.
            if let Poll::Ready(written) = self.poll_interim(cx) {
                written?;
            }
            let Some(stream) = &mut self.stream else { return Poll::Ready(Err(Malformed::CutOff.into())) };
            let Poll::Ready(read) = self.read_buf.poll_read(stream, cx) else {
                self.reading = Some(cx.waker().clone());
                return Poll::Pending;
            };
            if read? == 0 {
                return Poll::Ready(Err(Malformed::CutOff.into()));
            }
        }
    }

    fn poll_interim(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_write_interim(cx))?;
        if let Some(stream) = self.stream.as_mut().filter(|_| self.interim_needs_flush) {
            ready!(Pin::new(stream).poll_flush(cx))?;
            self.interim_needs_flush = false;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write_interim(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(stream) = &mut self.stream else { return Poll::Ready(Ok(())) };
        while !self.interim.is_empty() {
            let written = ready!(Pin::new(&mut *stream).poll_write(cx, &self.interim))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.interim.advance(written);
            self.interim_needs_flush = true;
        }
        Poll::Ready(Ok(()))
    }

    /// The body is read, or will not be.
    fn discard_body(&mut self) {
        self.body_discarded = true;
        self.reading = None;
        if let Some(waiting) = self.waiting.take() {
            waiting.wake();
        }
    }
}

/// Takes empty lines off that stand before a head (RFC 9112 section 2.2). A CR alone may be the beginning of one.
fn skip_empty_lines(read: &mut BytesMut) {
    loop {
        match &**read {
            [b'\n', ..] => read.advance(1),
            [b'\r', b'\n', ..] => read.advance(2),
            _ => return,
        }
    }
}

/// A request's body, read as it is asked for. Dropped before its end, the rest is not read, and the connection closed after
/// the answer.
#[derive(Debug)]
pub struct IncomingBody<S: Source + AsyncWrite>(State<S>);

#[derive(Debug)]
enum State<S> {
    Open(Rc<RefCell<Conn<S>>>),
    /// The connection may be on to the next request.
    Over,
    /// It broke off.
    Broken,
}

impl<S: Source + AsyncWrite> IncomingBody<S> {
    /// The body that is to be read from `conn` next.
    pub fn new(conn: &Rc<RefCell<Conn<S>>>) -> Self {
        Self(State::Open(Rc::clone(conn)))
    }

    /// The next frame.
    ///
    /// # Errors
    /// If the connection fails or ends before the body, or the body's grammar is broken; and ever after.
    pub fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let conn = match &self.0 {
            State::Open(conn) => conn,
            State::Over => return Poll::Ready(None),
            State::Broken => return Poll::Ready(Some(Err(Malformed::CutOff.into()))),
        };
        let mut borrowed = conn.borrow_mut();
        let polled = ready!(borrowed.poll_body(cx));
        let is_over = borrowed.length.is_over() || matches!(polled, Ok(None));
        borrowed.broken |= polled.is_err();
        drop(borrowed);
        if polled.is_err() {
            self.end(State::Broken);
        } else if is_over {
            self.end(State::Over);
        }
        Poll::Ready(polled.transpose())
    }

    /// Whether it has ended as it should.
    pub fn is_over(&self) -> bool {
        matches!(self.0, State::Over)
    }

    /// Octets still to come, as far as they are known.
    pub fn size_hint(&self) -> SizeHint {
        let left = match &self.0 {
            State::Open(conn) => conn.borrow().length.left(),
            State::Over => Some(0),
            State::Broken => None,
        };
        left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }

    fn end(&mut self, state: State<S>) {
        if let State::Open(conn) = std::mem::replace(&mut self.0, state) {
            conn.borrow_mut().discard_body();
        }
    }
}

impl<S: Source + AsyncWrite> Drop for IncomingBody<S> {
    fn drop(&mut self) {
        self.end(State::Over);
    }
}

/// The connection as an answer is written to it. Whatever gives the answer may read the request meanwhile.
#[derive(Debug)]
pub struct ConnWriter<'a, S>(pub &'a RefCell<Conn<S>>);

impl<S: Unpin> ConnWriter<'_, S> {
    /// Does something with the connection, unless it has ended.
    fn with<T>(&self, act: impl FnOnce(Pin<&mut S>) -> Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match &mut self.0.borrow_mut().stream {
            Some(stream) => act(Pin::new(stream)),
            None => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ConnWriter<'_, S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.with(|stream| stream.poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.with(|stream| stream.poll_write_vectored(cx, parts))
    }

    fn is_write_vectored(&self) -> bool {
        self.0.borrow().stream.as_ref().is_some_and(AsyncWrite::is_write_vectored)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.with(|stream| stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.with(|stream| stream.poll_shutdown(cx))
    }
}
