//! Frames that are still to be written to a connection.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use tokio::io::AsyncWrite;

/// Maximum size up to which DATA is accepted, in bytes. One read of a body fits, and the headers of its frames, so that a
/// peer that does not read holds one such piece here.
const MAX_OUTPUT: usize = 33 * 1024;
/// Size at which no more DATA is accepted. So there is room for 16 KiB at least, or for none: the rest of a piece is held
/// elsewhere.
const ENOUGH_OUTPUT: usize = 17 * 1024;
/// Size of replies at which nothing more is read, in bytes.
const MAX_REPLIES: usize = 64 * 1024;
/// Payloads up to this size are copied; larger ones are written in place.
const MAX_COPIED_SIZE: usize = 2048;
/// Maximum parts of one write.
const MAX_PARTS: usize = 16;
/// Maximum capacity of a buffer that is kept for the thread's other connections.
const MAX_RETAINED_CAPACITY: usize = 128 * 1024;

thread_local! {
    /// Memory of the connection that has written last. Idle connections have none.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Bytes to be written: copied ones, with large pieces between them.
#[derive(Debug, Default)]
pub(super) struct OutputBuf {
    copied: Vec<u8>,
    /// Number of copied bytes that were written.
    written: usize,
    /// Large pieces, each with the number of copied bytes before it.
    pieces: VecDeque<(usize, Bytes)>,
    /// Bytes of all pieces.
    piece_bytes: usize,
    /// Bytes of frames that frames of the peer have caused directly: acknowledgements, resets, heads of responses.
    replies: usize,
    /// Whether the stream has not taken everything. What is left of a piece holds the memory of all of it, so no DATA is
    /// accepted until the stream has taken the rest.
    is_blocked: bool,
    /// Whether written bytes may still be buffered in the stream: TLS accepts more than its socket takes.
    needs_flush: bool,
}

impl OutputBuf {
    /// Returns the buffer to which frames are appended.
    pub(super) fn buffer_mut(&mut self) -> &mut Vec<u8> {
        if self.copied.capacity() == 0 {
            self.copied = SPARE.take();
        }
        &mut self.copied
    }

    /// Appends the payload of a frame.
    pub(super) fn push(&mut self, payload: Bytes) {
        if payload.len() <= MAX_COPIED_SIZE {
            self.buffer_mut().extend_from_slice(&payload);
        } else {
            self.piece_bytes += payload.len();
            self.pieces.push_back((self.copied.len(), payload));
        }
    }

    /// Counts bytes that were appended as a reply to a frame of the peer.
    pub(super) const fn count_reply(&mut self, bytes: usize) {
        self.replies += bytes;
    }

    /// Whether the peer does not read the replies that it causes, and so should not be read either. DATA does not count:
    /// flow control limits it, and two ends that both stop reading because they send would wait for each other.
    pub(super) const fn is_overdue(&self) -> bool {
        self.replies >= MAX_REPLIES
    }

    /// Returns the number of bytes to be written.
    pub(super) fn len(&self) -> usize {
        self.copied.len() - self.written + self.piece_bytes
    }

    /// Whether everything has been written and flushed.
    pub(super) fn is_flushed(&self) -> bool {
        self.len() == 0 && !self.needs_flush
    }

    /// Returns how many bytes of DATA are accepted.
    pub(super) fn room(&self) -> usize {
        match self.len() {
            waiting if waiting > ENOUGH_OUTPUT || self.is_blocked => 0,
            waiting => MAX_OUTPUT - waiting,
        }
    }

    /// Writes and flushes everything.
    ///
    /// # Errors
    /// The error of the stream.
    pub(super) fn poll_write(
        &mut self,
        stream: &mut (impl AsyncWrite + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        self.is_blocked = self.len() > 0;
        while self.len() > 0 {
            let written = if self.pieces.is_empty() {
                ready!(Pin::new(&mut *stream).poll_write(cx, &self.copied[self.written..]))?
            } else {
                let (parts, count) = self.parts();
                ready!(Pin::new(&mut *stream).poll_write_vectored(cx, &parts[..count]))?
            };
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.needs_flush = true;
            self.advance(written);
        }
        self.is_blocked = false;
        self.release();
        if self.needs_flush {
            ready!(Pin::new(stream).poll_flush(cx))?;
            self.needs_flush = false;
        }
        Poll::Ready(Ok(()))
    }

    /// Returns the next parts in their order, and their number.
    fn parts(&self) -> ([IoSlice<'_>; MAX_PARTS], usize) {
        let (mut parts, mut count) = ([IoSlice::new(&[]); MAX_PARTS], 0);
        let mut position = self.written;
        for (before, piece) in &self.pieces {
            if count + 2 > MAX_PARTS {
                return (parts, count);
            }
            if *before > position {
                parts[count] = IoSlice::new(&self.copied[position..*before]);
                (position, count) = (*before, count + 1);
            }
            parts[count] = IoSlice::new(piece);
            count += 1;
        }
        if position < self.copied.len() && count < MAX_PARTS {
            parts[count] = IoSlice::new(&self.copied[position..]);
            count += 1;
        }
        (parts, count)
    }

    fn advance(&mut self, mut bytes: usize) {
        self.replies = self.replies.saturating_sub(bytes);
        while let Some((before, piece)) = self.pieces.front_mut() {
            let copied = bytes.min(*before - self.written);
            self.written += copied;
            bytes -= copied;
            let of_piece = bytes.min(piece.len());
            piece.advance(of_piece);
            self.piece_bytes -= of_piece;
            bytes -= of_piece;
            if self.written < *before || !piece.is_empty() {
                return self.compact();
            }
            self.pieces.pop_front();
        }
        self.written += bytes;
        self.compact();
    }

    /// Drops written bytes, of which a slow peer would otherwise collect any number.
    fn compact(&mut self) {
        if self.written >= MAX_OUTPUT {
            self.copied.drain(..self.written);
            self.pieces.iter_mut().for_each(|(before, _)| *before -= self.written);
            self.written = 0;
        }
    }

    /// Leaves the memory to other connections.
    fn release(&mut self) {
        self.written = 0;
        if self.copied.capacity() == 0 {
            return;
        }
        self.copied.clear();
        if self.copied.capacity() <= MAX_RETAINED_CAPACITY {
            SPARE.set(std::mem::take(&mut self.copied));
        } else {
            self.copied = Vec::new();
        }
        if self.pieces.capacity() > 0 {
            self.pieces = VecDeque::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tokio::io::AsyncRead as _;

    use super::*;

    /// A stream that takes a few bytes at a time.
    struct Slow {
        step: usize,
        written: Vec<u8>,
    }

    impl AsyncWrite for Slow {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            let taken = bytes.len().min(self.step);
            self.written.extend_from_slice(&bytes[..taken]);
            Poll::Ready(Ok(taken))
        }

        fn poll_write_vectored(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            parts: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            let all: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
            let taken = all.len().min(self.step);
            self.written.extend_from_slice(&all[..taken]);
            Poll::Ready(Ok(taken))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn bytes_leave_in_their_order_whatever_is_written_at_once() {
        for step in [1, 7, 2500, 5000, 100_000] {
            let (mut output, mut expected) = (OutputBuf::default(), Vec::new());
            let mut stream = Slow { step, written: Vec::new() };
            let mut cx = Context::from_waker(Waker::noop());
            for (index, size) in [9, 3000, 5, 0, 2500, 2500, 2048, 2049, 1].into_iter().enumerate() {
                let piece = vec![u8::try_from(index).unwrap(); size];
                expected.extend_from_slice(&piece);
                output.push(piece.into());
                assert!(output.len() <= expected.len());
            }
            assert!(output.poll_write(&mut stream, &mut cx).is_ready());
            assert_eq!(
                (stream.written == expected, output.len(), output.is_flushed()),
                (true, 0, true),
                "{step}"
            );
            output.push(Bytes::from_static(b"again"));
            assert!(output.poll_write(&mut stream, &mut cx).is_ready());
            assert!(stream.written.ends_with(b"again"));
        }
    }

    #[test]
    fn nothing_is_accepted_while_the_peer_does_not_read() {
        let mut output = OutputBuf::default();
        let mut cx = Context::from_waker(Waker::noop());
        output.push(vec![0; 10_000].into());
        assert_eq!(output.room(), MAX_OUTPUT - 10_000);
        output.push(vec![0; 10_000].into());
        assert_eq!(output.room(), 0, "a large piece would not fit");
        let (mut client, mut server) = tokio::io::duplex(15_000);
        assert!(output.poll_write(&mut server, &mut cx).is_pending());
        assert_eq!((output.len(), output.room()), (5000, 0), "a part of a piece is left");
        let mut read = [0; 15_000];
        let mut read = tokio::io::ReadBuf::new(&mut read);
        assert!(Pin::new(&mut client).poll_read(&mut cx, &mut read).is_ready());
        assert!(output.poll_write(&mut server, &mut cx).is_ready());
        assert_eq!((output.len(), output.room()), (0, MAX_OUTPUT));
    }
}
