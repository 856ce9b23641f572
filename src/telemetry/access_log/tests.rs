use std::io::{Read, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::*;

/// 2026-11-21T05:32:33.704Z
const START: Timestamp = Timestamp::from_nanos(1_795_239_153_704_900_000);

/// The request for which Envoy 1.40 wrote the line in [`envoy_format_matches_envoy_byte_for_byte`].
fn entry<'a>() -> AccessLogEntry<'a> {
    AccessLogEntry {
        start: START,
        method: &Method::GET,
        path: "/one",
        protocol: Version::HTTP_11,
        status: Some(StatusCode::TOO_MANY_REQUESTS),
        response_flags: "RL",
        bytes_received: 0,
        bytes_sent: 7,
        duration: Duration::from_millis(2),
        upstream_time: None,
        x_forwarded_for: Some(b"192.0.2.2"),
        user_agent: Some(b"curl/7.88.1"),
        request_id: Some(b"5b7a"),
        authority: Some(b"127.0.0.1:28100"),
        upstream_host: None,
        attempts: 1,
        client_ip: [192, 0, 2, 2].into(),
        rule: None,
    }
}

fn envoy(entry: &AccessLogEntry<'_>) -> String {
    String::from_utf8(line::format_envoy(entry)).unwrap()
}

fn json(entry: &AccessLogEntry<'_>) -> serde_json::Value {
    let line = line::format_json(entry);
    assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
    serde_json::from_slice(&line).unwrap()
}

#[test]
fn envoy_format_matches_envoy_byte_for_byte() {
    assert_eq!(
        envoy(&entry()),
        "[2026-11-21T05:32:33.704Z] \"GET /one HTTP/1.1\" 429 RL 0 7 2 - \"192.0.2.2\" \"curl/7.88.1\" \
         \"5b7a\" \"127.0.0.1:28100\" \"-\"\n"
    );
}

#[test]
fn access_log_appends_the_rule_after_envoys_fields() {
    let line = envoy(&AccessLogEntry { rule: Some("per-ip"), ..entry() });
    let plain = envoy(&entry());
    assert_eq!(line.strip_prefix(plain.trim_end()), Some(" rule=per-ip\n"));
}

#[test]
fn missing_access_log_values_are_a_dash_or_null() {
    let entry = AccessLogEntry {
        response_flags: "",
        status: Some(StatusCode::OK),
        upstream_time: Some(Duration::from_micros(1900)),
        x_forwarded_for: None,
        user_agent: None,
        request_id: None,
        authority: None,
        upstream_host: Some("127.0.0.1:3000"),
        ..entry()
    };
    let line = envoy(&entry);
    assert!(line.ends_with("\" 200 - 0 7 2 1 \"-\" \"-\" \"-\" \"-\" \"127.0.0.1:3000\"\n"), "{line}");
    let value = json(&entry);
    assert!(value["user_agent"].is_null() && value["rule"].is_null(), "{value}");
    assert_eq!((&value["upstream_service_time"], &value["duration"]), (&1.into(), &2.into()));
}

#[test]
fn json_access_log_always_has_the_same_keys() {
    let keys = |entry| -> Vec<String> { json(&entry).as_object().unwrap().keys().cloned().collect() };
    assert_eq!(
        keys(entry()),
        keys(AccessLogEntry { rule: Some("per-ip"), x_forwarded_for: None, ..entry() })
    );
    assert_eq!(json(&entry())["start_time"], "2026-11-21T05:32:33.704Z");
    assert_eq!(json(&entry())["client_ip"], "192.0.2.2");
}

#[test]
fn access_log_escapes_injected_lines_and_fields() {
    let attack = b"x\" 200 \n[2026-11-21T05:32:33.704Z] \"GET /\\ \x1b[2J\x7f\xff\xc2\x9b".as_slice();
    let attacked = AccessLogEntry {
        user_agent: Some(attack),
        x_forwarded_for: Some(attack),
        request_id: Some(attack),
        ..entry()
    };
    let line = envoy(&attacked);
    assert_eq!(line.matches('\n').count(), 1);
    assert_eq!(line.matches('"').count(), envoy(&entry()).matches('"').count());
    assert!(line.trim_end().bytes().all(|byte| matches!(byte, b' '..=b'~')), "{line}");
    assert!(line.contains("x\\x22 200 \\x0A[2026"), "{line}");
    let text = String::from_utf8(line::format_json(&attacked)).unwrap();
    assert!(!text.trim_end().chars().any(char::is_control), "{text}");
    assert!(json(&attacked)["user_agent"].as_str().unwrap().starts_with("x\" 200 \n["));
}

#[test]
fn long_access_log_values_are_truncated() {
    let long = "\u{1}".repeat(100_000);
    let method = Method::from_bytes(&[b'A'; 1000]).unwrap();
    let long_entry =
        AccessLogEntry { method: &method, path: &long, user_agent: Some(long.as_bytes()), ..entry() };
    assert!(envoy(&long_entry).len() < 6000);
    assert!(line::format_json(&long_entry).len() < 6000);
    assert!(json(&long_entry)["path"].as_str().unwrap().len() > 600, "six bytes per control character");
    assert!(envoy(&long_entry).contains("\\x01 HTTP/1.1\""), "no escape is truncated");
}

/// A pipe without a reader: every write waits until the test releases it.
struct StalledWriter(Receiver<()>);

impl Write for StalledWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = self.0.recv();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn stalled_access_log_drops_lines_without_blocking() {
    let (release, stalled): (SyncSender<()>, _) = sync_channel(0);
    let (log, guard) = AccessLog::new(StalledWriter(stalled), Arc::default(), Format::Envoy);
    for _ in 0..MAX_QUEUED_LINES + 10 {
        log.log(&entry());
    }
    // The writer may hold one line; all others beyond the queue are dropped.
    assert!((9..=10).contains(&log.dropped_lines()), "{}", log.dropped_lines());
    // Shutdown does not wait for a reader that never comes.
    drop(guard);
    drop(release);
}

#[test]
fn access_log_reopens_a_rotated_file() {
    let directory = tempfile::tempdir().unwrap();
    let (path, moved) = (directory.path().join("access.log"), directory.path().join("access.log.1"));
    let settings = AccessLogSettings { sink: Sink::File(path.clone()), format: Format::Envoy };
    let (log, guard) = AccessLog::open(&settings).unwrap();
    log.log(&entry());
    // If reopening preceded the move, the file would be opened under its old name again; so wait for the line first.
    let written = |path: &std::path::Path| {
        let mut text = String::new();
        std::fs::File::open(path)
            .and_then(|mut file| file.read_to_string(&mut text))
            .map(|_| text)
            .unwrap_or_default()
    };
    while written(&path).is_empty() {
        thread::yield_now();
    }
    std::fs::rename(&path, &moved).unwrap();
    log.reopen();
    log.log(&AccessLogEntry { path: "/two", ..entry() });
    drop(guard);
    assert!(written(&moved).contains("GET /one ") && !written(&moved).contains("GET /two "));
    assert!(written(&path).contains("GET /two "));
    assert_eq!(log.dropped_lines(), 0);
}

#[test]
fn full_disk_counts_dropped_access_log_lines() {
    let settings = AccessLogSettings { sink: Sink::File("/dev/full".into()), format: Format::Json };
    let (log, guard) = AccessLog::open(&settings).unwrap();
    for _ in 0..3 {
        log.log(&entry());
    }
    drop(guard);
    assert_eq!(log.dropped_lines(), 3);
}
