//! What container runtimes, log shippers and clouds put around a line.

use std::borrow::Cow;

use serde_json::Value;

/// What a wrapper contains.
#[derive(Debug)]
pub(super) enum Opened<'a> {
    Line(Cow<'a, [u8]>),
    /// A part of a line on standard output (0) or standard error (1).
    Part {
        stream: usize,
        text: &'a [u8],
        is_last: bool,
    },
}

/// Members that contain the line: of Docker and Fluent Bit, Google Cloud, Vector and Filebeat, Loki, Azure, journald, AWS.
const PAYLOADS: [&str; 12] = [
    "log",
    "log_processed",
    "textPayload",
    "jsonPayload",
    "message",
    "msg",
    "line",
    "LogEntry",
    "LogMessage",
    "MESSAGE",
    "body",
    "Body",
];
/// Members with the time of the line.
const TIMES: [&str; 9] = [
    "time",
    "timestamp",
    "@timestamp",
    "TimeGenerated",
    "ts",
    "date",
    "receiveTimestamp",
    "ingestionTime",
    "observedTimestamp",
];

/// Removes one wrapper; `None` if there is none that is known.
pub(super) fn open(line: &[u8]) -> Option<Opened<'_>> {
    match line.first()? {
        b'{' => from_json(line).map(|inner| Opened::Line(Cow::Owned(inner))),
        _ => from_cri(line).or_else(|| Some(Opened::Line(Cow::Borrowed(without_prefix(line)?)))),
    }
}

/// The format of the Kubernetes container runtime interface: `TIME STREAM TAGS LINE`, where the tag `P` is for a part of a line
/// and `F` for a whole one or the last part.
fn from_cri(line: &[u8]) -> Option<Opened<'_>> {
    let mut parts = line.splitn(4, |byte| *byte == b' ');
    let (time, stream, tags) = (parts.next()?, parts.next()?, parts.next()?);
    let text = parts.next().unwrap_or_default();
    if !is_rfc3339(time) {
        return None;
    }
    let stream = match stream {
        b"stdout" => 0,
        b"stderr" => 1,
        _ => return None,
    };
    let is_last = match tags.split(|byte| *byte == b':').next()? {
        b"F" => true,
        b"P" => false,
        _ => return None,
    };
    Some(Opened::Part { stream, text, is_last })
}

/// Returns the line in a JSON object. A text is a line only if it looks like a request, since many records have a message.
fn from_json(line: &[u8]) -> Option<Vec<u8>> {
    let Ok(Value::Object(object)) = serde_json::from_slice(line) else { return None };
    let time = TIMES.iter().find_map(|name| object.get(*name)).filter(|time| !time.is_object());
    let payloads = || PAYLOADS.iter().filter_map(|name| object.get(*name));
    // Texts first: Filebeat has a `message`, and an object `log` that describes the file.
    let text = payloads().filter_map(Value::as_str).find_map(|text| line_in_text(text.trim_end(), time));
    text.or_else(|| payloads().find_map(|inner| with_time(inner, time)))
}

/// Returns the line in a text of a JSON object, if it looks like a request, or like a wrapper of one.
fn line_in_text(text: &str, time: Option<&Value>) -> Option<Vec<u8>> {
    if text.starts_with('{') {
        return with_time(&serde_json::from_str(text).ok()?, time);
    }
    let text = text.as_bytes();
    let is_wrapped = || from_cri(text).is_some() || without_prefix(text).is_some();
    (may_be_request(text) || is_wrapped()).then(|| text.to_vec())
}

/// Writes an object with the time of its wrapper before its members, so that its own time counts if it has one.
fn with_time(inner: &Value, time: Option<&Value>) -> Option<Vec<u8>> {
    let Value::Object(members) = inner else { return None };
    let mut whole = serde_json::Map::new();
    if let Some(time) = time.filter(|_| !members.contains_key("timestamp")) {
        whole.insert("timestamp".to_owned(), time.clone());
    }
    whole.extend(members.iter().map(|(name, value)| (name.clone(), value.clone())));
    serde_json::to_vec(&Value::Object(whole)).ok()
}

/// Removes a prefix of syslog, of `kubectl logs --prefix` or `--timestamps`, or of `docker compose logs`. What is behind it must
/// look like a request.
fn without_prefix(line: &[u8]) -> Option<&[u8]> {
    let behind = |mark: &[u8]| {
        let at = line.windows(mark.len()).position(|window| window == mark)?;
        Some(line[at + mark.len()..].trim_ascii_start())
    };
    let timestamped = || {
        let end = line.iter().position(|byte| *byte == b' ')?;
        is_rfc3339(&line[..end]).then(|| line[end..].trim_ascii_start())
    };
    let marked = [&b"]: "[..], b" | ", b"] ", b" - - - ", b" - - ", b": "];
    // The request itself has some of these marks, so a prefix ends before its first quote and is not the whole of an address.
    let is_prefix = |rest: &&[u8]| {
        let prefix = &line[..line.len() - rest.len()];
        !prefix.contains(&b'"') && !prefix.contains(&b'{') && looks_like_start(rest)
    };
    timestamped()
        .filter(|rest| may_be_request(rest))
        .into_iter()
        .chain(marked.into_iter().filter_map(behind).filter(|rest| may_be_request(rest)))
        .find(is_prefix)
}

/// Whether a line could be the record of a request.
fn may_be_request(text: &[u8]) -> bool {
    text.starts_with(b"{") || text.windows(5).any(|window| window == b"HTTP/")
}

/// Whether a record begins here: an object, a time in brackets, or an address.
fn looks_like_start(rest: &[u8]) -> bool {
    let word = rest.split(|byte| *byte == b' ').next().unwrap_or_default();
    rest.starts_with(b"{")
        || (rest.starts_with(b"[") && rest.get(5) == Some(&b'-'))
        || crate::format::scan::address(word).is_some()
        || is_rfc3339(word)
}

fn is_rfc3339(text: &[u8]) -> bool {
    matches!(text, [_, _, _, _, b'-', _, _, b'-', _, _, b'T', ..])
        && text.len() >= 20
        && text[0].is_ascii_digit()
}
