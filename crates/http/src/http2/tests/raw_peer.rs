//! A peer that sends any frames, and our side of its connection.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use tokio::io::AsyncReadExt as _;

use super::tasks::Tasks;
use super::*;
use crate::http2::ClientConnection;
use crate::http2::frame::{FRAME_HEADER_SIZE, FrameHeader, FrameKind, PREFACE, flags, put_frame};
use crate::http2::handle_frame::AcceptedRequest;

/// Header sections: GET and POST of `/`, status 200, and a status of 103.
pub(super) const GET: &[u8] = b"\x82\x86\x84\x41\x01a";
pub(super) const POST: &[u8] = b"\x83\x86\x84\x41\x01a";
pub(super) const OK: &[u8] = b"\x88";
pub(super) const EARLY_HINTS: &[u8] = b"\x08\x03103";
/// Capacity of connections, in bytes.
pub(super) const CAPACITY: usize = 1000;

/// A connection to a peer, which sends and reads only if the test does.
pub(super) struct RawPeer {
    tasks: Tasks,
    stream: Rc<RefCell<Option<DuplexStream>>>,
    unread: VecDeque<u8>,
}

/// Our server and the requests that it has accepted.
#[derive(Clone)]
pub(super) struct TestServer {
    pub(super) connection: Rc<RefCell<ServerConnection<DuplexStream>>>,
    pub(super) requests: Rc<RefCell<VecDeque<AcceptedRequest>>>,
    pub(super) result: Rc<RefCell<Option<Result<(), Http2Error>>>>,
}

/// Our client.
#[derive(Clone)]
pub(super) struct TestClient {
    pub(super) connection: Rc<RefCell<ClientConnection<DuplexStream>>>,
    pub(super) sender: RequestSender,
    pub(super) result: Rc<RefCell<Option<Result<(), Http2Error>>>>,
}

impl RawPeer {
    fn new(tasks: &Tasks, stream: DuplexStream) -> Self {
        let stream = Rc::new(RefCell::new(Some(stream)));
        Self { tasks: tasks.clone(), stream, unread: VecDeque::new() }
    }

    /// Connects a client to a server of ours. Its settings are `settings`.
    pub(super) fn connect(tasks: &Tasks, settings: &[u8]) -> (Self, TestServer) {
        let (ours, theirs) = tokio::io::duplex(CAPACITY);
        let connection = Rc::new(RefCell::new(ServerConnection::new(ours, SETTINGS)));
        let server = TestServer { connection, requests: Rc::default(), result: Rc::default() };
        let running = server.clone();
        tasks.spawn(async move {
            let TestServer { connection, requests, result } = running;
            poll_fn(|cx| connection.borrow_mut().poll_handshake(cx)).await.unwrap();
            let ended = poll_fn(|cx| {
                connection.borrow_mut().poll_requests(cx, |request, responder, _| {
                    requests.borrow_mut().push_back((request, responder));
                })
            });
            let ended = ended.await;
            *result.borrow_mut() = Some(ended);
        });
        let mut peer = Self::new(tasks, theirs);
        peer.write(PREFACE);
        peer.send(FrameKind::Settings, 0, 0, settings);
        (peer, server)
    }

    /// Accepts a connection of our client.
    pub(super) fn accept(tasks: &Tasks, settings: &[u8]) -> (Self, TestClient) {
        let (ours, theirs) = tokio::io::duplex(CAPACITY);
        let (sender, connection) = ClientConnection::new(ours, SETTINGS);
        let connection = Rc::new(RefCell::new(connection));
        let client = TestClient { connection: Rc::clone(&connection), sender, result: Rc::default() };
        let result = Rc::clone(&client.result);
        tasks.spawn(async move {
            let ended = poll_fn(|cx| std::pin::Pin::new(&mut *connection.borrow_mut()).poll(cx)).await;
            *result.borrow_mut() = Some(ended);
        });
        let mut peer = Self::new(tasks, theirs);
        peer.send(FrameKind::Settings, 0, 0, settings);
        assert_eq!(peer.read_bytes(PREFACE.len()), PREFACE);
        (peer, client)
    }

    /// Starts to write, and runs all tasks. Returns how many bytes were written.
    fn write(&mut self, bytes: &[u8]) -> usize {
        let (stream, bytes) = (Rc::clone(&self.stream), bytes.to_vec());
        let written = Rc::new(Cell::new(0));
        let count = Rc::clone(&written);
        self.tasks.spawn(async move {
            while count.get() < bytes.len() {
                let from = count.get();
                let part = poll_fn(|cx| {
                    let mut stream = stream.borrow_mut();
                    let Some(stream) = stream.as_mut() else { return std::task::Poll::Ready(Ok(0)) };
                    tokio::io::AsyncWrite::poll_write(std::pin::Pin::new(stream), cx, &bytes[from..])
                });
                match part.await {
                    Ok(part) if part > 0 => count.set(from + part),
                    _ => return,
                }
            }
        });
        self.tasks.run_until_idle();
        written.get()
    }

