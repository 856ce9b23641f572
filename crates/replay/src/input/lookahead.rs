//! The beginning of a log: read ahead to recognise compression and format, and without what precedes the first line.

use std::io::{self, Cursor, Read};

use super::LogReader;

/// Bytes of which zeros at the beginning of a log are skipped at a time.
const CHUNK_SIZE: usize = 64 << 10;
/// Byte order mark of UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A stream whose beginning has been read.
pub(super) struct Lookahead {
    bytes: Vec<u8>,
    rest: LogReader,
    /// Why the rest cannot be read.
    error: Option<io::Error>,
    is_end: bool,
}

/// Fails once, with an error that came up while the beginning was read.
struct FailedReader(Option<io::Error>);

impl Read for FailedReader {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        self.0.take().map_or(Ok(0), Err)
    }
}

impl Lookahead {
    /// Creates one of which nothing has been read.
    pub(super) const fn new(rest: LogReader) -> Self {
        Self { bytes: Vec::new(), rest, error: None, is_end: false }
    }

    /// Reads until there are `size` bytes, or until the end.
    ///
    /// # Errors
    /// Any error, if there is nothing before it. Otherwise, it comes up after the bytes before it.
    pub(super) fn fill(&mut self, size: usize) -> io::Result<()> {
        let missing = size.saturating_sub(self.bytes.len());
        if missing == 0 || self.is_end {
            return Ok(());
        }
        match self.rest.by_ref().take(missing as u64).read_to_end(&mut self.bytes) {
            Ok(length) => self.is_end = length < missing,
            Err(error) if self.bytes.is_empty() => return Err(error),
            Err(error) => (self.is_end, self.error) = (true, Some(error)),
        }
        Ok(())
    }

    /// Removes what precedes the first line: zeros, which `copytruncate` of logrotate leaves, and a byte order mark.
    pub(super) fn skip_to_first_line(&mut self) -> io::Result<()> {
        loop {
            self.fill(CHUNK_SIZE)?;
            let zeros = self.bytes.iter().position(|byte| *byte != 0);
            self.bytes.drain(..zeros.unwrap_or(self.bytes.len()));
            if zeros.is_some() || self.is_end {
                break;
            }
        }
        self.fill(BYTE_ORDER_MARK.len())?;
        if self.bytes.starts_with(BYTE_ORDER_MARK) {
            self.bytes.drain(..BYTE_ORDER_MARK.len());
        }
        Ok(())
    }

    /// Returns what has been read.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether everything has been read that can be.
    pub(super) const fn is_end(&self) -> bool {
        self.is_end
    }

    /// Returns why there is nothing behind what has been read, if that is not its end.
    pub(super) fn into_error(self) -> Option<io::Error> {
        self.error
    }

    /// Returns a reader of everything.
    pub(super) fn into_reader(self) -> LogReader {
        let bytes = Cursor::new(self.bytes);
        match self.error {
            Some(error) => Box::new(bytes.chain(FailedReader(Some(error)))),
            None => Box::new(bytes.chain(self.rest)),
        }
    }
}
