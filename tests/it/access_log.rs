//! Access log: one line per request, in a file.

mod decisions;
mod rejected;
mod reload;
mod response_flags;

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::Command;
use std::{fs, io};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::origin::refusing_address;
use crate::support::{Client, Origin, Request, Weir, config, get, wait};

const RULES: &str = "rules: [{ name: once, match: { path: /limited }, key: [], limit: 1/d }, { name: no, match: { path: /no }, action: deny }]";

struct AccessLogFile {
    _directory: TempDir,
    path: PathBuf,
}

impl AccessLogFile {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("access.log");
        Self { _directory: directory, path }
    }

    fn setting(&self, format: &str) -> String {
        format!("access_log: {{ path: {}, format: {format} }}\n{RULES}", self.path.display())
    }

    /// Waits until there are `count` whole lines, and returns them.
    fn lines(&self, count: usize) -> Vec<String> {
        wait::until("the lines", || {
            let text = match fs::read_to_string(&self.path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
                text => text.unwrap(),
            };
            let lines: Vec<_> = text.lines().map(str::to_owned).collect();
            (lines.len() >= count && text.ends_with('\n')).then_some(lines)
        })
    }
}

/// Whether any value in `line`, at any depth, equals `wanted`.
fn contains_value(line: &Value, wanted: &Value) -> bool {
    match line {
        Value::Object(map) => map.values().any(|value| contains_value(value, wanted)),
        Value::Array(list) => list.iter().any(|value| contains_value(value, wanted)),
        value => value == wanted,
    }
}

#[test]
fn envoy_format_matches_envoys_default_format() {
    let (log, origin) = (AccessLogFile::new(), Origin::hello());
    let weir = Weir::start(&config(origin.address(), &log.setting("envoy")));
    let mut client = Client::connect(weir.address());
    client.fetch(&Request::post("/free?a=b", "1234567").header("user-agent", "tester/1.0"));
    client.get("/limited");
    client.get("/limited");
    let lines = log.lines(3);
    assert_eq!(lines.len(), 3);
    assert!(lines[0].starts_with('['), "{}", lines[0]);
    assert!(lines[0].contains("Z] \"POST /free?a=b HTTP/1.1\" 200 - 7 5 "), "{}", lines[0]);
    let id = origin.requests()[0].head.get("x-request-id").unwrap().to_owned();
    let end = format!("\"tester/1.0\" \"{id}\" \"test.local\" \"{}\"", origin.address());
    assert!(lines[0].ends_with(&end), "{}", lines[0]);
    assert!(lines[1].contains("\"GET /limited HTTP/1.1\" 200 - 0 5 "), "{}", lines[1]);
    assert!(lines[2].contains("\"GET /limited HTTP/1.1\" 429 RL 0 "), "{}", lines[2]);
    assert!(lines[2].contains("\"test.local\" \"-\""), "the request was not sent upstream: {}", lines[2]);
    assert!(lines[2].contains("once"), "the rule is missing: {}", lines[2]);
}

#[test]
fn unreachable_upstream_sets_flag_uf() {
    let log = AccessLogFile::new();
    let (_socket, address) = refusing_address();
    let weir = Weir::start(&config(address, &log.setting("envoy")));
    assert_eq!(get(weir.address(), "/").status, 503);
    let lines = log.lines(1);
    assert!(lines[0].contains("\"GET / HTTP/1.1\" 503 UF"), "{}", lines[0]);
}

