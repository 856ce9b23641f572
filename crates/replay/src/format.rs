//! Formats of access logs: which one a file has, and the parsers of their lines.
//!
//! A parser is total: every line is a request, or not readable, or the record of something else. It works on the bytes of
//! a block and allocates nothing for a line. Escaped texts are decoded in place, since they only become shorter.

pub(super) mod fields;
pub(super) mod scan;
pub(super) mod time;
pub(super) mod translate;

mod combined;
mod envoy;
mod json;

use std::ops::Range;

use self::fields::FieldNames;
use self::json::JsonParser;
use self::scan::LineCursor;
use self::time::TimeParser;
use super::input::MAX_LINE_LENGTH;
use super::record::{LineFault, LoggedRequest, LoggedValue, TextSpan};
use weir_policy::identify::recorded::RecordedAddress;

/// Format of an access log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Envoy's default format, and Weir's.
    Envoy,
    /// The combined or the common log format.
    Combined,
    /// One JSON object per line.
    Json,
}

impl LogFormat {
    pub const ALL: [Self; 3] = [Self::Json, Self::Envoy, Self::Combined];

    /// Returns the name on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Envoy => "envoy",
            Self::Combined => "combined",
            Self::Json => "json",
        }
    }

    /// Returns the format in which most of the first lines of a log are readable; `None` if no line is.
    pub(super) fn detect(head: &[u8], names: &FieldNames) -> Option<Self> {
        let mut at = 0;
        loop {
            let lines = std::iter::from_fn(|| next_line(head, &mut at));
            let lines: Vec<&[u8]> = lines
                .filter(|line| !line.is_empty() && line.len() <= MAX_LINE_LENGTH)
                .take(MAX_LINES_TO_DETECT)
                .map(|line| &head[line])
                .collect();
            if lines.is_empty() {
                return None;
            }
            let counts = Self::ALL.map(|format| (format.count_readable(&lines, names), format));
            let best =
                counts.into_iter().filter(|(count, _)| *count > 0).rev().max_by_key(|(count, _)| *count);
            if let Some((_, format)) = best {
                return Some(format);
            }
        }
    }

    fn count_readable(self, lines: &[&[u8]], names: &FieldNames) -> usize {
        let (mut parser, mut values) = (LineParser::new(self, names), Vec::new());
        let is_readable = |line: &&&[u8]| {
            parser.parse(&mut line.to_vec(), &(0..line.len()), &mut values) != Err(LineFault::Unreadable)
        };
        lines.iter().filter(is_readable).count()
    }
}

/// Number of lines at the beginning of a log from which its format is detected.
const MAX_LINES_TO_DETECT: usize = 50;

/// Parser of the lines of one log.
#[derive(Debug)]
pub(super) enum LineParser<'n> {
    Envoy(TimeParser),
    Combined(TimeParser),
    Json(JsonParser<'n>),
}

impl<'n> LineParser<'n> {
    /// Creates a parser. `names` are the names of fields in JSON.
    pub(super) fn new(format: LogFormat, names: &'n FieldNames) -> Self {
        match format {
            LogFormat::Envoy => Self::Envoy(TimeParser::default()),
            LogFormat::Combined => Self::Combined(TimeParser::default()),
            LogFormat::Json => Self::Json(JsonParser::new(names)),
        }
    }

    /// Parses one line of `block`.
    ///
    /// # Errors
    /// [`LineFault`] if the line gives no request.
    pub(super) fn parse(
        &mut self,
        block: &mut [u8],
        line: &Range<usize>,
        values: &mut Vec<LoggedValue>,
    ) -> Result<LoggedRequest, LineFault> {
        let mut request = LoggedRequest::EMPTY;
        self.parse_into(&mut request, block, line, values)?;
        Ok(request)
    }

