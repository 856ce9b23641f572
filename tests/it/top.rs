//! `weir top` as a command, against a server that the test controls, and against a running instance.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::process::{Output, Stdio};
use std::thread::{self, JoinHandle};

use serde_json::json;

use crate::support::weir::{command, run};
use crate::support::{Client, Origin, Weir, config};

/// Serves one request with these bytes; returns the header section of the request.
fn serve_once(reply: String) -> (SocketAddr, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serving = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
        let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
        stream.write_all(reply.as_bytes()).unwrap();
        head.join("\n")
    });
    (address, serving)
}

/// Returns a stream of two snapshots in which the rule `per-ip` has 100 allowed requests a second.
fn two_snapshots(key: &str) -> String {
    let events = [1_u64, 2].map(|second| {
        let snapshot = json!({
            "time": format!("2026-11-23T20:00:0{second}Z"), "uptime_seconds": second, "version": "9.9.9",
            "rules": [{ "name": "per-ip", "limits": ["100/s"], "decisions": { "allowed": 100 * second } }],
            "top": [{ "rule": "per-ip", "keys": [{ "key": key, "admitted": 7, "rejected": 3 }] }],
        });
        format!("event: snapshot\ndata: {snapshot}\n\n")
    });
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n{}",
        events.concat()
    )
}

fn top(address: SocketAddr, variables: &[(&str, &str)]) -> Output {
    let mut top = command(["top", "--admin", &address.to_string()]);
    top.env_remove("WEIR_ADMIN_TOKEN").envs(variables.iter().copied()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn top_prints_one_view_when_the_output_is_no_terminal() {
    let (address, serving) = serve_once(two_snapshots("client_ip=203.0.113.7"));
    let output = top(address, &[]);
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(shown.starts_with("weir 9.9.9"), "{shown}");
    let rule = shown.lines().find(|line| line.starts_with("per-ip")).unwrap();
    assert!(rule.contains("100/s") && rule.split_whitespace().nth(2) == Some("100"), "{rule}");
    assert!(shown.lines().any(|line| line.starts_with("client_ip=203.0.113.7")), "{shown}");
    assert!(!shown.contains('\x1b'), "{shown:?}");
    let head = serving.join().unwrap();
    assert!(head.starts_with("GET /events HTTP/1.1") && !head.contains("authorization"), "{head}");
}

#[test]
fn top_replaces_control_characters_of_keys() {
    let (address, _) = serve_once(two_snapshots("header.x=\u{1b}]0;title\u{7}"));
    let shown = text(&top(address, &[]).stdout);
    assert!(!shown.contains(['\u{1b}', '\u{7}']), "{shown:?}");
    assert!(shown.contains("header.x=\u{fffd}]0;title\u{fffd}"), "{shown:?}");
}

#[test]
fn top_sends_the_token_of_the_environment_or_a_file() {
    let (address, serving) = serve_once(two_snapshots("a"));
    assert_eq!(top(address, &[("WEIR_ADMIN_TOKEN", "s3cret")]).status.code(), Some(0));
    assert!(serving.join().unwrap().contains("authorization: Bearer s3cret"));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    std::fs::write(&file, "from-a-file\n").unwrap();
    let (address, serving) = serve_once(two_snapshots("a"));
    let output =
        run(["top", "--once", "--admin", &address.to_string(), "--token-file", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0));
    assert!(serving.join().unwrap().contains("authorization: Bearer from-a-file"));
}

#[test]
fn top_exits_1_with_the_reason_when_there_is_no_view() {
    let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let unauthorized = serve_once("HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n".to_owned()).0;
    let missing = serve_once("HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\n\r\nnone".to_owned()).0;
    let page = "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 2\r\n\r\nhi";
    let proxy = serve_once(page.to_owned()).0;
    let empty = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 0\r\n\r\n";
    let ended = serve_once(empty.to_owned()).0;
    let other = serve_once("SSH-2.0-OpenSSH_9.2\r\n".to_owned()).0;
    for (address, reason) in [
        (unused, "cannot reach the admin port at 127.0.0.1"),
        (unauthorized, "requires a token: use --token-file FILE, --token TOKEN or WEIR_ADMIN_TOKEN"),
        (missing, "is not an admin port: `GET /events` responds 404 Not Found, content type none"),
        (proxy, "is not an admin port: `GET /events` responds 200 OK, content type text/html"),
        (ended, "has ended the stream of events"),
        (other, "does not respond in HTTP"),
    ] {
        let output = top(address, &[]);
        assert_eq!(output.status.code(), Some(1), "{reason}");
        let message = text(&output.stderr);
        assert!(message.starts_with("weir: ") && message.contains(reason), "{message}");
    }
    let output = run(["top", "--admin", "localhost"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("expected HOST:PORT or unix:PATH"));
}

#[test]
fn top_exits_1_when_the_view_cannot_be_written() {
    let (address, _) = serve_once(two_snapshots("a"));
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut top = command(["top", "--once", "--admin", &address.to_string()]);
    let output = top.stdout(full).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let message = text(&output.stderr);
    assert!(message.starts_with("weir: cannot print the view: No space left on device"), "{message}");
}

#[test]
fn top_shows_the_rules_and_keys_of_a_running_instance() {
    let origin = Origin::hello();
    let rules = "rules: [{ name: per-path, key: [path], limit: 3/d }]";
    let weir = Weir::start(&config(origin.address(), rules));
    let mut client = Client::connect(weir.address());
    for _ in 0..5 {
        client.get("/used");
    }
    let output = top(weir.admin_address("full"), &[]);
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let line = |start: &str| {
        let found = shown.lines().find(|line| line.starts_with(start));
        found.unwrap_or_else(|| panic!("no {start} in {shown}")).to_owned()
    };
    assert!(line("per-path").contains("3/d"), "{shown}");
    let key: Vec<String> = line("path=/used").split_whitespace().map(str::to_owned).collect();
    assert_eq!(key, ["path=/used", "per-path", "3", "2"]);
}
