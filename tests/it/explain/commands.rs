//! `POST /limits/reset`, `boost`, `ban`, `unban` and `GET /limits/overrides`.

use serde_json::Value;

use super::{RULES, explain, status};
use crate::support::{Client, Request, Weir, config, wait};

const KEY: &str = "rule=per-ip&key=client_ip%3D203.0.113.7";

fn post(weir: &Weir, path: &str) -> Value {
    let response = weir.admin_post(path);
    assert_eq!(response.status, 200, "{path}: {}", response.body.text());
    serde_json::from_slice(&response.body.bytes).unwrap()
}

/// Returns how many of ten requests pass.
fn admitted(weir: &Weir, client: &str) -> usize {
    (0..10).filter(|_| status(weir, client) == 200).count()
}

#[test]
fn boost_raises_the_limit_of_one_key_until_it_ends() {
    let weir = Weir::start(&config("echo", RULES));
    assert_eq!(admitted(&weir, "203.0.113.7"), 3);
    let boosted = post(&weir, &format!("/limits/boost?{KEY}&factor=2&for=1h"));
    assert_eq!((&boosted["limits"][0]["limit"], &boosted["limits"][0]["used"]), (&"6/d".into(), &3.into()));
    let request = Request::get("/").forwarded_for("203.0.113.7");
    let response = Client::connect(weir.address()).fetch(&request);
    assert_eq!(response.header("x-ratelimit-limit"), "6, 6;w=86400;name=\"per-ip\"");
    assert_eq!((admitted(&weir, "203.0.113.7"), admitted(&weir, "203.0.113.8")), (2, 3));
    let rejected = Client::connect(weir.address()).fetch(&request);
    assert_eq!(
        (rejected.status, rejected.header("x-ratelimit-limit")),
        (429, "6, 6;w=86400;name=\"per-ip\"")
    );
    let explained = explain(&weir, "203.0.113.7");
    assert_eq!(explained["rules"][1]["overrides"][0]["change"], "factor 2", "{explained:#}");
    assert_eq!(weir.metric("weir_limit_overrides", &[("action", "boost")]), 1.0);
    let ended = post(&weir, &format!("/limits/boost?{KEY}&factor=1"));
    assert_eq!((&ended["was_in_force"], &ended["limits"][0]["limit"]), (&true.into(), &"3/d".into()));
    assert_eq!(admitted(&weir, "203.0.113.7"), 0, "units used stay used");
    assert_eq!(post(&weir, &format!("/limits/boost?{KEY}&factor=1"))["was_in_force"], false);
}

#[test]
fn ban_rejects_one_key_and_reset_frees_its_counter() {
    let weir = Weir::start(&config("echo", RULES));
    let banned = post(&weir, &format!("/limits/ban?{KEY}&for=10m"));
    assert_eq!(status(&weir, "203.0.113.8"), 200);
    let rejected = Client::connect(weir.address()).fetch(&Request::get("/").forwarded_for("203.0.113.7"));
    assert_eq!(rejected.status, 429);
    assert!(
        (1..=600).contains(&rejected.numeric_header("retry-after")),
        "{}",
        rejected.header("retry-after")
    );
    assert_eq!(weir.metric("weir_decisions_total", &[("rule", "per-ip"), ("outcome", "banned")]), 1.0);
    assert_eq!(explain(&weir, "203.0.113.7")["outcome"], "banned");
    let list = weir.admin_json("/limits/overrides");
    assert_eq!(list["overrides"][0]["key"], "client_ip=203.0.113.7");
    assert_eq!(list["overrides"][0]["fingerprint"], banned["fingerprint"]);
    // The fingerprint names the same key, across a reload too.
    weir.reload(&config("echo", &RULES.replace("limit: 3/d", "limit: 4/d")));
    assert_eq!(status(&weir, "203.0.113.7"), 429);
    let by_fingerprint = format!("rule=per-ip&fingerprint={}", banned["fingerprint"].as_str().unwrap());
    assert_eq!(post(&weir, &format!("/limits/unban?{by_fingerprint}"))["was_in_force"], true);
    assert_eq!(admitted(&weir, "203.0.113.7"), 4);
    assert_eq!(post(&weir, &format!("/limits/reset?{by_fingerprint}"))["counters_freed"], 1);
    assert_eq!(admitted(&weir, "203.0.113.7"), 4);
}

