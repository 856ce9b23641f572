//! Bans, and rejected requests that are charged.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;

use super::{decisions, start_with_rules, statuses};
use crate::support::{AfterResponse, Client, Origin, Request, Response, Weir, config, fetch, get, wait};

#[test]
fn limited_client_is_banned_for_the_full_time() {
    let origin = Origin::hello();
    let weir = start_with_rules(
        &origin,
        &["{ name: login, key: { header: x-id }, limit: 5/s, burst: 1, on_limit: { ban: 10m } }"],
    );
    let ask = |id: &str| fetch(weir.address(), &Request::get("/").header("x-id", id));
    assert_eq!(ask("a").status, 200);
    let refused = ask("a");
    assert_eq!((refused.status, refused.header("retry-after")), (429, "600"));
    // The limit has room again long before the ban ends.
    wait::pause(Duration::from_millis(1100));
    let banned = ask("a");
    assert_eq!(banned.status, 429);
    let rest = banned.numeric_header("retry-after");
    assert!((1..=599).contains(&rest), "{rest}");
    assert_eq!(ask("b").status, 200, "other clients are not banned");
    assert_eq!((decisions(&weir, "login", "limited"), decisions(&weir, "login", "banned")), (1.0, 1.0));
}

#[test]
fn a_ban_ends_and_the_next_is_longer() {
    let origin = Origin::hello();
    let weir =
        start_with_rules(&origin, &["{ name: q, key: [], limit: 20/s, burst: 1, on_limit: { ban: 1s } }"]);
    let banned_for = || {
        wait::until("a rejection by the limit", || {
            let before = decisions(&weir, "q", "limited");
            let answer = get(weir.address(), "/");
            (decisions(&weir, "q", "limited") > before).then(|| answer.numeric_header("retry-after"))
        })
    };
    assert_eq!(banned_for(), 1);
    assert_eq!(banned_for(), 2);
}

#[test]
fn a_ban_outlives_a_reload() {
    let origin = Origin::hello();
    let rule =
        |ban: &str| format!("{{ name: q, key: [], limit: 1/s, burst: 1, on_limit: {{ ban: {ban} }} }}");
    let weir = start_with_rules(&origin, &[&rule("1h")]);
    assert_eq!(statuses(&weir, 2), [200, 429]);
    weir.reload(&super::config_with_rules(&origin, &[&rule("30m")]));
    wait::pause(Duration::from_millis(1100));
    assert!(get(weir.address(), "/").numeric_header("retry-after") > 1800);
}

#[test]
fn shadow_rule_does_not_ban() {
    let origin = Origin::hello();
    let weir = start_with_rules(
        &origin,
        &["{ name: q, key: [], limit: 1/h, throttle: shadow, on_limit: { ban: 10m } }"],
    );
    assert_eq!(statuses(&weir, 3), [200, 200, 200]);
    assert_eq!((decisions(&weir, "q", "shadow"), decisions(&weir, "q", "banned")), (2.0, 0.0));
}

#[test]
fn on_denied_charge_counts_rejected_requests() {
    let origin = Origin::hello();
    let rule = |charge: &str| {
        format!("{{ name: q, key: [], limit: 3/year, algorithm: fixed_window, on_denied: {charge} }}")
    };
    let weir = start_with_rules(&origin, &[&rule("charge")]);
    assert_eq!(statuses(&weir, 5), [200, 200, 200, 429, 429]);
    // Five units are used, which shows with a larger limit.
    weir.reload(&super::config_with_rules(&origin, &[&rule("free").replace("3/year", "6/year")]));
    assert_eq!(statuses(&weir, 2), [200, 429]);
}

#[test]
fn concurrent_requests_that_do_not_count_cause_no_ban() {
    let go = Arc::new(AtomicBool::new(false));
    let gate = Arc::clone(&go);
    let origin = Origin::start(move |turn| {
        wait::until_true("the test's signal", || gate.load(Ordering::SeqCst));
        let status = turn.head.word(1).trim_start_matches('/').to_owned();
        turn.send(format!("HTTP/1.1 {status} Told\r\ncontent-length: 0\r\n\r\n"))?;
        Ok(AfterResponse::Keep)
    });
    let rule = "limit: 2/year, algorithm: fixed_window, count: { response_status: 401 }";
    let rule = format!("{{ name: login, key: [], {rule}, on_denied: charge, on_limit: {{ ban: 1h }} }}");
    let weir = start_with_rules(&origin, &[&rule]);
    let mut clients: Vec<_> = (0..5).map(|_| Client::connect(weir.address())).collect();
    clients.iter().for_each(|client| client.send(Request::get("/200").to_bytes()));
    wait::until_true("three rejections", || decisions(&weir, "login", "limited") == 3.0);
    go.store(true, Ordering::SeqCst);
    clients.iter_mut().for_each(|client| drop(client.read_response("GET")));
    assert_eq!(get(weir.address(), "/200").numeric_header("x-ratelimit-remaining"), 2);
    let answers = ["/401", "/401", "/401", "/200"].map(|path| get(weir.address(), path).status);
    assert_eq!(answers, [401, 401, 429, 429]);
    assert_eq!((decisions(&weir, "login", "limited"), decisions(&weir, "login", "banned")), (4.0, 1.0));
}