#[test]
fn json_format_names_the_rule() {
    let (log, origin) = (AccessLogFile::new(), Origin::hello());
    let weir = Weir::start(&config(origin.address(), &log.setting("json")));
    let mut client = Client::connect(weir.address());
    for target in ["/free", "/limited", "/limited", "/no"] {
        client.get(target);
    }
    let lines: Vec<Value> = log.lines(4).iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (line, target, status) in
        [(0, "/free", 200), (1, "/limited", 200), (2, "/limited", 429), (3, "/no", 403)]
    {
        for wanted in [target.into(), status.into(), "GET".into(), "127.0.0.1".into()] {
            assert!(contains_value(&lines[line], &wanted), "no {wanted} in {:#}", lines[line]);
        }
    }
    assert!(
        contains_value(&lines[2], &"RL".into()) && contains_value(&lines[2], &"once".into()),
        "{:#}",
        lines[2]
    );
    assert!(contains_value(&lines[3], &"no".into()), "{:#}", lines[3]);
    assert!(!contains_value(&lines[0], &"RL".into()), "{:#}", lines[0]);
}

#[test]
fn requests_cannot_inject_log_lines() {
    for format in ["envoy", "json"] {
        let (log, origin) = (AccessLogFile::new(), Origin::hello());
        let weir = Weir::start(&config(origin.address(), &log.setting(format)));
        let mut client = Client::connect(weir.address());
        client.send(
            b"GET /%0d%0aforged HTTP/1.1\r\nhost: test.local\r\nuser-agent: a\" \"b\\ \x1b[31m\xff\r\n\r\n",
        );
        // A proxy may reject control characters in a header with 400. The assertions are only about the log.
        client.read_response("GET");
        get(weir.address(), "/last");
        let lines = log.lines(1);
        assert!(lines.len() <= 2 && lines.iter().all(|line| !line.starts_with("forged")), "{lines:?}");
        assert!(lines.iter().all(|line| !line.contains('\u{1b}')), "{lines:?}");
    }
}

#[test]
fn all_lines_are_written_before_exit() {
    let log = AccessLogFile::new();
    let mut weir = Weir::start(&config("echo", &log.setting("envoy")));
    let mut client = Client::connect(weir.address());
    for _ in 0..100 {
        client.get("/");
    }
    weir.terminate();
    assert_eq!(weir.wait_exit().code(), Some(0));
    assert_eq!(fs::read_to_string(&log.path).unwrap().lines().count(), 100);
}

#[test]
fn path_alone_selects_the_envoy_format() {
    let log = AccessLogFile::new();
    let weir = Weir::start(&config("echo", &format!("access_log: {}\n", log.path.display())));
    get(weir.address(), "/");
    assert!(log.lines(1)[0].contains("\"GET / HTTP/1.1\" 200 - "));
}

#[test]
fn no_access_log_by_default() {
    let weir = Weir::start(&config("echo", ""));
    assert_eq!(get(weir.address(), "/a-path-to-look-for").status, 200);
    assert!(weir.log().iter().all(|line| !line.contains("/a-path-to-look-for")));
}

#[test]
fn fifo_without_reader_does_not_block_and_gets_lines_from_a_later_reader() {
    let log = AccessLogFile::new();
    assert!(Command::new("mkfifo").arg(&log.path).status().unwrap().success());
    let mut weir = Weir::start(&config("echo", &log.setting("envoy")));
    let dropped = || weir.metric("weir_access_log_dropped_total", &[]);
    assert_eq!(get(weir.address(), "/nobody-reads").status, 200);
    wait::until_true("a dropped log line", || dropped() >= 1.0);
    // Opening the file returns once the other end is open, which is when Weir writes a line.
    let path = log.path;
    let opening = std::thread::spawn(move || BufReader::new(File::open(path).unwrap()));
    wait::until_true("the log to be opened", || {
        assert_eq!(get(weir.address(), "/somebody-reads").status, 200);
        opening.is_finished()
    });
    let mut reader = opening.join().unwrap();
    assert_eq!(get(weir.address(), "/last").status, 200);
    let mut line = String::new();
    while !line.contains("/last") {
        line.clear();
        assert!(reader.read_line(&mut line).unwrap() > 0, "end of the log");
    }
    // The log also survives the end of its reader.
    let before = dropped();
    drop(reader);
    assert_eq!(get(weir.address(), "/gone").status, 200);
    wait::until_true("a dropped log line", || dropped() > before);
    weir.terminate();
    assert!(weir.wait_exit().success());
}
