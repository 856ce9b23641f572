//! The logs to replay: files or standard input, plain or compressed, read in blocks of whole lines.

mod gzip;
mod lookahead;
mod zstd;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use self::gzip::GzipReader;
use self::lookahead::Lookahead;
use self::zstd::ZstdReader;
use super::ReplayError;
use super::format::fields::FieldNames;
use super::format::{LineParser, LogFormat, next_line};
use crate::limiter::timestamp::Timestamp;

/// Bytes at the beginning of a log from which its format is detected.
const HEAD_SIZE: usize = 64 << 10;
/// Maximum number of these bytes, if there is no readable line among the first ones.
const MAX_HEAD_SIZE: usize = 16 << 20;
/// Size of a block, in bytes. It fits into the cache of a core.
const BLOCK_SIZE: usize = 256 << 10;
/// Maximum length of a line, in bytes. Longer ones are counted as unreadable.
pub(super) const MAX_LINE_LENGTH: usize = 64 << 10;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
/// Bytes from which compression is recognised.
const MAGIC_LENGTH: usize = 4;

/// The name of standard input.
pub(super) const STANDARD_INPUT: &str = "-";

type LogReader = Box<dyn Read + Send>;

/// A log whose beginning has been read.
pub(super) struct LogInput {
    pub(super) name: String,
    /// `None` if the log has no lines.
    pub(super) format: Option<LogFormat>,
    /// Earliest arrival of a request in the beginning.
    pub(super) first: Option<Timestamp>,
    /// Size of the file, in bytes; `None` if it is not known.
    pub(super) size: Option<u64>,
    source: LogOrigin,
}

/// Where the rest of a log comes from.
enum LogOrigin {
    /// A file that can be opened again.
    File(PathBuf),
    /// A stream that can be read once.
    Stream(LogReader),
}

/// Counts the bytes that are read.
struct CountedReader<R> {
    inner: R,
    bytes: Arc<AtomicU64>,
}

impl<R: Read> Read for CountedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.inner.read(buffer)?;
        self.bytes.fetch_add(length as u64, Ordering::Relaxed);
        Ok(length)
    }
}

impl LogInput {
    /// Opens a log, reads its beginning and detects its format, unless `format` is given. `bytes` counts what is read of
    /// streams.
    ///
    /// # Errors
    /// [`ReplayError`] if it cannot be read, or its format is unknown.
    pub(super) fn open(
        path: &Path,
        format: Option<LogFormat>,
        names: &FieldNames,
        bytes: &Arc<AtomicU64>,
    ) -> Result<Self, ReplayError> {
        let name = path.display().to_string();
        let failed = |error| ReplayError::Log(name.clone(), error);
        let (raw, size): (LogReader, _) = if name == STANDARD_INPUT {
            (Box::new(io::stdin()), None)
        } else {
            let file = File::open(path).map_err(failed)?;
            let metadata = file.metadata().map_err(failed)?;
            (Box::new(file), metadata.is_file().then_some(metadata.len()))
        };
        let counted: LogReader = match size {
            Some(_) => raw,
            None => Box::new(CountedReader { inner: raw, bytes: Arc::clone(bytes) }),
        };
        let mut head = Lookahead::new(decompressed(counted).map_err(failed)?);
        let (mut size_of_head, mut found) = (HEAD_SIZE, (None, None));
        while found.1.is_none() && size_of_head <= MAX_HEAD_SIZE && !head.is_end() {
            head.fill(size_of_head).map_err(failed)?;
            found = examine(&head, format, names);
            size_of_head *= 4;
        }
        let (format, first) = found;
        if format.is_none() && !head.bytes().trim_ascii().is_empty() {
            return Err(match head.into_error() {
                Some(error) => failed(error),
                None => ReplayError::UnknownFormat(name),
            });
        }
        let source = match size {
            Some(_) => LogOrigin::File(path.to_owned()),
            None => LogOrigin::Stream(head.into_reader()),
        };
        Ok(Self { name, format, first, size, source })
    }

    /// Returns a reader of the whole log. `bytes` counts what is read of files.
    pub(super) fn into_blocks(self, bytes: &Arc<AtomicU64>) -> io::Result<BlockReader> {
        let source = match self.source {
            LogOrigin::Stream(reader) => reader,
            LogOrigin::File(path) => {
                let file = CountedReader { inner: File::open(path)?, bytes: Arc::clone(bytes) };
                decompressed(Box::new(file))?
            }
        };
        Ok(BlockReader::new(source))
    }
}

