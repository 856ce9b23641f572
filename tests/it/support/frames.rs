//! HTTP/2 at the frame level, encoded and decoded without a library, so that a test can send what no library sends.

use std::collections::{BTreeMap, VecDeque};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use super::wait::DEADLINE;

/// First bytes of a client's connection (RFC 9113 section 3.4).
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Frame types (RFC 9113 section 6).
pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PUSH_PROMISE: u8 = 5;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

/// Flags. `ACK` has the bit of `END_STREAM`, on other frames.
pub(crate) const ACK: u8 = 1;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;
pub(crate) const PADDED: u8 = 8;
pub(crate) const WITH_PRIORITY: u8 = 0x20;

/// Error codes (RFC 9113 section 7).
pub(crate) const NO_ERROR: u32 = 0;
pub(crate) const PROTOCOL_ERROR: u32 = 1;
pub(crate) const FLOW_CONTROL_ERROR: u32 = 3;
pub(crate) const STREAM_CLOSED: u32 = 5;
pub(crate) const FRAME_SIZE_ERROR: u32 = 6;
pub(crate) const REFUSED_STREAM: u32 = 7;
pub(crate) const CANCEL: u32 = 8;
pub(crate) const COMPRESSION_ERROR: u32 = 9;
pub(crate) const ENHANCE_YOUR_CALM: u32 = 11;

/// Identifiers of settings (RFC 9113 section 6.5.2).
pub(crate) const HEADER_TABLE_SIZE: u16 = 1;
pub(crate) const ENABLE_PUSH: u16 = 2;
pub(crate) const MAX_CONCURRENT_STREAMS: u16 = 3;
pub(crate) const INITIAL_WINDOW_SIZE: u16 = 4;
pub(crate) const MAX_FRAME_SIZE: u16 = 5;

/// Payload of the PING that [`FrameConnection::until_processed`] sends.
const MARK: [u8; 8] = *b"the mark";

/// Returns a frame (RFC 9113 section 4.1).
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Returns a SETTINGS frame.
pub(crate) fn settings(values: &[(u16, u32)]) -> Vec<u8> {
    let payload: Vec<u8> = values
        .iter()
        .flat_map(|(name, value)| [&name.to_be_bytes()[..], &value.to_be_bytes()].concat())
        .collect();
    frame(SETTINGS, 0, 0, &payload)
}

/// Returns a WINDOW_UPDATE frame.
pub(crate) fn window_update(stream: u32, increment: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &increment.to_be_bytes())
}

/// Returns an RST_STREAM frame.
pub(crate) fn reset(stream: u32, code: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &code.to_be_bytes())
}

/// Returns a field block of literals that are neither indexed nor compressed (RFC 7541 section 6.2.2).
pub(crate) fn block<'a>(fields: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<u8> {
    let literal = |(name, value): (&str, &str)| {
        [&[0][..], &encode_string(name.as_bytes()), &encode_string(value.as_bytes())].concat()
    };
    fields.into_iter().flat_map(literal).collect()
}

/// Returns the field block of a request to `path`, with `fields` after the pseudo-header fields.
pub(crate) fn request_block(method: &str, path: &str, fields: &[(&str, &str)]) -> Vec<u8> {
    let pseudo = [(":method", method), (":scheme", "http"), (":authority", "a.test"), (":path", path)];
    block(pseudo.into_iter().chain(fields.iter().copied()))
}

/// Returns a request without a body.
pub(crate) fn get_frame(stream: u32, path: &str) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &request_block("GET", path, &[]))
}

/// Returns the header section of a request whose body follows.
pub(crate) fn post_frame(stream: u32, path: &str) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &request_block("POST", path, &[]))
}

/// Encodes a string with its length prefix (RFC 7541 section 5.2), without Huffman coding.
pub(crate) fn encode_string(text: &[u8]) -> Vec<u8> {
    let mut bytes = encode_integer(0, 7, text.len());
    bytes.extend_from_slice(text);
    bytes
}

/// Encodes an integer whose prefix has `bits` bits, with `pattern` in the bits before it (RFC 7541 section 5.1).
pub(crate) fn encode_integer(pattern: u8, bits: u32, value: usize) -> Vec<u8> {
    let max = (1 << bits) - 1;
    if value < max {
        return vec![pattern | u8::try_from(value).unwrap()];
    }
    let (mut bytes, mut rest) = (vec![pattern | u8::try_from(max).unwrap()], value - max);
    while rest >= 128 {
        bytes.push(u8::try_from(rest % 128 + 128).unwrap());
        rest /= 128;
    }
    bytes.push(u8::try_from(rest).unwrap());
    bytes
}