    /// Parses one line of `block` into `request`, which is empty before. Its escaped texts are decoded in place.
    ///
    /// # Errors
    /// [`LineFault`] if the line gives no request. The contents of `request` are undefined then.
    #[inline]
    pub(super) fn parse_into(
        &mut self,
        request: &mut LoggedRequest,
        block: &mut [u8],
        line: &Range<usize>,
        values: &mut Vec<LoggedValue>,
    ) -> Result<(), LineFault> {
        match self {
            Self::Envoy(times) => {
                let mut cursor = LineCursor::new(block, line);
                let text = envoy::fields(&mut cursor, times, request).ok_or(LineFault::Unreadable)?;
                request_line(block, text, request)?;
                decode_escapes(cursor.has_escapes, block, request);
            }
            Self::Combined(times) => {
                let mut cursor = LineCursor::new(block, line);
                let text = combined::fields(&mut cursor, times, request).ok_or(LineFault::Unreadable)?;
                request_line(block, text, request)?;
                decode_escapes(cursor.has_escapes, block, request);
            }
            Self::Json(parser) => parser.parse(request, block, line, values)?,
        }
        if request.address == RecordedAddress::Unknown
            && let Some(hops) = request.forwarded_for.text(block)
        {
            // The proxy that wrote the log has appended its peer.
            let before = hops.iter().rposition(|byte| *byte == b',');
            let last = before.map_or(hops, |comma| &hops[comma + 1..]);
            let peer = scan::address(last.trim_ascii());
            request.address = peer.map_or(request.address, RecordedAddress::Peer);
            request.is_only_hop = before.is_none();
        }
        Ok(())
    }
}

/// Returns the line of `block` that begins at `at`, without its end, and moves `at` to the next one; `None` at the end.
#[inline]
pub(super) fn next_line(block: &[u8], at: &mut usize) -> Option<Range<usize>> {
    let start = *at;
    let rest = block.get(start..).filter(|rest| !rest.is_empty())?;
    let end = start + memchr::memchr(b'\n', rest).unwrap_or(rest.len());
    *at = end + 1;
    Some(start..end - usize::from(end > start && block[end - 1] == b'\r'))
}

/// Decodes the escaped texts of a line of text, if it `has_escapes`.
#[inline]
fn decode_escapes(has_escapes: bool, block: &mut [u8], request: &mut LoggedRequest) {
    if has_escapes {
        decode_texts(block, request, scan::decode_hex_escapes);
    }
}

/// Decodes the escaped texts of a request.
fn decode_texts(block: &mut [u8], request: &mut LoggedRequest, decode: fn(&mut [u8]) -> usize) {
    let texts = [
        &mut request.method,
        &mut request.target,
        &mut request.host,
        &mut request.forwarded_for,
        &mut request.user_agent,
        &mut request.referer,
        &mut request.request_id,
    ];
    texts.into_iter().for_each(|text| decode_text(block, text, decode));
}

fn decode_text(block: &mut [u8], text: &mut TextSpan, decode: fn(&mut [u8]) -> usize) {
    let Some(range) = text.range() else { return };
    if let Some(escaped) = block.get_mut(range.clone()).filter(|escaped| escaped.contains(&b'\\')) {
        let length = decode(escaped);
        *text = TextSpan::new(range.start..range.start + length);
    }
}

/// Returns the span of a logged text. `-` and nothing stand for a header that the request does not have.
#[inline]
fn clear_absent(block: &[u8], text: Range<usize>) -> TextSpan {
    match &block[text.clone()] {
        b"" | b"-" => TextSpan::NONE,
        _ => TextSpan::new(text),
    }
}

/// Splits a request line into method and target.
#[inline]
fn request_line(block: &[u8], line: Range<usize>, request: &mut LoggedRequest) -> Result<(), LineFault> {
    let start = line.start;
    let text = &block[line];
    let method = scan::find(text, b' ').ok_or(LineFault::NoRequest)?;
    let last = match text {
        // The usual form, in which no search is needed.
        [before @ .., b' ', b'H', b'T', b'T', b'P', b'/', b'1', b'.', b'0' | b'1'] => Some(before.len()),
        _ => text.iter().rposition(|byte| *byte == b' '),
    };
    let protocol = last.filter(|at| *at > method + 1);
    let end = protocol.ok_or(LineFault::NoRequest)?;
    if method == 0 || !text[end + 1..].starts_with(b"HTTP/") || text[0] == b'-' {
        return Err(LineFault::NoRequest);
    }
    request.method = TextSpan::new(start..start + method);
    request.target = TextSpan::new(start + method + 1..start + end);
    Ok(())
}

#[cfg(test)]
mod tests;
