//! The admin interface.

use std::time::Duration;

use crate::support::wait::{until_true, within};
use crate::support::{Client, Origin, Request, Weir, config, fetch, get, metrics};

const POST_ENDPOINTS: [&str; 5] =
    ["/healthcheck/fail", "/healthcheck/ok", "/drain_listeners", "/logging", "/quitquitquit"];

/// Starts a proxy that has sent three responses with 200 and two with 429.
fn start_with_traffic(origin: &Origin) -> Weir {
    let rules = "rules: [{ name: per-path, key: [path], limit: 3/d }]";
    let weir = Weir::start(&config(origin.address(), rules));
    let mut client = Client::connect(weir.address());
    let statuses: Vec<_> = (0..5).map(|_| client.get("/used").status).collect();
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
    weir
}

#[test]
fn mutating_endpoints_accept_post_only() {
    let mut weir = Weir::start(&config("echo", ""));
    for path in POST_ENDPOINTS {
        let answer = weir.admin_get(path);
        assert_eq!(answer.status, 405, "{path}");
        assert!(answer.head.has_token("allow", "POST"), "{path}: no `allow: POST`");
    }
    assert_eq!(weir.admin_get("/ready").status, 200);
    assert!(weir.is_running());
}

#[test]
fn read_only_endpoints_reject_post() {
    let weir = Weir::start(&config("echo", ""));
    for path in ["/ready", "/metrics", "/server_info", "/limits"] {
        assert_eq!(weir.admin_post(path).status, 405, "{path}");
    }
}

#[test]
fn unknown_path_is_404() {
    let weir = Weir::start(&config("echo", ""));
    for path in ["/nowhere", "/metricsx", "/ready/", "/../etc/passwd"] {
        assert_eq!(weir.admin_get(path).status, 404, "{path}");
    }
    assert_eq!(weir.admin_post("/nowhere").status, 404);
}

#[test]
fn ready_endpoint_responds_live() {
    let weir = Weir::start(&config("echo", ""));
    let answer = weir.admin_get("/ready");
    assert_eq!((answer.status, answer.body.text().trim()), (200, "LIVE"));
    let head = fetch(weir.admin_address("full"), &Request::new("HEAD", "/ready"));
    assert_eq!(head.status, 200);
}

#[test]
fn server_info_names_version_state_and_generation() {
    let weir = Weir::start(&config("echo", ""));
    let info = weir.admin_json("/server_info");
    assert!(
        info["version"].as_str().is_some_and(|version| version.contains(env!("CARGO_PKG_VERSION"))),
        "{info:#}"
    );
    assert_eq!(info["state"], "LIVE");
    assert_eq!(info["config"]["generation"], 1);
    weir.reload(&config("echo", "rules: [{ name: no, action: deny }]"));
    assert_eq!(weir.admin_json("/server_info")["config"]["generation"], 2);
}

#[test]
fn metrics_count_requests_decisions_and_keys() {
    let origin = Origin::hello();
    let weir = start_with_traffic(&origin);
    let answer = weir.admin_get("/metrics");
    assert_eq!(answer.status, 200);
    assert!(answer.header("content-type").starts_with("text/plain"));
    let text = answer.body.text();
    let requests =
        |class| metrics::sum(&text, "weir_requests_total", &[("listener", "inbound"), ("code_class", class)]);
    assert_eq!((requests("2xx"), requests("4xx"), requests("5xx")), (3.0, 2.0, 0.0));
    let decided =
        |outcome| metrics::sum(&text, "weir_decisions_total", &[("rule", "per-path"), ("outcome", outcome)]);
    assert_eq!((decided("allowed"), decided("limited")), (3.0, 2.0));
    assert_eq!(metrics::sum(&text, "weir_limiter_keys", &[("rule", "per-path")]), 1.0);
    assert_eq!(metrics::sum(&text, "weir_request_duration_seconds_count", &[]), 5.0);
    assert!(metrics::has(&text, "weir_config_reloads_total"));
    assert!(text.lines().any(|line| line.starts_with("weir_upstream_")), "{text}");
}

#[test]
fn metrics_are_well_formed() {
    let origin = Origin::hello();
    let weir = start_with_traffic(&origin);
    for path in ["/metrics", "/stats/prometheus"] {
        let text = weir.admin_get(path).body.text();
        let mut types = std::collections::HashSet::new();
        for line in text.lines().filter(|line| !line.is_empty()) {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let name = rest.split(' ').next().unwrap();
                assert!(types.insert(name.to_owned()), "{path}: {name} has its type twice");
            } else if !line.starts_with('#') {
                let (_, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{path}: {line}"));
                assert!(value.parse::<f64>().is_ok(), "{path}: {line}");
            }
        }
        assert!(!types.is_empty(), "{path}: no types");
    }
}