/// Returns the status code at the start of a field block; `None` for trailers.
pub(crate) fn status(block: &[u8]) -> Option<String> {
    let mut block = block;
    // Updates of the dynamic table size come first.
    while block.first()? & 0xe0 == 0x20 {
        block = &block[1..];
    }
    match block[0] {
        0x88..=0x8e => {
            Some(["200", "204", "206", "304", "400", "404", "500"][usize::from(block[0] - 0x88)].into())
        }
        0x48 | 0x08 | 0x18 if block[1] & 0x80 == 0 => {
            Some(String::from_utf8_lossy(&block[2..5]).into_owned())
        }
        0x48 | 0x08 | 0x18 => Some(decode_huffman_digits(&block[2..])),
        _ => None,
    }
}

/// Decodes three digits in the Huffman code of RFC 7541, appendix B: five bits for 0 to 2, six bits for 3 to 9.
fn decode_huffman_digits(coded: &[u8]) -> String {
    let bits: Vec<u32> =
        coded.iter().flat_map(|byte| (0..8).rev().map(move |bit| u32::from(byte >> bit & 1))).collect();
    let number =
        |at: usize, length: usize| bits[at..at + length].iter().fold(0, |number, bit| number << 1 | bit);
    let mut at = 0;
    (0..3)
        .map(|_| {
            let (digit, length) = match number(at, 5) {
                short @ 0..=2 => (short, 5),
                _ => (number(at, 6) - 0x19 + 3, 6),
            };
            at += length;
            char::from_digit(digit, 10).unwrap()
        })
        .collect()
}

/// A received frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    /// Type.
    pub(crate) kind: u8,
    /// Flags.
    pub(crate) flags: u8,
    /// Stream identifier; 0 is the connection.
    pub(crate) stream: u32,
    /// Payload.
    pub(crate) payload: Vec<u8>,
}

impl Frame {
    /// Removes the frame at the start of `heard`; `None` if it is incomplete.
    pub(crate) fn take(heard: &mut VecDeque<u8>) -> Option<Self> {
        let length = u32::from_be_bytes([0, *heard.front()?, *heard.get(1)?, *heard.get(2)?]) as usize + 9;
        if heard.len() < length {
            return None;
        }
        let bytes: Vec<u8> = heard.drain(..length).collect();
        let stream = u32::from_be_bytes(bytes[5..9].try_into().unwrap());
        Some(Self { kind: bytes[3], flags: bytes[4], stream, payload: bytes[9..].to_vec() })
    }

    /// Returns the four bytes at `at` of the payload: an error code, an increment.
    pub(crate) fn word(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.payload[at..at + 4].try_into().unwrap())
    }

    /// Whether this is a frame of this type on this stream.
    pub(crate) fn is(&self, kind: u8, stream: u32) -> bool {
        self.kind == kind && self.stream == stream
    }

    /// Whether this frame ends `stream`: the last frame of a response, or a reset.
    pub(crate) fn ends(&self, stream: u32) -> bool {
        let is_last = matches!(self.kind, DATA | HEADERS) && self.flags & END_STREAM != 0;
        self.stream == stream && (is_last || self.kind == RST_STREAM)
    }
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionEnd {
    /// By a regular close.
    Closed,
    /// By a TCP reset, which can overtake a GOAWAY.
    Reset,
    /// Not at all: nothing arrived until the deadline.
    StillOpen,
}

/// One side of a connection: the client, or the server of [`FrameOrigin`](super::frame_origin::FrameOrigin).
#[derive(Debug)]
pub(crate) struct FrameConnection {
    stream: TcpStream,
    heard: VecDeque<u8>,
    end: Option<ConnectionEnd>,
    /// Settings that the peer has announced.
    pub(crate) peer_settings: BTreeMap<u16, u32>,
}

impl FrameConnection {
    /// Connects to `address`, sends a preface with these settings, and reads the peer's settings.
    pub(crate) fn connect_with(address: SocketAddr, values: &[(u16, u32)]) -> Self {
        let mut client = Self::connect_bare(address);
        client.send([PREFACE, &settings(values)].concat());
        let first = client.next_frame().expect("the settings of the peer");
        assert_eq!((first.kind, first.flags & ACK), (SETTINGS, 0), "the first frame of the peer");
        for pair in first.payload.chunks(6) {
            let value = u32::from_be_bytes(pair[2..6].try_into().unwrap());
            client.peer_settings.insert(u16::from_be_bytes([pair[0], pair[1]]), value);
        }
        client.send(frame(SETTINGS, ACK, 0, &[]));
        client
    }

