use std::collections::VecDeque;
use std::io::Read as _;
use std::pin::Pin;
use std::task::Waker;

use bytes::Bytes;
use hyper::body::{Body, Frame};
use proptest::prelude::*;

use super::*;
use crate::http1::encoder::{EncodeError, Encoder};
use crate::http1::framing::BodyFraming;
use crate::http1::write_buf::WriteBuf;
use crate::message_body::MessageBody;

/// Returns both ends of a connection that never blocks.
fn connection() -> (UnixStream, UnixStream) {
    let (one, other) = UnixStream::pair().unwrap();
    one.set_nonblocking(true).unwrap();
    other.set_nonblocking(true).unwrap();
    (one, other)
}

/// Returns a pipe with `bytes`.
fn pipe_with_bytes(bytes: &[u8]) -> SplicePipe {
    let (mut peer, socket) = connection();
    peer.write_all(bytes).unwrap();
    let mut pipe = SplicePipe::acquire().unwrap();
    assert_eq!(pipe.fill(&socket, bytes.len()).unwrap(), bytes.len());
    pipe
}

#[test]
fn pipe_moves_bytes_until_the_end_of_the_stream() {
    let ((mut sender, source), (target, mut receiver)) = (connection(), connection());
    let mut pipe = SplicePipe::acquire().unwrap();
    assert_eq!(pipe.fill(&source, 8).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    sender.write_all(b"0123456789").unwrap();
    drop(sender);
    let mut received = [0; 16];
    for expected in [&b"01234567"[..], b"89"] {
        assert_eq!(pipe.fill(&source, 8).unwrap(), expected.len());
        assert_eq!(pipe.drain(&target).unwrap(), expected.len());
        assert_eq!(pipe.held(), 0);
        let count = receiver.read(&mut received).unwrap();
        assert_eq!(&received[..count], expected);
    }
    assert_eq!(pipe.fill(&source, 8).unwrap(), 0);
}

#[test]
fn bytes_wait_in_the_pipe_while_the_socket_takes_no_more() {
    let (mut target, mut receiver) = connection();
    while target.write(&[7; 4096]).is_ok() {}
    let mut pipe = pipe_with_bytes(b"later");
    assert_eq!(pipe.drain(&target).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    assert_eq!(pipe.held(), 5);
    while receiver.read(&mut [0; 4096]).is_ok() {}
    assert_eq!(pipe.drain(&target).unwrap(), 5);
    let mut received = [0; 8];
    assert_eq!(receiver.read(&mut received).unwrap(), 5);
    assert_eq!(&received[..5], b"later");
}

#[test]
fn bytes_of_a_dropped_pipe_are_not_in_the_next_one() {
    drop(pipe_with_bytes(b"of another message"));
    let (target, mut receiver) = connection();
    let mut pipe = pipe_with_bytes(b"own");
    assert_eq!(pipe.drain(&target).unwrap(), 3);
    let mut received = [0; 32];
    assert_eq!(receiver.read(&mut received).unwrap(), 3);
}

#[test]
fn pipes_of_a_thread_are_bounded() {
    set_max_pipes(MAX_PIPES - 1);
    let few: Vec<_> = (1..MAX_PIPES).map(|_| SplicePipe::acquire().unwrap()).collect();
    assert!(SplicePipe::acquire().is_none(), "in the process");
    set_max_pipes(usize::MAX);
    assert!(SplicePipe::acquire().is_some());
    drop(few);
    let mut pipes: Vec<_> = (0..MAX_PIPES).map(|_| SplicePipe::acquire().unwrap()).collect();
    assert!(SplicePipe::acquire().is_none(), "on the thread");
    pipes.pop();
    pipes.push(SplicePipe::acquire().unwrap());
    assert!(SplicePipe::acquire().is_none());
    drop(pipes);
    assert!(FREE.with_borrow(Vec::len) <= MAX_FREE_PIPES);
    assert!(SplicePipe::acquire().is_some());
}

/// The next part of a body.
#[derive(Clone, Debug)]
enum Part {
    Spliced(Vec<u8>),
    Copied(Vec<u8>),
    /// Nothing has arrived yet.
    Awaited,
}

/// A body that can be spliced in part.
struct Parts(VecDeque<Part>);

impl Body for Parts {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match self.0.pop_front() {
            None => Poll::Ready(None),
            Some(Part::Awaited) => Poll::Pending,
            Some(Part::Copied(bytes) | Part::Spliced(bytes)) => {
                Poll::Ready(Some(Ok(Frame::data(bytes.into()))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }
}

impl MessageBody for Parts {
    fn poll_splice(&mut self, max: usize, _: &mut Context<'_>) -> Spliced<io::Error> {
        match self.0.front()? {
            Part::Copied(_) => None,
            Part::Awaited => {
                self.0.pop_front();
                Some(Poll::Pending)
            }
            Part::Spliced(bytes) => {
                assert!(bytes.len() <= max, "more is left than declared");
                let pipe = pipe_with_bytes(bytes);
                self.0.pop_front();
                Some(Poll::Ready(Ok(pipe)))
            }
        }
    }
}

/// A connection that takes `room` bytes of each write, and nothing of every other attempt.
struct Slow {
    socket: UnixStream,
    peer: UnixStream,
    received: Vec<u8>,
    room: usize,
    is_full: bool,
}

impl Slow {
    fn new(room: usize) -> Self {
        let (socket, peer) = connection();
        Self { socket, peer, received: Vec::new(), room, is_full: false }
    }

    fn blocks(&mut self) -> bool {
        self.is_full = !self.is_full;
        self.is_full
    }
}

impl AsyncWrite for Slow {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.blocks() {
            return Poll::Pending;
        }
        let count = self.room.min(bytes.len());
        self.received.extend_from_slice(&bytes[..count]);
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl SpliceTarget for Slow {
    fn takes_pipes(&self) -> bool {
        true
    }

    fn poll_drain(&mut self, pipe: &mut SplicePipe, _: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.blocks() {
            return Poll::Pending;
        }
        let moved = pipe.drain_up_to(self.room, &self.socket)?;
        let mut bytes = vec![0; moved];
        self.peer.read_exact(&mut bytes)?;
        self.received.extend(bytes);
        Poll::Ready(Ok(moved))
    }
}

/// Sends a message whose body is declared with `length`. Returns what was received, and the error.
fn send(parts: Vec<Part>, length: u64, room: usize) -> (Vec<u8>, Option<EncodeError>) {
    let mut head = WriteBuf::default();
    head.buffer_mut().extend_from_slice(b"head\r\n\r\n");
    let mut encoder = Encoder::new(head, BodyFraming::Length(length), Parts(parts.into()));
    let (mut stream, mut cx) = (Slow::new(room), Context::from_waker(Waker::noop()));
    loop {
        match encoder.poll(&mut stream, &mut cx) {
            Poll::Ready(sent) => {
                let received = stream.received;
                assert_eq!(encoder.bytes_written(), received.len() as u64);
                assert_eq!(sent.is_ok(), encoder.is_complete());
                return (received, sent.err());
            }
            Poll::Pending => assert!(!encoder.is_complete()),
        }
    }
}

fn part() -> impl Strategy<Value = Part> {
    let bytes = (any::<u8>(), 1_usize..40_000).prop_map(|(first, length)| {
        (0..length).map(|index| first.wrapping_add((index % 251) as u8)).collect::<Vec<_>>()
    });
    prop_oneof![
        3 => bytes.clone().prop_map(Part::Spliced),
        2 => bytes.prop_map(Part::Copied),
        1 => Just(Part::Awaited),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever parts of a body are spliced, the message is the same.
    #[test]
    fn message_is_the_same_spliced_or_copied(
        parts in prop::collection::vec(part(), 0..12),
        room in 1_000_usize..20_000,
    ) {
        let body: Vec<u8> = parts.iter().flat_map(|part| match part {
            Part::Spliced(bytes) | Part::Copied(bytes) => bytes.clone(),
            Part::Awaited => Vec::new(),
        }).collect();
        let (received, error) = send(parts, body.len() as u64, room);
        prop_assert!(error.is_none(), "{error:?}");
        prop_assert_eq!(received, [b"head\r\n\r\n".as_slice(), &body].concat());
    }
}

#[test]
fn spliced_body_that_ends_early_is_an_error() {
    let parts = vec![Part::Copied(vec![7; 2_000]), Part::Spliced(vec![7; 30_000])];
    let (received, error) = send(parts, 60_000, 10_000);
    assert_eq!(received.len(), 2_008);
    assert!(matches!(error, Some(EncodeError::Body(error)) if error.kind() == io::ErrorKind::UnexpectedEof));
}
