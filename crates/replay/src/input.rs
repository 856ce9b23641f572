//! The logs to replay: files or standard input, plain or compressed, read in blocks of whole lines.

mod gzip;
mod lookahead;
mod translated;
mod zstd;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use self::gzip::GzipReader;
use self::lookahead::Lookahead;
use self::translated::{TranslatedReader, translate_lines};
use self::zstd::ZstdReader;
use super::ReplayError;
use super::format::fields::FieldNames;
use super::format::translate::Translator;
use super::format::{LineParser, LogFormat, next_line};
use weir_limiter::timestamp::Timestamp;
use weir_policy::identify::recorded::RecordedAddress;

/// Bytes at the beginning of a log from which its format is detected.
const HEAD_SIZE: usize = 64 << 10;
/// Maximum number of these bytes, if there is no readable line among the first ones.
const MAX_HEAD_SIZE: usize = 16 << 20;
/// Size of a block, in bytes. It fits into the cache of a core.
const BLOCK_SIZE: usize = 256 << 10;
/// Maximum length of a line, in bytes. Longer ones are counted as unreadable.
pub(super) const MAX_LINE_LENGTH: usize = 64 << 10;

/// Lines whose fields are shown if no line has a request, fields that are shown, and the length of their names.
const MAX_LINES_FOR_FIELDS: usize = 50;
const MAX_SHOWN_FIELDS: usize = 30;
const MAX_SHOWN_NAME: usize = 80;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
/// Bytes from which compression is recognised.
const MAGIC_LENGTH: usize = 4;

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
    /// What was looked for and found, if no line of the beginning has a request.
    pub(super) found: Option<String>,
    source: LogOrigin,
    /// Whether lines are translated before they are read.
    is_translated: bool,
}

/// What the beginning of a log contains.
#[derive(Debug, Default)]
struct HeadContents {
    format: Option<LogFormat>,
    /// Earliest arrival of a request.
    first: Option<Timestamp>,
    /// Lines that are not empty, and those with a request.
    lines: usize,
    requests: usize,
    /// Requests with an address.
    addresses: usize,
    is_translated: bool,
    fields: Vec<String>,
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
        let (mut size_of_head, mut contents) = (HEAD_SIZE, HeadContents::default());
        while contents.requests == 0 && size_of_head <= MAX_HEAD_SIZE && !head.is_end() {
            head.fill(size_of_head).map_err(failed)?;
            contents = examine(&head, format, names);
            size_of_head *= 4;
        }
        let found = (contents.requests == 0 && contents.lines > 0).then(|| contents.describe());
        let HeadContents { format, first, is_translated, .. } = contents;
        if format.is_none() && !head.bytes().trim_ascii().is_empty() {
            return Err(match head.into_error() {
                Some(error) => failed(error),
                None => ReplayError::UnknownFormat(name, found.unwrap_or_default()),
            });
        }
        let source = match size {
            Some(_) => LogOrigin::File(path.to_owned()),
            None => LogOrigin::Stream(head.into_reader()),
        };
        Ok(Self { name, format, first, size, found, source, is_translated })
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
        let source = match self.is_translated {
            true => Box::new(TranslatedReader::new(source)),
            false => source,
        };
        Ok(BlockReader::new(source))
    }
}

/// Returns what the beginning of a log contains. Its lines are translated if more of them then have a request.
fn examine(head: &Lookahead, format: Option<LogFormat>, names: &FieldNames) -> HeadContents {
    let bytes = head.bytes();
    // A last line that is cut off says nothing about the format.
    let whole = match bytes.iter().rposition(|byte| *byte == b'\n') {
        Some(end) => &bytes[..end],
        None if head.is_end() => bytes,
        None => &[],
    };
    let direct = HeadContents::of_lines(whole, format, names);
    if direct.requests > direct.lines / 2 && direct.addresses == direct.requests {
        return direct;
    }
    let mut text = Vec::with_capacity(whole.len());
    translate_lines(whole, &mut Translator::default(), &mut text);
    let translated = HeadContents::of_lines(&text, format, names);
    // In the combined format, the time of a wrapper could be the name of a client.
    if (translated.requests, translated.addresses) > (direct.requests, direct.addresses) {
        return HeadContents { is_translated: true, ..translated };
    }
    // A payload says more about what is missing than its wrapper.
    let fields = if text == whole { direct.fields } else { translated.fields };
    HeadContents { fields, ..direct }
}

impl HeadContents {
    /// Reads lines in a format, or in the one in which most of them are readable.
    fn of_lines(lines: &[u8], format: Option<LogFormat>, names: &FieldNames) -> Self {
        let detected = format.or_else(|| LogFormat::detect(lines, names));
        let read = |format| Self { format: Some(format), ..Self::in_format(lines, format, names) };
        let mut best = detected.map(read).unwrap_or_default();
        if best.requests == 0 && format.is_none() {
            // Other records in a readable format may outnumber the requests.
            let others = LogFormat::ALL.into_iter().map(read).filter(|other| other.requests > 0);
            best = others.max_by_key(|other| other.requests).unwrap_or(best);
        }
        if best.requests == 0 {
            best.lines =
                lines.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty()).count();
            best.fields = field_names(lines);
        }
        best
    }

    fn in_format(lines: &[u8], format: LogFormat, names: &FieldNames) -> Self {
        let (mut data, mut values, mut at) = (lines.to_vec(), Vec::new(), 0);
        let mut parser = LineParser::new(format, names);
        let mut contents = Self::default();
        while let Some(line) = next_line(lines, &mut at) {
            contents.lines += usize::from(!line.is_empty());
            if let Ok(request) = parser.parse(&mut data, &line, &mut values) {
                contents.requests += 1;
                contents.addresses += usize::from(request.address != RecordedAddress::Unknown);
                contents.first = Some(contents.first.map_or(request.start, |first| first.min(request.start)));
            }
        }
        contents
    }

    /// Describes what was looked for in vain.
    fn describe(&self) -> String {
        const LOOKED_FOR: &str = "looked for lines in the formats envoy, combined and json and in those of other programs, in \
            JSON for a time (`time`, `start_time`, `timestamp`, …) and a path (`path`, `request_uri`, `url`, …) or a request line \
            (`request`)";
        match self.fields.is_empty() {
            true => format!("{LOOKED_FOR}, and found no JSON object with fields"),
            false => format!("{LOOKED_FOR}, and found the fields {} (see --field)", self.fields.join(", ")),
        }
    }
}

/// Returns the names of the fields of JSON objects in these lines, nested ones joined by dots.
fn field_names(lines: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    for line in
        lines.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"{")).take(MAX_LINES_FOR_FIELDS)
    {
        if let Ok(serde_json::Value::Object(members)) = serde_json::from_slice(line) {
            collect_names("", &members, &mut found);
        }
    }
    found
}

fn collect_names(
    prefix: &str,
    members: &serde_json::Map<String, serde_json::Value>,
    found: &mut Vec<String>,
) {
    for (name, value) in members {
        let name = format!("{prefix}{}", name.escape_debug());
        match value {
            serde_json::Value::Object(inner) if prefix.matches('.').count() < 2 => {
                collect_names(&format!("{name}."), inner, found);
            }
            _ if found.len() < MAX_SHOWN_FIELDS && name.len() <= MAX_SHOWN_NAME && !found.contains(&name) => {
                found.push(name);
            }
            _ => {}
        }
    }
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
