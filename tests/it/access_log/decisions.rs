//! What the access log says about the decision of each request.

use serde_json::{Value, json};

use super::AccessLogFile;
use crate::support::{Client, Request, Weir, config, wait};

const EVERY_OUTCOME: &str = "rules:
- { name: exempt, match: { path: /exempt }, action: allow }
- { name: denied, match: { path: /denied }, action: deny }
- { name: limited, match: { path: /limited }, key: [client_ip], limit: 1/d }
- { name: banned, match: { path: /banned }, key: [client_ip], limit: 1/d, on_limit: { ban: 10m } }
- { name: soft, match: { path: /soft }, key: [client_ip], limit: 1/d, throttle: soft 100% }
- { name: delayed, match: { path: /delayed }, key: [client_ip], limit: 2/s, burst: 1, throttle: delay 5s }
- { name: shadow, match: { path: /shadow }, key: [client_ip], limit: 1/d, throttle: shadow }
- { name: all, key: [client_ip], limit: 1000/d }
";

/// Starts a proxy with a log in JSON; `settings` are further keys of `access_log`.
fn start(log: &AccessLogFile, settings: &str, rest: &str) -> Weir {
    let log = format!("access_log: {{ path: {}, format: json{settings} }}\n", log.path.display());
    Weir::start(&config("echo", &(log + rest)))
}

fn fetch_all(weir: &Weir, targets: &[&str]) {
    let mut client = Client::connect(weir.address());
    targets.iter().for_each(|target| drop(client.get(target)));
}