    /// Connects to `address`, and exchanges prefaces with default settings.
    pub(crate) fn connect(address: SocketAddr) -> Self {
        Self::connect_with(address, &[])
    }

    /// Connects to `address` and sends nothing.
    pub(crate) fn connect_bare(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        Self::new(stream)
    }

    /// Reads the client's preface on an accepted connection, and sends these settings.
    pub(crate) fn accept(mut stream: TcpStream, values: &[(u16, u32)]) -> std::io::Result<Self> {
        let mut preface = [0; PREFACE.len()];
        stream.read_exact(&mut preface)?;
        assert_eq!(preface, PREFACE);
        let mut connection = Self::new(stream);
        connection.send(settings(values));
        Ok(connection)
    }

    fn new(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        stream.set_write_timeout(Some(DEADLINE)).unwrap();
        Self { stream, heard: VecDeque::new(), end: None, peer_settings: BTreeMap::new() }
    }

    /// Returns the socket.
    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Sends raw bytes. The peer may close the connection meanwhile: reading shows it.
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = self.stream.write_all(bytes.as_ref());
    }

    /// Reads the next frame; `None` if the connection has ended, or if nothing arrives until the deadline.
    pub(crate) fn next_frame(&mut self) -> Option<Frame> {
        let mut buffer = [0; 32 << 10];
        loop {
            if let Some(frame) = Frame::take(&mut self.heard) {
                return Some(frame);
            }
            if self.end.is_some() {
                return None;
            }
            match self.stream.read(&mut buffer) {
                Ok(0) => self.end = Some(ConnectionEnd::Closed),
                Ok(read) => self.heard.extend(&buffer[..read]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.end = Some(ConnectionEnd::StillOpen)
                }
                Err(_) => self.end = Some(ConnectionEnd::Reset),
            }
        }
    }

    /// Returns how the connection ended, after [`Self::next_frame`] has returned `None`.
    pub(crate) fn end(&self) -> Option<ConnectionEnd> {
        self.end
    }

    /// Reads frames up to and including the first for which `wanted` is true, or to the end of the connection.
    pub(crate) fn read_until(&mut self, mut wanted: impl FnMut(&Frame) -> bool) -> Vec<Frame> {
        let mut frames = Vec::new();
        while let Some(frame) = self.next_frame() {
            let is_wanted = wanted(&frame);
            frames.push(frame);
            if is_wanted {
                break;
            }
        }
        frames
    }

    /// Returns every frame that the peer sent before it had processed everything sent so far, as the reply to a PING
    /// shows.
    ///
    /// # Panics
    ///
    /// If the connection ends before.
    pub(crate) fn until_processed(&mut self) -> Vec<Frame> {
        self.send(frame(PING, 0, 0, &MARK));
        let mut frames = self.read_until(|frame| frame.kind == PING && frame.payload == MARK);
        let last = frames.pop();
        assert!(
            last.is_some_and(|last| last.is(PING, 0) && last.payload == MARK),
            "the connection has ended: {frames:?}"
        );
        frames
    }

    /// Reads to the end of `stream`.
    ///
    /// # Panics
    ///
    /// If the connection ends before.
    pub(crate) fn until_stream_ends(&mut self, stream: u32) -> Vec<Frame> {
        let frames = self.read_until(|frame| frame.ends(stream));
        assert!(frames.last().is_some_and(|last| last.ends(stream)), "the connection has ended: {frames:?}");
        frames
    }

    /// Sends a GET on `stream` and returns the status code of the response.
    pub(crate) fn fetch(&mut self, stream: u32, path: &str) -> String {
        self.send(get_frame(stream, path));
        response_status(&self.until_stream_ends(stream), stream)
            .unwrap_or_else(|| panic!("no response to {path}"))
    }
}

/// Returns the status code of the response on `stream`.
pub(crate) fn response_status(frames: &[Frame], stream: u32) -> Option<String> {
    frames.iter().filter(|frame| frame.is(HEADERS, stream)).find_map(|frame| status(&frame.payload))
}

/// Returns the number of bytes of the response's body on `stream`.
pub(crate) fn body_length(frames: &[Frame], stream: u32) -> usize {
    frames.iter().filter(|frame| frame.is(DATA, stream)).map(|frame| frame.payload.len()).sum()
}
