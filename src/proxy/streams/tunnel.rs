//! Limits on a tunnel.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{Gate, RequestStreams};
use weir_http::messages::Framing;
use weir_policy::rules::stream_limit::StreamDirection;

/// Bytes that are read from the client at once.
const READ_SIZE: usize = 8 * 1024;

/// The client's side of a tunnel, which passes bytes on as far as the limits have room for them.
#[derive(Debug)]
pub(in crate::proxy) struct LimitedStream<S> {
    stream: S,
    received: Option<Box<LimitedRead>>,
    sent: Option<Box<Gate>>,
}

/// Limits on what the client sends, and what they hold.
#[derive(Debug)]
struct LimitedRead {
    gate: Gate,
    held: BytesMut,
}

impl<S> LimitedStream<S> {
    /// Applies the `limits` inside the stream of a request to its tunnel, whose messages have this framing.
    pub(in crate::proxy) fn new(
        stream: S,
        limits: Option<&RequestStreams>,
        framing: Option<Framing>,
    ) -> Self {
        let gate = |direction| limits.and_then(|limits| limits.gate(direction, framing));
        Self {
            stream,
            received: gate(StreamDirection::Request)
                .map(|gate| Box::new(LimitedRead { gate, held: BytesMut::new() })),
            sent: gate(StreamDirection::Response).map(Box::new),
        }
    }
}

impl LimitedRead {
    /// Reads from `stream`, unless something is held.
    fn poll_fill<S: AsyncRead + Unpin>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if self.held.is_empty() {
            self.held.resize(READ_SIZE, 0);
            let mut buffer = ReadBuf::new(&mut self.held);
            let polled = Pin::new(stream).poll_read(cx, &mut buffer);
            let filled = buffer.filled().len();
            match filled {
                // A tunnel that waits holds no memory.
                0 => self.held = BytesMut::new(),
                _ => self.held.truncate(filled),
            }
            return polled;
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for LimitedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { stream, received, .. } = &mut *self;
        let Some(limited) = received else { return Pin::new(stream).poll_read(cx, buffer) };
        ready!(limited.poll_fill(stream, cx))?;
        if limited.held.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let room = ready!(limited.gate.poll_room(cx, &limited.held));
        let count = room.min(buffer.remaining());
        buffer.put_slice(&limited.held[..count]);
        limited.held.advance(count);
        limited.gate.passed(count);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for LimitedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Self { stream, sent, .. } = &mut *self;
        let Some(gate) = sent.as_mut().filter(|_| !bytes.is_empty()) else {
            return Pin::new(stream).poll_write(cx, bytes);
        };
        let room = ready!(gate.poll_room(cx, bytes));
        let written = ready!(Pin::new(stream).poll_write(cx, &bytes[..room]))?;
        gate.passed(written);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