#[test]
fn reset_of_a_key_without_a_counter_has_a_note() {
    let weir = Weir::start(&config("echo", RULES));
    let unused = post(&weir, &format!("/limits/reset?{KEY}"));
    assert_eq!(unused["counters_freed"], 0);
    assert!(unused["notes"][0].as_str().unwrap().starts_with("there was no counter"), "{unused}");
    assert_eq!(status(&weir, "203.0.113.7"), 200);
    let used = post(&weir, &format!("/limits/reset?{KEY}"));
    assert_eq!((&used["counters_freed"], &used["notes"]), (&1.into(), &Value::Array(Vec::new())));
}

#[test]
fn override_ends_by_itself() {
    let weir = Weir::start(&config("echo", RULES));
    post(&weir, &format!("/limits/ban?{KEY}&for=300ms"));
    assert_eq!(status(&weir, "203.0.113.7"), 429);
    wait::until("the end of the ban", || (status(&weir, "203.0.113.7") == 200).then_some(()));
    assert_eq!(weir.admin_json("/limits/overrides")["overrides"], Value::Array(Vec::new()));
    assert_eq!(weir.metric("weir_limit_overrides", &[("action", "ban")]), 0.0);
}

#[test]
fn commands_reject_hostile_parameters_and_change_nothing() {
    let weir = Weir::start(&config("echo", RULES));
    for (path, expected, problem) in [
        ("/limits/ban", 400, "`rule` is missing"),
        ("/limits/ban?rule=per-up&key=x&for=1h", 404, "did you mean `per-ip`?"),
        ("/limits/ban?rule=health&for=1h", 400, "no limits"),
        ("/limits/ban?rule=per-ip&for=1h", 400, "key: expected a key of the form `client_ip=…`"),
        ("/limits/ban?rule=per-ip&key=client_ip%3Dx&for=1h", 400, "key: not a value of `client_ip`"),
        ("/limits/ban?rule=per-ip&fingerprint=zz&for=1h", 400, "fingerprint: not 32 hexadecimal digits"),
        (&format!("/limits/ban?{KEY}"), 400, "`for` is missing"),
        (&format!("/limits/ban?{KEY}&for=31d"), 400, "at most 30d"),
        (&format!("/limits/ban?{KEY}&for=0s"), 400, "more than 0s"),
        (&format!("/limits/ban?{KEY}&fr=1h"), 400, "unknown parameter `fr`"),
        (&format!("/limits/ban?{KEY}&{KEY}&for=1h"), 400, "`rule` occurs twice"),
        (&format!("/limits/boost?{KEY}&for=1h"), 400, "exactly one of `factor` and `limit`"),
        (&format!("/limits/boost?{KEY}&factor=0&for=1h"), 400, "factor: expected a number from 1"),
        (&format!("/limits/boost?{KEY}&factor=1001&for=1h"), 400, "factor: expected a number from 1"),
        (&format!("/limits/boost?{KEY}&limit=5/fortnight&for=1h"), 400, "limit: "),
        (&format!("/limits/reset?{KEY}&for=1h"), 400, "unknown parameter `for`"),
    ] {
        let response = weir.admin_post(path);
        assert_eq!(response.status, expected, "{path}: {}", response.body.text());
        assert!(response.body.text().contains(problem), "{path}: {}", response.body.text());
    }
    for path in ["/limits/ban", "/limits/boost", "/limits/reset", "/limits/unban"] {
        assert_eq!(weir.admin_get(path).status, 405, "{path}");
    }
    assert_eq!(weir.admin_post("/limits/overrides").status, 405);
    assert_eq!(admitted(&weir, "203.0.113.7"), 3);
    assert!(!weir.log().iter().any(|line| line.contains("weir::audit")));
}
