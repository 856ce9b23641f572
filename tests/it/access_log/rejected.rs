//! Requests that the HTTP codec rejects appear in the access log and in the response counters.

use std::time::Duration;

use serde_json::Value;

use super::AccessLogFile;
use crate::support::{Client, LISTENER, Origin, Weir, config, config_with, wait};

/// Bytes that a client sends, the status that it gets, and the fields of the log line.
const REJECTED: [(&str, &str, [&str; 4]); 6] = [
    ("GET /a HTTP/1.1\r\nhost: a.test\r\nx y: z\r\n\r\n", "400", ["GET", "/a", "HTTP/1.1", "DPE"]),
    (
        "POST /b HTTP/1.1\r\nhost: a.test\r\ncontent-length: +1\r\n\r\n",
        "400",
        ["POST", "/b", "HTTP/1.1", "DPE"],
    ),
    ("GET /c HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n", "400", ["GET", "/c", "HTTP/1.0", "DPE"]),
    ("\u{16}\u{3}\u{1}\r\n\r\n", "400", ["-", "-", "HTTP/1.1", "DPE"]),
    ("GET /slow HTTP/1.1\r\nhost: a.t", "408", ["GET", "/slow", "HTTP/1.1", "SI"]),
    ("PRI * HT", "408", ["PRI", "*", "HTTP/1.1", "SI"]),
];

/// Waits until there is a line for each of `count` requests, and returns them.
fn json_lines(log: &AccessLogFile, count: usize) -> Vec<Value> {
    log.lines(count).iter().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn requests_rejected_by_the_codec_are_logged_and_counted() {
    let (log, origin) = (AccessLogFile::new(), Origin::hello());
    let listener = "{ address: 127.0.0.1:0, name: inbound, header_timeout: 300ms }";
    let upstream = format!("{{ address: \"{}\" }}", origin.address());
    let weir = Weir::start(&config_with(listener, &upstream, &log.setting("json")));
    for (place, (bytes, status, said)) in REJECTED.iter().enumerate() {
        let mut client = Client::connect(weir.address());
        client.send(bytes);
        assert_eq!(client.wire.read_head().unwrap().unwrap().word(1), *status, "{bytes:?}");
        client.wire.drain();
        let line = json_lines(&log, place + 1).pop().unwrap();
        let text = |key: &str| line[key].as_str().unwrap().to_owned();
        assert_eq!(["method", "path", "protocol", "response_flags"].map(text), *said, "{bytes:?}");
        assert_eq!(line["response_code"].to_string(), *status);
        assert_eq!(line["client_ip"], "127.0.0.1");
        if *status == "408" {
            assert!(line["duration"].as_u64().unwrap() >= 200, "{line}");
        }
    }
    let count = REJECTED.len() as f64;
    assert_eq!(weir.metric("weir_requests_total", &[("listener", "inbound"), ("code_class", "4xx")]), count);
    assert_eq!(weir.metric("weir_requests_malformed_total", &[]), count);
    assert_eq!(weir.metric("weir_requests_in_flight", &[]), 0.0);
    assert_eq!((origin.requests().len(), json_lines(&log, REJECTED.len()).len()), (0, REJECTED.len()));
}

#[test]
fn oversized_header_section_is_logged_with_truncated_target() {
    let (log, origin) = (AccessLogFile::new(), Origin::hello());
    let weir = Weir::start(&config(origin.address(), &log.setting("json")));
    let mut client = Client::connect(weir.address());
    let head =
        format!("GET /{} HTTP/1.1\r\nhost: a.test\r\nx: {}\r\n\r\n", "a".repeat(30_000), "b".repeat(60_000));
    // The connection may be closed before all bytes are sent.
    let _ = client.wire.send(head);
    assert_eq!(client.wire.read_head().unwrap().unwrap().word(1), "431");
    let line = json_lines(&log, 1).pop().unwrap();
    assert_eq!((line["response_code"].as_u64(), line["response_flags"].as_str()), (Some(431), Some("DPE")));
    assert!(line["path"].as_str().unwrap().len() <= 4096, "the logged path is too long");
}

#[test]
fn http2_protocol_error_is_logged() {
    let (log, origin) = (AccessLogFile::new(), Origin::hello());
    let weir = Weir::start(&config_with(
        LISTENER,
        &format!("{{ address: \"{}\" }}", origin.address()),
        &log.setting("json"),
    ));
    let mut client = Client::connect(weir.address());
    // The preface, empty settings, and DATA on stream 0.
    let frames = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x01\0\0\0\0\0\0x";
    client.wire.send(frames).unwrap();
    client.wire.drain();
    let line = json_lines(&log, 1).pop().unwrap();
    assert_eq!((line["protocol"].as_str(), line["response_flags"].as_str()), (Some("HTTP/2"), Some("DPE")));
    assert_eq!(line["response_code"], 0);
    wait::throughout(Duration::from_millis(200), || assert_eq!(json_lines(&log, 1).len(), 1));
}
