//! JSON logs: one object per line. Fields that mean nothing here are skipped, whatever they contain.
//!
//! The lines of a log have the same fields in the same order. So the parser remembers the meaning of the field at each
//! position, and compares names before it looks them up.

mod remembered;

use std::ops::Range;
use std::time::Duration;

use self::remembered::RememberedField;
use super::envoy::status;
use super::fields::{FieldNames, LogDurationUnit, LogField};
use super::scan::{LineCursor, address, find_either_near, hex_digit, number};
use super::time::TimeParser;
use super::{clear_absent, decode_text, decode_texts, request_line, time};
use crate::record::{LineFault, LoggedRequest, LoggedValue, RecordedEnd, TextSpan};
use weir_limiter::timestamp::Timestamp;
use weir_policy::identify::recorded::RecordedAddress;

/// Maximum depth of nested values.
const MAX_DEPTH: usize = 32;
/// Maximum number of positions whose field is remembered.
const MAX_REMEMBERED: usize = 128;
/// Maximum length of a nested field's name, in bytes.
const MAX_NAME_LENGTH: usize = 128;

/// Bytes that end a number or a literal.
const ENDS_WORD: [bool; 256] = {
    let mut ends = [false; 256];
    let mut index = 0;
    while index < b",}] \t".len() {
        ends[b",}] \t"[index] as usize] = true;
        index += 1;
    }
    ends
};

/// Parser of the lines of one log.
#[derive(Debug)]
pub(crate) struct JsonParser<'n> {
    names: &'n FieldNames,
    /// The field at each position of the previous lines.
    remembered: Vec<RememberedField>,
    times: TimeParser,
    /// Whether a text with a backslash has been read.
    has_escapes: bool,
    /// Name of the object that is being read, with a dot behind it; empty for the outermost one.
    prefix: Vec<u8>,
}

/// What is known of a line in the middle of it.
struct Draft<'h> {
    request: &'h mut LoggedRequest,
    values: &'h mut Vec<LoggedValue>,
    start: Option<Timestamp>,
    time: Option<Timestamp>,
    duration: Duration,
    client: Option<std::net::IpAddr>,
    peer: Option<std::net::IpAddr>,
    flags: Option<Range<usize>>,
    request_line: Option<Range<usize>>,
    position: usize,
}

/// A value of a field.
enum JsonValue {
    /// Positions between the quotes of a text, or of the only text of a list.
    Text(Range<usize>),
    /// A number, `true` or `false`.
    Word(Range<usize>),
    Null,
    /// An object, or a list of other than one text.
    Other,
}

impl<'n> JsonParser<'n> {
    /// Creates a parser for fields with these names.
    pub(super) fn new(names: &'n FieldNames) -> Self {
        Self {
            names,
            remembered: Vec::new(),
            times: TimeParser::default(),
            has_escapes: false,
            prefix: Vec::new(),
        }
    }

    /// Parses one line of `block` into `request`, which is empty before. Its escaped texts are decoded in place.
    pub(super) fn parse(
        &mut self,
        request: &mut LoggedRequest,
        block: &mut [u8],
        line: &Range<usize>,
        values: &mut Vec<LoggedValue>,
    ) -> Result<(), LineFault> {
        let first_value = values.len();
        let mut draft = Draft::new(request, values);
        self.prefix.clear();
        self.has_escapes = false;
        let whole = block.get(..line.end).unwrap_or(block);
        let end = self.object(whole, line.start, &mut draft, 0);
        let finished = match end.and_then(|end| whole.get(end..)).map(<[u8]>::trim_ascii) {
            Some(b"") => draft.finish(whole),
            Some(_) | None => Err(LineFault::Unreadable),
        };
        if finished.is_err() {
            values.truncate(first_value);
            return finished;
        }
        request.values = (first_value as u32, values.len() as u32);
        if self.has_escapes {
            decode_texts(block, request, decode_json_escapes);
            // Fields of bodies stay as they are logged.
            let headers = values[first_value..].iter_mut().filter(|value| self.names.is_header(value.name));
            headers.for_each(|header| decode_text(block, &mut header.value, decode_json_escapes));
        }
        Ok(())
    }