/// Returns the format of a log with this beginning, unless it is given, and the earliest arrival of a request.
fn examine(
    head: &Lookahead,
    format: Option<LogFormat>,
    names: &FieldNames,
) -> (Option<LogFormat>, Option<Timestamp>) {
    let bytes = head.bytes();
    // A last line that is cut off says nothing about the format.
    let whole = match bytes.iter().rposition(|byte| *byte == b'\n') {
        Some(end) => &bytes[..end],
        None if head.is_end() => bytes,
        None => &[],
    };
    let format = format.or_else(|| LogFormat::detect(whole, names));
    (format, format.and_then(|format| first_time(whole, format, names)))
}

/// Returns the earliest arrival of a request in `head`.
fn first_time(head: &[u8], format: LogFormat, names: &FieldNames) -> Option<Timestamp> {
    let (mut data, mut headers, mut at) = (head.to_vec(), Vec::new(), 0);
    let mut parser = LineParser::new(format, names);
    std::iter::from_fn(|| next_line(head, &mut at))
        .filter_map(|line| parser.parse(&mut data, &line, &mut headers).ok())
        .map(|request| request.start)
        .min()
}

/// Returns a reader of the decompressed contents, from the first line on. Compression is recognised by the first bytes.
fn decompressed(reader: LogReader) -> io::Result<LogReader> {
    let mut compressed = Lookahead::new(reader);
    compressed.fill(MAGIC_LENGTH)?;
    let magic = &compressed.bytes()[..compressed.bytes().len().min(MAGIC_LENGTH)];
    let (is_gzip, is_zstd) = (magic.starts_with(&GZIP_MAGIC), zstd::is_frame(magic));
    let whole = compressed.into_reader();
    let contents: LogReader = match (is_gzip, is_zstd) {
        (true, _) => Box::new(GzipReader::new(whole)),
        (_, true) => Box::new(ZstdReader::new(whole)),
        _ => whole,
    };
    let mut lines = Lookahead::new(contents);
    lines.skip_to_first_line()?;
    Ok(lines.into_reader())
}

/// Reads blocks of whole lines.
pub(super) struct BlockReader {
    source: LogReader,
    /// Beginning of the next block: a line whose end has not been read.
    rest: Vec<u8>,
    /// Whether the bytes up to the next end of a line belong to one that is too long.
    is_inside_long_line: bool,
    /// Lines that were too long and that no block has reported yet.
    long_lines: u64,
    /// Why the rest cannot be read.
    error: Option<io::Error>,
}

impl BlockReader {
    fn new(source: LogReader) -> Self {
        Self { source, rest: Vec::new(), is_inside_long_line: false, long_lines: 0, error: None }
    }

    /// Fills `data` from its beginning; returns whether there were enough bytes. What it contains already is overwritten,
    /// not cleared, because clearing costs a tenth of the reading.
    fn fill(&mut self, data: &mut Vec<u8>) -> io::Result<bool> {
        let mut length = self.rest.len();
        data.resize(length.max(BLOCK_SIZE), 0);
        data[..length].copy_from_slice(&self.rest);
        self.rest.clear();
        let mut read = Ok(());
        while length < data.len() {
            match self.source.read(&mut data[length..]) {
                Ok(0) => break,
                Ok(more) => length += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    read = Err(error);
                    break;
                }
            }
        }
        let is_full = length == data.len();
        data.truncate(length);
        read.map(|()| is_full)
    }

    /// Reads the next block into `data`; returns the number of lines before it that were too long, and `None` at the end.
    ///
    /// # Errors
    /// Any error, after all whole lines before it.
    pub(super) fn read(&mut self, data: &mut Vec<u8>) -> io::Result<Option<u64>> {
        loop {
            if let Some(error) = self.error.take() {
                return Err(error);
            }
            let is_end = match self.fill(data) {
                Ok(is_full) => !is_full,
                Err(error) => {
                    // A line that is cut off might be readable, with a part of its last field.
                    data.truncate(data.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1));
                    self.error = Some(error);
                    true
                }
            };
            if self.is_inside_long_line {
                match data.iter().position(|byte| *byte == b'\n') {
                    Some(end) => {
                        data.drain(..=end);
                        self.is_inside_long_line = false;
                    }
                    None => data.clear(),
                }
            }
            let long_lines = std::mem::take(&mut self.long_lines);
            if is_end {
                let has_more = !data.is_empty() || long_lines > 0;
                match self.error.is_some() && !has_more {
                    true => continue,
                    false => return Ok(has_more.then_some(long_lines)),
                }
            }
            let end = data.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
            self.rest.extend_from_slice(&data[end..]);
            data.truncate(end);
            if self.rest.len() > MAX_LINE_LENGTH {
                self.rest.clear();
                self.is_inside_long_line = true;
                self.long_lines = 1;
            }
            if !data.is_empty() || long_lines > 0 {
                return Ok(Some(long_lines));
            }
        }
    }
}

#[cfg(test)]
mod tests;
