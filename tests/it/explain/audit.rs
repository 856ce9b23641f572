//! The audit log: commands, and rejected requests.

use serde_json::Value;

use super::{RULES, audit_lines, status};
use crate::support::{Request, Weir, config, fetch};

const KEY: &str = "rule=per-ip&key=client_ip%3D203.0.113.7";

fn post(weir: &Weir, path: &str) -> Value {
    let response = weir.admin_post(path);
    assert_eq!(response.status, 200, "{path}: {}", response.body.text());
    serde_json::from_slice(&response.body.bytes).unwrap_or_default()
}

#[test]
fn each_command_writes_one_audit_line_without_credentials() {
    let weir = Weir::start(&config("echo", RULES));
    post(&weir, &format!("/limits/ban?{KEY}&for=10m"));
    post(&weir, "/limits/reset?rule=posts&key=header.x-key%3Dtop-secret");
    let audit = audit_lines(&weir, 2);
    assert_eq!(audit.len(), 2);
    assert_eq!((&audit[0]["action"], &audit[0]["rule"]), (&"ban".into(), &"per-ip".into()), "{audit:#?}");
    assert_eq!(audit[0]["key"], "client_ip=203.0.113.7");
    assert!(audit[0]["peer"].as_str().unwrap().starts_with("127.0.0.1:"), "{audit:#?}");
    assert_eq!(audit[1]["action"], "reset");
    let hashed = audit[1]["key"].as_str().unwrap();
    assert!(hashed.starts_with("header.x-key=#"), "{hashed}");
    assert!(!weir.log().iter().any(|line| line.contains("top-secret")));
    post(&weir, "/limits/ban?rule=posts&key=header.x-key%3Dtop-secret&for=1m");
    assert!(!weir.admin_get("/limits/overrides").body.text().contains("top-secret"));
}

#[test]
fn audit_log_cannot_be_filtered_away_and_has_every_command() {
    let weir = Weir::start(&config("echo", RULES));
    post(&weir, "/logging?level=off");
    post(&weir, "/logging?paths=weir::audit:off,weir:off");
    post(&weir, "/logging");
    post(&weir, &format!("/limits/ban?{KEY}&for=10m"));
    assert_eq!(status(&weir, "203.0.113.7"), 429);
    post(&weir, "/healthcheck/fail");
    post(&weir, "/healthcheck/ok");
    post(&weir, "/drain_listeners?graceful");
    let audit = audit_lines(&weir, 6);
    let actions: Vec<_> = audit.iter().map(|line| line["action"].as_str().unwrap()).collect();
    assert_eq!(
        actions,
        ["/logging", "/logging", "ban", "/healthcheck/fail", "/healthcheck/ok", "/drain_listeners"]
    );
    assert_eq!(audit[0]["detail"], "off");
    assert!(audit.iter().all(|line| line["peer"].as_str().unwrap().starts_with("127.0.0.1:")));
}

#[test]
fn rejected_requests_are_in_the_audit_log_but_cannot_flood_it() {
    let weir = Weir::start(&config("echo", RULES));
    let admin = weir.admin_address("full");
    let evil = Request::post("/quitquitquit", "").host("localhost").header("origin", "http://evil.example");
    (0..50).for_each(|_| assert_eq!(fetch(admin, &evil).status, 403));
    let lines = audit_lines(&weir, 1);
    assert!(lines.len() < 10, "{}", lines.len());
    assert_eq!(
        (&lines[0]["level"], &lines[0]["path"], &lines[0]["reason"]),
        (&"WARN".into(), &"/quitquitquit".into(), &"web page of another origin".into())
    );
}