/// Checks that every form of the limit headers says that nothing is left, and names the end of the ban.
fn assert_closed(response: &Response, least: u64) {
    let wait = response.numeric_header("retry-after");
    assert!(wait >= least, "{response:?}");
    assert_eq!(response.header("x-ratelimit-remaining"), "0", "{response:?}");
    assert_eq!(response.numeric_header("x-ratelimit-reset"), wait, "{response:?}");
    let ietf = response.header("ratelimit");
    assert!(ietf.contains(";r=0;") && ietf.contains(&format!(";t={wait}")), "{ietf}");
}

#[test]
fn banned_client_has_nothing_left_in_any_header_until_the_ban_ends() {
    let rules = "ietf_headers: true
access_log: { path: stderr, format: json }
rules:
- { name: by-rule, match: { path: /rule }, key: { header: x-id }, limit: 10/s, cost: { header: x-cost }, on_limit: { ban: 10m } }
- { name: one, match: { path: /one }, key: { header: x-id }, limit: 10/m }
- { name: two, match: { path: /two }, key: { header: x-id }, limits: [10/m, 100/h], counter: shared }
- { name: other, match: { path: /two }, key: { header: x-id }, limits: [10/m, 100/h], counter: shared }
";
    let weir = Weir::start(&config("echo", rules));
    let ask = |path: &str, cost: &str| {
        fetch(weir.address(), &Request::get(path).header("x-id", "a").header("x-cost", cost))
    };
    assert_eq!(ask("/rule", "2").status, 200);
    // The rejection that starts the ban has units left, as have those during the ban.
    for cost in ["9", "1"] {
        let banned = ask("/rule", cost);
        assert_eq!(banned.status, 429);
        assert_closed(&banned, 590);
    }
    for rule in ["one", "two"] {
        let path = format!("/{rule}");
        assert_eq!(ask(&path, "1").status, 200);
        let command = format!("/limits/ban?rule={rule}&key=header.x-id%3Da&for=20m");
        let done = weir.admin_post(&command);
        assert_eq!(done.status, 200, "{done:?}");
        let done: Value = serde_json::from_str(&done.body.text()).unwrap();
        assert_eq!(done["limits"][0]["remaining"], 0, "{done}");
        let banned = ask(&path, "1");
        assert_eq!(banned.status, 429);
        assert_closed(&banned, 1190);
        let explained = weir.admin_json(&format!("/explain?path={path}&header.x-id=a"));
        let rules = explained["rules"].as_array().unwrap();
        let limits = &rules.iter().find(|of| of["name"] == rule).unwrap()["limits"];
        let limit = limits.as_array().unwrap().iter().find(|limit| limit["role"] == "limit").unwrap();
        assert_eq!(limit["remaining"], 0, "{limit}");
        assert!(limit["reset_seconds"].as_f64().is_some_and(|reset| reset > 1190.0), "{limit}");
    }
}

#[test]
fn boosted_and_banned_keys_are_marked_among_the_heaviest() {
    let rules = "rules: [{ name: q, key: { header: x-id }, limit: 10/m }]";
    let weir = Weir::start(&config("echo", rules));
    let ask = || fetch(weir.address(), &Request::get("/").header("x-id", "a"));
    ask();
    let key = || weir.admin_json("/limits/top")["rules"][0]["keys"][0].clone();
    assert_eq!((&key()["boosted"], &key()["banned"]), (&false.into(), &false.into()));
    assert_eq!(weir.admin_post("/limits/boost?rule=q&key=header.x-id%3Da&factor=2&for=10m").status, 200);
    assert_eq!(key()["boosted"], true);
    assert!(ask().header("x-ratelimit-limit").starts_with("20, 20;w=60"));
    assert_eq!(weir.admin_post("/limits/ban?rule=q&key=header.x-id%3Da&for=10m").status, 200);
    assert_eq!(key()["banned"], true);
    let banned = ask();
    assert_eq!((banned.status, banned.header("x-ratelimit-remaining")), (429, "0"));
}