    /// Reads the object at `at`; returns the position behind it. The block ends with the line.
    // Positions are passed as numbers, so that those of the cursor are in registers.
    fn object(&mut self, block: &[u8], at: usize, draft: &mut Draft<'_>, depth: usize) -> Option<usize> {
        let mut cursor = LineCursor { block, at, has_escapes: false };
        cursor.skip(b'{')?;
        skip_space(&mut cursor);
        if cursor.skip(b'}').is_some() {
            return Some(cursor.at);
        }
        loop {
            skip_space(&mut cursor);
            let start = cursor.at + 1;
            let meaning = self.expected(&mut cursor, draft.position);
            if meaning.is_none() {
                text(&mut cursor)?;
            }
            let name = start..cursor.at - 1;
            skip_past(&mut cursor, b':')?;
            skip_space(&mut cursor);
            self.member(&mut cursor, draft, name, meaning, depth)?;
            if skip_past(&mut cursor, b',').is_none() {
                cursor.skip(b'}')?;
                self.has_escapes |= cursor.has_escapes;
                return Some(cursor.at);
            }
        }
    }

    /// Reads the name of a member, if it is that of the member at this position of the previous lines; returns its
    /// meaning.
    #[inline(always)]
    fn expected(&self, cursor: &mut LineCursor<'_>, position: usize) -> Option<Option<LogField>> {
        let known = self.remembered.get(position)?;
        let start = cursor.at + 1;
        let is_next = cursor.peek() == Some(b'"') && known.is_at(cursor.block.get(start..)?, &self.prefix);
        is_next.then(|| {
            cursor.at = start + known.length();
            known.meaning()
        })
    }

    /// Reads the value of a member of the object, whose name is at `name`. `meaning` is that of the name, if it is known.
    #[inline(always)]
    fn member(
        &mut self,
        cursor: &mut LineCursor<'_>,
        draft: &mut Draft<'_>,
        name: Range<usize>,
        meaning: Option<Option<LogField>>,
        depth: usize,
    ) -> Option<()> {
        if cursor.peek() == Some(b'{') && depth < MAX_DEPTH {
            let parent = self.prefix.len();
            if parent + name.len() < MAX_NAME_LENGTH {
                self.prefix.extend_from_slice(&cursor.block[name.clone()]);
                if self.names.has_object(&self.prefix) {
                    self.prefix.push(b'.');
                    cursor.at = self.object(cursor.block, cursor.at, draft, depth + 1)?;
                    self.prefix.truncate(parent);
                    return Some(());
                }
                self.prefix.truncate(parent);
            }
        }
        let field = match meaning {
            Some(meaning) => meaning,
            None => self.look_up(&cursor.block[name], draft.position),
        };
        draft.position += 1;
        let start = cursor.at;
        let value = value(cursor, depth)?;
        match field {
            Some(LogField::OfBody(name)) => draft.add_field(name, start..cursor.at, cursor.block),
            Some(field) => draft.set(field, &value, cursor.block, &mut self.times),
            None => {}
        }
        Some(())
    }

    /// Returns the meaning of the field `name` of the object, and remembers it.
    fn look_up(&mut self, name: &[u8], position: usize) -> Option<LogField> {
        let parent = self.prefix.len();
        self.prefix.extend_from_slice(name);
        let field = self.names.field(&self.prefix);
        self.prefix.truncate(parent);
        let number = self.remembered.len();
        let is_short = name.len() < MAX_NAME_LENGTH && !name.contains(&b'\\');
        match self.remembered.get_mut(position) {
            Some(remembered) if is_short => *remembered = RememberedField::new(&self.prefix, name, field),
            None if is_short && position == number && number < MAX_REMEMBERED => {
                self.remembered.push(RememberedField::new(&self.prefix, name, field));
            }
            Some(_) | None => {}
        }
        field
    }
}

impl<'h> Draft<'h> {
    fn new(request: &'h mut LoggedRequest, values: &'h mut Vec<LoggedValue>) -> Self {
        Self {
            request,
            values,
            start: None,
            time: None,
            duration: Duration::ZERO,
            client: None,
            peer: None,
            flags: None,
            request_line: None,
            position: 0,
        }
    }

