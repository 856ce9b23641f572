//! Independent HTTP/2 clients: nghttp and h2load.

use std::process::Command;

use crate::support::h2_origin::H2Origin;
use crate::support::{LISTENER, Origin, Weir, config, config_with};

/// Runs a tool for at most 60 s and returns its output.
fn run_tool(tool: &str, arguments: &[&str]) -> String {
    let output = Command::new("timeout")
        .args(["60", tool])
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("{tool}: {error}"));
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{tool} {arguments:?}: {}\n{text}", output.status);
    text
}

#[test]
fn h2load_requests_all_succeed() {
    let (one, two) = (Origin::hello(), H2Origin::hello());
    let upstreams = [
        format!("{{ address: '{}' }}", one.address()),
        format!("{{ address: '{}', http2: true }}", two.address()),
    ];
    for upstream in upstreams {
        let weir = Weir::start(&config_with(LISTENER, &upstream, ""));
        let url = format!("http://{}/", weir.address());
        let text = run_tool("h2load", &["-n", "3000", "-c", "5", "-m", "20", &url]);
        assert!(text.contains("3000 succeeded, 0 failed, 0 errored, 0 timeout"), "{text}");
        assert!(text.contains("status codes: 3000 2xx, 0 3xx, 0 4xx, 0 5xx"), "{text}");
        let text = run_tool("h2load", &["--h1", "-n", "1000", "-c", "5", &url]);
        assert!(text.contains("1000 succeeded, 0 failed, 0 errored, 0 timeout"), "{text}");
    }
}

#[test]
fn limit_is_exact_under_h2load() {
    let weir = Weir::start(&config("echo", "rules: [{ name: all, key: [], limit: 500/d }]"));
    let url = format!("http://{}/", weir.address());
    let text = run_tool("h2load", &["-n", "2000", "-c", "4", "-m", "50", &url]);
    assert!(text.contains("status codes: 500 2xx, 0 3xx, 1500 4xx, 0 5xx"), "{text}");
}

#[test]
fn nghttp_upload_succeeds() {
    let origin = Origin::hello();
    let weir = Weir::start(&config(origin.address(), ""));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("body");
    std::fs::write(&file, vec![b'x'; 500_000]).unwrap();
    let url = format!("http://{}/up", weir.address());
    // With padded frames, which clients may use to hide sizes.
    let text = run_tool("nghttp", &["--data", &file.display().to_string(), "--padding", "100", &url]);
    assert_eq!(text, "hello");
    let seen = origin.only_request();
    assert_eq!((seen.complete, seen.body.length), (true, 500_000));
}
