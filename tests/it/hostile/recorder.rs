//! An upstream that records every byte it receives, by connection, and responds to complete requests.
//!
//! One thread polls all connections, so that everything the kernel had received before a query is in its result.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use crate::support::wait;

const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// A query for the bytes recorded since the previous query.
type ReplySender = Sender<Vec<u8>>;

/// The recording upstream.
#[derive(Debug)]
pub(super) struct Recorder {
    address: SocketAddr,
    queries: Sender<ReplySender>,
}

impl Recorder {
    pub(super) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (asks, asked) = channel();
        thread::spawn(move || run_recorder(&listener, &asked));
        Self { address, queries: asks }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the bytes recorded since the previous call, by connection, in the order in which the connections were
    /// accepted.
    pub(super) fn take_recorded(&self) -> Vec<u8> {
        let (answer, answered) = channel();
        self.queries.send(answer).unwrap();
        answered.recv().unwrap()
    }
}

#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    /// Bytes received since the previous query.
    recorded: Vec<u8>,
    /// Bytes of requests without a response so far.
    pending: Vec<u8>,
    is_open: bool,
}

fn run_recorder(listener: &TcpListener, asked: &Receiver<ReplySender>) {
    let mut connections: Vec<Connection> = Vec::new();
    loop {
        // The query is read before the connections, so that everything that had arrived by then is recorded.
        let ask = asked.try_recv();
        if matches!(ask, Err(std::sync::mpsc::TryRecvError::Disconnected)) {
            return;
        }
        while let Ok((stream, _)) = listener.accept() {
            stream.set_nonblocking(true).unwrap();
            stream.set_nodelay(true).unwrap();
            let (recorded, pending) = (Vec::new(), Vec::new());
            connections.push(Connection { stream, recorded, pending, is_open: true });
        }
        connections.iter_mut().for_each(Connection::read);
        match ask {
            Ok(ask) => {
                let all = connections.iter_mut().flat_map(|connection| connection.recorded.split_off(0));
                let _ = ask.send(all.collect());
                connections.retain(|connection| connection.is_open);
            }
            Err(_) => wait::pause(Duration::from_millis(1)),
        }
    }
}

impl Connection {
    fn read(&mut self) {
        let mut buffer = [0; 64 << 10];
        while self.is_open {
            match self.stream.read(&mut buffer) {
                Ok(read) if read > 0 => {
                    self.recorded.extend_from_slice(&buffer[..read]);
                    self.pending.extend_from_slice(&buffer[..read]);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                _ => self.is_open = false,
            }
        }
        while let Some(length) = complete_request_length(&self.pending) {
            self.pending.drain(..length);
            let _ = self.stream.write_all(RESPONSE);
        }
    }
}

/// Returns the length of the request at the start of `bytes`, by a minimal parser; `None` if it is incomplete.
fn complete_request_length(bytes: &[u8]) -> Option<usize> {
    let head = find(bytes, b"\r\n\r\n")? + 4;
    let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
    let body = &bytes[head..];
    if text.contains("\r\ntransfer-encoding: chunked\r\n") {
        let mut at = 0;
        loop {
            let line = find(&body[at..], b"\r\n")?;
            let size = String::from_utf8_lossy(&body[at..at + line]);
            let size = usize::from_str_radix(size.split(';').next()?.trim(), 16).ok()?;
            at += line + 2;
            if size == 0 {
                let trailers = &body[at..];
                let end = if trailers.starts_with(b"\r\n") { 2 } else { find(trailers, b"\r\n\r\n")? + 4 };
                return Some(head + at + end);
            }
            at += size + 2;
            body.get(at..)?;
        }
    }
    let length = text.split("\r\ncontent-length: ").nth(1).and_then(|rest| rest.split('\r').next());
    let length = length.map_or(Some(0), |length| length.parse().ok())?;
    (body.len() >= length).then_some(head + length)
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}
