//! The migration guides: each configuration before and after, side by side in the limiter that it is for and in
//! Weir. The same burst of requests gets the same number through.
//!
//! The guides have rates as people write them. The tests slow them down, so that no unit refills during a burst.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::envoy::Envoy;
use crate::support::peers::Peer;
use crate::support::weir::run;
use crate::support::{AfterResponse, Client, Origin, Request, Weir, fetch, wait};

fn guides() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guides/migration")
}

fn guide_file(path: &str) -> String {
    fs::read_to_string(guides().join(path)).unwrap()
}

/// Starts Weir with the configuration of a guide, in front of `upstream`.
fn weir(path: &str, upstream: SocketAddr, replaced: &[(&str, &str)]) -> Weir {
    let mut text = guide_file(path) + "admin: { address: 127.0.0.1:0 }\n";
    let upstream = upstream.to_string();
    let ports =
        [("0.0.0.0:8080", "127.0.0.1:0"), ("127.0.0.1:8080", "127.0.0.1:0"), ("127.0.0.1:3000", &upstream)];
    for (from, to) in replaced {
        assert!(text.contains(from), "no {from} in {path}");
        text = text.replace(from, to);
    }
    for (from, to) in ports {
        text = text.replace(from, to);
    }
    Weir::start(&text)
}

/// Returns the text of a guide's file with the port of the upstream and slower rates.
fn peer_config(path: &str, upstream: SocketAddr, replaced: &[(&str, &str)]) -> String {
    let mut text = guide_file(path).replace("127.0.0.1:3000", &upstream.to_string());
    for (from, to) in replaced {
        assert!(text.contains(from), "no {from} in {path}");
        text = text.replace(from, to);
    }
    text
}

/// Returns the statuses of requests for one path from one client.
fn statuses(proxy: SocketAddr, client: &str, path: &str, count: usize) -> Vec<u16> {
    let mut client = Client::connect_from(client, proxy);
    (0..count).map(|_| client.fetch(&Request::get(path)).status).collect()
}

fn admitted(statuses: &[u16]) -> usize {
    statuses.iter().filter(|status| **status == 200).count()
}

fn upstream() -> Origin {
    upstream_that_counts(Arc::default())
}

/// Starts an upstream that counts requests for `/reports/slow`, which it never completes.
fn upstream_that_counts(slow: Arc<AtomicUsize>) -> Origin {
    Origin::start(move |turn| {
        if turn.head.word(1).starts_with("/reports/slow") {
            slow.fetch_add(1, Ordering::SeqCst);
            // The response stays incomplete until the client disconnects.
            turn.send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\no")?;
            turn.wire.is_closed();
            return Ok(AfterResponse::Close);
        }
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")?;
        Ok(AfterResponse::Keep)
    })
}

#[test]
fn migrated_nginx_configuration_decides_as_nginx() {
    let in_flight = Arc::new(AtomicUsize::new(0));
    let origin = upstream_that_counts(in_flight.clone());
    let slower = [("10r/s", "1r/m"), ("5r/m", "1r/m")];
    let nginx = Peer::nginx(&peer_config("nginx/before.conf", origin.address(), &slower));
    let slower = [("10/s", "1/min"), ("5/min", "1/min")];
    let weir = weir("nginx/after.yaml", origin.address(), &slower);
    for proxy in [nginx.address(), weir.address()] {
        assert_eq!(admitted(&statuses(proxy, "127.0.0.1", "/", 40)), 21);
        assert_eq!(admitted(&statuses(proxy, "127.0.0.1", "/login", 10)), 5, "a limit of its own");
        assert_eq!(statuses(proxy, "127.0.0.2", "/", 1), [200]);
        assert_eq!(statuses(proxy, "127.0.0.3", "/internal/x", 1), [403]);
        let slow: Vec<Client> = (0..2)
            .map(|_| {
                let client = Client::connect_from("127.0.0.4", proxy);
                client.send(Request::get("/reports/slow").to_bytes());
                client
            })
            .collect();
        wait::until_true("both requests", || in_flight.load(Ordering::SeqCst) == 2);
        assert_eq!(statuses(proxy, "127.0.0.4", "/reports/x", 1), [429]);
        assert_eq!(statuses(proxy, "127.0.0.4", "/", 1), [200]);
        drop(slow);
        in_flight.store(0, Ordering::SeqCst);
        wait::until_true("a free place", || statuses(proxy, "127.0.0.4", "/reports/x", 1) == [200]);
    }
}

