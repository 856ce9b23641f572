//! Formats of access log lines.
//!
//! Paths and headers are chosen by clients, so all formats escape them: they cannot end a field or a line, nor send
//! control sequences to a terminal. Long values are truncated, because lines are queued in memory. A line is written in
//! one pass into one buffer.

use std::io::Write;

use http::{StatusCode, Version};

use super::AccessLogEntry;
use crate::limiter::timestamp::{Timestamp, saturating_millis};
use crate::telemetry::jiff_timestamp;

/// Maximum length of a method, in bytes after escaping. Any token is valid (RFC 9110, section 9.1), real ones are
/// short.
const MAX_METHOD_LENGTH: usize = 64;
/// Maximum length of a path, in bytes after escaping.
pub(super) const MAX_PATH_LENGTH: usize = 4096;
/// Maximum length of a header value, in bytes after escaping.
pub(super) const MAX_VALUE_LENGTH: usize = 1024;

/// Appends a line in Envoy's default format, byte for byte. The rule that rejected the request is appended as one more
/// field, which parsers of the format ignore.
pub(super) fn write_envoy(entry: &AccessLogEntry<'_>, line: &mut Vec<u8>) {
    line.push(b'[');
    push_time(line, entry.start);
    line.extend_from_slice(b"] \"");
    push_escaped(line, entry.method.as_str().as_bytes(), MAX_METHOD_LENGTH);
    line.push(b' ');
    push_escaped(line, entry.path.as_bytes(), MAX_PATH_LENGTH);
    // Writing to a vector cannot fail.
    let _ = write!(
        line,
        " {}\" {} {} {} {} {} ",
        protocol(entry.protocol),
        response_code(entry.status),
        if entry.response_flags.is_empty() { "-" } else { entry.response_flags },
        entry.bytes_received,
        entry.bytes_sent,
        entry.duration.as_millis(),
    );
    match entry.upstream_time {
        Some(time) => write!(line, "{}", time.as_millis()),
        None => write!(line, "-"),
    }
    .ok();
    let headers = [entry.x_forwarded_for, entry.user_agent, entry.request_id, entry.authority];
    for value in headers.into_iter().chain([entry.upstream_host.map(str::as_bytes)]) {
        line.extend_from_slice(b" \"");
        push_escaped(line, value.unwrap_or(b"-"), MAX_VALUE_LENGTH);
        line.push(b'"');
    }
    if let Some(rule) = entry.rejecting_rule() {
        line.extend_from_slice(b" rule=");
        push_escaped(line, rule.as_bytes(), MAX_VALUE_LENGTH);
    }
    line.push(b'\n');
}

/// Appends one JSON object with a fixed set of keys, named as in Envoy; `null` for missing values.
pub(super) fn write_json(entry: &AccessLogEntry<'_>, line: &mut Vec<u8>) {
    let mut object = JsonObject { line, separator: b'{' };
    object.key("start_time");
    object.line.push(b'"');
    push_time(object.line, entry.start);
    object.line.push(b'"');
    object.text("method", Some(entry.method.as_str().as_bytes()), MAX_METHOD_LENGTH);
    object.text("path", Some(entry.path.as_bytes()), MAX_PATH_LENGTH);
    object.text("protocol", Some(protocol(entry.protocol).as_bytes()), MAX_VALUE_LENGTH);
    object.number("response_code", Some(response_code(entry.status).into()));
    let flags = if entry.response_flags.is_empty() { "-" } else { entry.response_flags };
    object.text("response_flags", Some(flags.as_bytes()), MAX_VALUE_LENGTH);
    object.number("bytes_received", Some(entry.bytes_received));
    object.number("bytes_sent", Some(entry.bytes_sent));
    object.number("duration", Some(saturating_millis(entry.duration)));
    object.number("upstream_service_time", entry.upstream_time.map(saturating_millis));
    object.text("x_forwarded_for", entry.x_forwarded_for, MAX_VALUE_LENGTH);
    object.text("user_agent", entry.user_agent, MAX_VALUE_LENGTH);
    object.text("request_id", entry.request_id, MAX_VALUE_LENGTH);
    object.text("authority", entry.authority, MAX_VALUE_LENGTH);
    object.text("upstream_host", entry.upstream_host.map(str::as_bytes), MAX_VALUE_LENGTH);
    object.number("upstream_attempts", Some(entry.attempts.into()));
    object.key("client_ip");
    let _ = write!(object.line, "\"{}\"", entry.client_ip);
    write_decision(entry, &mut object);
    line.extend_from_slice(b"}\n");
}

