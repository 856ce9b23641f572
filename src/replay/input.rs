//! The logs to replay: files or standard input, plain or compressed, read in blocks of whole lines.

mod zstd;

use std::fs::File;
use std::io::{self, Cursor, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::read::MultiGzDecoder;

use self::zstd::ZstdReader;
use super::ReplayError;
use super::format::fields::FieldNames;
use super::format::{LineParser, LogFormat, next_line};
use crate::limiter::timestamp::Timestamp;

/// Bytes at the beginning of a log from which its format is detected. A line is at most as long.
const HEAD_SIZE: usize = MAX_LINE_LENGTH;
/// Size of a block, in bytes. It fits into the cache of a core.
const BLOCK_SIZE: usize = 256 << 10;
/// Maximum length of a line, in bytes. Longer ones are counted as unreadable.
pub(super) const MAX_LINE_LENGTH: usize = 64 << 10;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// The name of standard input.
const STANDARD_INPUT: &str = "-";

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
        let mut reader = decompressed(counted).map_err(failed)?;
        let mut head = Vec::new();
        reader.by_ref().take(HEAD_SIZE as u64).read_to_end(&mut head).map_err(failed)?;
        // A last line that is cut off says nothing about the format.
        let whole = match head.iter().rposition(|byte| *byte == b'\n') {
            Some(end) => &head[..end],
            None => &head[..],
        };
        let format = format.or_else(|| LogFormat::detect(whole, names));
        if format.is_none() && !whole.trim_ascii().is_empty() {
            return Err(ReplayError::UnknownFormat(name));
        }
        let first = format.and_then(|format| first_time(whole, format, names));
        let source = match size {
            Some(_) => LogOrigin::File(path.to_owned()),
            None => LogOrigin::Stream(Box::new(Cursor::new(head).chain(reader))),
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
        Ok(BlockReader { source, rest: Vec::new(), is_inside_long_line: false, long_lines: 0 })
    }
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

/// Returns a reader of the decompressed contents. Compression is recognised by the first bytes.
fn decompressed(mut reader: LogReader) -> io::Result<LogReader> {
    let mut magic = Vec::new();
    reader.by_ref().take(ZSTD_MAGIC.len() as u64).read_to_end(&mut magic)?;
    let is_gzip = magic.starts_with(&GZIP_MAGIC);
    let is_zstd = magic == ZSTD_MAGIC;
    let whole = Cursor::new(magic).chain(reader);
    Ok(match (is_gzip, is_zstd) {
        (true, _) => Box::new(MultiGzDecoder::new(whole)),
        (_, true) => Box::new(ZstdReader::new(whole)?),
        _ => Box::new(whole),
    })
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
}

impl BlockReader {
    /// Reads the next block into `data`; returns the number of lines before it that were too long, and `None` at the end.
    pub(super) fn read(&mut self, data: &mut Vec<u8>) -> io::Result<Option<u64>> {
        loop {
            data.clear();
            data.append(&mut self.rest);
            let missing = BLOCK_SIZE.saturating_sub(data.len());
            data.reserve_exact(missing);
            let is_end = self.source.by_ref().take(missing as u64).read_to_end(data)? < missing;
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
                return Ok(has_more.then_some(long_lines));
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