    pub(super) fn send(&mut self, kind: FrameKind, flags: u8, stream: u32, payload: &[u8]) {
        let mut frame = Vec::new();
        put_frame(&mut frame, kind, flags, stream, payload);
        self.write(&frame);
    }

    /// Sends many frames, and returns how many bytes of them our side has read or buffered.
    pub(super) fn send_many(&mut self, count: usize, frame: impl Fn(u32, &mut Vec<u8>)) -> usize {
        let mut frames = Vec::new();
        (0..count).for_each(|index| frame(u32::try_from(index).unwrap(), &mut frames));
        self.write(&frames)
    }

    /// Sends a complete header section.
    pub(super) fn send_head(&mut self, stream: u32, block: &[u8], is_end: bool) {
        let flags = flags::END_HEADERS | if is_end { flags::END_STREAM } else { 0 };
        self.send(FrameKind::Headers, flags, stream, block);
    }

    pub(super) fn send_window_update(&mut self, stream: u32, increment: u32) {
        self.send(FrameKind::WindowUpdate, 0, stream, &increment.to_be_bytes());
    }

    pub(super) fn send_settings(&mut self, id: u16, value: u32) {
        self.send(FrameKind::Settings, 0, 0, &setting(id, value));
    }

    fn read_bytes(&mut self, count: usize) -> Vec<u8> {
        self.read_available();
        assert!(self.unread.len() >= count, "our side has not sent enough");
        self.unread.drain(..count).collect()
    }

    /// Reads everything that our side sends.
    fn read_available(&mut self) {
        loop {
            self.tasks.run_until_idle();
            let stream = Rc::clone(&self.stream);
            let mut stream = stream.borrow_mut();
            let Some(stream) = stream.as_mut() else { return };
            let mut buffer = [0; 4096];
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            match std::pin::pin!(stream.read(&mut buffer)).poll(&mut cx) {
                std::task::Poll::Ready(Ok(read)) if read > 0 => self.unread.extend(&buffer[..read]),
                _ => return,
            }
        }
    }

    /// Returns all complete frames that our side has sent.
    pub(super) fn frames(&mut self) -> Vec<(FrameHeader, Vec<u8>)> {
        self.read_available();
        let mut frames = Vec::new();
        while self.unread.len() >= FRAME_HEADER_SIZE {
            let header = FrameHeader::parse(self.unread.make_contiguous().first_chunk().unwrap());
            if self.unread.len() < FRAME_HEADER_SIZE + header.length {
                break;
            }
            let frame: Vec<u8> = self.unread.drain(..FRAME_HEADER_SIZE + header.length).collect();
            frames.push((header, frame[FRAME_HEADER_SIZE..].to_vec()));
        }
        frames
    }

    /// Returns the data of a stream that our side has sent meanwhile, and whether it was all.
    pub(super) fn data(&mut self, stream: u32) -> (Vec<u8>, bool) {
        let (mut all, mut has_ended) = (Vec::new(), false);
        for (header, payload) in self.frames() {
            if header.kind == FrameKind::Data && header.stream == stream {
                all.extend_from_slice(&payload);
                has_ended = header.has(flags::END_STREAM);
            }
        }
        (all, has_ended)
    }

    /// Checks that the connection is alive: a PING is acknowledged.
    pub(super) fn assert_alive(&mut self) {
        self.send(FrameKind::Ping, 0, 0, b"is alive");
        let frames = self.frames();
        let is_reply = |(header, payload): &(FrameHeader, Vec<u8>)| {
            header.kind == FrameKind::Ping && header.has(flags::ACK) && payload == b"is alive"
        };
        assert!(frames.iter().any(is_reply), "{frames:?}");
    }

    /// Ends the connection.
    pub(super) fn close(&mut self) {
        drop(self.stream.borrow_mut().take());
        self.tasks.run_until_idle();
    }
}

impl TestServer {
    /// Returns the next request.
    pub(super) fn request(&self) -> AcceptedRequest {
        self.requests.borrow_mut().pop_front().expect("a request")
    }

    /// Responds to the next request with a body, as a task.
    pub(super) fn respond(&self, tasks: &Tasks, data: Vec<u8>) {
        let (request, mut responder) = self.request();
        tasks.spawn(async move {
            let _request = request;
            let mut stream = responder.send_response(&Response::new(()), data.is_empty()).unwrap();
            if !data.is_empty() {
                drop(send(&mut stream, &data, true).await);
            }
        });
        tasks.run_until_idle();
    }
}

/// Returns the payload of a SETTINGS frame.
pub(super) fn setting(id: u16, value: u32) -> Vec<u8> {
    [&id.to_be_bytes()[..], &value.to_be_bytes()].concat()
}
