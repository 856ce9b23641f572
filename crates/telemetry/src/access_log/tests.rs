use std::fs;
use std::io::Write;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use super::writer::MAX_QUEUED_LINES;
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
        class: None,
        upstream_time: None,
        x_forwarded_for: Some(b"192.0.2.2"),
        user_agent: Some(b"curl/7.88.1"),
        request_id: Some(b"5b7a"),
        authority: Some(b"127.0.0.1:28100"),
        upstream_host: None,
        attempts: 1,
        client_ip: [192, 0, 2, 2].into(),
        other_headers: &[],
        decision: None,
    }
}

/// A decision by the rule `per-ip`.
fn decision<'a>(outcome: DecisionOutcome) -> Option<LoggedRule<'a>> {
    Some(LoggedRule {
        rule: "per-ip",
        outcome,
        key: Some("client_ip=192.0.2.2"),
        limit: Some(10),
        remaining: Some(0),
        delay: Duration::ZERO,
        cost: Some(42),
        shadow_rules: &[],
    })
}

fn written(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut line = Vec::new();
    write(&mut line);
    line
}

fn envoy(entry: &AccessLogEntry<'_>) -> String {
    String::from_utf8(written(|line| line::write_envoy(entry, line))).unwrap()
}

fn json(entry: &AccessLogEntry<'_>) -> serde_json::Value {
    let line = written(|line| line::write_json(entry, line));
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
fn access_log_appends_the_rejecting_rule_after_envoys_fields() {
    let line = envoy(&AccessLogEntry { decision: decision(DecisionOutcome::Limited), ..entry() });
    let plain = envoy(&entry());
    assert_eq!(line.strip_prefix(plain.trim_end()), Some(" rule=per-ip\n"));
    let admitted = AccessLogEntry { decision: decision(DecisionOutcome::Soft), ..entry() };
    assert_eq!(envoy(&admitted), plain);
}

#[test]
fn json_access_log_has_the_decision() {
    let mut soft = decision(DecisionOutcome::Delayed).unwrap();
    (soft.delay, soft.shadow_rules) = (Duration::from_millis(30), &["new", "newer"]);
    let value = json(&AccessLogEntry { decision: Some(soft), ..entry() });
    for (key, expected) in [
        ("rule", serde_json::json!("per-ip")),
        ("outcome", "delayed".into()),
        ("key", "client_ip=192.0.2.2".into()),
        ("limit", 10.into()),
        ("remaining", 0.into()),
        ("delay_ms", 30.into()),
        ("cost", 42.into()),
        ("shadow_rules", serde_json::json!(["new", "newer"])),
    ] {
        assert_eq!(value[key], expected, "{key}");
    }
}

#[test]
fn only_selects_requests_by_their_outcome_and_status() {
    let is_of = |kind, outcome, status| {
        let decision = Option::and_then(outcome, decision);
        AccessLogEntry { decision, status, ..entry() }.is_of_kind(kind)
    };
    let ok = Some(StatusCode::OK);
    for outcome in DecisionOutcome::ALL {
        let is_plain = matches!(outcome, DecisionOutcome::Allowed | DecisionOutcome::Exempt);
        assert_eq!(is_of(RequestKind::Limited, Some(outcome), ok), !is_plain, "{outcome:?}");
        assert!(!is_of(RequestKind::Errors, Some(outcome), ok));
    }
    assert!(!is_of(RequestKind::Limited, None, ok));
    for (status, expected) in
        [(None, true), (Some(StatusCode::BAD_GATEWAY), true), (Some(StatusCode::NOT_FOUND), false)]
    {
        assert_eq!(is_of(RequestKind::Errors, None, status), expected, "{status:?}");
    }
}

#[test]
fn missing_access_log_values_are_a_dash_or_null() {
    let entry = AccessLogEntry {
        response_flags: "",
        status: Some(StatusCode::OK),
        class: None,
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
        keys(AccessLogEntry {
            decision: decision(DecisionOutcome::Shadow),
            x_forwarded_for: None,
            ..entry()
        })
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
    let text = String::from_utf8(written(|line| line::write_json(&attacked, line))).unwrap();
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
    assert!(written(|line| line::write_json(&long_entry, line)).len() < 6000);
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
    let control = Arc::new(OutputControl::default());
    let writer = LogWriter::start(StalledWriter(stalled), Sink::Stdout, Arc::clone(&control)).unwrap();
    let settings = AccessLogSettings::new(Sink::Stdout, Format::Envoy);
    let log = AccessLog(Arc::new(OpenLog { settings, writer: Arc::new(writer) }));
    for _ in 0..MAX_QUEUED_LINES + 10 {
        log.log(&entry());
    }
    // The writer may hold one line; all others beyond the queue are dropped.
    assert!((9..=10).contains(&control.lost_lines.get()), "{}", control.lost_lines.get());
    // Shutdown does not wait for a reader that never comes.
    log.0.writer.finish();
    drop(release);
}

fn to_file(path: &Path) -> AccessLogSettings {
    AccessLogSettings::new(Sink::File(path.to_owned()), Format::Envoy)
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[test]
fn access_log_reopens_a_rotated_file() {
    let directory = tempfile::tempdir().unwrap();
    let (path, moved) = (directory.path().join("access.log"), directory.path().join("access.log.1"));
    let manager = AccessLogManager::default();
    let log = manager.open(Some(&to_file(&path))).unwrap().unwrap();
    log.log(&entry());
    // If reopening preceded the move, the file would be opened under its old name again; so wait for the line first.
    while text(&path).is_empty() {
        thread::yield_now();
    }
    fs::rename(&path, &moved).unwrap();
    manager.reopen();
    log.log(&AccessLogEntry { path: "/two", ..entry() });
    manager.finish();
    assert!(text(&moved).contains("GET /one ") && !text(&moved).contains("GET /two "));
    assert!(text(&path).contains("GET /two "));
    assert_eq!(manager.lost_lines(), 0);
}

#[test]
fn full_disk_counts_dropped_access_log_lines() {
    let manager = AccessLogManager::default();
    let settings = AccessLogSettings::new(Sink::File("/dev/full".into()), Format::Json);
    let log = manager.open(Some(&settings)).unwrap().unwrap();
    for _ in 0..3 {
        log.log(&entry());
    }
    manager.finish();
    assert_eq!(manager.lost_lines(), 3);
}

#[test]
fn requests_of_an_earlier_configuration_are_logged_where_it_says() {
    let directory = tempfile::tempdir().unwrap();
    let (one, two) = (directory.path().join("one.log"), directory.path().join("two.log"));
    let manager = AccessLogManager::default();
    let before = manager.open(Some(&to_file(&one))).unwrap().unwrap();
    let after = manager.open(Some(&to_file(&two))).unwrap().unwrap();
    assert!(manager.open(None).unwrap().is_none());
    before.log(&entry());
    after.log(&entry());
    // The same destination is not opened again, so lines of both generations are in order.
    let again = manager.open(Some(&to_file(&one))).unwrap().unwrap();
    assert!(Arc::ptr_eq(&before.0.writer, &again.0.writer));
    again.log(&AccessLogEntry { path: "/two", ..entry() });
    manager.finish();
    assert_eq!((text(&one).lines().count(), text(&two).lines().count()), (2, 1));
}

#[test]
fn log_that_is_no_longer_used_is_written_and_closed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("access.log");
    let manager = AccessLogManager::default();
    let log = manager.open(Some(&to_file(&path))).unwrap().unwrap();
    log.log(&entry());
    manager.open(None).unwrap();
    drop(log);
    while text(&path).is_empty() {
        thread::yield_now();
    }
    assert!(manager.writers.lock()[0].upgrade().is_none());
}

#[test]
fn values_of_hidden_parameters_are_in_no_format() {
    let directory = tempfile::tempdir().unwrap();
    let custom = CustomFormat::parse("%REQ(:PATH)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PATH%").unwrap();
    for format in [Format::Envoy, Format::Json, Format::Custom(Arc::new(custom))] {
        let path = directory.path().join("access.log");
        let settings = AccessLogSettings {
            hidden_parameters: ["api_key".into()].into(),
            ..AccessLogSettings::new(Sink::File(path.clone()), format)
        };
        let manager = AccessLogManager::default();
        let log = manager.open(Some(&settings)).unwrap().unwrap();
        log.log(&AccessLogEntry { path: "/a?api_key=s3cret&q=1", ..entry() });
        manager.finish();
        let written = text(&path);
        assert!(written.contains("/a?api_key=-&q=1") && !written.contains("s3cret"), "{written}");
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn sample_selects_a_share_of_the_requests() {
    let manager = AccessLogManager::default();
    let sample = Percent::from_hundredths(100);
    let settings = AccessLogSettings { sample, ..AccessLogSettings::new(Sink::Stdout, Format::Json) };
    let log = manager.open(Some(&settings)).unwrap().unwrap();
    assert!(log.is_sampled(|| 0) && log.is_sampled(|| u64::MAX / 101) && !log.is_sampled(|| u64::MAX / 99));
    let all = manager.open(Some(&AccessLogSettings::new(Sink::Stdout, Format::Json))).unwrap().unwrap();
    assert!(all.is_sampled(|| unreachable!("nothing is drawn for all requests")));
}