#[test]
fn client_input_does_not_add_time_series() {
    let weir = Weir::start(&config("echo", "rules: [{ name: a, key: [path], limit: 3/d }]"));
    let mut client = Client::connect(weir.address());
    client.get("/warm-up");
    let lines = || weir.admin_get("/metrics").body.text().lines().count();
    let before = lines();
    for n in 0..100 {
        client.fetch(&Request::new(&format!("METHOD{n}"), &format!("/{n}")).host(&format!("host-{n}.test")));
    }
    assert_eq!(lines(), before);
}

#[test]
fn stats_have_envoys_names() {
    let origin = Origin::hello();
    let weir = start_with_traffic(&origin);
    let text = weir.admin_get("/stats").body.text();
    assert!(text.lines().all(|line| line.is_empty() || line.contains(": ")), "{text}");
    for name in ["server.live", "server.uptime", "downstream_rq_2xx", "downstream_rq_4xx", "upstream_rq_2xx"]
    {
        assert!(text.contains(name), "no {name} in {text}");
    }
    assert!(text.contains("per-path.http_local_rate_limit.rate_limited: 2"), "{text}");
    let text = weir.admin_get("/stats/prometheus").body.text();
    assert!(text.lines().any(|line| line.starts_with("envoy_")), "{text}");
}

#[test]
fn active_gauges_return_to_zero_after_aborted_requests() {
    let origin = Origin::start(|turn| {
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf ")?;
        turn.wire.drain();
        Ok(crate::support::AfterResponse::Close)
    });
    let rules = "rules: [{ name: a, match: { path: /limited }, key: [], limit: 1/d }]";
    let weir = Weir::start(&config(origin.address(), rules));
    let heads =
        ["GET / HTTP/1.1\r\nhost: a\r\n\r\n", "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nhalf"];
    for head in heads.into_iter().chain(["GET /limited HTTP/1.1\r\nhost: a\r\n\r\n"; 3]).cycle().take(30) {
        let mut client = Client::connect(weir.address());
        client.send(head);
        client.wire.read_head().unwrap();
    }
    let active = [
        "http.inbound.downstream_rq_active",
        "http.inbound.downstream_cx_active",
        "cluster.upstream.upstream_rq_active",
    ];
    until_true("no active connections", || {
        let text = weir.admin_get("/stats").body.text();
        active.iter().all(|name| text.lines().any(|line| line == format!("{name}: 0")))
    });
}

#[test]
fn clusters_and_listeners_endpoints_show_addresses() {
    let origin = Origin::hello();
    let weir = start_with_traffic(&origin);
    let clusters = weir.admin_get("/clusters").body.text();
    assert!(clusters.contains(&origin.address().to_string()), "{clusters}");
    let listeners = weir.admin_get("/listeners").body.text();
    assert!(listeners.contains("inbound") && listeners.contains(&weir.address().to_string()), "{listeners}");
    assert_eq!(weir.admin_get("/certs").status, 200);
}

#[test]
fn limits_endpoint_shows_each_rule() {
    let origin = Origin::hello();
    let weir = start_with_traffic(&origin);
    let limits = weir.admin_get("/limits").body.text();
    assert!(limits.contains("per-path") && limits.contains("3/d"), "{limits}");
}

#[test]
fn root_path_serves_html_page() {
    let weir = Weir::start(&config("echo", "rules: [{ name: per-path, key: [path], limit: 3/d }]"));
    let answer = weir.admin_get("/");
    assert_eq!(answer.status, 200);
    assert!(answer.header("content-type").starts_with("text/html"));
    assert!(answer.body.text().to_ascii_lowercase().contains("weir"));
    let policy = answer.header("content-security-policy");
    assert!(
        policy.starts_with("default-src 'none'; script-src 'sha256-") && !policy.contains("unsafe"),
        "{policy}"
    );
}

#[test]
fn root_path_serves_the_list_of_endpoints_to_terminal_clients() {
    let weir = Weir::start(&config("echo", ""));
    let admin = weir.admin_address("full");
    for (name, value) in [("accept", "text/plain"), ("user-agent", "curl/8.5.0")] {
        let answer = fetch(admin, &Request::get("/").host("localhost").header(name, value));
        assert!(answer.header("content-type").starts_with("text/plain"), "{name}");
        assert!(answer.body.text().contains("/limits: "), "{}", answer.body.text());
    }
}

