//! HTTP/1.1 at the byte level, with a parser of its own, so that no library normalises what a test sends or receives.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{Shutdown, TcpStream};

use super::wait::DEADLINE;

/// Maximum number of bytes of a body that are stored. The length and the checksum cover all bytes.
const MAX_STORED_BODY: usize = 1 << 20;

/// First line and header section of a message, as received.
#[derive(Clone, Debug, Default)]
pub(crate) struct Head {
    /// Request line or status line.
    pub(crate) line: String,
    /// Names in lower case and values, in order.
    pub(crate) fields: Vec<(String, String)>,
}

impl Head {
    /// Returns the first value of a header.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_str())
    }

    /// Returns every value of a header.
    pub(crate) fn get_all(&self, name: &str) -> Vec<&str> {
        self.fields.iter().filter(|(given, _)| given == name).map(|(_, value)| value.as_str()).collect()
    }

    /// Whether a comma-separated header contains `token`.
    pub(crate) fn has_token(&self, name: &str, token: &str) -> bool {
        self.get_all(name)
            .iter()
            .flat_map(|value| value.split(','))
            .any(|item| item.trim().eq_ignore_ascii_case(token))
    }

    /// Returns the word at `index` of the first line.
    pub(crate) fn word(&self, index: usize) -> &str {
        self.line.split(' ').nth(index).unwrap_or_default()
    }

    fn push(&mut self, line: &str) {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        self.fields.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
}

/// A received body.
#[derive(Clone, Debug)]
pub(crate) struct Body {
    /// The first mebibyte.
    pub(crate) bytes: Vec<u8>,
    /// Length of the whole body.
    pub(crate) length: u64,
    /// FNV-1a hash of the whole body.
    pub(crate) checksum: u64,
    /// Chunk extensions.
    pub(crate) extensions: String,
    /// Trailers.
    pub(crate) trailers: Head,
}

impl Default for Body {
    fn default() -> Self {
        Self {
            bytes: Vec::new(),
            length: 0,
            checksum: 0xcbf2_9ce4_8422_2325,
            extensions: String::new(),
            trailers: Head::default(),
        }
    }
}