fn json_lines(log: &AccessLogFile, count: usize) -> Vec<Value> {
    log.lines(count).iter().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn every_outcome_is_logged_with_its_rule() {
    let log = AccessLogFile::new();
    let weir = start(&log, "", EVERY_OUTCOME);
    let targets = [
        "/free", "/exempt", "/denied", "/limited", "/limited", "/banned", "/banned", "/banned", "/soft",
        "/soft", "/delayed", "/delayed", "/shadow", "/shadow",
    ];
    fetch_all(&weir, &targets);
    let lines = json_lines(&log, targets.len());
    let of =
        |line: &Value| format!("{} {}", line["rule"].as_str().unwrap(), line["outcome"].as_str().unwrap());
    assert_eq!(
        lines.iter().map(of).collect::<Vec<_>>(),
        [
            "all allowed",
            "exempt exempt",
            "denied denied",
            "limited allowed",
            "limited limited",
            "banned allowed",
            "banned limited",
            "banned banned",
            "soft allowed",
            "soft soft",
            "delayed allowed",
            "delayed delayed",
            "shadow allowed",
            "shadow shadow",
        ]
    );
    assert_eq!((&lines[0]["limit"], &lines[0]["remaining"]), (&json!(1000), &json!(999)));
    assert_eq!((&lines[4]["limit"], &lines[4]["remaining"]), (&json!(1), &json!(0)));
    assert_eq!(lines[4]["key"], "client_ip=127.0.0.1");
    assert!(lines[11]["delay_ms"].as_u64().is_some_and(|delay| (1..=500).contains(&delay)), "{}", lines[11]);
    assert!(lines[10]["delay_ms"].is_null());
    assert_eq!((&lines[13]["shadow_rules"], &lines[12]["shadow_rules"]), (&json!(["shadow"]), &json!([])));
}

#[test]
fn request_without_a_rule_has_no_decision() {
    let log = AccessLogFile::new();
    let weir = start(&log, "", "");
    fetch_all(&weir, &["/"]);
    let line = &json_lines(&log, 1)[0];
    for key in ["rule", "outcome", "key", "limit", "remaining", "delay_ms"] {
        assert!(line.get(key).is_some_and(Value::is_null), "{key} in {line}");
    }
}

#[test]
fn credentials_in_keys_are_hashed_unless_log_keys_says_otherwise() {
    let key_with = |log_keys: &str| {
        let log = AccessLogFile::new();
        let rules = "rules: [{ name: r, key: [client_ip, { header: x-api-key }], limit: 9/d }]\n";
        let weir = start(&log, "", &format!("{log_keys}\n{rules}"));
        let mut client = Client::connect(weir.address());
        client.fetch(&Request::get("/").header("x-api-key", "s3cret"));
        let top = weir.admin_json("/limits/top");
        let shown = top["rules"][0]["keys"][0]["key"].as_str().unwrap().to_owned();
        (json_lines(&log, 1)[0]["key"].as_str().map(str::to_owned), shown)
    };
    let (logged, shown) = key_with("");
    assert_eq!(logged.as_deref(), Some(&*shown));
    assert!(
        shown.starts_with("client_ip=127.0.0.1, header.x-api-key=#") && !shown.contains("s3cret"),
        "{shown}"
    );
    let all = "client_ip=127.0.0.1, header.x-api-key=s3cret".to_owned();
    assert_eq!(key_with("log_keys: value"), (Some(all.clone()), all));
    let (logged, shown) = key_with("log_keys: hash");
    assert!(!shown.contains("127.0.0.1") && !shown.contains("s3cret") && logged == Some(shown));
    assert_eq!(key_with("log_keys: off"), (None, "hidden".to_owned()));
}

#[test]
fn query_parameters_of_hidden_keys_are_not_in_the_logged_path() {
    let path_with = |log_keys: &str| {
        let log = AccessLogFile::new();
        let rules = "rules: [{ name: r, key: [{ query: api_key }], limit: 9/d }]\n";
        let weir = start(&log, "", &format!("{log_keys}\n{rules}"));
        fetch_all(&weir, &["/a?api_key=s3cret&q=1"]);
        json_lines(&log, 1)[0]["path"].as_str().unwrap().to_owned()
    };
    for log_keys in ["log_keys: hash", "log_keys: off"] {
        assert_eq!(path_with(log_keys), "/a?api_key=-&q=1", "{log_keys}");
    }
    for log_keys in ["", "log_keys: value"] {
        assert_eq!(path_with(log_keys), "/a?api_key=s3cret&q=1", "{log_keys}");
    }
}

#[test]
fn only_selects_limited_requests_and_errors() {
    let log = AccessLogFile::new();
    let weir = start(&log, ", only: [limited, errors]", EVERY_OUTCOME);
    fetch_all(
        &weir,
        &["/free", "/exempt", "/limited", "/limited", "/soft", "/shadow", "/shadow", "/free", "/denied"],
    );
    let outcomes: Vec<_> = json_lines(&log, 3).iter().map(|line| line["outcome"].clone()).collect();
    assert_eq!(outcomes, ["limited", "shadow", "denied"]);
}

#[test]
fn sample_logs_about_its_share() {
    const REQUESTS: usize = 2000;
    let log = AccessLogFile::new();
    let mut weir = start(&log, ", sample: 25%", "");
    fetch_all(&weir, &["/"; REQUESTS]);
    weir.terminate();
    weir.wait_exit();
    let logged = std::fs::read_to_string(&log.path).unwrap().lines().count();
    // Binomial with a standard deviation of 19.4; ten of them make a false alarm all but impossible.
    assert!((306..=694).contains(&logged), "{logged} of {REQUESTS}");
}

#[test]
fn custom_format_writes_envoys_and_own_operators() {
    let log = AccessLogFile::new();
    let format = r#""%REQ(:METHOD)% %REQ(:PATH)% %RESPONSE_CODE% %RESPONSE_FLAGS% %REQ(X-TENANT)% %WEIR_RULE% %WEIR_OUTCOME% %WEIR_KEY% %WEIR_REMAINING%""#;
    let settings = format!("access_log: {{ path: {}, format: {format} }}\n", log.path.display());
    let weir = Weir::start(&config("echo", &(settings + EVERY_OUTCOME)));
    let mut client = Client::connect(weir.address());
    for _ in 0..2 {
        client.fetch(&Request::get("/limited").header("x-tenant", "acme"));
    }
    assert_eq!(
        log.lines(2),
        [
            "GET /limited 200 - acme limited allowed client_ip=127.0.0.1 0",
            "GET /limited 429 RL acme limited limited client_ip=127.0.0.1 0"
        ]
    );
}

#[test]
fn trace_level_logs_each_decision() {
    let weir = Weir::start(&config("echo", EVERY_OUTCOME));
    assert_eq!(weir.admin_post("/logging?paths=weir::decision:trace").status, 200);
    fetch_all(&weir, &["/limited", "/limited"]);
    let decision = wait::until("the trace", || {
        let is_rejection = |line: &&Value| line["target"] == "weir::decision" && line["outcome"] == "limited";
        let lines: Vec<Value> =
            weir.log().iter().filter_map(|line| serde_json::from_str(line).ok()).collect();
        lines.iter().find(is_rejection).cloned()
    });
    for (key, expected) in
        [("method", "GET"), ("path", "/limited"), ("rule", "limited"), ("key", "client_ip=127.0.0.1")]
    {
        assert_eq!(decision[key], expected, "{decision}");
    }
    assert!(
        decision["remaining"] == 0 && decision["retry_after"].as_f64().is_some_and(|wait| wait > 1.0),
        "{decision}"
    );
    assert_eq!(weir.admin_post("/logging?level=info").status, 200);
    let before = weir.log().len();
    fetch_all(&weir, &["/limited"]);
    assert!(!weir.log()[before..].iter().any(|line| line.contains("weir::decision")));
}
