//! What the numbers of limits count: tokens are shown as tokens.

use serde_json::{Value, json};

use super::{status, weir_explain};
use crate::support::weir::run;
use crate::support::{Weir, config};

const RULES: &str = "rules:
  - { name: tokens, key: [], limit: 100000/d, algorithm: fixed_window, in_flight: 9, cost: { tokens: openai, estimate: 250 } }
  - { name: weighted, key: [], limit: 500/min, burst: 500, cost: { response_json: { usage.in_tokens: 1, usage.out_tokens: 4 }, estimate: 2 } }
  - { name: bytes, key: [], limit: 1000/s, burst: 1000, cost: { request_bytes: 1B } }
  - { name: credits, key: [], limit: 40/d, algorithm: fixed_window, cost: { header: x-credits } }
  - { name: shared, key: [], limit: 40/d, algorithm: fixed_window, counter: budget }
  - { name: requests, key: [], limit: 40/d, algorithm: fixed_window }
  - { name: health, match: { path: /healthz }, action: allow }";

#[test]
fn limits_name_what_they_count() {
    let weir = Weir::start(&config("echo", RULES));
    let limits = weir.admin_json("/limits");
    let units = |document: &Value| {
        document["rules"].as_array().unwrap().iter().map(|rule| rule["unit"].clone()).collect::<Value>()
    };
    let expected = json!(["tokens", "tokens", "bytes", "units", "units", "requests", null]);
    assert_eq!(units(&limits), expected);
    assert!(limits["rules"][6].get("unit").is_none(), "a rule without a limit");
    assert_eq!(status(&weir, "203.0.113.7"), 200);
    let explained = weir.admin_json("/explain?path=/a");
    let tokens = explained["rules"][0]["limits"].as_array().unwrap();
    let of = |role: &str| tokens.iter().find(|limit| limit["role"] == role).unwrap();
    assert_eq!((&of("limit")["unit"], &of("limit")["cost"]), (&json!("tokens"), &json!(250)));
    assert_eq!(of("in_flight")["unit"], "requests");
}

#[test]
fn explanation_and_top_write_tokens_behind_numbers() {
    let weir = Weir::start(&config("echo", RULES));
    // The upstream states no tokens, so that the estimate is charged.
    assert_eq!(status(&weir, "203.0.113.7"), 200);
    let admin = weir.admin_address("full").to_string();
    let (_, text, note) = weir_explain(&["--admin", &admin, "GET", "/a"]);
    for line in [
        "limit 100000 tokens/d (fixed_window): used 250, remaining 99750 tokens, reset in",
        ", cost 250 tokens",
        "limit 40 units/d (fixed_window): used 1, remaining 39 units, reset in",
        "limit 40/d (fixed_window): used 1, remaining 39, reset in",
        "in_flight 9 (in_flight): used ",
    ] {
        assert!(text.contains(line), "no {line} in {text}{note}");
    }
    let shown = run(["top", "--once", "--admin", &admin]).stdout;
    let shown = str::from_utf8(&shown).unwrap();
    let heading = shown.lines().find(|line| line.starts_with("RULE")).unwrap();
    assert!(heading.contains("TOKENS/s"), "{shown}");
    for terms in ["100000 tokens/d", "500 tokens/min", "1000 bytes/s", "40 units/d", " 40/d "] {
        assert!(shown.contains(terms), "no {terms} in {shown}");
    }
}