impl Body {
    /// Appends a piece.
    pub(crate) fn push(&mut self, piece: &[u8]) {
        self.length += piece.len() as u64;
        let room = MAX_STORED_BODY.saturating_sub(self.bytes.len()).min(piece.len());
        self.bytes.extend_from_slice(&piece[..room]);
        for byte in piece {
            self.checksum = (self.checksum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// Returns the stored part as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

/// How the end of a body is determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// There is no body.
    Empty,
    /// By its length in bytes.
    Length(u64),
    /// By the last chunk.
    Chunked,
    /// By the end of the connection.
    Close,
}

impl Framing {
    /// Returns the framing of a request with this header section.
    pub(crate) fn from_request(head: &Head) -> Self {
        Self::declared(head).unwrap_or(Self::Empty)
    }

    /// Returns the framing of a response with this header section to a request with `method`.
    pub(crate) fn from_response(head: &Head, method: &str) -> Self {
        let status = head.word(1);
        if method == "HEAD" || status.starts_with('1') || status == "204" || status == "304" {
            return Self::Empty;
        }
        Self::declared(head).unwrap_or(Self::Close)
    }

    fn declared(head: &Head) -> Option<Self> {
        if head.has_token("transfer-encoding", "chunked") {
            return Some(Self::Chunked);
        }
        head.get("content-length").and_then(|length| length.parse().ok()).map(Self::Length)
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Wire {
    reader: BufReader<TcpStream>,
}

impl Wire {
    /// Wraps a socket. Reads and writes on it time out after [`DEADLINE`].
    pub(crate) fn new(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.set_write_timeout(Some(DEADLINE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { reader: BufReader::with_capacity(64 << 10, stream) }
    }

    /// Returns the socket.
    pub(crate) fn stream(&self) -> &TcpStream {
        self.reader.get_ref()
    }

    /// Sends raw bytes.
    pub(crate) fn send(&self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.stream().write_all(bytes.as_ref())
    }

    /// Shuts down the write direction.
    pub(crate) fn shutdown_write(&self) -> io::Result<()> {
        self.stream().shutdown(Shutdown::Write)
    }

    /// Reads the next message up to the end of its header section; `None` if the peer has closed the connection.
    pub(crate) fn read_head(&mut self) -> io::Result<Option<Head>> {
        let Some(line) = self.read_line()? else { return Ok(None) };
        let mut head = Head { line, fields: Vec::new() };
        self.read_fields(&mut head)?;
        Ok(Some(head))
    }

    /// Reads a body, and calls `progress` after every piece.
    pub(crate) fn read_body(
        &mut self,
        framing: Framing,
        mut progress: impl FnMut(&Body),
    ) -> io::Result<Body> {
        let mut body = Body::default();
        match framing {
            Framing::Empty => {}
            Framing::Length(length) => self.read_exactly(length, &mut body, &mut progress)?,
            Framing::Chunked => self.read_chunks(&mut body, &mut progress)?,
            Framing::Close => while self.read_piece(u64::MAX, &mut body, &mut progress)? > 0 {},
        }
        Ok(body)
    }

    /// Waits until the peer closes the connection. Returns `false` if data arrives first.
    pub(crate) fn is_closed(&mut self) -> bool {
        match self.reader.fill_buf() {
            Ok(bytes) => bytes.is_empty(),
            Err(error) => matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe),
        }
    }

    /// Reads and discards everything until the peer closes the connection.
    pub(crate) fn drain(&mut self) {
        while let Ok(1..) = self.reader.fill_buf().map(<[u8]>::len) {
            let length = self.reader.buffer().len();
            self.reader.consume(length);
        }
    }

    fn read_chunks(&mut self, body: &mut Body, progress: &mut impl FnMut(&Body)) -> io::Result<()> {
        loop {
            let line = self.read_line()?.ok_or(io::ErrorKind::UnexpectedEof)?;
            let (size, extension) = line.split_once(';').unwrap_or((&line, ""));
            body.extensions.push_str(extension);
            let size = u64::from_str_radix(size, 16).map_err(io::Error::other)?;
            if size == 0 {
                return self.read_fields(&mut body.trailers);
            }
            self.read_exactly(size, body, progress)?;
            if self.read_line()?.is_none_or(|line| !line.is_empty()) {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
    }

    fn read_exactly(
        &mut self,
        length: u64,
        body: &mut Body,
        progress: &mut impl FnMut(&Body),
    ) -> io::Result<()> {
        let end = body.length + length;
        while body.length < end {
            if self.read_piece(end - body.length, body, progress)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }

    fn read_piece(
        &mut self,
        max: u64,
        body: &mut Body,
        progress: &mut impl FnMut(&Body),
    ) -> io::Result<usize> {
        let piece = self.reader.fill_buf()?;
        let taken = piece.len().min(usize::try_from(max).unwrap_or(usize::MAX));
        body.push(&piece[..taken]);
        self.reader.consume(taken);
        progress(body);
        Ok(taken)
    }

    fn read_fields(&mut self, head: &mut Head) -> io::Result<()> {
        loop {
            match self.read_line()?.ok_or(io::ErrorKind::UnexpectedEof)?.as_str() {
                "" => return Ok(()),
                line => head.push(line),
            }
        }
    }

    /// Reads a line without its line break; `None` at the end of the connection.
    fn read_line(&mut self) -> io::Result<Option<String>> {
        let mut line = Vec::new();
        if self.reader.read_until(b'\n', &mut line)? == 0 {
            return Ok(None);
        }
        match line.strip_suffix(b"\r\n") {
            Some(line) => Ok(Some(String::from_utf8_lossy(line).into_owned())),
            None if line.ends_with(b"\n") => Err(io::Error::other("line ends in a bare LF")),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}
