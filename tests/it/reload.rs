//! Hot reload during traffic: counters are kept, and rejected configurations have no effect on clients.

mod edge_cases;
mod files;
mod folder;
mod listeners;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use crate::support::{Client, Origin, Request, Weir, config, fetch, get, metrics, wait};

/// Returns a rule with one counter per `x-key`.
fn rule_per_key(limit: &str) -> String {
    format!("rules: [{{ name: per-key, key: [{{ header: x-key }}], limit: {limit} }}]")
}

fn request_with_key(key: &str) -> Request {
    Request::get("/").header("x-key", key)
}

/// Starts a proxy whose key `used` has used this many units.
fn start_with_used_units(units: usize, rules: &str) -> Weir {
    let weir = Weir::start(&config("echo", rules));
    let mut client = Client::connect(weir.address());
    for _ in 0..units {
        assert_eq!(client.fetch(&request_with_key("used")).status, 200);
    }
    weir
}

#[test]
fn reloads_under_load_fail_no_request_and_retain_counters() {
    let rules = |n: u64| {
        format!(
            "{}\n  - {{ name: other, match: {{ path: /other }}, key: [], limit: {n}/d }}",
            "rules:\n  - { name: per-key, key: [{ header: x-key }], limit: 100/d }"
        )
    };
    let weir = Weir::start(&config("echo", &rules(1)));
    let mut client = Client::connect(weir.address());
    let spent = (0..101)
        .map(|_| client.fetch(&request_with_key("spent")).status)
        .filter(|status| *status == 200)
        .count();
    assert_eq!(spent, 100);
    let (done, served) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        for connection in 0..8 {
            let (done, served, address) = (&done, &served, weir.address());
            scope.spawn(move || {
                let mut client = Client::connect(address);
                for n in 0.. {
                    let (key, expected) = match connection {
                        0 | 1 => ("spent".to_owned(), 429),
                        _ => (format!("{connection}-{n}"), 200),
                    };
                    assert_eq!(
                        client.fetch(&request_with_key(&key)).status,
                        expected,
                        "request {n} with key {key}"
                    );
                    served.fetch_add(1, Ordering::Relaxed);
                    if done.load(Ordering::Relaxed) {
                        return;
                    }
                }
            });
        }
        let reloads = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for n in 2..22 {
                let before = served.load(Ordering::Relaxed);
                weir.reload(&config("echo", &rules(n)));
                wait::until_true("traffic", || served.load(Ordering::Relaxed) > before);
            }
        }));
        done.store(true, Ordering::Relaxed);
        reloads.unwrap();
    });
    let applied = weir.metric("weir_config_reloads_total", &[("outcome", "applied")]);
    assert!(applied >= 20.0, "{applied} reloads counted");
}

#[test]
fn raised_limit_keeps_used_units() {
    let weir = start_with_used_units(10, &rule_per_key("10/d"));
    assert_eq!(fetch(weir.address(), &request_with_key("used")).status, 429);
    weir.reload(&config("echo", &rule_per_key("100/d")));
    let answer = fetch(weir.address(), &request_with_key("used"));
    assert_eq!((answer.status, answer.header("x-ratelimit-remaining")), (200, "89"));
}

#[test]
fn lowered_limit_keeps_used_units() {
    let weir = start_with_used_units(10, &rule_per_key("100/d"));
    weir.reload(&config("echo", &rule_per_key("5/d")));
    assert_eq!(fetch(weir.address(), &request_with_key("used")).status, 429);
    assert_eq!(fetch(weir.address(), &request_with_key("fresh")).header("x-ratelimit-remaining"), "4");
}

#[test]
fn lowering_and_raising_a_limit_keeps_used_units() {
    let weir = start_with_used_units(10, &rule_per_key("20/d"));
    weir.reload(&config("echo", &rule_per_key("2/d")));
    weir.reload(&config("echo", &rule_per_key("20/d")));
    assert_eq!(fetch(weir.address(), &request_with_key("used")).header("x-ratelimit-remaining"), "9");
}

#[test]
fn raised_fixed_window_limit_keeps_used_units() {
    let rule = |limit: &str| {
        format!("rules: [{{ name: a, key: [{{ header: x-key }}], limit: {limit}, algorithm: fixed_window }}]")
    };
    let weir = start_with_used_units(10, &rule("10/year"));
    weir.reload(&config("echo", &rule("15/year")));
    assert_eq!(fetch(weir.address(), &request_with_key("used")).header("x-ratelimit-remaining"), "4");
}

#[test]
fn reordered_rule_keeps_its_counters() {
    let weir = start_with_used_units(10, &rule_per_key("10/d"));
    let other = "{ name: other, match: { path: /other }, key: [], limit: 1/d }";
    let rules = format!("rules: [{other}, {{ name: per-key, key: [{{ header: x-key }}], limit: 10/d }}]");
    weir.reload(&config("echo", &rules));
    assert_eq!(fetch(weir.address(), &request_with_key("used")).status, 429);
}

#[test]
fn renamed_rule_starts_with_new_counters() {
    let weir = start_with_used_units(10, &rule_per_key("10/d"));
    weir.reload(&config("echo", &rule_per_key("10/d").replace("per-key", "renamed")));
    assert_eq!(fetch(weir.address(), &request_with_key("used")).header("x-ratelimit-remaining"), "9");
}