#[test]
fn migrated_nginx_configuration_is_that_of_the_import() {
    let before = guides().join("nginx/before.conf");
    let output = run(["import", "nginx", before.to_str().unwrap()]);
    let imported = String::from_utf8(output.stdout).unwrap();
    let rules: String =
        imported.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n")).collect();
    let after = guide_file("nginx/after.yaml");
    assert_eq!(&after[after.find("rules:").unwrap()..], rules);
}

#[test]
fn migrated_haproxy_configuration_decides_as_haproxy() {
    let origin = upstream();
    let slower = [("http_req_rate(10s)", "http_req_rate(1h)"), ("expire 1m", "expire 2h")];
    let haproxy = Peer::haproxy(&peer_config("haproxy/before.cfg", origin.address(), &slower));
    let weir = weir("haproxy/after.yaml", origin.address(), &[("20/10s", "20/h")]);
    for proxy in [haproxy.address(), weir.address()] {
        assert_eq!(admitted(&statuses(proxy, "127.0.0.1", "/healthz", 30)), 30);
        assert_eq!(admitted(&statuses(proxy, "127.0.0.1", "/", 40)), 20);
        assert_eq!(admitted(&statuses(proxy, "127.0.0.2", "/", 25)), 20);
    }
}

#[test]
fn migrated_envoy_filter_decides_as_envoy() {
    let origin = upstream();
    let text =
        peer_config("envoy/before.yaml", origin.address(), &[("fill_interval: 60s", "fill_interval: 3600s")]);
    let filter: Value = serde_yaml::from_str(&text).unwrap();
    let host = json!({
        "name": "all", "domains": ["*"],
        "routes": [{ "match": { "prefix": "/" }, "route": { "cluster": "upstream" } }],
    });
    let envoy = Envoy::start(&[filter], &host, origin.address(), &[]);
    let weir = weir("envoy/after.yaml", origin.address(), &[("10/m", "10/h"), ("1000/m", "1000/h")]);
    let through_envoy: Vec<u16> = (0..40).map(|_| envoy.get("/").status).collect();
    assert_eq!(admitted(&through_envoy), 20);
    assert_eq!(admitted(&statuses(weir.address(), "127.0.0.1", "/", 40)), 20);
}

#[test]
fn migrated_envoy_filter_is_that_of_the_import() {
    let before = guides().join("envoy/before.yaml");
    let output = run(["import", "local-ratelimit", before.to_str().unwrap()]);
    let imported = String::from_utf8(output.stdout).unwrap();
    let after = guide_file("envoy/after.yaml");
    let rules: String = imported
        .lines()
        .filter(|line| !line.trim().starts_with('#'))
        .map(|line| format!("{line}\n"))
        .collect();
    assert_eq!(&after[after.find("rules:").unwrap()..], rules);
}

#[test]
fn files_of_envoyproxy_ratelimit_are_served_as_they_are() {
    let directory = TempDir::new().unwrap();
    let rules = directory.path().join("config");
    fs::create_dir(&rules).unwrap();
    fs::write(rules.join("edge.yaml"), guide_file("envoyproxy-ratelimit/before.yaml")).unwrap();
    let folder = format!("{{ directory: {} }}", rules.display());
    let replaced = [
        ("0.0.0.0:8081", "127.0.0.1:0"),
        ("127.0.0.1:8082", "127.0.0.1:0"),
        ("{ directory: /etc/ratelimit }", &*folder),
    ];
    let weir = weir("envoyproxy-ratelimit/after.yaml", SocketAddr::from(([127, 0, 0, 1], 1)), &replaced);
    let question = r#"{"domain":"edge","descriptors":[{"entries":[
        {"key":"route","value":"login"},{"key":"remote_address","value":"192.0.2.1"}]}]}"#;
    let http = weir.rls_address("http");
    let responses: Vec<u16> =
        (0..11).map(|_| fetch(http, &Request::post("/json", question)).status).collect();
    // At most one minute ends meanwhile.
    assert!(matches!(admitted(&responses), 5 | 10), "{responses:?}");
}

#[test]
fn migration_guides_show_the_tested_files() {
    let mut shown = 0;
    for entry in fs::read_dir(guides()).unwrap() {
        let path = entry.unwrap().path();
        if !path.is_dir() {
            continue;
        }
        let page = fs::read_to_string(path.with_extension("md")).unwrap();
        for file in fs::read_dir(&path).unwrap() {
            let file = file.unwrap().path();
            let text = fs::read_to_string(&file).unwrap();
            assert!(page.contains(&format!("\n{text}```\n")), "{} is not in its page", file.display());
            shown += 1;
        }
    }
    assert_eq!(shown, 12);
}