    /// Sets a field. `null` states that the request did not have it; an object or a list states nothing.
    #[inline]
    fn set(&mut self, field: LogField, value: &JsonValue, block: &[u8], times: &mut TimeParser) {
        let (range, is_text) = match value {
            JsonValue::Text(range) => (range.clone(), true),
            JsonValue::Word(range) => (range.clone(), false),
            JsonValue::Null => (0..0, true),
            JsonValue::Other => return,
        };
        let bytes = &block[range.clone()];
        let span = || clear_absent(block, range.clone());
        let request = &mut *self.request;
        match field {
            LogField::StartTime => self.start = times.parse(bytes).or(self.start),
            LogField::Time => self.time = times.parse(bytes).or(self.time),
            LogField::Duration(unit) => self.duration = duration(bytes, unit).unwrap_or(self.duration),
            LogField::ClientIp => self.client = address(bytes).or(self.client),
            LogField::PeerIp => self.peer = address(bytes).or(self.peer),
            LogField::Method => keep_first(&mut request.method, span()),
            LogField::Target => keep_first(&mut request.target, span()),
            LogField::RequestLine => self.request_line = is_text.then(|| range.clone()),
            LogField::Host => keep_first(&mut request.host, span()),
            LogField::Status => request.status = status(bytes).unwrap_or(request.status),
            LogField::ResponseFlags => self.flags = Some(range.clone()),
            LogField::BytesReceived => request.received = number(bytes).or(request.received),
            LogField::BytesSent => request.sent = number(bytes).unwrap_or(request.sent),
            LogField::Cost => {
                let units = number(bytes).map(|units| u32::try_from(units).unwrap_or(u32::MAX));
                request.cost = units.or(request.cost);
            }
            LogField::ForwardedFor => keep_first(&mut request.forwarded_for, span()),
            LogField::UserAgent => keep_first(&mut request.user_agent, span()),
            LogField::Referer => keep_first(&mut request.referer, span()),
            LogField::RequestId => keep_first(&mut request.request_id, span()),
            LogField::Header(name) => {
                let value = span();
                self.values.push(LoggedValue { name, value });
            }
            // Added as it is logged, with its quotes: see `add_field`.
            LogField::OfBody(_) => {}
        }
    }

    /// Adds a field of a body, which is the JSON at `value`. The same texts as of headers state that there is none.
    fn add_field(&mut self, name: u32, value: Range<usize>, block: &[u8]) {
        let value = match &block[value.clone()] {
            b"null" | b"\"\"" | b"\"-\"" => TextSpan::NONE,
            _ => TextSpan::new(value),
        };
        self.values.push(LoggedValue { name, value });
    }

    /// Completes the request.
    fn finish(self, block: &[u8]) -> Result<(), LineFault> {
        let request = self.request;
        (request.start, request.end) = match (self.start, self.time) {
            (Some(start), _) => (start, start.saturating_add(self.duration)),
            (None, Some(time)) => (time.saturating_sub(self.duration), time),
            (None, None) => return Err(LineFault::Unreadable),
        };
        request.address = match (self.client, self.peer) {
            (Some(client), _) => RecordedAddress::Client(client),
            (None, Some(peer)) => RecordedAddress::Peer(peer),
            (None, None) => RecordedAddress::Unknown,
        };
        let flags = self.flags.map_or(&b"-"[..], |flags| &block[flags]);
        request.recorded_end = RecordedEnd::from_flags(flags, request.status);
        if let Some(line) = self.request_line.filter(|_| request.target.range().is_none()) {
            request_line(block, line, request)?;
        }
        request.target.range().map(|_| ()).ok_or(LineFault::NoRequest)
    }
}

/// Sets a text, unless another field has set it.
fn keep_first(text: &mut TextSpan, value: TextSpan) {
    if text.range().is_none() {
        *text = value;
    }
}

fn duration(text: &[u8], unit: LogDurationUnit) -> Option<Duration> {
    // Google Cloud writes the unit.
    let (whole, billionths) = time::decimal(text.strip_suffix(b"s").unwrap_or(text))?;
    let seconds = || Duration::new(whole, billionths as u32);
    Some(match unit {
        LogDurationUnit::Seconds => seconds(),
        LogDurationUnit::Milliseconds => Duration::from_millis(whole),
        LogDurationUnit::Nanoseconds => Duration::from_nanos(whole),
        LogDurationUnit::ByForm if text.contains(&b'.') => seconds(),
        LogDurationUnit::ByForm => Duration::from_millis(whole),
    })
}

#[inline]
fn skip_space(cursor: &mut LineCursor<'_>) {
    while matches!(cursor.peek(), Some(b' ' | b'\t')) {
        cursor.at += 1;
    }
}

/// Reads spaces and `byte`; only the spaces, if another byte follows.
#[inline]
fn skip_past(cursor: &mut LineCursor<'_>, byte: u8) -> Option<()> {
    // The usual form has no spaces.
    cursor.skip(byte).or_else(|| {
        skip_space(cursor);
        cursor.skip(byte)
    })
}

/// Reads a text; returns the positions between its quotes.
// Inline, so that the position stays in a register.
#[inline(always)]
fn text(cursor: &mut LineCursor<'_>) -> Option<Range<usize>> {
    cursor.skip(b'"')?;
    let start = cursor.at;
    let mut end = start + find_either_near(cursor.rest(), b'"', b'\\')?;
    if cursor.block[end] != b'"' {
        cursor.has_escapes = true;
        end = end_of_escaped(cursor.block, end)?;
    }
    cursor.at = end + 1;
    Some(start..end)
}