#[test]
fn rules_are_added_and_removed_without_a_restart() {
    let weir = Weir::start(&config("echo", ""));
    let mut client = Client::connect(weir.address());
    assert_eq!(client.get("/").status, 200);
    weir.reload(&config("echo", "rules: [{ name: no, action: deny }]"));
    assert_eq!(client.get("/").status, 403, "applied on a connection from before the reload");
    assert_eq!(get(weir.address(), "/").status, 403);
    weir.reload(&config("echo", "rules: []"));
    assert_eq!(client.get("/").status, 200);
}

#[test]
fn a_reload_reaches_every_worker() {
    let weir = Weir::start(&config("echo", "workers: 4"));
    let mut clients: Vec<_> = (0..32).map(|_| Client::connect(weir.address())).collect();
    assert!(clients.iter_mut().all(|client| client.get("/").status == 200));
    weir.reload(&config("echo", "workers: 4\nrules: [{ name: no, action: deny }]"));
    let statuses: Vec<_> = clients.iter_mut().map(|client| client.get("/").status).collect();
    assert_eq!(statuses, [403; 32]);
}

#[test]
fn upstream_address_is_reloaded() {
    let (old, new) = (Origin::hello(), Origin::hello());
    let weir = Weir::start(&config(old.address(), ""));
    let mut client = Client::connect(weir.address());
    assert_eq!(client.get("/old").status, 200);
    weir.reload(&config(new.address(), ""));
    assert_eq!(client.get("/new").status, 200);
    assert_eq!((old.only_request().head.word(1), new.only_request().head.word(1)), ("/old", "/new"));
}

#[test]
fn upstream_timeout_is_reloaded() {
    let origin = Origin::start(|turn| {
        wait::pause(std::time::Duration::from_millis(1500));
        turn.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")?;
        Ok(crate::support::AfterResponse::Keep)
    });
    let weir = Weir::start(&config(origin.address(), ""));
    assert_eq!(get(weir.address(), "/").status, 200);
    let upstream = format!("{{ address: \"{}\", timeout: 100ms }}", origin.address());
    weir.reload(&crate::support::config_with(crate::support::LISTENER, &upstream, ""));
    assert_eq!(get(weir.address(), "/").status, 504);
}

#[test]
fn rejection_response_is_reloaded_and_the_counter_retained() {
    let weir = start_with_used_units(2, &rule_per_key("2/d"));
    assert_eq!(fetch(weir.address(), &request_with_key("used")).status, 429);
    weir.reload(&config("echo", &rule_per_key("2/d, on_limit: { status: 503, body: { text: another } }")));
    let answer = fetch(weir.address(), &request_with_key("used"));
    assert_eq!((answer.status, answer.body.text().as_str()), (503, "another"));
}

#[test]
fn client_ip_and_header_settings_are_reloaded() {
    let rules = "rules: [{ name: a, key: [client_ip], limit: 1/d }]";
    let weir = Weir::start(&config("echo", rules));
    let forwarded = |ip: &str| fetch(weir.address(), &Request::get("/").forwarded_for(ip));
    assert_eq!((forwarded("192.0.2.1").status, forwarded("192.0.2.2").status), (200, 429));
    let settings = "client_ip: { trusted_proxies: [127.0.0.1] }\nratelimit_headers: off\nietf_headers: true";
    weir.reload(&config("echo", &format!("{settings}\n{rules}")));
    let answer = forwarded("192.0.2.2");
    assert_eq!((answer.status, answer.head.get("x-ratelimit-limit")), (200, None));
    assert!(answer.head.get("ratelimit").is_some());
}

#[test]
fn invalid_configuration_is_rejected_and_reported() {
    let weir = start_with_used_units(10, &rule_per_key("10/d"));
    weir.assert_reload_rejected(&config("echo", &rule_per_key("10/fortnight")));
    assert_eq!(fetch(weir.address(), &request_with_key("used")).status, 429);
    assert_eq!(weir.admin_get("/ready").status, 200, "an invalid file does not affect readiness");
    for page in ["/server_info", "/limits"] {
        assert!(weir.admin_get(page).body.text().contains("fortnight"), "{page} does not show the problem");
    }
    wait::until_true("the problem in the log", || weir.log().iter().any(|line| line.contains("fortnight")));
    weir.reload(&config("echo", &rule_per_key("20/d")));
    assert_eq!(fetch(weir.address(), &request_with_key("used")).header("x-ratelimit-remaining"), "9");
    assert!(!weir.admin_get("/server_info").body.text().contains("fortnight"), "the problem is still shown");
}

#[test]
fn empty_or_incomplete_file_is_rejected() {
    let weir = start_with_used_units(10, &rule_per_key("10/d"));
    let whole = config("echo", &rule_per_key("10/d"));
    let without_rules =
        whole.lines().filter(|line| !line.starts_with("rules:")).collect::<Vec<_>>().join("\n");
    for yaml in ["", "\n", "# nothing\n", "{}", "[]", "listeners", &without_rules] {
        weir.assert_reload_rejected(yaml);
        assert_eq!(fetch(weir.address(), &request_with_key("used")).status, 429);
    }
}

#[test]
fn reload_metrics_exist_from_the_start() {
    let weir = Weir::start(&config("echo", ""));
    assert!(metrics::has(&weir.admin_get("/metrics").body.text(), "weir_config_reloads_total"));
    assert_eq!(weir.rejected_reloads(), 0.0);
}