#[test]
fn the_log_level_can_be_changed() {
    let weir = Weir::start(&config("echo", ""));
    assert_eq!(weir.admin_post("/logging?level=debug").status, 200);
    assert_eq!(weir.admin_post("/logging?level=noisy").status, 400);
}

#[test]
fn log_levels_of_crates_are_set_by_the_names_of_their_modules() {
    let weir = Weir::start(&config("echo", ""));
    assert_eq!(weir.admin_post("/logging?level=off").status, 200);
    let levels = weir.admin_post("/logging?paths=weir::config:info,weir::store::redis:debug");
    let shown = "active loggers:\n  default: off\n  weir_config: info\n  weir_store::redis: debug\n";
    assert_eq!((levels.status, levels.body.text()), (200, shown.into()));
    weir.reload(&config("echo", "rules: [{ name: all, key: [], limit: 3/d }]"));
    until_true("a line of the crate", || weir.log().iter().any(|line| line.contains("weir_config::reload")));
}

#[test]
fn a_log_target_that_no_line_has_is_rejected_with_a_list() {
    let weir = Weir::start(&config("echo", ""));
    for query in ["paths=weir::stor:debug", "paths=weir_store::redi:debug", "upstream=debug"] {
        let rejected = weir.admin_post(&format!("/logging?{query}"));
        let text = rejected.body.text();
        assert_eq!(rejected.status, 400, "{query}: {text}");
        assert!(text.contains("unknown log target") && text.contains("weir_store::redis"), "{text}");
    }
    assert_eq!(weir.admin_post("/logging").body.text(), "active loggers:\n  default: info\n");
}

#[test]
fn the_probes_address_serves_probes_only() {
    let probes = "{ address: 127.0.0.1:0, probes: 127.0.0.1:0 }";
    let yaml =
        config("echo", "").replace("{ address: 127.0.0.1:0 }\nupstream", &format!("{probes}\nupstream"));
    assert!(yaml.contains("probes"), "{yaml}");
    let mut weir = Weir::start(&yaml);
    let address = weir.admin_address("probes");
    assert_eq!(get(address, "/ready").status, 200);
    assert!(metrics::has(&get(address, "/metrics").body.text(), "weir_config_reloads_total"));
    for path in ["/", "/server_info", "/config_dump", "/limits", "/stats"] {
        assert_eq!(get(address, path).status, 404, "{path}");
    }
    for path in POST_ENDPOINTS {
        let status = fetch(address, &Request::post(path, "")).status;
        assert!([404, 405].contains(&status), "{path}: {status}");
    }
    assert_eq!(weir.admin_get("/ready").status, 200);
    assert!(weir.is_running());
}

#[test]
fn config_dump_redacts_url_credentials() {
    let rules = "rules: [{ name: per-path, key: [path], limit: 3/d, on_limit: { headers: { x-help: \"https://user:hunter2@example.com/\" } } }]";
    let weir = Weir::start(&config("echo", rules));
    let answer = weir.admin_get("/config_dump");
    assert_eq!(answer.status, 200);
    let dump = answer.body.text();
    assert!(dump.contains("per-path") && dump.contains("x-help"), "{dump}");
    assert!(!dump.contains("hunter2"), "{dump}");
}

#[test]
fn cross_origin_post_is_rejected() {
    // A web page in an operator's browser can make it POST to the loopback interface. With DNS rebinding the host is
    // that of the page.
    let mut weir = Weir::start(&config("echo", ""));
    let foreign =
        Request::post("/quitquitquit", "").host("localhost").header("origin", "https://evil.example");
    let status = fetch(weir.admin_address("full"), &foreign).status;
    assert!([400, 403].contains(&status), "{status}");
    assert!(weir.is_running());
}

/// With DNS rebinding, a foreign page could read responses of the admin port under its own host name.
#[test]
fn unknown_host_is_rejected_against_dns_rebinding() {
    let text = config("echo", "").replace(
        "admin: { address: 127.0.0.1:0 }",
        "admin: { address: 127.0.0.1:0, probes: 127.0.0.1:0, hosts: weir.internal }",
    );
    let weir = Weir::start(&text);
    let full = weir.admin_address("full");
    for path in ["/", "/help", "/config_dump", "/limits", "/stats", "/clusters", "/listeners", "/server_info"]
    {
        for host in ["evil.example", "evil.example:9901", "127.0.0.1.evil.example"] {
            let answer = fetch(full, &Request::get(path).host(host));
            assert_eq!(answer.status, 403, "{path} for {host}");
            assert!(answer.body.text().contains("admin.hosts"), "{}", answer.body.text());
        }
        for host in ["127.0.0.1", "localhost:9901", "[::1]:9901", "weir.internal", "Weir.Internal:9901"] {
            assert_eq!(fetch(full, &Request::get(path).host(host)).status, 200, "{path} for {host}");
        }
    }
    let posted = fetch(full, &Request::post("/healthcheck/fail", "").host("evil.example"));
    assert_eq!(posted.status, 403);
    for surface in [full, weir.admin_address("probes")] {
        for path in ["/ready", "/metrics"] {
            let scraped = fetch(surface, &Request::get(path).host("weir.default.svc"));
            assert_eq!(scraped.status, 200, "{path} is served for any host");
        }
    }
}