/// Returns the position of the quote that ends a text of which `at` is the first backslash.
#[inline(never)]
fn end_of_escaped(block: &[u8], mut at: usize) -> Option<usize> {
    while *block.get(at)? != b'"' {
        at += 2;
        at += find_either_near(block.get(at..)?, b'"', b'\\')?;
    }
    Some(at)
}

/// Reads any value. Numbers and literals are not checked further.
#[inline(always)]
fn value(cursor: &mut LineCursor<'_>, depth: usize) -> Option<JsonValue> {
    match cursor.peek()? {
        b'"' => text(cursor).map(JsonValue::Text),
        b'{' | b'[' => nested_value(cursor, depth),
        _ => {
            let rest = cursor.rest();
            let length = rest.iter().position(|byte| ENDS_WORD[usize::from(*byte)]).unwrap_or(rest.len());
            let start = cursor.at;
            cursor.at += length;
            match &rest[..length] {
                b"" => None,
                b"null" => Some(JsonValue::Null),
                _ => Some(JsonValue::Word(start..start + length)),
            }
        }
    }
}

/// Reads a list or an object.
#[inline(always)]
fn nested_value(cursor: &mut LineCursor<'_>, depth: usize) -> Option<JsonValue> {
    let (value, behind) = match only_text(*cursor) {
        Some((only, behind)) => (JsonValue::Text(only), behind),
        None => (JsonValue::Other, skip_nested(*cursor, depth)?),
    };
    *cursor = behind;
    Some(value)
}

/// Reads a list of one text, as Caddy logs headers; returns the positions between its quotes, and the one behind the
/// list.
fn only_text(mut cursor: LineCursor<'_>) -> Option<(Range<usize>, LineCursor<'_>)> {
    cursor.skip(b'[')?;
    skip_space(&mut cursor);
    let only = text(&mut cursor)?;
    skip_space(&mut cursor);
    cursor.skip(b']')?;
    Some((only, cursor))
}

/// Returns the position behind a list or an object.
fn skip_nested(mut cursor: LineCursor<'_>, depth: usize) -> Option<LineCursor<'_>> {
    let mut open = depth;
    loop {
        match cursor.peek()? {
            b'"' => {
                text(&mut cursor)?;
                continue;
            }
            b'{' | b'[' if open >= depth + MAX_DEPTH => return None,
            b'{' | b'[' => open += 1,
            b'}' | b']' => open -= 1,
            _ => {}
        }
        cursor.at += 1;
        if open == depth {
            return Some(cursor);
        }
    }
}

/// Decodes the escapes of a JSON text in place, and returns the new length. A lone surrogate becomes U+FFFD.
fn decode_json_escapes(text: &mut [u8]) -> usize {
    let (mut from, mut to) = (0, 0);
    while from < text.len() {
        let simple = match text[from..] {
            [b'\\', b'u', ..] => {
                let (letter, length) = unicode_escape(&text[from..]);
                let mut encoded = [0; 4];
                for byte in letter.encode_utf8(&mut encoded).bytes() {
                    text[to] = byte;
                    to += 1;
                }
                from += length;
                continue;
            }
            [b'\\', b'n', ..] => (b'\n', 2),
            [b'\\', b't', ..] => (b'\t', 2),
            [b'\\', b'r', ..] => (b'\r', 2),
            [b'\\', b'b', ..] => (0x08, 2),
            [b'\\', b'f', ..] => (0x0c, 2),
            [b'\\', other, ..] => (other, 2),
            [byte, ..] => (byte, 1),
            [] => break,
        };
        text[to] = simple.0;
        (from, to) = (from + simple.1, to + 1);
    }
    to
}

/// Decodes `\uNNNN`, or two of them that are a surrogate pair; returns the character and the length of the escape.
fn unicode_escape(text: &[u8]) -> (char, usize) {
    let unit = |at: usize| {
        let digits = text.get(at..at + 6)?.strip_prefix(b"\\u")?;
        digits.iter().try_fold(0, |unit, digit| Some(unit << 4 | u32::from(hex_digit(*digit)?)))
    };
    match (unit(0), unit(6)) {
        (Some(high @ 0xd800..0xdc00), Some(low @ 0xdc00..0xe000)) => {
            let code = 0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00);
            (char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER), 12)
        }
        (Some(unit), _) => (char::from_u32(unit).unwrap_or(char::REPLACEMENT_CHARACTER), 6),
        // A malformed escape is at least two bytes long, and decodes to one.
        (None, _) => ('u', 2),
    }
}
