//! Formats of access log lines.
//!
//! Paths and headers are chosen by clients, so all formats escape them: they cannot end a field or a line, nor send
//! control sequences to a terminal. Long values are truncated, because lines are queued in memory. A line is written in
//! one pass into one buffer.

use std::io::Write;

use http::{StatusCode, Version};

use super::time_format::push_time;
use super::{AccessLogEntry, LoggedRule};
use weir_limiter::timestamp::saturating_millis;
use weir_policy::identify::forwarded::write_ip;

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
    line.push(b' ');
    line.extend_from_slice(protocol(entry.protocol).as_bytes());
    line.extend_from_slice(b"\" ");
    push_number(line, response_code(entry.status).into());
    line.push(b' ');
    line.extend_from_slice(response_flags(entry).as_bytes());
    for number in [entry.bytes_received, entry.bytes_sent, saturating_millis(entry.duration)] {
        line.push(b' ');
        push_number(line, number);
    }
    line.push(b' ');
    match entry.upstream_time {
        Some(time) => push_number(line, saturating_millis(time)),
        None => line.push(b'-'),
    }
    let upstream_host = entry.upstream_host.map(str::as_bytes);
    for value in [entry.x_forwarded_for, entry.user_agent, entry.request_id, entry.authority, upstream_host] {
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

/// Appends one JSON object with a fixed set of keys, named as in Envoy; `null` for missing values. Only `class` may be missing. Each key is written
/// together with the punctuation around it.
pub(super) fn write_json(entry: &AccessLogEntry<'_>, line: &mut Vec<u8>) {
    line.extend_from_slice(br#"{"start_time":""#);
    push_time(line, entry.start);
    let (method, path) = (entry.method.as_str().as_bytes(), entry.path.as_bytes());
    push_json_member(line, r#"","method":"#, Some(method), MAX_METHOD_LENGTH);
    push_json_member(line, r#","path":"#, Some(path), MAX_PATH_LENGTH);
    push_keyword_member(line, r#","protocol":""#, protocol(entry.protocol));
    push_number_member(line, r#","response_code":"#, Some(response_code(entry.status).into()));
    push_keyword_member(line, r#","response_flags":""#, response_flags(entry));
    push_number_member(line, r#","bytes_received":"#, Some(entry.bytes_received));
    push_number_member(line, r#","bytes_sent":"#, Some(entry.bytes_sent));
    push_number_member(line, r#","duration":"#, Some(saturating_millis(entry.duration)));
    push_number_member(line, r#","upstream_service_time":"#, entry.upstream_time.map(saturating_millis));
    push_text_member(line, r#","x_forwarded_for":"#, entry.x_forwarded_for);
    push_text_member(line, r#","user_agent":"#, entry.user_agent);
    push_text_member(line, r#","request_id":"#, entry.request_id);
    push_text_member(line, r#","authority":"#, entry.authority);
    push_text_member(line, r#","upstream_host":"#, entry.upstream_host.map(str::as_bytes));
    push_number_member(line, r#","upstream_attempts":"#, Some(entry.attempts.into()));
    line.extend_from_slice(br#","client_ip":""#);
    write_ip(line, entry.client_ip);
    line.push(b'"');
    push_decision(line, entry.decision.as_ref());
    if let Some(class) = entry.class {
        push_text_member(line, r#","class":"#, Some(class.as_bytes()));
    }
    line.extend_from_slice(b"}\n");
}

fn push_decision(line: &mut Vec<u8>, decision: Option<&LoggedRule<'_>>) {
    push_text_member(line, r#","rule":"#, decision.map(|rule| rule.rule.as_bytes()));
    match decision {
        Some(rule) => push_keyword_member(line, r#","outcome":""#, rule.outcome.as_str()),
        None => push_text_member(line, r#","outcome":"#, None),
    }
    push_text_member(line, r#","key":"#, decision.and_then(|rule| Some(rule.key?.as_bytes())));
    push_number_member(line, r#","limit":"#, decision.and_then(|rule| rule.limit).map(u64::from));
    push_number_member(line, r#","remaining":"#, decision.and_then(|rule| rule.remaining).map(u64::from));
    push_number_member(line, r#","delay_ms":"#, decision.and_then(LoggedRule::delay_millis));
    push_number_member(line, r#","cost":"#, decision.and_then(|rule| rule.cost).map(u64::from));
    line.extend_from_slice(br#","shadow_rules":["#);
    for (index, name) in decision.iter().flat_map(|rule| rule.shadow_rules).enumerate() {
        if index > 0 {
            line.push(b',');
        }
        push_json_text(line, name.as_bytes(), MAX_VALUE_LENGTH);
    }
    line.push(b']');
}

// Members are written inline, so that a key is copied by a few instructions instead of a call.
#[inline(always)]
fn push_text_member(line: &mut Vec<u8>, key: &str, value: Option<&[u8]>) {
    push_json_member(line, key, value, MAX_VALUE_LENGTH);
}

/// Appends a value that is one of a few words, and so needs no escapes. `key` includes the first quote.
#[inline(always)]
fn push_keyword_member(line: &mut Vec<u8>, key: &str, value: &'static str) {
    line.extend_from_slice(key.as_bytes());
    line.extend_from_slice(value.as_bytes());
    line.push(b'"');
}

#[inline(always)]
fn push_json_member(line: &mut Vec<u8>, key: &str, value: Option<&[u8]>, max_length: usize) {
    line.extend_from_slice(key.as_bytes());
    match value {
        Some(value) => push_json_text(line, value, max_length),
        None => line.extend_from_slice(b"null"),
    }
}

#[inline(always)]
fn push_number_member(line: &mut Vec<u8>, key: &str, value: Option<u64>) {
    line.extend_from_slice(key.as_bytes());
    match value {
        Some(value) => push_number(line, value),
        None => line.extend_from_slice(b"null"),
    }
}

pub(super) fn push_number(line: &mut Vec<u8>, number: u64) {
    // Most numbers are sizes and durations of 0.
    if number < 10 {
        return line.push(b'0' + number as u8);
    }
    line.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

fn response_flags(entry: &AccessLogEntry<'_>) -> &'static str {
    if entry.response_flags.is_empty() { "-" } else { entry.response_flags }
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

/// Appends a value with quotes, backslashes and bytes other than printable ASCII escaped as `\xNN`, as nginx does, so
/// that the original bytes can be restored. Stops before it exceeds `max_length` bytes.
pub(super) fn push_escaped(line: &mut Vec<u8>, value: &[u8], max_length: usize) {
    if value.len() <= max_length && is_plain(value) {
        return line.extend_from_slice(value);
    }
    let end = line.len() + max_length;
    for &byte in value {
        let plain = is_plain_byte(byte);
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

/// Whether no format escapes a byte of `value`, which is so for nearly all values.
fn is_plain(value: &[u8]) -> bool {
    const WIDTH: usize = size_of::<u128>();
    // Many bytes at once, without branches: the last ones may overlap the ones before, or are padded.
    let last = value.last_chunk().copied().unwrap_or_else(|| {
        let mut padded = [b' '; WIDTH];
        padded.iter_mut().zip(value).for_each(|(to, byte)| *to = *byte);
        padded
    });
    let mut escaped = last.map(is_escaped);
    for chunk in value.as_chunks::<WIDTH>().0 {
        escaped.iter_mut().zip(chunk).for_each(|(escaped, byte)| *escaped |= is_escaped(*byte));
    }
    u128::from_ne_bytes(escaped) == 0
}

/// Returns a number other than zero if a format escapes this byte.
const fn is_escaped(byte: u8) -> u8 {
    !is_plain_byte(byte) as u8
}

const fn is_plain_byte(byte: u8) -> bool {
    matches!(byte, b' '..=b'~') && byte != b'"' && byte != b'\\'
}

/// Appends a value as a JSON string: its longest prefix that takes at most `max_length` bytes once escaped. Invalid
/// UTF-8 is replaced. So are DEL and the C1 controls, which JSON permits and terminals interpret.
fn push_json_text(line: &mut Vec<u8>, value: &[u8], max_length: usize) {
    line.push(b'"');
    if value.len() <= max_length && is_plain(value) {
        line.extend_from_slice(value);
        return line.push(b'"');
    }
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn values_are_plain_if_all_their_bytes_are(
            value in prop::collection::vec(prop_oneof![4 => b' '..=b'~', 1 => any::<u8>()], 0..40),
        ) {
            prop_assert_eq!(is_plain(&value), value.iter().all(|byte| is_plain_byte(*byte)));
        }
    }

    #[test]
    fn every_byte_decides_at_every_position_whether_a_value_is_plain() {
        for (length, byte) in (1..=35).flat_map(|length| (0..=u8::MAX).map(move |byte| (length, byte))) {
            for position in 0..length {
                let mut value = vec![b'a'; length];
                value[position] = byte;
                assert_eq!(is_plain(&value), is_plain_byte(byte), "{byte} at {position} of {length}");
            }
        }
    }
}