#[test]
fn idle_connections_do_not_block_probes() {
    let weir = Weir::start(&config("echo", ""));
    let admin = weir.admin_address("full");
    let silent: Vec<_> = (0..600).map(|_| Client::connect(admin)).collect();
    for _ in 0..5 {
        let mut probe = Client::connect(admin);
        probe.send(Request::get("/ready").to_bytes());
        let answer = within(Duration::from_secs(3), || probe.try_read_response("GET").ok());
        assert_eq!(answer.map(|answer| answer.status), Some(200));
    }
    drop(silent);
}

#[test]
fn garbage_bytes_only_close_the_connection() {
    let weir = Weir::start(&config("echo", ""));
    let mut client = Client::connect(weir.admin_address("full"));
    let _ = client.wire.send(b"\x80\x81\xff\xfe\r\n\r\n");
    client.wire.drain();
    assert!(client.is_closed());
    assert_eq!(weir.admin_get("/ready").status, 200);
}

#[test]
fn probes_respond_while_workers_are_busy() {
    let origin = Origin::start(|turn| {
        turn.wire.drain();
        Ok(crate::support::AfterResponse::Close)
    });
    let weir = Weir::start(&config(origin.address(), ""));
    let waiting: Vec<_> = (0..200).map(|_| Client::connect(weir.address())).collect();
    for client in &waiting {
        client.send(Request::get("/").to_bytes());
    }
    assert_eq!(weir.admin_get("/ready").status, 200);
}

#[test]
fn config_dump_redacts_header_values() {
    let rules = "rules:\n  - { name: a, match: { header: { x-origin-verify: s3cr3t, x-b: \"*\" } }, \
                 except: { header: { x-probe: s3cr3t, x-c: \"!present\" } }, limit: 1/s, \
                 on_limit: { headers: { x-support-key: s3cr3t, x-rule: \"{rule}\" } } }";
    let weir = Weir::start(&config("echo", rules));
    let dump = weir.admin_get("/config_dump").body.text();
    assert!(!dump.contains("s3cr3t"), "{dump}");
    for shown in ["x-origin-verify", "x-b: '*'", "x-c: '!present'", "x-support-key", "{rule}"] {
        assert!(dump.contains(shown), "{shown} in {dump}");
    }
}

#[test]
fn request_that_two_rules_reject_is_counted_once() {
    let rules = "rules:
- { name: one, key: [], limit: 2/d }
- { name: two, key: [], limit: 2/d }
- { name: try, key: [], limit: 1/d, throttle: shadow }
- { name: exempt, match: { path: /free }, action: allow }
- { name: no, match: { path: /no }, action: deny }
";
    let weir = Weir::start(&config("echo", rules));
    for (path, status) in
        [("/", 200), ("/", 200), ("/", 429), ("/", 429), ("/", 429), ("/free", 200), ("/no", 403)]
    {
        assert_eq!(get(weir.address(), path).status, status, "{path}");
    }
    let mut malformed = Client::connect(weir.address());
    malformed.send(b"G(T / HTTP/1.1\r\n\r\n");
    assert_eq!(malformed.read_response("GET").status, 400);
    let count = |outcome| weir.metric("weir_request_outcomes_total", &[("outcome", outcome)]);
    until_true("the outcomes", || weir.metric("weir_request_outcomes_total", &[]) == 8.0);
    let counts = ["allowed", "shadow", "limited", "exempt", "denied", "malformed"].map(count);
    assert_eq!(counts, [1.0, 1.0, 3.0, 1.0, 1.0, 1.0]);
    let by_rule = |rule| weir.metric("weir_decisions_total", &[("rule", rule), ("outcome", "limited")]);
    assert_eq!((by_rule("one"), by_rule("two")), (3.0, 3.0), "rules are still counted one by one");
    let requests = &weir.admin_json("/events?once")["requests"];
    assert_eq!(
        (&requests["total"], &requests["by_outcome"]["limited"]),
        (&8.into(), &3.into()),
        "{requests}"
    );
}
