//! Formats of access log lines.
//!
//! Paths and headers are chosen by clients, so both formats escape them: they cannot end a field or a line, nor send
//! control sequences to a terminal. Long values are truncated, because lines are queued in memory.

use std::io::Write;

use http::{StatusCode, Version};
use serde_json::json;

use super::AccessLogEntry;
use crate::limiter::timestamp::saturating_millis;
use crate::telemetry::rfc3339;

/// Maximum length of a method, in bytes after escaping. Any token is valid (RFC 9110, section 9.1), real ones are
/// short.
const MAX_METHOD_LENGTH: usize = 64;
/// Maximum length of a path, in bytes after escaping.
const MAX_PATH_LENGTH: usize = 4096;
/// Maximum length of a header value, in bytes after escaping.
const MAX_VALUE_LENGTH: usize = 1024;

/// Initial capacity, enough for a typical line.
const TYPICAL_LINE_LENGTH: usize = 384;

/// Returns a line in Envoy's default format, byte for byte. The rule that decided is appended as one more field, which
/// parsers of the format ignore.
pub(super) fn format_envoy(entry: &AccessLogEntry<'_>) -> Vec<u8> {
    let mut line = Vec::with_capacity(TYPICAL_LINE_LENGTH);
    // Writing to a vector cannot fail.
    let _ = write!(line, "[{}] \"", rfc3339(entry.start));
    push_escaped(&mut line, entry.method.as_str().as_bytes(), MAX_METHOD_LENGTH);
    line.push(b' ');
    push_escaped(&mut line, entry.path.as_bytes(), MAX_PATH_LENGTH);
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
        push_escaped(&mut line, value.unwrap_or(b"-"), MAX_VALUE_LENGTH);
        line.push(b'"');
    }
    if let Some(rule) = entry.rule {
        line.extend_from_slice(b" rule=");
        push_escaped(&mut line, rule.as_bytes(), MAX_VALUE_LENGTH);
    }
    line.push(b'\n');
    line
}

/// Returns one JSON object with a fixed set of keys, named as in Envoy; `null` for missing values.
pub(super) fn format_json(entry: &AccessLogEntry<'_>) -> Vec<u8> {
    let value = json!({
        "start_time": rfc3339(entry.start),
        "method": truncate_text(entry.method.as_str().as_bytes(), MAX_METHOD_LENGTH),
        "path": truncate_text(entry.path.as_bytes(), MAX_PATH_LENGTH),
        "protocol": protocol(entry.protocol),
        "response_code": response_code(entry.status),
        "response_flags": if entry.response_flags.is_empty() { "-" } else { entry.response_flags },
        "bytes_received": entry.bytes_received,
        "bytes_sent": entry.bytes_sent,
        "duration": saturating_millis(entry.duration),
        "upstream_service_time": entry.upstream_time.map(saturating_millis),
        "x_forwarded_for": entry.x_forwarded_for.map(|value| truncate_text(value, MAX_VALUE_LENGTH)),
        "user_agent": entry.user_agent.map(|value| truncate_text(value, MAX_VALUE_LENGTH)),
        "request_id": entry.request_id.map(|value| truncate_text(value, MAX_VALUE_LENGTH)),
        "authority": entry.authority.map(|value| truncate_text(value, MAX_VALUE_LENGTH)),
        "upstream_host": entry.upstream_host,
        "upstream_attempts": entry.attempts,
        "client_ip": entry.client_ip,
        "rule": entry.rule,
    });
    let mut line = value.to_string().into_bytes();
    line.push(b'\n');
    line
}

/// Returns the status code; 0 without a response, as in Envoy.
fn response_code(status: Option<StatusCode>) -> u16 {
    status.map_or(0, |status| status.as_u16())
}

fn protocol(version: Version) -> &'static str {
    match version {
        Version::HTTP_09 => "HTTP/0.9",
        Version::HTTP_10 => "HTTP/1.0",
        Version::HTTP_2 => "HTTP/2",
        Version::HTTP_3 => "HTTP/3",
        _ => "HTTP/1.1",
    }
}

/// Appends a value with quotes, backslashes and bytes other than printable ASCII escaped as `\xNN`, as nginx does, so
/// that the original bytes can be restored. Stops before it exceeds `max_length` bytes.
fn push_escaped(line: &mut Vec<u8>, value: &[u8], max_length: usize) {
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

/// Returns the longest prefix of a value that takes at most `max_length` bytes once escaped. JSON's own
/// escaping keeps DEL and the C1 controls, which terminals interpret, so they are replaced.
fn truncate_text(value: &[u8], max_length: usize) -> String {
    let mut text = String::new();
    let mut remaining = max_length;
    for char in String::from_utf8_lossy(&value[..value.len().min(max_length)]).chars() {
        let (char, size) = match char {
            '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' => (char::REPLACEMENT_CHARACTER, 3),
            '\0'..='\u{1f}' => (char, 6),
            '"' | '\\' => (char, 2),
            _ => (char, char.len_utf8()),
        };
        let Some(left) = remaining.checked_sub(size) else { break };
        remaining = left;
        text.push(char);
    }
    text
}