fn write_decision(entry: &AccessLogEntry<'_>, object: &mut JsonObject<'_>) {
    let decision = entry.decision.as_ref();
    let bytes = |text: &'static str| text.as_bytes();
    object.text("rule", decision.map(|rule| rule.rule.as_bytes()), MAX_VALUE_LENGTH);
    object.text("outcome", decision.map(|rule| bytes(rule.outcome.as_str())), MAX_VALUE_LENGTH);
    object.text("key", decision.and_then(|rule| Some(rule.key?.as_bytes())), MAX_VALUE_LENGTH);
    object.number("limit", decision.and_then(|rule| rule.limit).map(u64::from));
    object.number("remaining", decision.and_then(|rule| rule.remaining).map(u64::from));
    object.number("delay_ms", decision.and_then(super::LoggedRule::delay_millis));
    object.key("shadow_rules");
    object.line.push(b'[');
    for (index, name) in decision.iter().flat_map(|rule| rule.shadow_rules).enumerate() {
        if index > 0 {
            object.line.push(b',');
        }
        push_json_text(object.line, name.as_bytes(), MAX_VALUE_LENGTH);
    }
    object.line.push(b']');
}

/// Writes the members of a JSON object. Keys need no escaping.
struct JsonObject<'a> {
    line: &'a mut Vec<u8>,
    /// Written before the next key.
    separator: u8,
}

impl JsonObject<'_> {
    fn key(&mut self, key: &str) {
        self.line.push(self.separator);
        self.separator = b',';
        self.line.push(b'"');
        self.line.extend_from_slice(key.as_bytes());
        self.line.extend_from_slice(b"\":");
    }

    fn text(&mut self, key: &str, value: Option<&[u8]>, max_length: usize) {
        self.key(key);
        match value {
            Some(value) => push_json_text(self.line, value, max_length),
            None => self.line.extend_from_slice(b"null"),
        }
    }

    fn number(&mut self, key: &str, value: Option<u64>) {
        self.key(key);
        match value {
            Some(value) => self.line.extend_from_slice(itoa::Buffer::new().format(value).as_bytes()),
            None => self.line.extend_from_slice(b"null"),
        }
    }
}

/// Returns the status code; 0 without a response, as in Envoy.
pub(super) fn response_code(status: Option<StatusCode>) -> u16 {
    status.map_or(0, |status| status.as_u16())
}

pub(super) fn protocol(version: Version) -> &'static str {
    match version {
        Version::HTTP_09 => "HTTP/0.9",
        Version::HTTP_10 => "HTTP/1.0",
        Version::HTTP_2 => "HTTP/2",
        Version::HTTP_3 => "HTTP/3",
        _ => "HTTP/1.1",
    }
}

/// Appends a time as in RFC 3339, in UTC with milliseconds.
pub(super) fn push_time(line: &mut Vec<u8>, time: Timestamp) {
    let _ = write!(line, "{:.3}", jiff_timestamp(time));
}

/// Appends a value with quotes, backslashes and bytes other than printable ASCII escaped as `\xNN`, as nginx does, so
/// that the original bytes can be restored. Stops before it exceeds `max_length` bytes.
pub(super) fn push_escaped(line: &mut Vec<u8>, value: &[u8], max_length: usize) {
    let end = line.len() + max_length;
    for &byte in value {
        let plain = matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\';
        if line.len() + if plain { 1 } else { 4 } > end {
            return;
        }
        if plain {
            line.push(byte);
        } else {
            let _ = write!(line, "\\x{byte:02X}");
        }
    }
}

/// Appends a value as a JSON string: its longest prefix that takes at most `max_length` bytes once escaped. Invalid
/// UTF-8 is replaced. So are DEL and the C1 controls, which JSON permits and terminals interpret.
fn push_json_text(line: &mut Vec<u8>, value: &[u8], max_length: usize) {
    line.push(b'"');
    let end = line.len() + max_length;
    'value: for chunk in value.utf8_chunks() {
        let replaced = if chunk.invalid().is_empty() { None } else { Some(char::REPLACEMENT_CHARACTER) };
        for char in chunk.valid().chars().chain(replaced) {
            let start = line.len();
            push_json_char(line, char);
            if line.len() > end {
                line.truncate(start);
                break 'value;
            }
        }
    }
    line.push(b'"');
}

fn push_json_char(line: &mut Vec<u8>, char: char) {
    match char {
        '"' | '\\' => line.extend_from_slice(&[b'\\', char as u8]),
        '\0'..='\u{1f}' => {
            let _ = write!(line, "\\u{:04x}", u32::from(char));
        }
        ' '..='~' => line.push(char as u8),
        _ => {
            let char = match char {
                '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' => char::REPLACEMENT_CHARACTER,
                char => char,
            };
            line.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes());
        }
    }
}
