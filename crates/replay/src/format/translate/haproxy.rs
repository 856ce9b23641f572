//! HAProxy's HTTP log format, also with the fields of `httpslog` behind it. A prefix of syslog is removed before.
//!
//! ```text
//! CLIENT:PORT [ACCEPT-DATE] FRONTEND BACKEND/SERVER TR/Tw/Tc/Tr/Ta STATUS SENT COOKIE COOKIE STATE N/N/N/N/N N/N {HEADERS} "REQUEST"
//! ```

use super::record::{RecordWriter, end_of_quoted};
use crate::format::scan::address;

const MONTHS: [&[u8; 3]; 12] =
    [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];

/// Translates a line; returns whether it is one of this format.
pub(super) fn translate(line: &[u8], record: &mut RecordWriter<'_>) -> bool {
    parse(line, record).is_some()
}

fn parse(line: &[u8], record: &mut RecordWriter<'_>) -> Option<()> {
    let (client, rest) = split_once(line, b' ')?;
    address(client)?;
    let (date, rest) = split_once(rest.strip_prefix(b"[")?, b']')?;
    let date = rfc3339(date)?;
    let mut words = rest.trim_ascii_start().split(|byte| *byte == b' ');
    let (_frontend, backend, timers) = (words.next()?, words.next()?, words.next()?);
    if !backend.contains(&b'/') || timers.iter().filter(|byte| **byte == b'/').count() != 4 {
        return None;
    }
    let (status, sent) = (words.next()?, words.next()?);
    let quote = rest.iter().position(|byte| *byte == b'"')?;
    let request = &rest[quote + 1..];
    record.text("start_time", &date);
    record.text("remote_addr", client);
    // A plus sign states that the response was still being sent; -1 that the request was aborted.
    let total = timers.rsplit(|byte| *byte == b'/').next()?;
    let total = total.strip_prefix(b"+").unwrap_or(total);
    if total.iter().all(u8::is_ascii_digit) {
        record.text("duration_ms", total);
    }
    record.text("status", if status == b"-1" { b"0" } else { status });
    record.text("bytes_sent", sent.strip_prefix(b"+").unwrap_or(sent));
    record.text("request", &request[..end_of_quoted(request)]);
    Some(())
}

/// Converts `23/Nov/2026:20:07:02.655`, which has no time zone and counts as UTC.
fn rfc3339(date: &[u8]) -> Option<Vec<u8>> {
    let [day, day2, b'/', a, b, c, b'/', year @ .., _, _, _, _, _, _, _, _, _, _, _, _, _] = date else {
        return None;
    };
    let clock = date.get(12..)?;
    let month = MONTHS.iter().position(|name| **name == [*a, *b, *c])? + 1;
    let year = year.get(..4)?;
    let is_clock = date.get(11) == Some(&b':') && clock.len() >= 12 && clock[8] == b'.';
    let digits = [*day, *day2].iter().chain(year).chain(&clock[..2]).all(u8::is_ascii_digit);
    if !is_clock || !digits {
        return None;
    }
    let mut text = year.to_vec();
    text.extend_from_slice(format!("-{month:02}-").as_bytes());
    text.extend_from_slice(&[*day, *day2, b'T']);
    text.extend_from_slice(&clock[..12]);
    text.push(b'Z');
    Some(text)
}

fn split_once(text: &[u8], byte: u8) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|other| *other == byte)?;
    Some((&text[..at], &text[at + 1..]))
}
